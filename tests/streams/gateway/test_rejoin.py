"""A client that is gone: one that timed out may return to its search, any other cancels it."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from schemas.answer import Answer
from schemas.control import Cancel
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import encode
from streams.gateway import exchange
from streams.services import SERVICES

SERVICES_BUT_THE_EXECUTOR = tuple(service for service in SERVICES if service != "executor")
LOOKED_S = 3 * exchange.LOOK_S


def body(text: str) -> bytes:
    return orjson.dumps(
        {"model": "large/1/1/1", "messages": [{"role": "user", "content": f"What is {text}?"}]}
    )


def post(house: Any, text: str, **headers: str) -> httpx.Response:
    sent = {
        "content-type": "application/json",
        **{name.replace("_", "-"): each for name, each in headers.items()},
    }
    with house.http() as client:
        return client.post("/v1/chat/completions", content=body(text), headers=sent)


def gone(house: Any, text: str, wait_s: float, **headers: str) -> str:
    """Ask, close the connection after a while, and return the query's id."""
    sent = {
        "content-type": "application/json",
        **{name.replace("_", "-"): each for name, each in headers.items()},
    }
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{house.url}/v1/chat/completions",
            content=body(text),
            headers=sent,
            timeout=httpx.Timeout(10, read=wait_s),
        )
    # A busy gateway may only now have come to it.
    until(lambda: house.read(house.cluster.topics.query, Query) != [])
    return house.read(house.cluster.topics.query, Query)[-1].query_id


def cancelled(house: Any) -> list[str]:
    return [each.query_id for each in house.read(house.cluster.topics.cancel_for("mini"), Cancel)]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_client_that_timed_out_returns_to_its_search(house: Callable[..., Any]) -> None:
    held = house(SERVICES_BUT_THE_EXECUTOR)
    query_id = gone(held, "2 + 3", 0.5, x_stainless_read_timeout="0.5", x_stainless_retry_count="0")
    time.sleep(LOOKED_S)
    held.start("executor", "mini")
    again = post(held, "2 + 3", x_stainless_read_timeout="60", x_stainless_retry_count="1")
    assert (again.status_code, again.json()["id"]) == (200, query_id)
    assert len(held.read(held.cluster.topics.query, Query)) == 1
    assert cancelled(held) == []


def test_a_client_that_timed_out_and_stays_away_cancels_its_search(
    house: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "REJOIN_S", 0.2)
    held = house(SERVICES_BUT_THE_EXECUTOR)
    query_id = gone(held, "2 + 3", 0.5, x_stainless_timeout="0")
    time.sleep(LOOKED_S)
    held.start("executor", "mini")
    until(lambda: cancelled(held) == [query_id])


def test_a_client_that_hung_up_cancels_its_search_and_its_retry_is_a_new_one(
    house: Callable[..., Any],
) -> None:
    held = house(SERVICES_BUT_THE_EXECUTOR)
    query_id = gone(held, "2 + 3", 0.5, x_stainless_read_timeout="600")
    time.sleep(LOOKED_S)
    held.start("executor", "mini")
    again = post(held, "2 + 3", x_stainless_retry_count="1")
    assert again.status_code == 200
    assert again.json()["id"] != query_id
    until(lambda: cancelled(held) == [query_id])


def test_a_search_that_no_executor_will_begin_is_cancelled_at_once(house: Callable[..., Any]) -> None:
    held = house(SERVICES_BUT_THE_EXECUTOR, heartbeat_grace_s=0.5)
    query_id = gone(held, "2 + 3", 0.5, x_stainless_read_timeout="600")
    until(lambda: held.read(held.cluster.topics.answer, Answer) != [])
    [answer] = held.read(held.cluster.topics.answer, Answer)
    assert (answer.query_id, answer.status, answer.by) == (query_id, "cancelled", "gateway")
    assert cancelled(held) == [query_id], "an executor that comes back does not begin it"


def test_an_answer_that_is_read_before_its_decision_waits_for_it(house: Callable[..., Any]) -> None:
    """Topics are followed one by one, so their order is not that of the log."""
    whole = house()
    expected = post(whole, "2 + 3", idempotency_key="k")
    query_id = expected.json()["id"]
    [answer] = whole.read(whole.cluster.topics.answer, Answer)
    [decision] = whole.read(whole.cluster.topics.decision, Decision)
    alone = house(("gateway",))
    topics = alone.cluster.topics
    alone.produce(topics.answer, query_id.encode(), encode(answer))
    time.sleep(0.1)

    def later(cluster: Any) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        loop.call_later(0.5, lambda: cluster.produce(topics.decision, query_id.encode(), encode(decision)))

    alone.call(later)
    found = post(alone, "2 + 3", idempotency_key="k")
    told, asked = found.json(), expected.json()
    for each in (told, asked):
        assert each["uniscale"]["timings"].pop("total_s") > 0  # of each request
    for name in ("model", "system_fingerprint", "choices", "uniscale"):
        assert told[name] == asked[name], name
    assert found.headers["x-uniscale-action"] == expected.headers["x-uniscale-action"] == "large/1/1/1"
