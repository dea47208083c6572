"""How a record gets from the fetcher to its queue, and none is missed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from faust.transport.consumer import ThreadDelegateConsumer
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from streams.log.base import ConsumerRecord
from streams.runtime import kafka
from streams.runtime.kafka import changelogged, consumer_of, create_app
from streams.runtime.kafka_consumer import _MOVING_S, Consumer, PartitionCursor
from streams.runtime.runtime import Binding
from streams.settings import Settings


def test_refetched_records_come_once_in_order() -> None:
    cursor, after, handed = PartitionCursor(7), None, []
    for offset in (5, 6, 7, 8, 8, 9):
        if offset >= cursor.due and cursor.follows(offset, after):
            handed.append(offset)
            after = cursor.due
    assert handed == [7, 8, 9]


def test_a_gap_before_a_batch_is_believed_when_it_is_there_again() -> None:
    cursor = PartitionCursor(7)
    assert cursor.follows(9, None) is False, "7 and 8 may have been dropped on the way"
    assert cursor.due == 7
    assert cursor.follows(9, None), "they were markers of a transaction"
    assert cursor.follows(12, cursor.due), "inside a batch nothing is missing"
    assert cursor.follows(20, None) is False
    assert cursor.follows(21, None) is False, "another than before: 20 is missing"


class Drop(NamedTuple):
    """What was fetched is lost on its way, as where a generation ends."""


class Seek(NamedTuple):
    """The group goes back to what was committed, while a batch is on its way."""

    share: float


class Fetch(NamedTuple):
    """So many records are fetched and arrive."""

    most: int


@given(
    st.sets(st.integers(0, 40), min_size=1),
    st.lists(
        st.one_of(st.builds(Drop), st.builds(Seek, st.floats(0, 1)), st.builds(Fetch, st.integers(1, 7)))
    ),
)
def test_no_record_is_missed_by_lost_fetches_and_seeks(
    there: set[int], story: list[Drop | Seek | Fetch]
) -> None:
    log = sorted(there)
    position, cursor = 0, PartitionCursor(0)
    handed: list[int] = []

    def fetch(most: int) -> list[int]:
        nonlocal position
        batch = [offset for offset in log if offset >= position][:most]
        position = batch[-1] + 1 if batch else 41
        return batch

    def arrive(batch: list[int]) -> None:
        nonlocal position
        after = None
        for offset in batch:
            if offset < cursor.due:
                continue
            if not cursor.follows(offset, after):
                position = cursor.due
                return
            after = cursor.due
            assert set(handed) >= {each for each in log if each < offset}, "one was passed over"
            handed.append(offset)

    for each in story:
        match each:
            case Drop():
                fetch(3)
                position = cursor.due
            case Fetch(most):
                arrive(fetch(most))
            case Seek(share):
                crossing = fetch(4)
                position = int(share * (handed[-1] + 1)) if handed else 0
                cursor = PartitionCursor(position)
                arrive(crossing)
    for _ in range(len(log) + 41):
        arrive(fetch(5))
    assert set(handed) == there


class Fetched(NamedTuple):
    """A record as aiokafka gives it, as far as it is looked at."""

    topic: str
    partition: int
    offset: int
    timestamp: int = 0
    timestamp_type: int = 0
    headers: tuple[()] = ()
    key: bytes = b"k"
    value: bytes = b"v"
    checksum: None = None
    serialized_key_size: int = 1
    serialized_value_size: int = 1


TP_ = TP("offsets.verification", 0)


def batch(*offsets: int) -> list[Fetched]:
    return [Fetched(TP_.topic, TP_.partition, offset) for offset in offsets]


class Receiver:
    """A consumer that never connects, and what it delivers. To be made within a loop."""

    def __init__(self, *, bound: bool = True) -> None:
        self.consumer = consumer_of(create_app(Settings().replace(prefix="offsets."), "verifier"))
        self.given: list[int] = []
        if bound:
            self.consumer.bind(TP_.topic, Binding(self._take))

    async def _take(self, records: Sequence[ConsumerRecord]) -> None:
        self.given += [record.offset for record in records]

    async def deliver(self, *offsets: int, active: frozenset[TP] = frozenset({TP_})) -> bool:
        came = await self.consumer._deliver(TP_, batch(*offsets), set(active))
        for _ in range(4 * len(offsets)):
            await asyncio.sleep(0)
        return came


class Reader:
    """A consumer that never connects, and what faust's recovery gets from it. To be made within a loop."""

    def __init__(self) -> None:
        app = create_app(Settings().replace(prefix="offsets."), "verifier")
        table = changelogged(app, "rows", 4)
        self.partition = TP(table.changelog_topic.get_topic_name(), 3)
        self.consumer = consumer_of(app)
        self.given: list[int] = []
        self.service = asyncio.Event()
        self.consumer.callback = self._take

    async def _take(self, message: Any) -> None:
        await self.service.wait()
        self.given.append(message.offset)

    async def deliver(self, *offsets: int, active: bool = True) -> bool:
        return await self.consumer._deliver(
            self.partition, batch(*offsets), {self.partition} if active else set()
        )


def ends_at(offset: int) -> Callable[..., Awaitable[dict[TP, int]]]:
    async def highwaters(self: Any, *partitions: TP) -> dict[TP, int]:
        return dict.fromkeys(partitions, offset)

    return highwaters


