"""The log in memory: topics as lists of records, for workers and tests."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextvars import Context
from typing import Literal, NamedTuple

from schemas.query import Origin
from streams.log.base import (
    Begin,
    ConsumerGroup,
    ConsumerRecord,
    Newer,
    Outgoing,
    Part,
    Since,
    UnknownTopic,
    replaces,
)
from streams.log.partitioner import partition_for

# Topics as lists of records: partitions, offsets, committed offsets, and refusals.

BEGAN_MS = 1_700_000_000_000
"""The time a broker's clock starts at by default, ms since the epoch."""


class Effect(NamedTuple):
    """A durable effect of a worker.

    Attributes:
        app: The worker's consumer group.
        kind: Whether the worker sent a record, wrote a row or committed an offset.
        topic: The topic of the record, the changelog of the row, or the topic whose offset was committed.
        key: The key of the record or row; empty for a commit.
    """

    app: str
    kind: Literal["send", "row", "commit"]
    topic: str
    key: bytes


Appended = tuple[bytes | None, bytes | None, int | None]
"""The key, value and partition of a record to append; if the partition is None, it is derived from the key."""


class _Partition:
    def __init__(self) -> None:
        self.first = 0
        self.records: list[ConsumerRecord | None] = []  # None for a record removed by compaction
        self.orders: list[int] = []

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class MemoryBroker:
    """An in-memory broker, which outlives every worker.

    Args:
        topics: Number of partitions by topic.
        monotonic: A clock, in seconds; the broker's time is `began_ms` plus this clock's.
        began_ms: The time the broker's clock starts at, ms since the epoch.

    Attributes:
        monotonic: The clock, as passed in.
        committed: Committed offsets by consumer group, topic and partition.
        effects: All effects of the workers, in order.
        refuses: Called with the topic and key before each send or row write, which fails if this returns a reason.
    """

    def __init__(
        self, topics: Mapping[str, int], monotonic: Callable[[], float], began_ms: int = BEGAN_MS
    ) -> None:
        self._topics = {name: [_Partition() for _ in range(n)] for name, n in topics.items()}
        self.monotonic = monotonic
        self._began_ms = began_ms
        self._order = 0
        self._watchers: dict[str, list[tuple[object, Callable[[ConsumerRecord], None]]]] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self.effects: list[Effect] = []
        self.refuses: Callable[[str, bytes | None], str] = lambda topic, key: ""

    def now_ms(self) -> int:
        """Return the broker's time, ms since the epoch."""
        return self._began_ms + int(self.monotonic() * 1000)

    def create(self, name: str, partitions: int) -> None:
        """Create a topic if it does not exist."""
        self._topics.setdefault(name, [_Partition() for _ in range(partitions)])

    def has(self, topic: str) -> bool:
        """Return whether a topic exists."""
        return topic in self._topics

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has.

        Raises:
            UnknownTopic: there is no such topic.
        """
        return len(self._of(topic))

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> ConsumerRecord:
        """Append a record, by default to its key's partition, and pass it to the watchers.

        The append time is now, unless `timestamp_ms` is given, as for a record copied from another broker.
        """
        parts = self._of(topic)
        at = partition_for(key, len(parts)) if partition is None else partition
        now_ms = self.now_ms() if timestamp_ms is None else timestamp_ms
        record = ConsumerRecord(topic, at, parts[at].end, now_ms, key, value)
        parts[at].records.append(record)
        parts[at].orders.append(self._order)
        self._order += 1
        for _, watcher in list(self._watchers.get(topic, ())):
            watcher(record)
        return record

    def at(self, topic: str, partition: int, offset: int) -> tuple[int, ConsumerRecord] | None:
        """Return the first record at or after an offset, with its global sequence number; None at the end."""
        return next(iter(self.after(topic, {partition: offset})), None)

    def after(self, topic: str, offsets: Mapping[int, int]) -> list[tuple[int, ConsumerRecord]]:
        """Return the result of `at` for an offset in each partition, leaving out partitions that are at their end."""
        found, parts = [], self._of(topic)
        for partition, offset in offsets.items():
            part = parts[partition]
            for index in range(max(0, offset - part.first), len(part.records)):
                if (record := part.records[index]) is not None:
                    found.append((part.orders[index], record))
                    break
        return found

    def records(self, topic: str) -> list[ConsumerRecord]:
        """Return every record of a topic, partition by partition."""
        return [record for part in self._of(topic) for record in part.records if record is not None]

    def changelog(
        self,
        topic: str,
        partition: int,
        begin: int = 0,
        newer: Newer | None = None,
        late: set[bytes] | None = None,
    ) -> dict[bytes, bytes]:
        """Return the latest value of each key in a compacted partition, starting at an offset.

        Args:
            topic: The topic.
            partition: The partition.
            begin: The offset to start from.
            newer: Returns whether a value replaces an earlier one; see `Runtime.table`.
            late: Filled with the keys whose last value does not replace the one before it.
        """
        rows: dict[bytes, bytes] = {}
        part = self._of(topic)[partition]
        for record in part.records[max(0, begin - part.first) :]:
            if record is None:
                continue
            key = record.key or b""
            if replaces(rows.get(key), record.value, newer):
                rows.pop(key, None)
                if record.value is not None:
                    rows[key] = record.value
            if late is not None:
                (late.discard if rows.get(key) == record.value else late.add)(key)
        return rows

    def first(self, topic: str, partition: int) -> int:
        """Return the oldest offset still available."""
        return self._of(topic)[partition].first

    def end(self, topic: str, partition: int) -> int:
        """Return the end offset."""
        return self._of(topic)[partition].end

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        part = self._of(topic)[partition]
        gone = max(0, min(offset, part.end) - part.first)
        del part.records[:gone], part.orders[:gone]
        part.first += gone

    def compact(self, topic: str, before_ms: int) -> None:
        """Keep the last record of each key, and everything in the active segment. Offsets do not change.

        Args:
            topic: The topic.
            before_ms: Start of the active segment, which compaction leaves alone, ms since the epoch.
        """
        for part in self._of(topic):
            last = {record.key: record.offset for record in part.records if record is not None}
            for at, record in enumerate(part.records):
                if record is None or record.timestamp_ms >= before_ms:
                    continue
                if last[record.key] != record.offset:
                    part.records[at] = None

    def watch(self, owner: object, topics: Iterable[str], show: Callable[[ConsumerRecord], None]) -> None:
        """Pass every record appended to these topics from now on to `show`, until `unwatch`."""
        for topic in frozenset(topics):
            self._watchers.setdefault(topic, []).append((owner, show))

    def unwatch(self, owner: object) -> None:
        """Remove an owner's watchers."""
        for topic, watchers in self._watchers.items():
            self._watchers[topic] = [each for each in watchers if each[0] is not owner]

    def _of(self, topic: str) -> list[_Partition]:
        if topic not in self._topics:
            raise UnknownTopic(f"{topic}: the topic does not exist; create it first")
        return self._topics[topic]


