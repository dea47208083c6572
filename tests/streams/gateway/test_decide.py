"""`/v1/decide` over HTTP: what would run and why, without running, learning or changing anything."""

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx
import pytest

from agents.catalogue.models import ActionError
from agents.decider.preview import Preview
from agents.embedding import Vectors
from schemas.control import CatalogueEntry, PriceFactorEntry
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import encode
from streams.gateway.quotas import TARGETS
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import decider
from streams.services.previews import NotNow, Previews
from tests.support.cluster import Ask, InMemory, added, change, read, running, send, served, worker_of
from tests.support.encoders import DownFor
from tests.support.gateway_deployment import ASK, PLAIN, Deploy, GatewayDeployment


def decided(site: GatewayDeployment, key: str | None = None, **body: Any) -> httpx.Response:
    with site.http(key) as client:
        return client.post("/v1/decide", json={**PLAIN, **body})


def test_configurations_have_terms_before_and_after_learning(site: GatewayDeployment) -> None:
    fresh = decided(site).json()
    assert fresh["reason"] == "warm-up"
    assert fresh["candidates"] == len(fresh["configurations"]) == 56
    assert fresh["policy"]["version"] == 0
    with site.http() as client:
        for _ in range(16):  # until both models have been tried twice
            assert client.post(ASK, json={**PLAIN, "uniscale": {"reference": "5"}}).status_code == 200
    found = decided(site).json()
    assert found["reason"] == "policy"
    assert found["served"] is True
    assert found["choice"]["action"] == found["action"] == found["configurations"][0]["action"]
    assert found["runner_up"] == found["configurations"][1]
    assert found["drifted"] == {}, "nothing has moved"
    rests = sum(each["mean"] for each in found["grounds"])
    assert rests == pytest.approx(found["choice"]["predicted"]["correct"])
    scores = [each["score"] for each in found["configurations"]]
    assert scores == sorted(scores, reverse=True)
    for each in found["configurations"]:
        assert set(each["predicted"]) == {"correct", "score", "log_cost", "eflops"}
        assert each["width"] >= 0
    assert sum(each["propensity"] for each in found["configurations"]) == pytest.approx(1)


def test_the_choice_follows_objective_pin_and_models(site: GatewayDeployment) -> None:
    assert decided(site, model="small/4/4/2").json()["action"] == "small/4/4/2"
    assert decided(site, model="small/4/4/2").json()["reason"] == "pinned"
    models = {each["action"].split("/")[0] for each in decided(site, model="large").json()["configurations"]}
    assert models == {"large"}
    wide = decided(site, n=8).json()["configurations"]
    assert all(int(each["action"].split("/")[1]) * int(each["action"].split("/")[2]) >= 8 for each in wide)
    weights = {"weights": {"correct": 1, "score": 0, "cost": 0}}
    assert decided(site, uniscale=weights).json()["objective"]["weights"] == weights["weights"]
    assert decided(site, model="auto:quality-priority").json()["objective"]["name"] == "quality-priority"


def test_nothing_runs(site: GatewayDeployment) -> None:
    topics = [site.topics.query, site.topics.context, site.topics.decision]
    topics.append(site.topics.changelog("decider", "pending"))
    before = [len(site.records(topic)) for topic in topics]
    for _ in range(5):
        assert decided(site).status_code == 200
    assert [len(site.records(topic)) for topic in topics] == before


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "gpt-9"}, 404, "model"),
        ({"uniscale": {"objective": "none such"}}, 400, None),
        ({"uniscale": {"allowed_models": ["small", "none such"]}}, 400, "uniscale.allowed_models"),
        ({"messages": [{"role": "user", "content": "a " * 500_000}]}, 400, "messages"),
    ],
)
def test_what_would_be_refused_is_refused(
    site: GatewayDeployment, body: Any, status: int, param: str | None
) -> None:
    refused = decided(site, **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param), refused.text
    assert refused.json()["error"]["message"]


def test_an_aim_that_the_policy_cannot_take_is_refused(deploy: Deploy) -> None:
    refused = decided(deploy(policy="linucb"), uniscale={"accuracy": 0.9})
    assert refused.status_code == 400
    assert "accuracy" in refused.json()["error"]["message"]


def test_without_a_decider_the_error_says_what_to_do(deploy: Deploy) -> None:
    for fields, words in (
        ({"decider_port": 0}, "UNISCALE_DECIDER_URL"),
        ({"decider_url": "http://127.0.0.1:9"}, "http://127.0.0.1:9 does not answer"),
    ):
        answer = decided(deploy(("gateway",), **fields))
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert error["code"] == "no_decider"
        assert words in error["message"]
        assert "To fix this" in error["message"]
        assert answer.headers["x-should-retry"] == "false"


def test_the_first_decider_that_can_answer_does(deploy: Deploy, site: GatewayDeployment) -> None:
    urls = f"http://127.0.0.1:9, http://127.0.0.1:{site.settings.previews.port}/"
    assert decided(deploy(("gateway",), decider_url=urls)).status_code == 200


def test_previews_count_towards_a_keys_targets_per_minute(deploy: Deploy) -> None:
    guarded = deploy()
    key = guarded.key("shop")
    guarded.until(lambda: guarded.http(key).get("/v1/models").status_code == 200)
    asked = [decided(guarded, key, uniscale={"mean_cost": 1e9 + at}).status_code for at in range(TARGETS + 1)]
    assert asked == [200] * TARGETS + [429]


