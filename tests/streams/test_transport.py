"""What may be committed, and how a record gets from the fetcher to its stream."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.settings import Settings
from streams.transport import Consumer, Offsets, SkippedRecord


def test_an_offset_is_committed_when_all_before_it_are_handled() -> None:
    offsets = Offsets()
    offsets.start(50)
    for offset in (50, 51, 53):  # 52 is a marker of a transaction, which nobody is given
        offsets.fetched(offset)
    assert offsets.take() is None
    offsets.handled(50)
    assert offsets.take() == 51
    assert offsets.take() is None, "once"
    offsets.handled(51)
    offsets.handled(53)
    assert offsets.take() == 54


def test_a_record_that_was_fetched_and_passed_over_is_noticed() -> None:
    offsets = Offsets()
    for offset in (63, 64, 65):
        offsets.fetched(offset)
    offsets.handled(63)
    with pytest.raises(SkippedRecord, match="offset 64 was not handled, 65 was"):
        offsets.handled(65)
    assert offsets.take() == 64, "nothing moves past it"


def test_what_is_fetched_and_handled_again_changes_nothing() -> None:
    offsets = Offsets()
    for offset in (1, 2, 1, 2, 3):
        offsets.fetched(offset)
    for offset in (1, 1, 2, 1, 2, 3):
        offsets.handled(offset)
    assert offsets.take() == 4


def test_a_partition_that_comes_back_begins_where_the_group_has_come_to() -> None:
    offsets = Offsets()
    for offset in (5, 6, 7):
        offsets.fetched(offset)
    offsets.start(7)
    offsets.handled(5)
    assert offsets.take() is None
    offsets.handled(7)
    assert offsets.take() == 8


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_no_offset_moves_past_an_open_record(jumps: list[int]) -> None:
    offsets, handled, fetched = Offsets(), 0, 0
    for jump in jumps:
        for _ in range(jump):
            offsets.fetched(fetched)
            fetched += 1
        if handled < fetched:
            offsets.handled(handled)
            handled += 1
        taken = offsets.take()
        assert taken is None or taken == handled


@pytest.fixture
def consumer() -> Callable[[], Consumer]:
    """Make a consumer that never connects; to be called within a loop."""

    def make() -> Consumer:
        from streams.app import create_app

        app = create_app(Settings(prefix="offsets."), "verifier")
        made = app.consumer
        assert isinstance(made, Consumer)
        return made

    return make


async def _never() -> None:
    await asyncio.Event().wait()


def test_a_record_whose_stream_has_room_is_handed_over_at_once(consumer: Callable[[], Consumer]) -> None:
    async def main() -> None:
        given: list[str] = []

        async def hand_over() -> None:
            given.append("record")

        coroutine = hand_over()
        done = await consumer().wait_first(coroutine, _never())
        assert given == ["record"]
        assert done.done == [coroutine]

    asyncio.run(main())


def test_a_record_that_must_wait_waits_and_is_handed_over(consumer: Callable[[], Consumer]) -> None:
    async def main() -> None:
        room, given = asyncio.Event(), []

        async def hand_over() -> str:
            await asyncio.sleep(0)
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 0.001)
            except TimeoutError:
                await room.wait()
            given.append("record")
            return "done"

        waiting = asyncio.ensure_future(consumer().wait_first(hand_over(), _never()))
        await asyncio.sleep(0.05)
        assert given == []
        room.set()
        assert (await waiting).results == ["done"]
        assert given == ["record"]

    asyncio.run(main())


@pytest.mark.parametrize("seeking", [False, True])
def test_the_end_of_an_assignment_ends_the_waiting(consumer: Callable[[], Consumer], seeking: bool) -> None:
    async def main() -> None:
        cancelled: list[bool] = []

        async def hand_over() -> None:
            try:
                await _never()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        async def suspended() -> None:
            await asyncio.sleep(0.01)

        receiver = consumer()
        if seeking:
            receiver._may_hand_over.clear()
        await asyncio.wait_for(receiver.wait_first(hand_over(), suspended()), 5)
        await asyncio.sleep(0.01)
        assert cancelled == ([] if seeking else [True])

    asyncio.run(main())


def test_nothing_is_handed_over_between_the_seek_and_the_emptying_of_the_queues(
    consumer: Callable[[], Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        receiver, given = consumer(), []

        async def committed(self: Any) -> dict[Any, int]:
            return {}

        monkeypatch.setattr(type(receiver), "seek_to_committed", committed)

        async def hand_over() -> None:
            given.append("record")

        await receiver.perform_seek()
        waiting: Awaitable[Any] = asyncio.ensure_future(receiver.wait_first(hand_over(), _never()))
        await asyncio.sleep(0.02)
        assert given == []
        receiver.resume_flow()
        await waiting
        assert given == ["record"]

    asyncio.run(main())
