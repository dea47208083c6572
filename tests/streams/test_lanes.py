"""From the fetcher to the handlers: order, what is handled, and what is let go."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from faust.types import TP
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.runtime.base import Record
from streams.runtime.kafka import consumer_of, create_app
from streams.runtime.kafka_consumer import Consumer, Course, Lanes, SkippedRecord
from streams.settings import Settings

TOPIC = "lanes.search-step"


class Fetched(NamedTuple):
    """A record as aiokafka gives it, as far as it is looked at."""

    offset: int
    timestamp: int = 7
    key: bytes = b"k"
    value: bytes = b"v"


class Worker:
    """A consumer that never connects, with a handler that returns when it is told to. To be made within a loop."""

    def __init__(self, most: int = 1, limit: int = 512) -> None:
        self.consumer: Consumer = consumer_of(create_app(Settings().replace(prefix="lanes."), "verifier"))
        self.lanes = Lanes(self._handle, most=most, limit=limit)
        self.consumer.bind(TOPIC, self.lanes)
        self.calls: defaultdict[int, list[list[int]]] = defaultdict(list)
        self.open: dict[int, asyncio.Future[None]] = {}
        self.failures: list[BaseException] = []
        app: Any = self.consumer.app
        app.fail = self.failures.append

    async def _handle(self, records: Sequence[Record]) -> None:
        partition = records[0].partition
        assert partition not in self.open, "one call at a time in each partition"
        self.calls[partition].append([record.offset for record in records])
        self.open[partition] = asyncio.get_running_loop().create_future()
        try:
            await self.open[partition]
        finally:
            del self.open[partition]

    async def hand_over(self, partition: int, *offsets: int) -> bool:
        tp = TP(TOPIC, partition)
        came = await self.consumer._hand_over(tp, [Fetched(offset) for offset in offsets], {tp})
        await settle()
        return came

    async def end(self, partition: int, error: Exception | None = None) -> None:
        if error:
            self.open[partition].set_exception(error)
        else:
            self.open[partition].set_result(None)
        await settle()

    def seek(self, partition: int, offset: int) -> None:
        tp = TP(TOPIC, partition)
        self.consumer._courses[tp] = Course(offset)
        self.consumer._offsets[tp].start(offset)

    def handled(self, partition: int) -> list[int]:
        return [offset for call in self.calls[partition] for offset in call]


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def test_records_of_a_partition_are_handled_one_call_after_another() -> None:
    async def main() -> None:
        worker = Worker()
        worker.seek(0, 5)
        worker.seek(1, 0)
        assert await worker.hand_over(0, 5, 6)
        assert await worker.hand_over(1, 0)
        assert worker.calls == {0: [[5]], 1: [[0]]}, "partitions side by side"
        assert worker.consumer.busy == 2
        assert worker.consumer._new_offset(TP(TOPIC, 0)) is None
        await worker.end(0)
        assert worker.calls[0] == [[5], [6]]
        assert worker.consumer._new_offset(TP(TOPIC, 0)) == 6
        await worker.end(0)
        assert worker.consumer._new_offset(TP(TOPIC, 0)) == 7

    asyncio.run(main())


def test_a_call_takes_what_has_come_meanwhile() -> None:
    async def main() -> None:
        worker = Worker(most=3)
        worker.seek(0, 0)
        await worker.hand_over(0, 0)
        await worker.hand_over(0, 1, 2, 3, 4)
        for _ in range(3):
            await worker.end(0)
        assert worker.calls[0] == [[0], [1, 2, 3], [4]]
        assert worker.consumer._new_offset(TP(TOPIC, 0)) == 5

    asyncio.run(main())


def test_nothing_goes_past_a_record_whose_handler_raised() -> None:
    async def main() -> None:
        worker = Worker()
        worker.seek(0, 0)
        await worker.hand_over(0, 0, 1)
        await worker.end(0, RuntimeError("no"))
        await worker.hand_over(0, 2)
        assert worker.calls[0] == [[0]]
        assert [str(each) for each in worker.failures] == ["no"]
        assert worker.consumer._new_offset(TP(TOPIC, 0)) is None

    asyncio.run(main())


def test_a_lane_that_dies_without_a_word_is_noticed() -> None:
    async def main() -> None:
        worker = Worker()
        worker.seek(0, 0)
        await worker.hand_over(0, 0, 1)
        worker.open[0].cancel()  # what the handler waits for is given up, and it with it
        await settle()
        await worker.hand_over(0, 2)
        await worker.end(0)
        assert [type(each) for each in worker.failures] == [SkippedRecord]
        assert worker.consumer._new_offset(TP(TOPIC, 0)) is None

    asyncio.run(main())


def test_a_partition_that_went_elsewhere_is_not_handled_here_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        worker = Worker()
        monkeypatch.setattr("streams.runtime.kafka_consumer.SETTLE_S", 0.02)
        for partition in (0, 1):
            worker.seek(partition, 0)
            await worker.hand_over(partition, 0, 1)
        both = {TP(TOPIC, 0), TP(TOPIC, 1)}
        app: Any = worker.consumer.app
        worker.consumer._on_partitions_revoked = worker.consumer._on_partitions_assigned = _nothing
        await worker.consumer.on_partitions_revoked(both)
        assert sorted(worker.open) == [0, 1], "what is in hand goes on, for it may stay here"
        app.consumer_generation_id += 1
        await worker.consumer.on_partitions_assigned({TP(TOPIC, 1)})
        await settle()
        assert sorted(worker.open) == [1]
        worker.consumer.resume_flow()
        worker.seek(1, 0)
        await worker.hand_over(1, 0, 1)
        await worker.end(1)
        assert worker.calls[1] == [[0], [0]], "again, for it was not known to be handled"
        assert worker.consumer._new_offset(TP(TOPIC, 1)) is None, "that was the call of before"
        await worker.end(1)
        assert worker.consumer._new_offset(TP(TOPIC, 1)) == 1

    asyncio.run(main())


async def _nothing(*_: Any, **__: Any) -> None:
    pass


def test_a_lane_that_is_full_is_not_fetched_until_half_of_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        worker = Worker(limit=4)
        told: list[str] = []

        class Paused:
            def pause(self, tp: TP) -> None:
                told.append(f"pause {tp.partition}")

            def resume(self, tp: TP) -> None:
                told.append(f"resume {tp.partition}")

        monkeypatch.setattr(worker.consumer._thread, "_consumer", Paused())
        worker.seek(3, 0)
        await worker.hand_over(3, 0, 1, 2)
        assert told == []
        await worker.hand_over(3, 3, 4)
        assert told == ["pause 3"]
        await worker.end(3)
        await worker.end(3)
        assert told == ["pause 3"]
        await worker.end(3)
        assert told == ["pause 3", "resume 3"]

    asyncio.run(main())


class Come(NamedTuple):
    """So many records are fetched."""

    most: int


class Done(NamedTuple):
    """The call in hand returns."""


class Given(NamedTuple):
    """The partition is given out again: it goes on from what was committed; what is on its way arrives all the same."""

    crossing: int


class Commit(NamedTuple):
    """What is handled is committed."""


@settings(deadline=None, max_examples=150)
@given(
    st.sets(st.integers(0, 30), min_size=1),
    st.integers(1, 4),
    st.lists(
        st.one_of(
            st.builds(Come, st.integers(1, 6)), st.builds(Done), st.builds(Commit),
            st.builds(Given, st.integers(0, 3)),
        )
    ),
)  # fmt: skip
def test_nothing_is_committed_that_was_not_handled_whatever_crosses(
    there: set[int], most: int, story: list[Any]
) -> None:
    log, tp = sorted(there), TP(TOPIC, 0)

    async def main() -> None:
        worker = Worker(most)
        consumer = worker.consumer
        position = committed = 0
        ended: set[int] = set()
        worker.seek(0, 0)

        def fetch(count: int) -> list[int]:
            return [offset for offset in log if offset >= position][:count]

        async def come(batch: list[int]) -> None:
            nonlocal position
            position = batch[-1] + 1 if batch else position
            if not await worker.hand_over(0, *batch):
                position = consumer._courses[tp].due

        async def done() -> None:
            if 0 in worker.open:
                ended.update(worker.calls[0][-1])
                await worker.end(0)

        def commit() -> None:
            nonlocal committed
            committed = consumer._new_offset(tp) or committed
            assert {offset for offset in log if offset < committed} <= ended

        for each in story:
            match each:
                case Come(count):
                    await come(fetch(count))
                case Done():
                    await done()
                case Commit():
                    commit()
                case Given(count):
                    crossing = fetch(count)
                    worker.lanes.forget()
                    consumer._epoch += 1
                    consumer._offsets.pop(tp, None)
                    position = committed
                    worker.seek(0, committed)
                    await come(crossing)
        for _ in range(4 * len(log) + 50):
            await come(fetch(5))
            await done()
        commit()
        assert not worker.failures
        assert ended == there
        assert committed == log[-1] + 1

    asyncio.run(main())
