"""Admission holds queries back until an earlier one has ended."""

import asyncio

from schemas.query import Origin
from streams.runtime.memory import run
from streams.services.embedder import Admission


def test_the_third_waits_until_one_of_two_leaves() -> None:
    async def scene() -> list[str]:
        admission = Admission(2, clock=lambda: 0.0)
        seen = []

        async def enter(name: str) -> None:
            await admission.enter(name, 60.0)
            seen.append(name)

        await enter("a")
        await enter("b")
        third = asyncio.create_task(enter("c"))
        await asyncio.sleep(0.01)
        assert seen == ["a", "b"]
        admission.leave("unknown")
        await asyncio.sleep(0.01)
        assert seen == ["a", "b"]
        admission.leave("a")
        await third
        assert len(admission) == 2
        return seen

    assert run(scene()) == ["a", "b", "c"]


def test_queries_are_admitted_in_the_order_in_which_they_came() -> None:
    async def scene() -> list[str]:
        admission = Admission(1, clock=lambda: 0.0)
        seen = []

        async def enter(name: str) -> None:
            await admission.enter(name, 60.0)
            seen.append(name)

        await enter("a")
        waiting = [asyncio.create_task(enter(name)) for name in "bcd"]
        await asyncio.sleep(1.1)  # longer than one look at the clock
        for name in "abcd":
            admission.leave(name)
            if name == "a":
                waiting.append(asyncio.create_task(enter("e")))  # it comes when a slot is free
            await asyncio.sleep(0.01)
        await asyncio.gather(*waiting)
        return seen

    assert asyncio.run(asyncio.wait_for(scene(), 10.0)) == ["a", "b", "c", "d", "e"]


def test_a_query_in_flight_takes_no_second_place() -> None:
    async def scene() -> None:
        admission = Admission(1, clock=lambda: 0.0)
        await admission.enter("a", 60.0)
        await asyncio.wait_for(admission.enter("a", 60.0), 1.0)
        assert len(admission) == 1

    run(scene())


def test_a_place_is_free_again_when_the_answer_never_comes() -> None:
    async def scene() -> None:
        now = [0.0]
        admission = Admission(1, clock=lambda: now[0])
        await admission.enter("a", 5.0)
        now[0] = 6.0
        await asyncio.wait_for(admission.enter("b", 5.0), 1.0)
        assert "a" not in admission
        assert "b" in admission

    run(scene())


def test_a_refused_duplicate_frees_its_own_place_and_not_that_of_the_first() -> None:
    async def main() -> None:
        admission = Admission(2, lambda: 0.0)
        first, second = (Origin(topic="query", partition=0, offset=offset) for offset in (3, 8))
        await admission.enter("q", 60.0, first)
        await admission.enter("q", 60.0, second)
        admission.refused("q", second)
        assert "q" in admission, "the first is in flight"
        admission.ended("q")
        await admission.enter("old", 60.0, second)
        admission.refused("old", second)
        assert len(admission) == 0

    run(main())
