"""A client that is gone: one that timed out may return to its search, any other cancels it."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from schemas.answer import Answer
from schemas.control import Cancel
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import encode
from streams.gateway import exchange
from tests.support.house import ASK, PLAIN, WITHOUT_EXECUTOR, House

BODY = {**PLAIN, "model": "large/1/1/1"}
LOOKED_S = 3 * exchange.LOOK_S


def post(house: House, **headers: str) -> httpx.Response:
    with house.http() as client:
        return client.post(ASK, json=BODY, headers=said(headers))


def gone(house: House, wait_s: float, **headers: str) -> str:
    """Ask, close the connection after a while, and return the query's id."""
    timeout = httpx.Timeout(10, read=wait_s)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(house.url + ASK, json=BODY, headers=said(headers), timeout=timeout)
    # A busy gateway may only now have come to it.
    house.until(lambda: house.read(house.topics.query, Query) != [])
    return house.read(house.topics.query, Query)[-1].query_id


def said(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def cancelled(house: House) -> list[str]:
    return [each.query_id for each in house.read(house.topics.cancel_for("mini"), Cancel)]


def test_a_client_that_timed_out_returns_to_its_search(house: Callable[..., House]) -> None:
    held = house(WITHOUT_EXECUTOR)
    query_id = gone(held, 0.5, x_stainless_read_timeout="0.5", x_stainless_retry_count="0")
    time.sleep(LOOKED_S)
    held.start("executor", "mini")
    again = post(held, x_stainless_read_timeout="60", x_stainless_retry_count="1")
    assert (again.status_code, again.json()["id"]) == (200, query_id)
    assert len(held.read(held.topics.query, Query)) == 1
    assert cancelled(held) == []


def test_a_client_that_timed_out_and_stays_away_cancels_its_search(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "REJOIN_S", 0.2)
    held = house(WITHOUT_EXECUTOR)
    query_id = gone(held, 0.5, x_stainless_timeout="0")
    time.sleep(LOOKED_S)
    held.start("executor", "mini")
    held.until(lambda: cancelled(held) == [query_id])


def test_a_client_that_hung_up_cancels_its_search_and_its_retry_is_a_new_one(
    house: Callable[..., House],
) -> None:
    held = house(WITHOUT_EXECUTOR)
    query_id = gone(held, 0.5, x_stainless_read_timeout="600")
    time.sleep(LOOKED_S)
    held.start("executor", "mini")
    again = post(held, x_stainless_retry_count="1")
    assert again.status_code == 200
    assert again.json()["id"] != query_id
    held.until(lambda: cancelled(held) == [query_id])


def test_a_search_that_no_executor_will_begin_is_cancelled_at_once(house: Callable[..., House]) -> None:
    held = house(WITHOUT_EXECUTOR, heartbeat_grace_s=0.5)
    query_id = gone(held, 0.5, x_stainless_read_timeout="600")
    held.until(lambda: held.read(held.topics.answer, Answer) != [])
    [answer] = held.read(held.topics.answer, Answer)
    assert (answer.query_id, answer.status, answer.by) == (query_id, "cancelled", "gateway")
    assert cancelled(held) == [query_id], "an executor that comes back does not begin it"


def test_an_answer_that_is_read_before_its_decision_waits_for_it(house: Callable[..., House]) -> None:
    """Topics are followed one by one, so their order is not that of the log."""
    whole = house()
    expected = post(whole, idempotency_key="k")
    query_id = expected.json()["id"]
    [answer] = whole.read(whole.topics.answer, Answer)
    [decision] = whole.read(whole.topics.decision, Decision)
    alone = house(("gateway",))
    topics = alone.topics
    alone.produce(topics.answer, query_id.encode(), encode(answer))
    time.sleep(0.1)

    def later(cluster: Any) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        loop.call_later(0.5, lambda: cluster.produce(topics.decision, query_id.encode(), encode(decision)))

    alone.call(later)
    found = post(alone, idempotency_key="k")
    told, asked = found.json(), expected.json()
    for each in (told, asked):
        assert each["uniscale"]["timings"].pop("total_s") > 0  # of each request
    for name in ("model", "system_fingerprint", "choices", "uniscale"):
        assert told[name] == asked[name], name
    assert found.headers["x-uniscale-action"] == expected.headers["x-uniscale-action"] == "large/1/1/1"
