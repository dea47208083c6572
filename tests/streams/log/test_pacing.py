"""Fetches: how far apart they are, and how long they wait."""

import asyncio
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11

from streams.log import pacing
from streams.log.pacing import BURST

Wanted = dict[tuple[str, int], tuple[int, int]]


def fetch(wanted: Wanted) -> FetchRequest:
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, partition), (at, most) in wanted.items():
        topics.setdefault(topic, []).append((partition, at, most))
    return FetchRequest(500, 1, 1000, 0, list(topics.items()))


async def test_fetches_from_one_node_are_apart_but_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "FETCH_INTERVAL_S", 0.05)

    began = asyncio.get_running_loop().time
    at: list[tuple[int, float]] = []

    class Fetcher:
        _client = None

        async def _proc_fetch_request(self, assignment: Any, node_id: int, request: Any) -> bool:
            at.append((node_id, began()))
            return True

    fetcher: Any = Fetcher()
    pacing.pace_fetches(fetcher)
    for node in (*[0] * BURST, 1, 0):
        assert await fetcher._proc_fetch_request(None, node, None)
    first = at[0][1]
    assert [node for node, _ in at] == [*[0] * BURST, 1, 0]
    assert at[BURST][1] - first < 0.04, "neither the first of a node nor the other node waits"
    assert at[BURST + 1][1] - first >= 0.045
    waiting = asyncio.ensure_future(fetcher._proc_fetch_request(None, 0, None))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await waiting is False


async def test_a_fetch_waits_briefly_while_positions_are_about_to_move() -> None:
    waits: list[int] = []

    class Fetcher:
        _client, _fetch_max_wait_ms = None, 1500

        async def _proc_fetch_request(self, assignment: Any, node_id: int, request: Any) -> bool:
            waits.append(request.build(FetchRequest_v11).max_wait_time)
            return True

    fetcher: Any = Fetcher()
    moving = iter([True, False, True])
    pacing.pace_fetches(fetcher, embedded=True, moving=lambda: next(moving))
    for asked in (fetch({("a", 0): (0, 1000)}), fetch({}), FetchRequest(20, 1, 1000, 0, [])):
        await fetcher._proc_fetch_request(None, 0, asked)
    assert waits == [pacing.MOVING_WAIT_MS, 500, 20]
