"""`/v1/decide` over HTTP: what would run and why, without running, learning or changing anything."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agents.decider.preview import Preview
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import decode, encode
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.services.previews import NotNow, Previews
from streams.settings import Settings

QUESTION = [{"role": "user", "content": "What is 2 + 3, number 0?"}]


@pytest.fixture(scope="module")
def alive(house: Callable[..., Any]) -> Any:
    return house()


def decided(alive: Any, key: str | None = None, **body: Any) -> httpx.Response:
    with alive.http(key) as client:
        return client.post("/v1/decide", json={"model": "auto", "messages": QUESTION, **body})


def test_every_configuration_has_its_terms_before_the_first_query_and_after(alive: Any) -> None:
    fresh = decided(alive).json()
    assert fresh["reason"] == "warm-up"
    assert fresh["candidates"] == len(fresh["configurations"]) == 56
    assert fresh["policy"]["version"] == 0
    with alive.http() as client:
        for _ in range(16):  # until both models have been tried twice
            said = {"model": "auto", "messages": QUESTION, "uniscale": {"reference": "5"}}
            assert client.post("/v1/chat/completions", json=said).status_code == 200
    found = decided(alive).json()
    assert found["reason"] == "policy"
    assert found["served"] is True
    assert found["choice"]["action"] == found["action"] == found["configurations"][0]["action"]
    assert found["runner_up"] == found["configurations"][1]
    rests = sum(each["mean"] for each in found["grounds"])
    assert rests == pytest.approx(found["choice"]["predicted"]["correct"])
    scores = [each["score"] for each in found["configurations"]]
    assert scores == sorted(scores, reverse=True)
    for each in found["configurations"]:
        assert set(each["predicted"]) == {"correct", "score", "log_cost", "eflops"}
        assert each["width"] >= 0
    assert sum(each["propensity"] for each in found["configurations"]) == pytest.approx(1)


def test_the_choice_follows_objective_pin_and_models(alive: Any) -> None:
    assert decided(alive, model="small/4/4/2").json()["action"] == "small/4/4/2"
    assert decided(alive, model="small/4/4/2").json()["reason"] == "pinned"
    models = {each["action"].split("/")[0] for each in decided(alive, model="large").json()["configurations"]}
    assert models == {"large"}
    wide = decided(alive, n=8).json()["configurations"]
    assert all(int(each["action"].split("/")[1]) * int(each["action"].split("/")[2]) >= 8 for each in wide)
    weights = {"weights": {"correct": 1, "score": 0, "cost": 0}}
    assert decided(alive, uniscale=weights).json()["objective"]["weights"] == {
        "correct": 1,
        "score": 0,
        "cost": 0,
    }
    assert decided(alive, model="auto:quality-priority").json()["objective"]["name"] == "quality-priority"


def test_nothing_runs(alive: Any) -> None:
    topics = [alive.cluster.topics.query, alive.cluster.topics.context, alive.cluster.topics.decision]
    topics.append(alive.cluster.topics.changelog("decider", "pending"))
    before = [len(alive.records(topic)) for topic in topics]
    for _ in range(5):
        assert decided(alive).status_code == 200
    assert [len(alive.records(topic)) for topic in topics] == before


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "gpt-9"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"uniscale": {"objective": "none such"}}, 400, None),
        ({"uniscale": {"allowed_models": ["none such"]}}, 400, None),
        ({"uniscale": {"nonsense": 1}}, 400, "uniscale"),
        ({"tools": [{}]}, 400, "tools"),
        ({"messages": 7}, 400, "messages"),
    ],
)
def test_what_would_be_refused_is_refused(alive: Any, body: Any, status: int, param: str | None) -> None:
    refused = decided(alive, **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param), refused.text
    assert refused.json()["error"]["message"]


def test_an_aim_that_the_policy_cannot_take_is_refused(house: Callable[..., Any]) -> None:
    refused = decided(house(policy="linucb"), uniscale={"accuracy": 0.9})
    assert refused.status_code == 400
    assert "accuracy" in refused.json()["error"]["message"]


def test_without_a_decider_the_error_says_what_to_do(house: Callable[..., Any]) -> None:
    for fields, words in (
        ({"decider_port": 0}, "UNISCALE_DECIDER_URL"),
        ({"decider_url": "http://127.0.0.1:9"}, "http://127.0.0.1:9 does not answer"),
    ):
        answer = decided(house(("gateway",), **fields))
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert error["code"] == "no_decider"
        assert words in error["message"]
        assert "To fix this" in error["message"]
        assert answer.headers["x-should-retry"] == "false"


def test_the_first_decider_that_can_answer_does(house: Callable[..., Any], alive: Any) -> None:
    urls = f"http://127.0.0.1:9, http://127.0.0.1:{alive.settings.previews.port}/"
    assert decided(house(("gateway",), decider_url=urls)).status_code == 200


def test_a_page_of_another_site_gets_nothing_from_the_decider(alive: Any) -> None:
    url = f"http://127.0.0.1:{alive.settings.previews.port}/decide"
    query = encode(Query(query_id="q", text="?"))
    assert httpx.post(url, content=query, headers={"origin": "http://evil.example"}).status_code == 403
    assert httpx.post(url, content=query).status_code == 200
    assert httpx.post(url, content=b"\xff").status_code == 400
    assert httpx.post(url, content=b"x" * 5_000_000).status_code == 400
    assert httpx.get(url).status_code == 405


def test_keys_and_their_scopes(house: Callable[..., Any]) -> None:
    guarded = house()
    asker = guarded.key("shop", scopes=("ask",), allowed_models=("auto", "small"), allowed_objectives=())
    reader = guarded.key("eye", scopes=("read",))
    assert decided(guarded).status_code == 401
    assert decided(guarded, reader).status_code == 403
    assert decided(guarded, asker).status_code == 200
    assert decided(guarded, asker, model="large").status_code == 404
    assert decided(guarded, asker, uniscale={"objective": "quality-priority"}).status_code == 404
    for key, names in (
        (asker, ["auto", "small"]),
        (guarded.key("one", allowed_models=("large/4/4/2", "x")), ["large/4/4/2"]),
    ):
        with guarded.http(key) as client:
            assert [each["id"] for each in client.get("/v1/models").json()["data"]] == names
            assert client.get(f"/v1/models/{names[0]}").json()["id"] == names[0]
            assert client.get("/v1/models/large").status_code == 404
    guarded.revoke("shop")
    assert decided(guarded, asker).status_code == 401


@pytest.mark.parametrize("policy", ["linucb", "thompson", "contextual"])
def test_a_log_with_previews_is_the_log_without_byte_by_byte(
    in_memory: Callable[..., Settings], ask: Callable[..., Query], policy: str
) -> None:
    settings = in_memory(policy=policy, snapshot_every=5)

    async def log(previews: int) -> tuple[list[Any], bytes]:
        cluster = Cluster(settings, SERVICES)
        await cluster.up()
        (worker,) = (each for each in cluster.workers if each.service == "decider")
        asked = Previews(worker.built)
        done: set[str] = set()
        for number in range(8):
            query = ask(number)
            cluster.produce(cluster.topics.query, query.query_id.encode(), encode(query))
            done.add(query.query_id)
            for _ in range(previews):
                found = await asked.preview(ask(number + 1))
                assert isinstance(found, Preview)
            await cluster.until(
                lambda: {decode(r.value, Decision).query_id for r in cluster.broker.records(cluster.topics.decision)}
                >= done and not cluster.busy
            )  # fmt: skip
        state = worker.built.decider.policy.state()
        names = [
            topic.name
            for topic in cluster.topics.declared(["mini"])
            if topic.name != cluster.topics.heartbeat
        ]
        records = [
            (r.topic, r.partition, r.offset, r.key, r.value) for n in names for r in cluster.broker.records(n)
        ]
        await cluster.close()
        return records, state

    quiet, busy = run(log(0)), run(log(3))
    assert len(quiet[0]) > 50
    assert quiet == busy


def test_a_decider_that_does_not_hold_the_policy_says_so(
    in_memory: Callable[..., Settings], ask: Callable[..., Query]
) -> None:
    async def refused() -> None:
        cluster = Cluster(in_memory(), SERVICES)
        await cluster.up()
        second = await cluster.start("decider", instance="1")
        with pytest.raises(NotNow, match="does not hold"):
            await Previews(second.built).preview(ask(0))
        await cluster.close()

    run(refused())