async def test_nothing_is_delivered_before_the_first_seek() -> None:
    receiver = Receiver()
    assert not await receiver.deliver(0, 1)
    receiver.consumer._cursors[TP_] = PartitionCursor(0)
    assert await receiver.deliver(0, 1)
    assert receiver.given == [0, 1]


@pytest.mark.parametrize("end", ["flow", "generation", "paused"])
async def test_what_comes_when_an_assignment_ends_has_to_come_again(end: str) -> None:
    reader = Reader()
    consumer = reader.consumer
    cursor = consumer._cursors[reader.partition] = PartitionCursor(3)
    coming = asyncio.ensure_future(reader.deliver(3, 4))
    await asyncio.sleep(0.01)
    if end == "flow":
        consumer.stop_flow()
    elif end == "generation":
        consumer.app.consumer_generation_id += 1
    reader.service.set()
    assert await coming is (end == "paused")
    came = reader.given[-1] + 1
    assert cursor.due == came
    if end == "generation":
        return
    assert not await reader.deliver(came, came + 1, active=end != "paused")
    assert cursor.due == came


async def test_unbound_topic_is_delivered_later() -> None:
    receiver = Receiver(bound=False)
    receiver.consumer._cursors[TP_] = PartitionCursor(0)
    assert not await receiver.deliver(0, 1)
    receiver.consumer.bind(TP_.topic, Binding(receiver._take))
    assert await receiver.deliver(0, 1)
    assert receiver.given == [0, 1]
    assert receiver.consumer._new_offset(TP_) == 2


async def test_no_delivery_between_seek_and_clearing_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()

    async def committed(self: Any) -> dict[Any, int]:
        return {TP_: 5}

    monkeypatch.setattr(Consumer, "seek_to_committed", committed)
    monkeypatch.setattr(Consumer, "highwaters", ends_at(9))
    await receiver.consumer.perform_seek()
    coming = asyncio.ensure_future(receiver.deliver(4, 5, 6))
    await asyncio.sleep(0.02)
    assert receiver.given == []
    receiver.consumer.resume_flow()
    assert await coming
    assert receiver.given == [5, 6]


@pytest.mark.parametrize("at", [None, 100])
async def test_invalid_committed_offset_reads_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch, at: int | None
) -> None:
    receiver, sought = Receiver(), {}

    async def committed(self: Any) -> dict[Any, int | None]:
        return {TP_: at}

    async def earliest(self: Any, *partitions: TP) -> dict[TP, int]:
        return dict.fromkeys(partitions, 2)

    async def seek_wait(self: Any, partitions: dict[TP, int]) -> None:
        sought.update(partitions)

    monkeypatch.setattr(Consumer, "seek_to_committed", committed)
    monkeypatch.setattr(Consumer, "highwaters", ends_at(8))
    monkeypatch.setattr(Consumer, "earliest_offsets", earliest)
    monkeypatch.setattr(ThreadDelegateConsumer, "seek_wait", seek_wait)
    await receiver.consumer.perform_seek()
    receiver.consumer.resume_flow()
    assert sought == {TP_: 2}
    assert await receiver.deliver(7) is False, "2 to 6 were dropped before the seek"
    assert await receiver.deliver(2, 3, 4, 5, 6, 7)
    assert receiver.given == [2, 3, 4, 5, 6, 7]


async def test_tables_start_at_once_with_every_topic_named(monkeypatch: pytest.MonkeyPatch) -> None:
    app: Any = create_app(Settings(), "aggregator")

    async def handle(records: Sequence[ConsumerRecord]) -> None:
        raise AssertionError("nothing is fetched here")

    for topic in ("answer", "feedback"):
        kafka.bind(app, topic, Binding(handle), name=topic)
    table = changelogged(app, "join", 2)

    async def pause(seconds: float) -> None:
        raise AssertionError(f"a pause of {seconds} s")

    async def subscribed() -> None:
        found.extend(await app.topics._update_indices())

    found: list[str] = []
    monkeypatch.setattr(app.tables, "sleep", pause)
    monkeypatch.setattr(app.tables.recovery, "start", subscribed)
    monkeypatch.setattr(app.consumer, "assignment", set)
    monkeypatch.setattr(type(table), "maybe_start", nothing)
    await app.agents.on_start()
    await app.tables.on_start()
    assert app.tables._tables_registered.is_set()
    assert set(found) == {"answer", "feedback", table.changelog_topic.get_topic_name()}
    await app.agents.on_stop()


async def nothing(self: Any) -> None:
    """Connect to no broker."""


async def test_while_partitions_move_the_consumer_looks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Receiver().consumer
    consumer.app.rebalancing = True
    asked: list[float] = []
    fetcher = SimpleNamespace(should_stop=False)

    async def records(timeout: float) -> tuple[None, None]:
        asked.append(timeout)
        consumer.app.rebalancing, fetcher.should_stop = False, len(asked) == 2
        return None, None

    monkeypatch.setattr(consumer, "_wait_next_records", records)
    draining = asyncio.ensure_future(consumer._drain_messages(fetcher))
    await asyncio.sleep(0.02)
    assert not asked, "faust would wait for a second where no partition is active"
    consumer._set_active_tps({TP_})
    await draining
    assert asked == [_MOVING_S, 1.0]