class MemoryLog:
    """One reader's view of a `MemoryBroker`; `Log` documents each method.

    Args:
        broker: The topics.
        owner: The owner of the log's watchers; see `MemoryBroker.unwatch`.
        check: Called with each topic that is read; may raise an error.
        arrived: Called with the append times of new records that `tail` reads; returns whether to pass them on.
        append: Appends a record; by default, in the way a client would.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        owner: object = None,
        *,
        check: Callable[[str], None] = lambda topic: None,
        arrived: Callable[[int], bool] = lambda at_ms: True,
        append: Callable[[Outgoing], Awaitable[None]] | None = None,
    ) -> None:
        self._broker = broker
        self._owner = owner
        self._check = check
        self._arrived = arrived
        self._append = append or self._produce

    async def read(
        self, topics: Sequence[str], begin: int = 0, *, partition: int | None = None, since_ms: int = 0
    ) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
        """Yield the records of each topic; see the protocol."""
        for topic in topics:
            self._check(topic)
            yield [
                record
                for record in self._broker.records(topic)
                if record.offset >= begin
                and record.timestamp_ms >= since_ms
                and partition in (None, record.partition)
            ]

    async def tail(
        self, topics: Sequence[str], on_record: Callable[[ConsumerRecord], None], *, begin: Begin
    ) -> None:
        """Pass on present records at once, and new ones in later iterations of the event loop; see the protocol."""
        for topic in topics:
            self._check(topic)
            for record in self._broker.records(topic):
                if self._begins_before(begin, record):
                    on_record(record)
        loop = asyncio.get_running_loop()

        def show(record: ConsumerRecord) -> None:
            if self._arrived(record.timestamp_ms):
                on_record(record)

        def show_later(record: ConsumerRecord) -> None:
            loop.call_soon(show, record, context=Context())  # not the context of the handler that sent it

        self._broker.watch(self._owner, topics, show_later)

    def _begins_before(self, begin: Begin, record: ConsumerRecord) -> bool:
        """Return whether the start position is at or before a record."""
        if isinstance(begin, str):
            return begin == "beginning"
        left = self._broker.end(record.topic, record.partition) - record.offset
        if isinstance(begin, Since):
            return record.timestamp_ms >= begin.at_ms or left <= begin.least
        return left <= begin

    async def latest(
        self, topic: str, begin: int = 0, into: MutableMapping[bytes, bytes] | None = None
    ) -> MutableMapping[bytes, bytes]:
        """Read the topic; see the protocol."""
        self._check(topic)
        found = {} if into is None else into
        for partition in range(self._broker.partitions(topic)):
            found.update(self._broker.changelog(topic, partition, begin))
        return found

    async def first_offsets(self, topics: Sequence[str]) -> Mapping[Part, int]:
        """Ask the broker; see the protocol."""
        return {part: self._broker.first(*part) for part in self._parts(topics)}

    async def end_offsets(self, topics: Sequence[str]) -> Mapping[Part, int]:
        """Ask the broker; see the protocol."""
        return {part: self._broker.end(*part) for part in self._parts(topics)}

    def _parts(self, topics: Sequence[str]) -> list[Part]:
        return [(topic, at) for topic in topics for at in range(self._broker.partitions(topic))]

    async def find(self, topic: str, key: bytes, since_ms: int, until_ms: int) -> ConsumerRecord | None:
        """Scan the topic; see the protocol."""
        partition = partition_for(key, self._broker.partitions(topic))
        async for records in self.read([topic], partition=partition, since_ms=since_ms):
            for record in records:
                if record.key == key and record.timestamp_ms <= until_ms:
                    return record
        return None

    async def has_topic(self, topic: str) -> bool:
        """Ask the broker; see the protocol."""
        return self._broker.has(topic)

    async def groups(self, app_ids: Sequence[str]) -> Mapping[str, ConsumerGroup]:
        """Ask the broker, which does not know a group's members; see the protocol."""
        found: dict[str, ConsumerGroup] = {}
        for (app, topic, partition), offset in self._broker.committed.items():
            if app in app_ids:
                waiting = (
                    found.get(app, ConsumerGroup()).waiting + self._broker.end(topic, partition) - offset
                )
                found[app] = ConsumerGroup(waiting)
        return found

    async def at(self, origin: Origin) -> ConsumerRecord | None:
        """Return the record; see the protocol."""
        found = self._broker.at(origin.topic, origin.partition, origin.offset)
        return found[1] if found is not None and found[1].offset == origin.offset else None

    async def append_again(self, origin: Origin) -> bool:
        """Append a copy of the record; see the protocol."""
        if (found := await self.at(origin)) is None:
            return False
        await self._append(Outgoing(origin.topic, found.key, found.value or b""))
        return True

    async def _produce(self, record: Outgoing) -> None:
        self._broker.append(record.topic, record.key, record.value, record.partition)

    async def close(self) -> None:
        """Stop all followers."""
        self._broker.unwatch(self._owner)
