"""The Runtime: records in, records out, tables, time and control: all a service knows of the world."""

import asyncio
import contextlib
import functools
import logging
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from schemas.answer import Answer
from schemas.errors import RecordTooLarge, UniscaleError
from schemas.query import Origin
from schemas.record import MAX_RECORD, MAX_VALUE, Record, encode
from schemas.reward import Due
from schemas.search import SearchStep, Verification
from streams.topics import Topics

if TYPE_CHECKING:
    from streams.control import Control
    from streams.metrics import Metrics
    from streams.settings import Settings


# What can go wrong in a runtime.
#
# Exception
# ├── Unavailable         a dependency of a record is unavailable; the guard waits and tries again
# │   ├── SendFailed      the broker did not accept a record
# │   │   └── NotAllowed  its access control lists do not say that this process may
# │   └── PartitionLost           what is handled or written is another worker's by now, or is read anew
# ├── PartialWrite                what the service knows is ahead of what it has written: counted, and its process ends
# └── Crash               the service cannot continue, and its process ends
#     └── Death           for a reason that a record in flight may be: counted as a process that was killed
#
# UniscaleError           in a handler: the record is at fault, and goes to the dead-letter topic
# ├── RowTooLarge         a row would exceed the record limit
# └── UnknownTopic        a topic does not exist


class Unavailable(Exception):
    """A dependency of a record is unavailable: the broker, an encoder. The record is not at fault.

    The guard counts no failure. It waits, longer each time, and calls the handler again.
    """


class SendFailed(Unavailable):
    """The broker did not accept a record. The message gives its reason."""


class NotAllowed(SendFailed):
    """The broker does not let this process read or write a topic: its access control lists do not say so."""


class PartitionLost(Unavailable):
    """The partition of the record being handled has moved: nothing more of this call takes effect here.

    Or that of the rows that this follows from, or they are being read anew.
    """


class RowTooLarge(UniscaleError, ValueError):
    """A row would exceed the record limit: the record that would cause it is refused."""


class UnknownTopic(UniscaleError, LookupError):
    """A topic does not exist. Check the prefix, or run `python -m streams topics create`."""


class PartialWrite(Exception):
    """A handler failed after it had changed what the service knows, and before that was durable. Its cause says why.

    The guard counts the failure as any other, but even the third ends the process: no record may be handled with what
    nobody will find in the log. The next process sends a record that has failed three times to the dead-letter topic
    instead of handling it again.
    """


class Crash(Exception):
    """This service cannot continue. `streams.worker` ends the process; in memory the caller restarts the service.

    Nothing between a handler and its runtime catches it, so no offset moves past the failure.
    """


class Death(Crash):
    """An engine has died or hangs, or no memory is left: any record in flight may be the cause.

    The guard counts it against all of them, like the death of a process that could say nothing (`Crashes.died`).
    """


# Records as a runtime delivers and sends them, and the consumer groups for which they wait.


class ConsumerRecord(msgspec.Struct, frozen=True):
    """One record as the broker delivered it.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        offset: Its position in the partition.
        timestamp_ms: Append time on the broker, ms since the epoch.
        key: Its key.
        value: Its bytes; None for a tombstone.
        epoch: The assignment it was delivered under; see `Runtime.is_ours`.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    epoch: int = 0

    @property
    def coordinates(self) -> str:
        """Return topic/partition/offset, for logs."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def identity(self) -> str:
        """Return coordinates and append time, for failure counts: another log has the same coordinates again."""
        return f"{self.coordinates}@{self.timestamp_ms}"

    @property
    def origin(self) -> Origin:
        """Return the record's position as it travels in other records."""
        return Origin(topic=self.topic, partition=self.partition, offset=self.offset)