async def test_a_vector_is_kept_without_the_text_that_it_stands_for(in_memory: InMemory) -> None:
    async with running(in_memory()) as cluster:
        previews = Previews(worker_of(cluster, "decider").built)
        for _ in range(2):
            await previews.preview(Query(query_id="q", text="long " * 10_000))
        assert [len(key) for key in previews._vectors] == [32]


def test_a_page_of_another_site_gets_nothing_from_the_decider(site: GatewayDeployment) -> None:
    url = f"http://127.0.0.1:{site.settings.previews.port}/decide"
    query = encode(Query(query_id="q", text="?"))
    assert httpx.post(url, content=query, headers={"origin": "http://evil.example"}).status_code == 403
    assert httpx.post(url, content=query).status_code == 200
    assert httpx.post(url, content=b"\xff").status_code == 400
    assert httpx.post(url, content=b"x" * 5_000_000).status_code == 400
    assert httpx.get(url).status_code == 405


@pytest.mark.parametrize("policy", ["linucb", "thompson", "contextual"])
def test_a_log_with_previews_is_the_log_without_byte_by_byte(
    in_memory: InMemory, ask: Ask, policy: str
) -> None:
    def decided_all(cluster: Cluster, count: int) -> bool:
        return len(read(cluster, cluster.topics.decision, Decision)) == count and not cluster.busy

    async def log(previews: int) -> tuple[list[Any], bytes]:
        async with running(in_memory(policy=policy, snapshot_every=5)) as cluster:
            service = worker_of(cluster, "decider").built
            for number in range(8):
                send(cluster, ask(number))
                for _ in range(previews):
                    assert isinstance(await Previews(service).preview(ask(number + 1)), Preview)
                await cluster.until(partial(decided_all, cluster, number + 1))
            state = service.decider.policy.state()
            topics = {topic.name for topic in cluster.topics.declared(["mini"])} - {cluster.topics.heartbeat}
            records = [r for name in sorted(topics) for r in cluster.broker.records(name)]
        return [(r.topic, r.partition, r.offset, r.key, r.value) for r in records], state

    quiet, busy = run(log(0)), run(log(3))
    assert len(quiet[0]) > 50
    assert quiet == busy


async def test_a_decider_that_does_not_hold_the_policy_says_so(in_memory: InMemory, ask: Ask) -> None:
    async with running(in_memory()) as cluster:
        second = await cluster.start("decider", instance="1")
        with pytest.raises(NotNow, match="does not hold"):
            await Previews(second.built).preview(ask(0))


async def test_previews_ask_a_dead_encoder_once_without_the_lock(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = DownFor(0)
    monkeypatch.setattr(decider, "encoder_of", lambda settings: encoder)
    async with running(in_memory(), seed=3) as cluster:
        await served(cluster, ask(0))
        service = worker_of(cluster, "decider").built
        previews = Previews(service)
        await previews.preview(ask(5))  # its vector is kept
        asked: list[bool] = []

        def encode_down(texts: Sequence[str]) -> Vectors:
            asked.append(service.lock.locked())
            return DownFor.encode(encoder, texts)

        monkeypatch.setattr(encoder, "encode", encode_down)
        encoder.left = 1
        change(cluster, CatalogueEntry(name="small", op="remove"), added("mid"))
        await asyncio.sleep(1.0)

        async def models() -> set[str]:
            found = await previews.preview(ask(5))
            assert found.catalogue_version == 1
            return {each.action.partition("/")[0] for each in found.configurations}

        assert [await models() for _ in range(4)] == [{"large"}] * 4
        with pytest.raises(ActionError, match="not on offer yet"):
            await previews.preview(ask(5, pin_action="mid/1/1/1"))
        assert asked == [False]
        await asyncio.sleep(31.0)
        assert [await models() for _ in range(4)] == [{"large", "mid"}] * 4
        assert asked == [False, False]
        assert service.decider.seq == 2, "the learner has not taken it over"
        await served(cluster, ask(1))
        assert await models() == {"large", "mid"}
        assert (previews._copy, previews._changed) == (None, None), "no copy of the learner is kept"


async def test_previews_of_a_changed_catalogue_have_its_latest_prices(in_memory: InMemory, ask: Ask) -> None:
    async with running(in_memory(policy="contextual"), seed=3) as cluster:
        await served(cluster, ask(0))
        previews = Previews(worker_of(cluster, "decider").built)

        async def cost() -> float:
            """Return the log cost that is predicted for a configuration of `small`."""
            found = await previews.preview(ask(5))
            (of_small,) = (each for each in found.configurations if each.action == "small/1/1/1")
            assert of_small.predicted is not None
            return of_small.predicted.log_cost

        at_one = await cost()
        for factor in (2.0, 9.0):
            entry = PriceFactorEntry(name="small", factor=factor)
            cluster.produce(cluster.topics.control, entry.key.encode(), encode(entry))
            await asyncio.sleep(1.0)
            assert await cost() == pytest.approx(at_one + math.log(factor))


async def test_without_any_action_embedded_previews_say_not_now(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = DownFor(0)
    monkeypatch.setattr(decider, "encoder_of", lambda settings: encoder)
    async with running(in_memory(), seed=3) as cluster:
        await served(cluster, ask(0))
        previews = Previews(worker_of(cluster, "decider").built)
        await previews.preview(ask(5))
        encoder.left = 1 << 30
        change(
            cluster, added("mid"), *(CatalogueEntry(name=name, op="remove") for name in ("small", "large"))
        )
        await asyncio.sleep(1.0)
        with pytest.raises(NotNow, match="the encoder: mid: http://encoder: no connection"):
            await previews.preview(ask(5))
