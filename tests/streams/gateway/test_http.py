"""What plain HTTP clients run into: methods, paths, other origins, old and taken ids, a broker that refuses."""

import asyncio
import gzip
import hashlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from agents.catalogue.action_space import uis_space
from agents.catalogue.file import load_catalogue
from schemas.answer import Answer
from schemas.control import Heartbeat, KeyEntry
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Origin, Query, QueryContext
from schemas.record import encode
from schemas.reward import Reward
from streams.gateway import index, routes, searches, submission
from streams.gateway.app import AddressTaken, OpenGateway, listen
from streams.gateway.service import GatewayService
from streams.local.broker import free_port
from streams.log.base import SendFailed
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES, admission
from streams.settings import Settings
from tests.support.cluster import WITH_GATEWAY, worker_of
from tests.support.gateway_deployment import ASK, PLAIN, QUESTION, Deploy, GatewayDeployment


def code(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text[:500]
    return str(answer.json()["error"]["code"])


def test_a_slash_at_the_end_changes_nothing(client: httpx.Client) -> None:
    assert client.post(f"{ASK}/", json=PLAIN).status_code == 200
    assert client.get("/v1/models/").json() == client.get("/v1/models").json()
    assert code(client.get("/v1/"), 404) == "unknown_url"


def test_a_wrong_method_names_the_right_ones(client: httpx.Client) -> None:
    answer = client.get(ASK)
    assert (code(answer, 405), answer.headers["allow"]) == ("method_not_allowed", "POST")
    assert client.delete("/v1/models").headers["allow"] == "GET, HEAD"
    for path in ("/v1/models", "/", "/health/live"):
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")


def test_a_wrong_base_url_is_named(client: httpx.Client) -> None:
    for path in ("/chat/completions", "/v1/v1/chat/completions"):
        answer = client.post(path, json=PLAIN)
        assert code(answer, 404) == "unknown_url"
        assert "did you mean /v1/chat/completions?" in answer.json()["error"]["message"]
    assert "mean" not in client.post("/v1/embeddings", json={}).json()["error"]["message"]
    assert "/v1/chat/completions" in client.post("/v1/completions", json={}).json()["error"]["message"]
    assert "GET /v1/models" in client.post(ASK, json={**PLAIN, "model": "gpt-9"}).json()["error"]["message"]


def test_pages_of_allowed_origins_may_call_and_others_may_not(client: httpx.Client) -> None:
    mine, evil = {"origin": "http://localhost:3000"}, {"origin": "http://evil.example"}
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, x-a"}
    asked = client.options(ASK, headers={**mine, **wanted})
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == mine["origin"]
    assert asked.headers["access-control-allow-headers"] == "authorization, x-a"
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in asked.headers
    for answer in (client.post(ASK, json=PLAIN, headers=mine), client.post(ASK, json={}, headers=mine)):
        assert answer.headers["access-control-allow-origin"] == mine["origin"]
        assert answer.headers["vary"] == "origin"
    assert code(client.options(ASK, headers={**evil, **wanted}), 403) == "host_not_allowed"
    refused = client.post(ASK, json=PLAIN, headers=evil)
    assert code(refused, 403) == "host_not_allowed"
    assert "access-control-allow-origin" not in refused.headers


def test_a_compressed_body_is_refused_by_name(client: httpx.Client) -> None:
    packed = gzip.compress(json.dumps(PLAIN).encode())
    answer = client.post(ASK, content=packed, headers={"content-encoding": "gzip"})
    assert (code(answer, 415), answer.json()["error"]["param"]) == (
        "unsupported_encoding",
        "content-encoding",
    )


def test_the_message_of_a_completion_can_be_sent_back_as_it_is(client: httpx.Client) -> None:
    said = client.post(ASK, json=PLAIN).json()["choices"][0]["message"]
    said |= {"annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    body = {**PLAIN, "messages": [*QUESTION, said, *QUESTION]}
    assert client.post("/v1/decide", json=body).status_code == 200


def test_every_name_that_may_be_asked_for_is_listed(site: GatewayDeployment, client: httpx.Client) -> None:
    listed = {each["id"]: each["routing"] for each in client.get("/v1/models").json()["data"]}
    models = load_catalogue(Path(site.settings.catalogue))
    concrete = {*models.model_names, *(action.id for action in uis_space(models))}
    assert {name for name, routing in listed.items() if routing == "concrete"} == concrete
    assert {"auto", "auto:cost-sensitive"} < {
        name for name, routing in listed.items() if routing == "virtual"
    }
    assert [each for each in listed if client.get(f"/v1/models/{each}").json().get("id") != each] == []


def test_expired_id_is_gone_and_unknown_id_not_found(
    site: GatewayDeployment, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = site.call(lambda cluster: worker_of(cluster, "gateway")).log
    inner = log.find

    async def find(topic: str, key: bytes, since_ms: int, until_ms: int) -> Any:
        assert since_ms >= 0, "Kafka refuses it"
        return await inner(topic, key, since_ms, until_ms)

    monkeypatch.setattr(log, "find", find)
    made = client.post(ASK, json=PLAIN).json()["id"]
    assert abs((submission.time_of(made) or 0) - site.call(lambda cluster: cluster.broker.now_ms())) < 60_000
    for path in ("/v1/queries/{}", "/v1/queries/{}/events"):
        assert code(client.get(path.format(submission.new_id(1_000_000))), 410) == "gone"
        assert code(client.get(path.format(submission.new_id(int(2e12)))), 404) == "not_found"
    for at_ms in (0, 1_000_000):
        told = {"id": submission.new_id(at_ms), "value": True}
        gone = client.post("/v1/feedback", json=told)
        assert code(gone, 410) == "gone"
        assert gone.json()["error"]["message"].endswith("; older records may be gone from the topics too")


def test_window_moves_unless_all_queries_were_read(in_memory: Callable[..., Settings]) -> None:
    async def moves(recent: int) -> bool:
        cluster = Cluster(in_memory(), WITH_GATEWAY)
        for at in range(30):
            cluster.produce(
                cluster.topics.query, b"one partition", encode(Query(query_id=f"q-{at}", text="?"))
            )
        await cluster.start("gateway")
        [runtime] = [each for each in cluster.workers if each.spec.name == "gateway"]
        service = GatewayService(runtime, recent)
        await service.follow()
        await cluster.close()
        return service.index.moves

    assert [asyncio.run(moves(recent)) for recent in (30, 29)] == [False, True]


def test_feedback_beyond_the_index_is_for_its_tenant_alone(deploy: Deploy) -> None:
    """The aggregator knows whether a reward is open; the topic knows to whom an old query belongs."""
    small = deploy(gateway_recent=2)
    topics = small.topics
    with small.http(small.key("acme")) as mine, small.http(small.key("other")) as other:
        body = {**PLAIN, "model": "large/1/1/1", "uniscale": {"feedback_wait_s": 3600}}
        first = mine.post(ASK, json=body).json()["id"]
        for _ in range(5):
            assert other.post(ASK, json=PLAIN).status_code == 200
        assert code(mine.get(f"/v1/queries/{first}"), 410) == "gone"
        told = {"id": first, "value": True}
        # As for an id that nobody has.
        assert code(other.post("/v1/feedback", json=told), 410) == "gone"
        nobody = {"id": submission.new_id(submission.time_of(first) or 0), "value": True}
        assert code(mine.post("/v1/feedback", json=nobody), 410) == "gone"
        assert small.records(topics.feedback) == []
        answer = mine.post("/v1/feedback", json=told)
        assert answer.json() == {"id": first, "object": "feedback", "duplicate": False, "late": None}
    (reward,) = small.closing(first)
    assert (reward.kind, reward.correct) == ("correction", 1.0)


def test_a_query_says_what_its_request_showed_besides_its_text(client: httpx.Client) -> None:
    turns = [*PLAIN["messages"], {"role": "assistant", "content": "5"}, *PLAIN["messages"]]
    made = client.post(ASK, json={**PLAIN, "messages": turns}).json()["id"]
    assert client.get(f"/v1/queries/{made}").json()["decision"]["features"] == ["request.turns=2-4"]


def test_events_go_on_to_the_reward(client: httpx.Client) -> None:
    """Without a reference the reward waits for feedback; `late` says when that came after the reward had closed."""
    body = {**PLAIN, "model": "large/1/1/1", "uniscale": {"feedback_wait_s": 600}}
    made = client.post(ASK, json=body).json()["id"]
    names, kinds = [], []
    with client.stream("GET", f"/v1/queries/{made}/events") as events:
        for line in events.iter_lines():
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
            elif line.startswith("data: ") and names[-1] == "reward":
                kinds.append(json.loads(line.removeprefix("data: "))["kind"])
                if kinds == ["provisional"]:
                    told = client.post("/v1/feedback", json={"id": made, "value": True}).json()
                    assert (told["duplicate"], told["late"]) == (False, False)
    assert names == ["decision", "answer", "reward", "reward"]
    assert kinds == ["provisional", "correction"]
    closed = client.get(f"/v1/queries/{made}").json()["reward"]
    assert (closed["correct"], closed["closes"]) == (1.0, True)
    graded = client.post(ASK, json={**PLAIN, "uniscale": {"reference": "5"}}).json()["id"]
    with client.stream("GET", f"/v1/queries/{graded}/events") as events:
        assert "event: reward" in list(events.iter_lines())
    assert client.post("/v1/feedback", json={"id": graded, "value": True}).json()["late"] is True


def test_events_are_waited_for_as_long_as_their_query_may_take(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "MARGIN_S", 0.5)
    monkeypatch.setattr(index, "MARGIN_S", 0.5)
    monkeypatch.setattr(routes, "MARGIN_S", 0.5)
    monkeypatch.setattr(routes, "_BEAT_LOOKS", 1)
    held = deploy(("gateway",), timeout_s=0.1)
    ids = {}
    for timeout_s in (60.0, 0.2):
        query = Query(query_id=f"q-{timeout_s}", text="How much?", timeout_s=timeout_s)
        held.produce(held.topics.query, query.query_id.encode(), encode(query))
        ids[timeout_s] = query.query_id
    with held.http() as client:
        held.until(lambda: all(client.get(f"/v1/queries/{each}").is_success for each in ids.values()))
        with client.stream("GET", f"/v1/queries/{ids[60.0]}/events") as events:
            beats = events.iter_lines()
            for _ in range(6):  # each after LOOK_S, and an empty line
                assert next(beats) in (":", "")
        assert set(client.get(f"/v1/queries/{ids[0.2]}/events").text) <= {":", "\n"}, "it ends"


def test_the_events_of_a_query_are_told_after_its_deadline_too(
    deploy: Deploy, site: GatewayDeployment, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (searches, index, routes):
        monkeypatch.setattr(module, "MARGIN_S", 0.1)
    made = client.post(ASK, json={**PLAIN, "uniscale": {"reference": "5"}}).json()["id"]
    site.closing(made)
    held = deploy(("gateway",))
    [query] = [each for each in site.read(site.topics.query, Query) if each.query_id == made]
    held.produce(held.topics.query, made.encode(), encode(msgspec.structs.replace(query, timeout_s=0.1)))
    told: list[tuple[str, type[Decision] | type[Answer] | type[Reward]]] = [
        (held.topics.decision, Decision),
        (held.topics.answer, Answer),
        (held.topics.reward, Reward),
    ]
    for topic, kind in told:
        for record in site.read(topic, kind):
            if record.query_id == made:
                held.produce(topic, made.encode(), encode(record))
    with held.http() as late:
        held.until(lambda: "reward" in late.get(f"/v1/queries/{made}").json(), timeout_s=10)
        time.sleep(0.3)
        lines = late.get(f"/v1/queries/{made}/events").text.splitlines()
    assert [line for line in lines if line.startswith("event: ")] == [
        "event: decision",
        "event: answer",
        "event: reward",
    ]


def test_a_query_that_is_not_admitted_may_be_tried_again(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_LAPSE_S", 0.0)
    full = deploy(("gateway", "embedder"), max_in_flight=1)
    beat = Heartbeat(group="mini", instance="0", models=("small",), every_s=60.0)
    full.produce(full.topics.heartbeat, beat.key.encode(), encode(beat))
    waits = Query(query_id="q", text="How much?", allowed_models=("large",))
    full.produce(full.topics.query, b"q", encode(waits))
    full.until(lambda: bool(full.read(full.topics.context, QueryContext)))
    with full.http() as client:
        refused = client.post(ASK, json={**PLAIN, "model": "large"})
    assert code(refused, 429) == "admission_rejected"
    assert refused.headers["retry-after"] == "30"
    assert "x-should-retry" not in refused.headers
    said = refused.json()["error"]["message"]
    assert said.startswith("allowed_models or pin_action: no executor serves large now")


def test_a_broker_that_refuses_leaves_no_query_to_wait_for(
    site: GatewayDeployment, client: httpx.Client
) -> None:
    def refuse(why: str) -> Callable[[Any], None]:
        def set_(cluster: Cluster) -> None:
            cluster.broker.refuses = lambda topic, key: why if topic == cluster.topics.query else ""

        return set_

    body = {**PLAIN, "user": "somebody"}
    site.call(refuse("not enough replicas"))
    answer = client.post(ASK, json=body)
    site.call(refuse(""))
    assert code(answer, 503) == "broker_unavailable"
    assert "x-should-retry" not in answer.headers
    assert client.post(ASK, json=body, headers={"x-stainless-retry-count": "1"}).status_code == 200


def twice_while_it_is_sent(site: GatewayDeployment, post: Callable[[], httpx.Response]) -> None:
    """Demand that a request fails with an earlier one like it, whose record the broker refuses at last."""
    answered = threading.Event()

    def refuse_late(cluster: Any) -> None:
        """Let the next record wait, until the test says so, for a broker that then refuses it."""
        [runtime] = [each for each in cluster.workers if each.spec.name == "gateway"]

        async def send(*outgoing: Any) -> None:
            del runtime.send
            await asyncio.get_running_loop().run_in_executor(None, answered.wait)
            raise SendFailed("not enough replicas")

        runtime.send = send

    site.call(refuse_late)
    with ThreadPoolExecutor(2) as sends:
        given = [sends.submit(post) for _ in range(2)]
        confirmed = wait(given, 0.5).done
        answered.set()
    assert confirmed == set(), "before the first is stored"
    assert [code(each.result(), 503) for each in given] == ["broker_unavailable"] * 2


def test_a_request_that_joins_one_that_is_sent_ends_as_that_one(
    site: GatewayDeployment, client: httpx.Client
) -> None:
    def post() -> httpx.Response:
        body = {**PLAIN, "uniscale": {"timeout_s": 5}}
        return client.post(ASK, json=body, headers={"idempotency-key": "twice"})

    twice_while_it_is_sent(site, post)
    assert post().status_code == 200


def test_concurrent_duplicate_feedback_ends_as_the_first(
    site: GatewayDeployment, client: httpx.Client
) -> None:
    body = {**PLAIN, "model": "large/1/1/1", "uniscale": {"feedback_wait_s": 600}}
    told = {"id": client.post(ASK, json=body).json()["id"], "value": True}
    twice_while_it_is_sent(site, lambda: client.post("/v1/feedback", json=told))
    assert client.post("/v1/feedback", json=told).json()["duplicate"] is False
    assert client.post("/v1/feedback", json=told).json()["duplicate"] is True


def test_a_retry_count_that_is_no_number_counts_as_none(client: httpx.Client) -> None:
    for count in ("²", "-1", "1e3", "9999"):
        headers = [(b"x-stainless-retry-count", count.encode("latin-1"))]
        assert client.post(ASK, json=PLAIN, headers=headers).status_code == 200


def test_an_id_whose_answer_is_no_longer_kept_is_taken(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "_BEHIND_S", 0.3)
    small = deploy(gateway_recent=1)
    with small.http() as client:
        first = client.post(ASK, json=PLAIN, headers={"idempotency-key": "k"})
        assert first.status_code == 200
        for at in range(4):
            assert client.post(ASK, json={**PLAIN, "user": str(at)}).status_code == 200
        assert client.get(f"/v1/queries/{first.json()['id']}").status_code == 404
        again = client.post(ASK, json=PLAIN, headers={"idempotency-key": "k"})
        assert (code(again, 409), again.headers["x-should-retry"]) == ("id_taken", "false")
        assert small.call(lambda cluster: list(cluster.deaths)) == []


def test_idempotency_key_of_another_gateways_body_is_refused(deploy: Deploy) -> None:
    """Both gateways send a query before either has read the other's: the first one on the topic counts."""
    site = deploy()
    query_id = submission.keyed_id("", "k")
    theirs = Query(
        query_id=query_id,
        text="What is 2 + 3, number 1?",
        metadata={"gateway": {"key": "", "digest": "theirs"}},
    )

    def overtake(cluster: Any) -> None:
        service = cluster.broker
        plain = service.append

        def append(topic: str, key: bytes | None, value: bytes | None, partition: int | None = None) -> Any:
            if topic == cluster.topics.query and key == query_id.encode():
                service.append = plain
                plain(topic, key, encode(theirs), partition)
            return plain(topic, key, value, partition)

        service.append = append

    site.call(overtake)
    with site.http() as client:
        answer = client.post(ASK, json=PLAIN, headers={"idempotency-key": "k"})
    assert (code(answer, 422), answer.headers["x-should-retry"]) == ("idempotency_mismatch", "false")


def test_now_counts_queries_and_names_services_and_models(
    site: GatewayDeployment, client: httpx.Client
) -> None:
    assert client.post(ASK, json=PLAIN).is_success
    found = client.get("/v1/now").json()
    assert found["queries"] >= 1
    assert found["per_second"] > 1 / 60
    assert found["in_flight"] == 0
    assert {each["name"]: each["state"] for each in found["models"]} == {"small": "ready", "large": "ready"}
    assert client.get("/health/ready").json()["models"] == {"ready": 2, "of": 2}
    services = {each["service"]: each["waiting"] for each in found["services"]}
    assert set(services) == {"embedder", "decider", "executor.mini", "verifier", "aggregator"}
    assert all(waiting is None or waiting >= 0 for waiting in services.values())


@pytest.mark.parametrize(
    ("reach", "named"),
    [
        ({"gateway_hosts": ("ai.example.com",)}, "gateway_hosts"),
        ({"gateway_host": "0.0.0.0"}, "gateway_host:"),
    ],
)
def test_what_others_can_reach_does_not_start_without_a_key(
    in_memory: Callable[..., Any], reach: dict[str, Any], named: str
) -> None:
    async def main() -> None:
        cluster = Cluster(in_memory(gateway_port=free_port(), **reach), SERVICES)
        with pytest.raises(OpenGateway, match=named):
            await cluster.start("gateway")
        entry = KeyEntry(name="a", op="add", sha256="0" * 64, tenant="t")
        cluster.produce(cluster.topics.control, entry.key.encode(), encode(entry))
        await cluster.start("gateway")
        await cluster.close()

    asyncio.run(main())


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(AddressTaken) as refused:
        listen("127.0.0.1", taken.getsockname()[1])
    assert "(Address already in use). To fix this:" in str(refused.value)
    assert "UNISCALE_GATEWAY_PORT" in str(refused.value)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_curl_reads_a_stream_as_it_comes(site: GatewayDeployment) -> None:
    def contents(number: int) -> list[str]:
        asked = [{"role": "user", "content": f"What is 2 + 3, number {number}?"}]
        body = json.dumps({"model": "large/1/1/1", "messages": asked, "stream": True})
        argv = ["curl", "-sSN", f"{site.url}{ASK}", "-H", "content-type: application/json", "-d", body]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
        assert all(line.startswith("data: ") for line in done.stdout.splitlines() if line)
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        return [text for chunk in chunks if (text := chunk["choices"][0]["delta"].get("content"))]

    # Steps and Answers have topics of their own: an Answer may overtake its steps, and bring the whole text at once.
    assert any(len(contents(number)) > 1 for number in range(10)), "step by step"


def test_what_is_vendored_is_what_its_list_says() -> None:
    folder = routes.FOLDER / "vendor"
    listed = dict(line.split()[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}
    found.pop("SHA256SUMS")
    assert found == listed


def test_dead_letter_is_retried_once_while_its_topic_holds_it(deploy: Deploy) -> None:
    alive = deploy()
    topics = alive.topics
    alive.produce(topics.query, b"bad", b"no query at all")
    gone = DeadLetter.of(
        b"x", ValueError("no"), service="embedder", origin=Origin(topic=topics.query, partition=1, offset=99)
    )
    alive.produce(topics.dead_letter, gone.key.encode(), encode(gone))
    with alive.http() as client:

        def letters() -> dict[str, dict[str, Any]]:
            listed = client.get("/v1/dead-letters").json()["data"]
            return {each["origin"]: each for each in listed if each["origin"] != gone.key}

        def retry(origin: str) -> httpx.Response:
            return client.post("/v1/dead-letters/retry", json={"origin": origin})

        alive.until(lambda: len(letters()) == 1)
        ((origin, letter),) = letters().items()
        assert (letter["service"], letter["retried"]) == ("embedder", False)
        assert [retry(origin).json()["duplicate"] for _ in range(2)] == [False, True]
        assert [record.value for record in alive.records(topics.query)] == [b"no query at all"] * 2
        alive.until(lambda: len(letters()) == 2)  # its cause stands: it comes back as another one
        assert letters()[origin]["retried"] is True
        for _ in range(2):
            assert code(retry(gone.key), 410) == "gone"