class Outgoing(msgspec.Struct, frozen=True):
    """One record to send. Without a partition, its key decides; see `Runtime.partition_for`."""

    topic: str
    key: bytes | None
    value: bytes
    partition: int | None = None

    @classmethod
    def of(cls, topic: str, record: Answer | Due | SearchStep | Verification) -> Self:
        """Return a record under the key of its query."""
        return cls(topic, key_of(record.query_id), encode(record))


class ConsumerGroup(msgspec.Struct, frozen=True):
    """A consumer group as the broker sees it.

    Attributes:
        waiting: Records that are not handled yet.
        members: Its workers; None where the broker does not say.
    """

    waiting: int = 0
    members: int | None = None


def key_of(query_id: str) -> bytes:
    """Return the key of a query's records."""
    return query_id.encode()


# Where a key's records lie: Kafka's default partitioner, for both runtimes.
#
# The Java client, kafka-python and aiokafka place a key by its 32-bit MurmurHash2. librdkafka's default is CRC-32,
# and without a key a client picks any partition. Written out here because the memory runtime must place keys as
# Kafka's clients do and imports none of them; a test compares it with theirs.

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_WORD = 0xFFFFFFFF


def partition_for(key: bytes | None, partitions: int) -> int:
    """Return the partition of a key, of so many.

    >>> partition_for(b"q-1", 8)
    6
    """
    return (murmur2(key or b"") & 0x7FFFFFFF) % partitions


