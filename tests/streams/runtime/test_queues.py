"""Keyed queues: what runs beside what, what is committed, what is remembered, and what is let go."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
import pytest
from aiokafka import TopicPartition as TP
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.record import quick_id, readable_id
from streams.log.base import ConsumerRecord
from streams.runtime.errors import PartitionLost
from streams.runtime.kafka import consumer_of, create_app
from streams.runtime.kafka_consumer import Consumer, PartitionCursor
from streams.runtime.queues import WINDOW, AbandonedRecord, Offsets, Queues
from streams.runtime.runtime import Binding
from streams.settings import Settings

TOPIC, OTHER, ORDERED = "queues.search-step", "queues.answer", "queues.context"


class Fetched(NamedTuple):
    """A record as aiokafka gives it, as far as it is looked at."""

    offset: int
    value: bytes = b"v"
    timestamp: int = 7
    key: bytes = b"k"


def of(query_id: str) -> bytes:
    return b'{"schema": "x", "query_id": "%s"}' % query_id.encode()


class Worker:
    """A consumer that never connects, with a handler that returns when it is told to. To be made within a loop."""

    def __init__(self, concurrency: int = 256, most: int = 3) -> None:
        fields = Settings().replace(prefix="queues.", concurrency=concurrency)
        self.consumer: Consumer = consumer_of(create_app(fields, "verifier"))
        for topic in (TOPIC, OTHER):
            self.consumer.bind(topic, Binding(self._handle))
        self.consumer.bind(ORDERED, Binding(self._handle, most, ordered=True))
        self.calls: list[list[tuple[str, int, int]]] = []
        self.open: dict[tuple[str, int, int], asyncio.Future[None]] = {}
        self.failures: list[BaseException] = []
        self.told: list[str] = []
        app: Any = self.consumer.app
        app.fail = self.failures.append
        thread: Any = self.consumer._thread
        thread._consumer = self

    def pause(self, tp: TP) -> None:
        assert isinstance(tp, TP), "aiokafka takes no other"
        self.told.append(f"pause {tp.partition}")

    def resume(self, tp: TP) -> None:
        assert isinstance(tp, TP), "aiokafka takes no other"
        self.told.append(f"resume {tp.partition}")

    async def _handle(self, records: Sequence[ConsumerRecord]) -> None:
        call = [(record.topic, record.partition, record.offset) for record in records]
        self.calls.append(call)
        self.open[call[0]] = asyncio.get_running_loop().create_future()
        try:
            await self.open[call[0]]
        finally:
            del self.open[call[0]]

    async def deliver(self, *records: Fetched, partition: int = 0, topic: str = TOPIC) -> bool:
        tp = TP(topic, partition)
        came = await self.consumer._deliver(tp, records, {tp})
        await settle()
        return came

    async def end(
        self, offset: int, error: Exception | None = None, *, partition: int = 0, topic: str = TOPIC
    ) -> None:
        if error:
            self.open[topic, partition, offset].set_exception(error)
        else:
            self.open[topic, partition, offset].set_result(None)
        await settle()

    def seek(self, offset: int, partition: int = 0, topic: str = TOPIC) -> None:
        tp = TP(topic, partition)
        self.consumer._cursors[tp] = PartitionCursor(offset)
        self.consumer._offsets[tp].start(offset)

    def commits(self, partition: int = 0, topic: str = TOPIC) -> int | None:
        return self.consumer._new_offset(TP(topic, partition))

    def running(self, topic: str = TOPIC, partition: int = 0) -> list[int]:
        return sorted(offset for t, p, offset in self.open if (t, p) == (topic, partition))


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_queries_are_serial_within_and_concurrent_across() -> None:
    worker = Worker()
    worker.seek(5)
    assert await worker.deliver(Fetched(5, of("a")), Fetched(6, of("b")), Fetched(7, of("a")))
    assert worker.running() == [5, 6]
    assert worker.consumer.busy == 2
    await worker.end(6)
    assert worker.running() == [5], "the third waits for the first"
    assert worker.commits() is None, "never past an open record"
    await worker.end(5)
    assert worker.running() == [7]
    assert worker.commits() == 7, "what is done above it is remembered"
    await worker.end(7)
    assert worker.commits() == 8


async def test_topics_share_the_queue_of_a_query() -> None:
    worker = Worker()
    worker.seek(0)
    worker.seek(0, topic=OTHER)
    await worker.deliver(Fetched(0, of("a")))
    await worker.deliver(Fetched(0, of("a")), Fetched(1, of("b")), topic=OTHER)
    assert (worker.running(), worker.running(OTHER)) == ([0], [1])
    await worker.end(0)
    assert worker.running(OTHER) == [0, 1]


async def test_queue_key_is_the_query_id_at_any_depth() -> None:
    worker = Worker()
    worker.seek(0)
    carried = b'{"query": {"query_id": "a"}}', b'{"search": {"query_id": "a"}}'
    await worker.deliver(Fetched(0, of("a")), Fetched(1, carried[0]), Fetched(2, carried[1]))
    assert worker.running() == [0]
    await worker.deliver(Fetched(3, b"nonsense"), Fetched(4, b"nonsense"), Fetched(5, of("not an id")))
    assert worker.running() == [0, 3, 4, 5], "what names no query waits for nothing"


async def test_ordered_topic_is_handled_in_batches() -> None:
    worker = Worker(most=3)
    worker.seek(0, topic=ORDERED)
    await worker.deliver(Fetched(0, of("a")), topic=ORDERED)
    await worker.deliver(*(Fetched(n, of(f"q{n}")) for n in (1, 2, 3, 4)), topic=ORDERED)
    for offset in (0, 1, 4):
        assert worker.running(ORDERED) == [offset], "one call at a time"
        await worker.end(offset, topic=ORDERED)
    assert [[offset for _, _, offset in call] for call in worker.calls] == [[0], [1, 2, 3], [4]]
    assert worker.commits(topic=ORDERED) == 5


async def test_concurrency_limits_calls_and_queries_take_turns() -> None:
    worker = Worker(concurrency=2)
    worker.seek(0)
    await worker.deliver(*(Fetched(n, of(q)) for n, q in enumerate("abcab")))
    assert worker.running() == [0, 1]
    await worker.end(0)
    assert worker.running() == [1, 2], "c before the second of a"
    await worker.end(2)
    assert worker.running() == [1, 3]


async def test_released_slot_lets_another_call_begin() -> None:
    worker = Worker(concurrency=2)
    worker.seek(0)
    await worker.deliver(*(Fetched(n, of(f"q{n}")) for n in range(5)))
    with worker.consumer.queues.release_slot():
        await asyncio.sleep(0.01)
        assert worker.running() == [0, 1, 2]
        await worker.end(0)
        assert worker.running() == [1, 2, 3]
    await worker.end(1)
    assert worker.running() == [2, 3], "it is back: the next waits"
    await worker.end(2)
    assert worker.running() == [3, 4]


async def test_stuck_query_is_named_and_pauses_a_full_window() -> None:
    worker = Worker(concurrency=4)
    worker.seek(0)
    await worker.deliver(Fetched(0, of("stuck")))
    for offset in range(1, 28):
        await worker.deliver(Fetched(offset, of(f"q{offset}")))
        await worker.end(offset)
    assert worker.told == []
    await worker.deliver(Fetched(28, of("q28")))
    assert worker.told == ["pause 0"], "one more poll of four could exceed the window of 32"
    await worker.end(28)
    assert worker.commits() is None
    found = worker.consumer.queues.oldest()
    assert found is not None
    assert found[0].coordinates == f"{TOPIC}/0/0"
    assert worker.told == ["pause 0"]
    await worker.end(0)
    assert worker.commits() == 29
    assert worker.told == ["pause 0", "resume 0"]
    assert worker.consumer.queues.oldest() is None


async def test_waiting_calls_do_not_block_other_partitions() -> None:
    begun = Counter[int]()

    async def waits(records: Sequence[ConsumerRecord]) -> None:
        begun[records[0].partition] += 1
        await asyncio.Future()

    class Unseen:
        def handled(self, records: Sequence[ConsumerRecord]) -> None:
            """Nothing ends."""

        def failed(self, error: Exception) -> None:
            """Nothing fails."""

    queues, binding = Queues(Unseen(), 2), Binding(waits, waits=True)
    for partition, count in ((0, 2 * WINDOW), (1, 3)):
        for n in range(count):
            queues.put(binding, ConsumerRecord("query", partition, n, 1, b"", of(f"{partition}/{n}")))
    await settle()
    assert begun == {0: 2 * WINDOW, 1: 3}
    queues.keep(())
    await settle()
    assert queues.busy == 0


async def test_failed_handler_stops_its_query() -> None:
    worker = Worker()
    worker.seek(0)
    await worker.deliver(Fetched(0, of("a")), Fetched(1, of("a")), Fetched(2, of("b")))
    await worker.end(0, RuntimeError("no"))
    await worker.deliver(Fetched(3, of("a")))
    await worker.end(2)
    assert [str(each) for each in worker.failures] == ["no"]
    assert worker.running() == []
    assert worker.commits() is None


async def test_a_handler_that_is_cancelled_by_nobody_is_noticed() -> None:
    worker = Worker()
    worker.seek(0)
    await worker.deliver(Fetched(0, of("a")), Fetched(1, of("b")))
    worker.open[TOPIC, 0, 0].cancel()  # what the handler waits for is given up, and it with it
    await settle()
    await worker.end(1)
    assert [type(each) for each in worker.failures] == [AbandonedRecord]
    assert worker.commits() is None


async def _nothing(*_: Any, **__: Any) -> None:
    pass


async def moved(worker: Worker, kept: set[TP], monkeypatch: pytest.MonkeyPatch, generation: int = 1) -> None:
    """Let partitions be revoked and assigned again."""
    monkeypatch.setattr("streams.runtime.kafka_consumer.SETTLE_S", 0.02)
    worker.consumer._on_partitions_revoked = worker.consumer._on_partitions_assigned = _nothing
    await worker.consumer.on_partitions_revoked({TP(TOPIC, 0), TP(TOPIC, 1)})
    assert worker.running(partition=1) == [0], "what is in hand goes on, for it may stay here"
    app: Any = worker.consumer.app
    app.consumer_generation_id += 1
    monkeypatch.setattr(worker.consumer, "assignment", lambda: kept)
    await worker.consumer.on_partitions_assigned(kept, generation)
    await settle()
    worker.consumer.resume_flow()


async def test_moved_partition_is_no_longer_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    worker.consumer._generation = 0
    for partition in (0, 1):
        worker.seek(0, partition)
        await worker.deliver(
            Fetched(0, of(f"a{partition}")), Fetched(1, of(f"a{partition}")), partition=partition
        )
    await moved(worker, {TP(TOPIC, 1)}, monkeypatch)
    assert list(worker.open) == [(TOPIC, 1, 0)]
    worker.seek(0, 1)
    await worker.deliver(Fetched(0, of("a1")), Fetched(1, of("a1")), partition=1)
    await worker.end(0, partition=1)
    assert worker.commits(1) is None, "that was the call of before"
    assert worker.calls[-1] == [(TOPIC, 1, 0)], "again, for it was not known to be handled"
    await worker.end(0, partition=1)
    assert worker.commits(1) == 1
    assert worker.failures == []


async def test_missed_generation_cancels_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    worker.consumer._generation = 0
    worker.seek(0, 1)
    await worker.deliver(Fetched(0, of("a")), partition=1)
    await moved(worker, {TP(TOPIC, 1)}, monkeypatch, generation=2)
    assert worker.open == {}
    assert worker.failures == []


async def test_effects_wait_for_rebalance_and_fail_if_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    consumer = worker.consumer
    consumer._generation = 0
    before = consumer._epoch
    consumer._assigned_epoch = before
    gone, stays = (ConsumerRecord(TOPIC, partition, 0, 0, None, None, before) for partition in (0, 1))
    await consumer.keep_ours(gone)
    worker.seek(0, 1)
    await worker.deliver(Fetched(0, of("a")), partition=1)
    consumer._epoch += 1
    waiting = [asyncio.ensure_future(consumer.keep_ours(each)) for each in (gone, stays)]
    await asyncio.sleep(0.03)
    assert not any(each.done() for each in waiting), "nobody knows yet where they go"
    await moved(worker, {TP(TOPIC, 1)}, monkeypatch)
    with pytest.raises(PartitionLost, match=f"{TOPIC}/0/0: its partition has moved"):
        await waiting[0]
    await waiting[1]


class Come(NamedTuple):
    """So many records are fetched."""

    most: int


class Done(NamedTuple):
    """One of the calls in progress returns."""

    which: int


class Given(NamedTuple):
    """The partition is given out again: it goes on from what was committed; what is on its way arrives all the same."""

    crossing: int


class Commit(NamedTuple):
    """What is handled is committed."""


@settings(deadline=None, max_examples=150)
@given(
    st.dictionaries(st.integers(0, 30), st.sampled_from("abcd"), min_size=1),
    st.integers(1, 4),
    st.lists(
        st.one_of(
            st.builds(Come, st.integers(1, 6)), st.builds(Done, st.integers(0, 3)), st.builds(Commit),
            st.builds(Given, st.integers(0, 3)),
        )
    ),
)  # fmt: skip
def test_only_handled_offsets_are_committed(
    there: dict[int, str], concurrency: int, story: list[Any]
) -> None:
    log, tp = sorted(there), TP(TOPIC, 0)

    async def main() -> None:
        worker = Worker(concurrency)
        consumer = worker.consumer
        position = committed = 0
        ended: list[int] = []
        worker.seek(0)

        def fetch(count: int) -> list[int]:
            return [offset for offset in log if offset >= position][:count]

        async def come(batch: list[int]) -> None:
            nonlocal position
            position = batch[-1] + 1 if batch else position
            if not await worker.deliver(*(Fetched(offset, of(there[offset])) for offset in batch)):
                position = consumer._cursors[tp].due

        async def done(which: int = 0) -> None:
            if running := worker.running():
                assert len(running) <= concurrency
                assert len({there[offset] for offset in running}) == len(running), "one of a query at a time"
                offset = running[which % len(running)]
                ended.append(offset)
                await worker.end(offset)

        def commit() -> None:
            nonlocal committed
            committed = consumer._new_offset(tp) or committed
            assert {offset for offset in log if offset < committed} <= set(ended)

        for each in story:
            match each:
                case Come(count):
                    await come(fetch(count))
                case Done(which):
                    await done(which)
                case Commit():
                    commit()
                case Given(count):
                    crossing = fetch(count)
                    consumer.queues.forget()
                    consumer._epoch += 1
                    consumer._offsets.pop(tp, None)
                    position = committed
                    worker.seek(committed)
                    await come(crossing)
        for _ in range(4 * len(log) + 50):
            await come(fetch(5))
            await done()
        commit()
        assert not worker.failures
        assert set(ended) == set(there)
        assert committed == log[-1] + 1
        by_query: defaultdict[str, list[int]] = defaultdict(list)
        for offset in dict.fromkeys(ended):
            by_query[there[offset]].append(offset)
        assert all(offsets == sorted(offsets) for offsets in by_query.values())

    asyncio.run(main())


def test_an_offset_is_committed_when_all_before_it_are_handled() -> None:
    offsets = Offsets()
    offsets.start(50)
    for offset in (50, 51, 53):  # 52 is a marker of a transaction, which nobody is given
        offsets.delivered(offset)
    assert offsets.take() is None
    offsets.handled(51)
    assert offsets.take() is None
    assert (offsets.open, offsets.span, offsets.count) == (2, 3, 1)
    offsets.handled(50)
    assert offsets.take() == 52
    assert offsets.take() is None, "once"
    offsets.handled(53)
    assert offsets.take() == 54
    assert (offsets.open, offsets.span, offsets.count) == (0, 0, 3)


def test_what_is_delivered_and_handled_again_changes_nothing() -> None:
    offsets = Offsets()
    for offset in (1, 2, 1, 2, 3):
        offsets.delivered(offset)
    for offset in (3, 3, 1, 1, 2, 1, 2, 3, 9):
        offsets.handled(offset)
    assert offsets.take() == 4
    assert offsets.count == 3


def test_returned_partition_starts_at_the_committed_offset() -> None:
    offsets = Offsets()
    for offset in (5, 6, 7):
        offsets.delivered(offset)
    offsets.handled(6)
    offsets.start(7)
    offsets.handled(5)
    assert offsets.take() is None
    offsets.handled(7)
    assert offsets.take() == 8


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.randoms())
def test_no_offset_moves_past_an_open_record(jumps: list[int], rng: random.Random) -> None:
    offsets, handed, done = Offsets(), list[int](), set[int]()
    for jump in jumps:
        for _ in range(jump):
            handed.append(len(handed))
            offsets.delivered(handed[-1])
        if left := [each for each in handed if each not in done]:
            done.add(each := rng.choice(left))
            offsets.handled(each)
        lowest = min((each for each in handed if each not in done), default=len(handed))
        taken = offsets.take()
        assert taken is None or taken == lowest
        assert offsets.span == len(handed) - lowest


_IDS = st.sampled_from(["a", "b", "not an id", ""]) | st.integers(-9, 9) | st.none()
_CARRIERS = st.fixed_dictionaries(
    {},
    optional={
        "query_id": _IDS,
        "query": _IDS | st.fixed_dictionaries({"query_id": _IDS}),
        "other": st.text(),
    },
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["query_id", "query", "search", "other"]), _IDS | _CARRIERS), max_size=5
    )
)
def test_quick_id_equals_readable_id(fields: list[tuple[str, Any]]) -> None:
    # A name may come twice: both take the last.
    value = b"{" + b",".join(orjson.dumps(name) + b":" + orjson.dumps(held) for name, held in fields) + b"}"
    assert quick_id(value) == readable_id(value)
