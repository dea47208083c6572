"""A client that is gone: one that timed out may return to its search, any other cancels it."""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from schemas.answer import Answer
from schemas.control import Cancel
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import encode
from streams.gateway import searches
from streams.log.base import SendFailed
from streams.runtime.memory_cluster import Cluster
from tests.support.gateway_deployment import ASK, PLAIN, WITHOUT_EXECUTOR, Deploy, GatewayDeployment

BODY = {**PLAIN, "model": "large/1/1/1"}
LOOKED_S = 3 * searches.LOOK_S


def post(deployment: GatewayDeployment, **headers: str) -> httpx.Response:
    with deployment.http() as client:
        return client.post(ASK, json=BODY, headers=said(headers))


def gone(deployment: GatewayDeployment, wait_s: float, **headers: str) -> str:
    """Ask, close the connection after a while, and return the query's id."""
    timeout = httpx.Timeout(10, read=wait_s)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(deployment.url + ASK, json=BODY, headers=said(headers), timeout=timeout)
    # A busy gateway may only now have come to it.
    deployment.until(lambda: deployment.read(deployment.topics.query, Query) != [])
    return deployment.read(deployment.topics.query, Query)[-1].query_id


def said(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def cancelled(deployment: GatewayDeployment) -> list[str]:
    return [each.query_id for each in deployment.read(deployment.topics.cancel_for("mini"), Cancel)]


def test_a_client_that_timed_out_returns_to_its_search(deploy: Deploy) -> None:
    held = deploy(WITHOUT_EXECUTOR)
    query_id = gone(held, 0.5, x_stainless_read_timeout="0.5", x_stainless_retry_count="0")
    time.sleep(LOOKED_S)
    held.start("executor", "mini")
    again = post(held, x_stainless_read_timeout="60", x_stainless_retry_count="1")
    assert (again.status_code, again.json()["id"]) == (200, query_id)
    assert len(held.read(held.topics.query, Query)) == 1
    assert cancelled(held) == []


def test_timed_out_client_that_stays_away_cancels(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "REJOIN_S", 0.2)
    held = deploy(WITHOUT_EXECUTOR)
    query_id = gone(held, 0.5, x_stainless_timeout="0")
    time.sleep(LOOKED_S)
    held.start("executor", "mini")
    held.until(lambda: cancelled(held) == [query_id])


def test_hung_up_client_cancels_and_its_retry_is_new(deploy: Deploy) -> None:
    held = deploy(WITHOUT_EXECUTOR)
    query_id = gone(held, 0.5, x_stainless_read_timeout="600")
    time.sleep(LOOKED_S)
    held.start("executor", "mini")
    again = post(held, x_stainless_retry_count="1")
    assert again.status_code == 200
    assert again.json()["id"] != query_id
    held.until(lambda: cancelled(held) == [query_id])


def test_two_searches_that_clients_left_go_to_one_retry_each(deploy: Deploy) -> None:
    held = deploy(WITHOUT_EXECUTOR)
    for _ in range(2):
        gone(held, 0.5, x_stainless_read_timeout="0.5")
    lost = {query.query_id for query in held.read(held.topics.query, Query)}
    assert len(lost) == 2
    held.start("executor", "mini")
    again = [post(held, x_stainless_retry_count="1").json()["id"] for _ in range(3)]
    assert set(again[:2]) == lost
    assert again[2] not in lost, "nobody lost a third"
    assert len(held.read(held.topics.query, Query)) == 3


def test_retry_takes_no_answer_of_another_live_request(deploy: Deploy) -> None:
    """A request that got 429 or 503 sent no query, and its retry may have the body of another sample."""
    held = deploy(WITHOUT_EXECUTOR)
    with ThreadPoolExecutor(2) as waiting:
        asked = []
        for count in ("0", "1"):
            asked.append(
                waiting.submit(post, held, x_stainless_read_timeout="0", x_stainless_retry_count=count)
            )
            held.until(lambda: len(held.read(held.topics.query, Query)) == len(asked))
        held.start("executor", "mini")
        got = [each.result() for each in asked]
    got.append(post(held, x_stainless_retry_count="1"))
    assert [each.status_code for each in got] == [200] * 3
    assert len({each.json()["id"] for each in got}) == 3


def test_retry_gets_the_answer_that_came_after_its_timeout(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "LOOK_S", 60.0)  # nobody misses the client before the Answer
    held = deploy(WITHOUT_EXECUTOR)
    query_id = gone(held, 0.5, x_stainless_read_timeout="0.5")
    held.start("executor", "mini")
    held.until(lambda: held.read(held.topics.answer, Answer) != [])
    assert post(held, x_stainless_retry_count="1").json()["id"] == query_id
    assert post(held, x_stainless_retry_count="1").json()["id"] != query_id


def stored_and_refused(deployment: GatewayDeployment) -> str:
    """Ask, have the Query stored although its send fails, and return its id."""

    def store_and_refuse(cluster: Any) -> None:
        def append(*record: Any) -> Any:
            del cluster.broker.append
            cluster.broker.append(*record)
            raise SendFailed("the confirmation was lost")

        cluster.broker.append = append

    deployment.call(store_and_refuse)
    assert post(deployment).status_code == 503
    [stored] = deployment.read(deployment.topics.query, Query)
    with deployment.http() as client:
        deployment.until(lambda: client.get(f"/v1/queries/{stored.query_id}").is_success)
    return stored.query_id


def test_retry_joins_a_stored_query_whose_send_failed(deploy: Deploy) -> None:
    held = deploy()
    query_id = stored_and_refused(held)
    assert post(held, x_stainless_retry_count="1").json()["id"] == query_id
    assert len(held.read(held.topics.query, Query)) == 1


def test_leaving_a_joined_query_cancels_it(deploy: Deploy) -> None:
    held = deploy(WITHOUT_EXECUTOR)
    query_id = stored_and_refused(held)
    assert gone(held, 0.5, x_stainless_retry_count="1", x_stainless_read_timeout="600") == query_id
    time.sleep(LOOKED_S)
    held.start("executor", "mini")
    held.until(lambda: cancelled(held) == [query_id], timeout_s=10)


def test_who_watches_a_query_does_not_hold_its_search(deploy: Deploy) -> None:
    held = deploy(WITHOUT_EXECUTOR)
    with ThreadPoolExecutor(1) as asks, held.http() as watcher:
        asked = asks.submit(gone, held, 1.5)
        held.until(lambda: held.read(held.topics.query, Query) != [])
        [query] = held.read(held.topics.query, Query)
        with watcher.stream("GET", f"/v1/queries/{query.query_id}/events") as events:
            assert asked.result() == query.query_id
            time.sleep(LOOKED_S)
            held.start("executor", "mini")
            held.until(lambda: cancelled(held) == [query.query_id])
            names = [line for line in events.iter_lines() if line.startswith("event: ")]
    assert names[:2] == ["event: decision", "event: answer"]


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves before the Decision"])
def test_search_of_another_gateways_body_is_not_cancelled(deploy: Deploy, leaves: bool) -> None:
    """Two gateways take one Idempotency-Key at once, and the other one's query came first."""
    whole = deploy()
    assert post(whole, idempotency_key="k").is_success
    [theirs] = whole.read(whole.topics.decision, Decision)
    [answer] = whole.read(whole.topics.answer, Answer)
    alone = deploy(("gateway",))
    topics = alone.topics

    def ask() -> int:
        body, timeout = {**BODY, "seed": 5}, httpx.Timeout(10, read=0.5 if leaves else None)
        with contextlib.suppress(httpx.ReadTimeout):
            return httpx.post(
                alone.url + ASK, json=body, headers={"idempotency-key": "k"}, timeout=timeout
            ).status_code
        return 0

    with ThreadPoolExecutor(1) as asks:
        asked = asks.submit(ask)
        alone.until(lambda: alone.read(topics.query, Query) != [])
        if leaves:
            asked.result()
            time.sleep(LOOKED_S)
        alone.produce(topics.decision, theirs.query_id.encode(), encode(theirs))
        assert asked.result() == (0 if leaves else 422)
    time.sleep(0.2)
    assert cancelled(alone) == []
    assert alone.read(topics.answer, Answer) == []
    alone.produce(topics.answer, theirs.query_id.encode(), encode(answer))
    assert post(alone, idempotency_key="k").is_success, "the body that came first"


def test_unserved_search_is_cancelled_at_once(deploy: Deploy) -> None:
    held = deploy(WITHOUT_EXECUTOR, heartbeat_grace_s=0.5)
    query_id = gone(held, 0.5, x_stainless_read_timeout="600")
    held.until(lambda: held.read(held.topics.answer, Answer) != [])
    [answer] = held.read(held.topics.answer, Answer)
    assert (answer.query_id, answer.status, answer.by) == (query_id, "cancelled", "gateway")
    assert cancelled(held) == [query_id], "an executor that comes back does not begin it"


def test_search_left_during_an_outage_is_cancelled_later(deploy: Deploy) -> None:
    whole = deploy()
    assert post(whole, idempotency_key="k").is_success
    [decision] = whole.read(whole.topics.decision, Decision)
    alone = deploy(("gateway",))
    topics, refused = alone.topics, []

    def is_away(topic: str, key: bytes | None) -> str:
        refused.append(topic)
        return "it is away"

    def broker(refuses: Callable[[str, bytes | None], str]) -> None:
        alone.call(lambda cluster: setattr(cluster.broker, "refuses", refuses))

    query_id = gone(alone, 0.5, idempotency_key="k")
    time.sleep(LOOKED_S)
    broker(is_away)
    alone.produce(topics.decision, query_id.encode(), encode(decision))
    alone.until(lambda: refused != [])
    assert refused[0] == topics.cancel_for("mini")
    broker(lambda topic, key: "")
    alone.until(lambda: cancelled(alone) == [query_id], timeout_s=10)
    alone.until(lambda: [a.status for a in alone.read(topics.answer, Answer)] == ["cancelled"], timeout_s=10)


def test_an_answer_that_is_read_before_its_decision_waits_for_it(deploy: Deploy) -> None:
    """Topics are followed one by one, so their order is not that of the log."""
    whole = deploy()
    expected = post(whole, idempotency_key="k")
    query_id = expected.json()["id"]
    [answer] = whole.read(whole.topics.answer, Answer)
    [decision] = whole.read(whole.topics.decision, Decision)
    alone = deploy(("gateway",))
    topics = alone.topics
    alone.produce(topics.answer, query_id.encode(), encode(answer))
    time.sleep(0.1)

    def later(cluster: Cluster) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        loop.call_later(0.5, lambda: cluster.produce(topics.decision, query_id.encode(), encode(decision)))

    alone.call(later)
    found = post(alone, idempotency_key="k")
    told, asked = found.json(), expected.json()
    for each in (told, asked):
        timings = each["uniscale"]["timings"]
        assert timings.pop("total_s") >= timings.pop("rest_s") >= 0  # of each request
    for name in ("model", "system_fingerprint", "choices", "uniscale"):
        assert told[name] == asked[name], name
    assert found.headers["x-uniscale-action"] == expected.headers["x-uniscale-action"] == "large/1/1/1"