# A query's records have one key: the hash of the first serves all.
@functools.lru_cache(maxsize=4096)
def murmur2(key: bytes) -> int:
    """Return the 32-bit MurmurHash2 of a key."""
    whole = len(key) & ~3
    found = _SEED ^ len(key)
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        word = word * _MIX & _WORD
        word = (word ^ word >> 24) * _MIX & _WORD
        found = found * _MIX & _WORD ^ word
    if rest := key[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _MIX & _WORD
    found = (found ^ found >> 13) * _MIX & _WORD
    return found ^ found >> 15


# The Runtime: records in, records out, tables, time and control: all a service knows of the world.
#
# Two implementations exist: `runtime.kafka` for deployments and `runtime.memory` for tests, examples and proofs.
# `tests/streams/runtime` holds both to one contract:
#
# - Records of one query are handled one call at a time, from whichever of the service's topics they come, and those of
#   one partition in order. Records of different queries are handled concurrently, up to `UNISCALE_CONCURRENCY` in a
#   worker.
# - A topic that is handled in batches has one order: the records of a partition are handled one call at a time.
# - A record is done when its handler has returned. After a crash, every record that was not done is redelivered,
#   and with it records behind it that were done.
# - Once a partition has moved to another worker, no handler of its records sends or writes anything more.
# - `send` and table writes return once the broker has stored the records; if it refuses one, they raise
#   `SendFailed`.
# - A table has the rows that were written before the crash, whole, before the first record is handled.
# - When a handler has failed three times on one record, the record goes to the dead-letter topic and its query goes
#   on without it.

T = TypeVar("T")

Handler: TypeAlias = Callable[[ConsumerRecord], Awaitable[None]]
BatchHandler: TypeAlias = Callable[[Sequence[ConsumerRecord]], Awaitable[None]]
Recovered: TypeAlias = Callable[[], Awaitable[None]]
Begins: TypeAlias = Callable[[], Awaitable[int]]
Newer: TypeAlias = Callable[[bytes, bytes], bool]


class Since(NamedTuple):
    """Where following starts: at the first record of each partition that was appended at a time or later.

    Attributes:
        at_ms: The time, ms since the epoch.
        least: So many records before the end of each partition at least, however old they are.
    """

    at_ms: int
    least: int = 0


Begin: TypeAlias = Literal["beginning", "end"] | int | Since
"""Where following starts: the beginning, the end, so many records before the end of each partition, or a time."""


PlacedRow: TypeAlias = tuple[bytes, bytes | None, int]
"""Key, value and partition of a row; None deletes it."""

Write: TypeAlias = Callable[[str, Sequence[PlacedRow]], Awaitable[None]]
"""Writes records to a topic in order, and returns once the broker has stored all of them."""


class Binding(NamedTuple):
    """How the records of a topic are handled.

    Attributes:
        handle: Returns when the records are handled; an exception other than a cancellation ends the worker.
        most: Records in one call at most.
        ordered: Whether the records of a partition are handled in order, one call at a time, instead of by query.
        waits: Whether calls wait for other queries: as many may then be in progress as are delivered.
    """

    handle: BatchHandler
    most: int = 1
    ordered: bool = False
    waits: bool = False


class DeclaredTable(NamedTuple):
    """A table as a service declares it; see `Runtime.table`."""

    name: str
    partitions: int
    source: str
    recovered: Recovered
    one_writer: bool
    begins: Begins | None
    newer: Newer | None


_log = logging.getLogger("streams.tables")


class Table:
    """Rows as bytes by key, in memory, rebuilt from a changelog at the start. A write is durable when it returns.

    A row is written to its key's partition (`Runtime.partition_for`); one that lies elsewhere is not recovered. How
    rows are written and recovered is the runtime's: this class says only which are shown.

    Args:
        changelog: The topic of its rows.
        write: Writes records; see `Runtime.table` for when it does so whole or not at all.
        owned: Returns the partitions that this worker owns. Rows of others stay in memory, unseen.
        limit: Most bytes of a record.
        rows: Rows by key; whatever recovers the table fills them.
        places: The partition of each row; None for a table of one partition.
    """

    def __init__(
        self,
        changelog: str,
        write: Write,
        owned: Callable[[], frozenset[int]],
        limit: int,
        rows: MutableMapping[bytes, bytes] | None = None,
        places: dict[bytes, int] | None = None,
    ) -> None:
        self.changelog = changelog
        self._write = write
        self._owned = owned
        self._limit = limit
        self._rows = {} if rows is None else rows
        self._places = places

    @property
    def reading(self) -> int:
        """Return the number, from 1, of the reading that its rows are from; 0 where partitions have moved since.

        What follows from the rows of one reading must not be written under another. Only of a table of one writer does
        every runtime count them.
        """
        return 0

    def get(self, key: bytes) -> bytes | None:
        """Return a row, or None if the key has none."""
        return self._rows.get(key)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the keys of the rows in the partitions this worker owns."""
        owned = self._owned()
        return (key for key in list(self._rows) if self._place(key) in owned)

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of every row in the partitions this worker owns."""
        return [(key, self._rows[key]) for key in self]

    def partition_of(self, key: bytes) -> int | None:
        """Return the partition a row lies in, None when there is no such row or its partition is another worker's."""
        place = self._place(key)
        return place if place in self._owned() and key in self._rows else None

    def _place(self, key: bytes) -> int | None:
        return 0 if self._places is None else self._places.get(key)

    async def put(self, key: bytes, value: bytes, partition: int) -> None:
        """Write one row; see `put_all`."""
        await self.put_all([(key, value, partition)])

    async def put_all(self, rows: Iterable[PlacedRow]) -> None:
        """Write rows in order. They are visible once all of them are durable.

        Args:
            rows: No value may be empty, because a recovery takes that for a deletion. None is one.

        Raises:
            PartitionLost: the handler's record belongs to another worker now; nothing was written.
            RowTooLarge: a row exceeds the record limit; nothing was written.
            SendFailed: the broker did not take a row; none is visible, others of the call may have been written.
        """
        rows = list(rows)
        for row in rows:
            self.check(row)
        if rows:
            await self._write(self.changelog, rows)
            self._show(rows)

    async def put_again(self, late: Iterable[bytes]) -> None:
        """Write again the rows of partitions that are owned, after which others of their keys were written late."""
        for key in sorted(late):
            # A handler that began before may close its query meanwhile.
            if (place := self.partition_of(key)) is not None:
                _log.warning(
                    "%s: row %r was written late: the earlier one is written again", self.changelog, key
                )
                await self.put(key, self._rows[key], place)

    def check(self, row: PlacedRow) -> None:
        """Refuse a row that cannot be written.

        Raises:
            RowTooLarge: it exceeds the record limit.
        """
        key, value, _ = row
        if value is None:
            return
        if not value:
            raise ValueError(f"{self.changelog}: row {key!r} is empty")
        if len(value) + len(key) + 512 > self._limit:
            raise RowTooLarge(
                f"{self.changelog}: row {key!r} has {len(value)} bytes, the record limit is {self._limit}"
            )

    def seed(self, rows: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Show rows (key, value, partition) that are durable elsewhere, where the table has none of that key."""
        self._show(row for row in rows if row[0] not in self._rows)

    async def post(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write records (key, value) of another topic with one partition, under this table's right to write.

        A worker whose table has been taken over by another cannot write them either. None deletes a key.

        Raises:
            SendFailed: the broker did not take a record; others of the call may have been written.
        """
        if rows := [(key, value, 0) for key, value in records]:
            await self._write(topic, rows)

    def _show(self, rows: Iterable[PlacedRow]) -> None:
        for key, value, partition in rows:
            if value is not None:
                self._rows[key] = value
            elif key in self._rows:
                del self._rows[key]
            if self._places is not None and value is not None:
                self._places[key] = partition
            elif self._places is not None:
                self._places.pop(key, None)


def replaces(before: bytes | None, value: bytes | None, newer: Newer | None) -> bool:
    """Return whether a recovery takes a row that comes after another of its key; see `newer` in `Runtime.table`."""
    return not before or not value or newer is None or newer(value, before)


class Runtime(ABC):
    """One worker of one service: what both runtimes share, and what each does in its own way.

    Attributes:
        settings: The settings of the process.
        topics: The names of all topics.
        metrics: Counters and gauges.
        control: Catalogue, objectives and heartbeats.
        clock: The broker's, by the append times seen.
        service: The service's name.
        group: The executor group, where the service has one.
        instance: Stable name of this worker among those of its service.
        limit: Most bytes of a record's value.
        answers_for: Whether a query gets an Answer when its record, at an origin, has gone to the dead-letter topic; a
            service may replace it.
        closers: Called when the service stops in order.
    """

    def __init__(
        self,
        settings: "Settings",
        metrics: "Metrics",
        control: "Control",
        *,
        service: str,
        group: str,
        instance: str,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.control = control
        self.service = service
        self.group = group
        self.instance = instance
        self.topics = Topics(settings)
        self.clock = BrokerClock(self.monotonic, self.wall_ms, metrics.clock_skew.set)
        self.limit = settings.kafka.max_record_bytes - (MAX_RECORD - MAX_VALUE)
        self.answers_for: Callable[[str, Origin], bool] = lambda query_id, origin: True
        self.closers: list[Callable[[], Awaitable[None]]] = []

    def each(self, topic: str, handle: Handler, *, stage: str, waits: bool = False) -> None:
        """Bind a handler to a topic: one record of a query at a time.

        Args:
            topic: The topic.
            handle: Its handler.
            stage: Names it in metrics.
            waits: Whether it waits for other queries. One that waits then keeps no other from beginning.
        """

        async def one(records: Sequence[ConsumerRecord]) -> None:
            await handle(records[0])

        self._bind(topic, Binding(one, waits=waits), stage)

    def batches(self, topic: str, handle: BatchHandler, *, stage: str, most: int) -> None:
        """Bind a handler to a topic of one partition: what waits, up to `most` records at a time."""
        self._bind(topic, Binding(handle, most, ordered=True), stage)

    @abstractmethod
    def _bind(self, topic: str, binding: Binding, stage: str) -> None:
        """Bind a handler to a topic."""

    def table(
        self,
        name: str,
        partitions: int,
        *,
        source: str,
        recovered: Recovered,
        one_writer: bool = False,
        begins: Begins | None = None,
        newer: Newer | None = None,
    ) -> Table:
        """Declare a table.

        Args:
            name: With the service's name, the changelog's.
            partitions: Of the changelog; equal to those of the topics whose handlers write it.
            source: One of these topics: who owns its partition owns the rows of that partition.
            recovered: Awaited after each recovery, before the first record is handled; its errors end the service.
            one_writer: For a table of one partition: the broker refuses the writes of a worker that does not own it any
                more, even where it does not know that yet. Each call of `put_all` is then written whole
                or not at all, and a recovery sees everything that any worker has written before it. Its values lie in
                a file (`FileRows`), its keys in memory.
            begins: For a table of one writer: awaited before each recovery, returns the offset of the changelog at
                which reading begins. What lies before it must be known otherwise; see `Table.seed`.
            newer: For a table of several writers: whether a row replaces an earlier one of its key. A worker that was
                suspended past its session may write a row after its successor has. A recovery leaves that one out, and
                writes the earlier one again, because compaction keeps only the last.

        Raises:
            ValueError: `begins` for a table of several writers.
        """
        if begins is not None and not one_writer:
            raise ValueError(f"{name}: only a table with one_writer=True begins at an offset")
        return self._table(DeclaredTable(name, partitions, source, recovered, one_writer, begins, newer))

    @abstractmethod
    def _table(self, declared: DeclaredTable) -> Table:
        """Declare a table; see `table`."""

    @abstractmethod
    async def follow(
        self, topics: Sequence[str], on_record: Callable[[ConsumerRecord], None], *, begin: Begin
    ) -> None:
        """Show every record of topics to this worker, whoever handles them; return when all present ones were shown.

        Raises:
            UnknownTopic: a topic does not exist.
        """

    async def send(self, *records: Outgoing) -> None:
        """Send records and wait for their delivery. Records of one partition keep their order.

        Raises:
            PartitionLost: the handler's record belongs to another worker now; nothing was sent.
            RecordTooLarge: a value exceeds the limit; nothing was sent.
            SendFailed: the broker did not take a record; others of the call may have been delivered.
        """
        for record in records:
            if len(record.value) > self.limit:
                why = (
                    f"takes {len(record.value)} bytes of {self.limit}; shorten the text or narrow the search"
                )
                raise RecordTooLarge(record.topic, "", why)
        await self._send(records)

    @abstractmethod
    async def _send(self, records: Sequence[Outgoing]) -> None:
        """Send records that are not too large; see `send`."""

    def partition_for(self, key: bytes, partitions: int) -> int:
        """Return in which of so many partitions the producers of this deployment put a key."""
        return partition_for(key, partitions)

    @abstractmethod
    async def send_again(self, origin: Origin) -> bool:
        """Append the record that lies at an origin to its topic again, as it is; return whether the topic holds it.

        Raises:
            NotAllowed: this process may not read or write that topic.
            SendFailed: the broker did not take it.
        """

    @abstractmethod
    def release_slot(self) -> contextlib.AbstractContextManager[None]:
        """Let the worker handle another record while the handler that calls this waits, beyond its concurrency."""

    @abstractmethod
    def is_ours(self, record: ConsumerRecord) -> bool:
        """Return whether this worker has kept the record's partition since delivery; if not, it is redelivered."""

    @abstractmethod
    def assigned(self, topic: str) -> frozenset[int]:
        """Return the partitions of a topic that this worker owns now."""

    @abstractmethod
    async def first_offsets(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        """Return, by topic and partition, the oldest offset still on the broker. Raises Unavailable."""

    @abstractmethod
    async def end_offsets(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        """Return, by topic and partition, the offset that the next record gets. Raises Unavailable."""

    @abstractmethod
    async def delivered_until(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        """Return, by topic and partition, up to which append time all records were delivered, ms since the epoch.

        Only of topics that this worker handles and partitions that it owns; one of which that is not known is left out.
        What is appended to another topic from now on is handled after those records of the same query.

        Raises:
            Unavailable: the broker does not say.
        """

    @abstractmethod
    async def groups(self, app_ids: Sequence[str]) -> Mapping[str, ConsumerGroup]:
        """Return consumer groups by id; those that have never committed anything are left out.

        Raises:
            Unavailable: the broker does not say.
        """

    @abstractmethod
    async def latest(
        self, topic: str, begin: int = 0, into: MutableMapping[bytes, bytes] | None = None
    ) -> MutableMapping[bytes, bytes]:
        """Return the newest value of each key of a compacted topic from an offset on, as it is now.

        Args:
            topic: The topic.
            begin: The offset.
            into: What is filled and returned, where that is to be no dictionary.

        Raises:
            UnknownTopic: the topic does not exist.
        """

    @abstractmethod
    async def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists.

        Raises:
            Unavailable: the broker does not say.
        """

    @abstractmethod
    async def find(self, topic: str, key: bytes, since_ms: int, until_ms: int) -> ConsumerRecord | None:
        """Return the first record of a key that was appended in a span of time, None if the topic has none.

        The whole span is read, in the partition that this deployment's producers put the key in: keep it short.

        Args:
            topic: Where to look.
            key: Of the record.
            since_ms: First append time, ms since the epoch.
            until_ms: Last append time.

        Raises:
            Unavailable: the broker does not say.
            UnknownTopic: the topic does not exist.
        """

    @abstractmethod
    async def rewind_commits(self, offsets: Mapping[str, int]) -> Mapping[str, int]:
        """Move the committed offsets of topics with one partition back to these, where they are further ahead.

        Call it while recovering: reading continues from there. Returns the commits that were ahead.
        """

    def now_ms(self) -> int:
        """Return the broker's time in ms since the epoch, as far as the records seen tell."""
        return self.clock.now_ms()

    @abstractmethod
    def wall_ms(self) -> int:
        """Return the time of this worker's machine, ms since the epoch."""

    @abstractmethod
    def monotonic(self) -> float:
        """Return seconds on a clock that never goes backwards."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    @abstractmethod
    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run slow, blocking work in a thread, off the event loop."""

    @abstractmethod
    def background(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task alongside the handlers once records can be sent; its errors end the service."""

    def on_stop(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close something when the service stops in order."""
        self.closers.append(close)

    @abstractmethod
    def crash(self, reason: str, error: BaseException | None = None) -> NoReturn:
        """End this service immediately, so that no offset moves past the failure."""


# What the rest of the product needs to know about a service, without importing the service's code.


class Input(NamedTuple):
    """How the records of an input are read.

    Attributes:
        kind: The record.
        stage: Names what is done with it in metrics.
        waits: For a keyed service; see `Runtime.each`.
        most: Records in a batch, for an ordered one; see `Runtime.batches`.
    """

    kind: type[Record]
    stage: str
    waits: bool = False
    most: int = 1


class ServiceSpec(Struct, frozen=True, kw_only=True):
    """One service as the command line, the launcher, the gateway and the tests know it.

    Attributes:
        name: Its name on the command line, in consumer groups and in metrics.
        inputs: The topics it handles, by their names without the prefix, and how. `.<group>` stands for its own group.
        outputs: The topics it writes. `.<group>` stands for the group of a Decision.
        follows: The topics it reads beside its inputs, without a consumer group. `control` and `heartbeat`, which every
            service follows, are not named.
        state: The topics of its own state: it alone writes them, and reads them when it starts.
        one_writer: Whether one of its workers at a time may write its state, in transactions.
        build: Loads what the service needs and returns it. It imports the service's code only when called. What it
            returns is bound to the inputs by `streams.runtime.effects.connect`.
        grouped: Whether there is one deployment of it for each executor group.
        optional: Whether `up` starts it only on request.
    """

    name: str
    inputs: Mapping[str, Input]
    outputs: tuple[str, ...]
    build: Callable[[Runtime], Awaitable[object]]
    follows: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    one_writer: bool = False
    grouped: bool = False
    optional: bool = False

    def reads(self, topics: Topics, group: str = "") -> tuple[str, ...]:
        """Return the full names of the topics it handles."""
        return _full(topics, self.inputs, group)

    def looks_at(self, topics: Topics, group: str = "") -> tuple[str, ...]:
        """Return the full names of all topics that it may read, handled ones and its own state included."""
        beside = (*self.follows, *self.state, "control", "heartbeat")
        return _full(topics, (*self.inputs, *beside), group)

    def keeps(self, topics: Topics) -> tuple[str, ...]:
        """Return the full names of the topics of its own state."""
        return _full(topics, self.state)

    def writes(self, topics: Topics, topic: str) -> bool:
        """Return whether it may write a topic."""
        name = topic.removeprefix(topics.prefix)
        return any(
            name == out or (out.endswith(".<group>") and name.startswith(out.removesuffix("<group>")))
            for out in self.outputs
        )

    def apps(self, topics: Topics, groups: "tuple[str, ...]") -> tuple[str, ...]:
        """Return its consumer groups in a deployment with these executor groups."""
        if not self.inputs:
            return ()
        if not self.grouped:
            return (topics.app_id(self.name),)
        return tuple(topics.app_id(self.name, group) for group in groups)


def _full(topics: Topics, names: Iterable[str], group: str = "") -> tuple[str, ...]:
    return tuple(topics.prefix + name.replace("<group>", group) for name in names)


# The broker's clock as a worker knows it: deadlines are told on one clock, whatever this machine's says.

log = logging.getLogger("streams.clock")

NOTICED_S = 5.0
"""A difference between the clocks that is said."""

_REMEMBERED_S = 300.0


class BrokerClock:
    """The broker's time: the newest append time seen, and what this process has measured since.

    A record is seen after it was appended, so each gives a time that has passed already; the latest of them counts.
    What was seen is forgotten after five to ten minutes, so that a broker whose clock was set back is followed. Before
    the first record there is only this machine's clock.

    Args:
        monotonic: Seconds.
        wall_ms: This machine's clock, ms since the epoch.
        skewed: Told of the seconds by which this machine is ahead of the broker, whenever they are known anew.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        wall_ms: Callable[[], int],
        skewed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self._skewed = skewed
        # By how much the broker's clock is ahead of `monotonic`, at least: in this span of time, and in the last.
        self._ahead_ms = [-math.inf, -math.inf]
        self._until_s = monotonic() + _REMEMBERED_S
        self._said = False

    def now_ms(self) -> int:
        """Return the broker's time, ms since the epoch."""
        ahead_ms = max(self._ahead_ms)
        return self._wall_ms() if ahead_ms == -math.inf else int(ahead_ms + self._monotonic() * 1000)

    def handled(self, appended_ms: int) -> None:
        """Note the append time of a record that may have waited for a long time."""
        if appended_ms <= 0:
            return
        now_s = self._monotonic()
        if now_s > self._until_s:
            self._ahead_ms = [-math.inf, self._ahead_ms[0]]
            self._until_s = now_s + _REMEMBERED_S
        self._ahead_ms[0] = max(self._ahead_ms[0], appended_ms - now_s * 1000)

    def arrived(self, appended_ms: int) -> None:
        """Note the append time of a record that has just been appended, and say so if the clocks differ."""
        self.handled(appended_ms)
        skew_s = (self._wall_ms() - self.now_ms()) / 1000
        self._skewed(skew_s)
        if (abs(skew_s) >= NOTICED_S) != self._said:
            self._said = not self._said
            if self._said:
                log.warning(
                    "this machine's clock is %+.0f s from the broker's; deadlines go by the broker's, but logs and "
                    "metrics of this machine do not: set its clock",
                    skew_s,
                )
            else:
                log.warning("this machine's clock agrees with the broker's again")
