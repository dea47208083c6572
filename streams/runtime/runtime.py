"""What a service declares, and `Runtime`, its only access to records, tables, time and control."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeAlias, TypeVar

from msgspec import Struct

from schemas.errors import RecordTooLarge
from schemas.query import Origin
from schemas.record import MAX_RECORD, MAX_VALUE, Record
from streams.control_follower import Control
from streams.log.base import ConsumerRecord, Log, Newer, Outgoing
from streams.metrics import Metrics
from streams.runtime.clock import BrokerClock
from streams.runtime.table import Begins, DeclaredTable, Recovered, Table
from streams.settings import Settings
from streams.topics import Topics

# Two implementations exist: `runtime.kafka` for deployments and `runtime.memory` for tests, examples and proofs.
# `tests/streams/runtime` holds both to one contract:
#
# - Records of one query are handled one call at a time, whichever of the service's topics they come from, and those
#   from one partition in order. Records of different queries are handled concurrently, up to `UNISCALE_CONCURRENCY` in
#   a worker.
# - The records of a topic that is handled in batches are handled in order, one call at a time for each partition.
# - A record is done when its handler has returned. After a crash, every record that was not done is redelivered, along
#   with later records that were done.
# - Once a partition has moved to another worker, no handler of its records sends or writes anything more.
# - `send` and table writes return once the broker has stored the records; if it refuses one, they raise `SendFailed`.
# - Before the first record is handled, a table contains all rows that were written before the crash.
# - When a handler has failed three times on a record, the record goes to the dead-letter topic and its query
#   continues without it.

T = TypeVar("T")

Handler: TypeAlias = Callable[[ConsumerRecord], Awaitable[None]]
BatchHandler: TypeAlias = Callable[[Sequence[ConsumerRecord]], Awaitable[None]]


class Binding(NamedTuple):
    """How the records of a topic are handled.

    Attributes:
        handle: Returns when the records are handled; any exception except a cancellation ends the worker.
        most: Maximum number of records in one call.
        ordered: Whether the records of a partition are handled in order, one call at a time, instead of by query.
        waits: Whether calls wait for other queries. If so, there may be a call in progress for every delivered record.
    """

    handle: BatchHandler
    most: int = 1
    ordered: bool = False
    waits: bool = False


class Runtime(ABC):
    """One worker of one service: what both runtimes share, and the methods that each implements.

    Attributes:
        settings: The settings of the process.
        topics: The names of all topics.
        metrics: Counters and gauges.
        control: Catalogue, objectives and heartbeats.
        clock: The broker's clock, estimated from append times.
        log: The topics, for reading outside the service's consumer group.
        service: The service's name.
        group: The executor group; empty if the service has none.
        instance: Stable name of this worker among those of its service.
        limit: The maximum size of a record's value, in bytes.
        interrupted: Identities of the records that were in flight when this worker's previous process died.
        answers_for: Returns whether a query gets an Answer when its record at a given origin has gone to the
            dead-letter topic. A service may replace this function.
        closers: Called when the service stops cleanly.
    """

    log: Log

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        control: Control,
        *,
        wall_ms: Callable[[], int],
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
        self.clock = BrokerClock(self.monotonic, wall_ms, metrics.clock_skew.set)
        self.limit = settings.kafka.max_record_bytes - (MAX_RECORD - MAX_VALUE)
        self.interrupted: frozenset[str] = frozenset()
        self.answers_for: Callable[[str, Origin], bool] = lambda query_id, origin: True
        self.closers: list[Callable[[], Awaitable[None]]] = []

    def each(self, topic: str, handle: Handler, *, stage: str, waits: bool = False) -> None:
        """Bind a handler to a topic. It is called with one record of a query at a time.

        Args:
            topic: The topic.
            handle: The handler.
            stage: The handler's name in metrics.
            waits: Whether the handler waits for other queries. If so, a waiting call does not block others.
        """

        async def one(records: Sequence[ConsumerRecord]) -> None:
            await handle(records[0])

        self._bind(topic, Binding(one, waits=waits), stage)

    def batches(self, topic: str, handle: BatchHandler, *, stage: str, most: int) -> None:
        """Bind a handler to a single-partition topic. It is called with the waiting records, up to `most` at a time."""
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
            name: The table's name; the changelog is named after it and the service.
            partitions: The number of partitions of the changelog, and of the topics whose handlers write the table.
            source: One of those topics. The worker that owns one of its partitions owns the rows in that partition.
            recovered: Awaited after each recovery, before the first record is handled; its errors end the service.
            one_writer: For a table with one partition: the broker refuses writes by a worker that no longer owns the
                partition, even if that worker does not know yet. Each `put_all` is atomic, and a recovery sees
                everything that any worker wrote before it. Values are kept in a file (`FileRows`), keys in memory.
            begins: For a single-writer table: awaited before each recovery; returns the changelog offset to start
                reading at. Earlier rows must come from elsewhere; see `Table.seed`.
            newer: For a table with several writers: returns whether a row replaces an earlier row with the same key. A
                worker suspended past its session may write a row after its successor has. A recovery ignores that row
                and writes the earlier one again, because compaction keeps only the last.

        Raises:
            ValueError: `begins` was given for a table with several writers.
        """
        if begins is not None and not one_writer:
            raise ValueError(f"{name}: only a table with one_writer=True begins at an offset")
        return self._table(DeclaredTable(name, partitions, source, recovered, one_writer, begins, newer))

    @abstractmethod
    def _table(self, declared: DeclaredTable) -> Table:
        """Declare a table; see `table`."""

    async def send(self, *records: Outgoing) -> None:
        """Send records and wait until they are delivered. Records in the same partition keep their order.

        Raises:
            PartitionLost: the handler's record now belongs to another worker; nothing was sent.
            RecordTooLarge: a value exceeds the limit; nothing was sent.
            SendFailed: the broker did not accept a record; other records of this call may have been delivered.
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
        """Send records whose size has been checked; see `send`."""

    @abstractmethod
    def release_slot(self) -> contextlib.AbstractContextManager[None]:
        """Release the calling handler's slot while it waits, so that the worker can handle another record."""

    @abstractmethod
    def is_ours(self, record: ConsumerRecord) -> bool:
        """Return whether this worker has kept the record's partition since delivery; if not, it is redelivered."""

    @abstractmethod
    def assigned(self, topic: str) -> frozenset[int]:
        """Return the partitions of a topic that this worker owns now."""

    @abstractmethod
    async def delivered_until(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        """Return, by topic and partition, the append time up to which all records were delivered, ms since the epoch.

        Includes only topics this worker handles, partitions it owns, and partitions whose time is known. Records
        appended to another topic from now on are handled after those delivered records of the same query.

        Raises:
            Unavailable: the broker does not respond.
        """

    @abstractmethod
    async def rewind_commits(self, offsets: Mapping[str, int]) -> Mapping[str, int]:
        """Move the committed offsets of single-partition topics back to `offsets` where they are ahead.

        Call this during a recovery; reading then continues from these offsets. Returns what was committed before.
        """

    @abstractmethod
    def monotonic(self) -> float:
        """Return seconds on a clock that never goes backwards."""

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        await asyncio.sleep(seconds)

    @abstractmethod
    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run slow, blocking work in a thread, off the event loop."""

    @abstractmethod
    def background(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task alongside the handlers, as soon as records can be sent; its errors end the service."""

    @abstractmethod
    def crash(self, reason: str, error: BaseException | None = None) -> NoReturn:
        """End this service immediately, so that no offset moves past the failure."""


# The declaration of a service, which describes the service without importing its code.


class Input(NamedTuple):
    """How the records of an input topic are handled.

    Attributes:
        kind: The record class.
        stage: The handler's name in metrics.
        waits: For a keyed service; see `Runtime.each`.
        most: For an ordered service, the maximum number of records in a batch; see `Runtime.batches`.
    """

    kind: type[Record]
    stage: str
    waits: bool = False
    most: int = 1


class ServiceSpec(Struct, frozen=True, kw_only=True):
    """One service, as seen by the command line, the launcher, the gateway and the tests.

    Attributes:
        name: The service's name on the command line, in consumer groups and in metrics.
        inputs: The topics that the service handles, by unprefixed name, and how it handles each. `.<group>` stands for
            its own group.
        outputs: The topics it writes. `.<group>` stands for the group of a Decision.
        follows: The topics it also reads, without a consumer group. `control` and `heartbeat`, which every service
            follows, are not listed.
        state: The topics containing its own state, which only this service writes, and which it reads at startup.
        one_writer: Whether only one worker at a time may write the service's state, in transactions.
        build: Creates the service, importing its code only when called. `streams.runtime.effects.connect` binds the
            result to the inputs.
        grouped: Whether the service runs once per executor group.
        optional: Whether `up` starts the service only on request.
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

    def input_topics(self, topics: Topics, group: str = "") -> tuple[str, ...]:
        """Return the full names of the topics that the service handles."""
        return _full(topics, self.inputs, group)

    def readable_topics(self, topics: Topics, group: str = "") -> tuple[str, ...]:
        """Return the full names of all topics that the service may read, including its inputs and its own state."""
        beside = (*self.follows, *self.state, "control", "heartbeat")
        return _full(topics, (*self.inputs, *beside), group)

    def state_topics(self, topics: Topics) -> tuple[str, ...]:
        """Return the full names of the topics containing the service's own state."""
        return _full(topics, self.state)

    def writes(self, topics: Topics, topic: str) -> bool:
        """Return whether the service may write to a topic."""
        name = topic.removeprefix(topics.prefix)
        return any(
            name == out or (out.endswith(".<group>") and name.startswith(out.removesuffix("<group>")))
            for out in self.outputs
        )

    def apps(self, topics: Topics, groups: "tuple[str, ...]") -> tuple[str, ...]:
        """Return the service's consumer groups in a deployment with these executor groups."""
        if not self.inputs:
            return ()
        if not self.grouped:
            return (topics.app_id(self.name),)
        return tuple(topics.app_id(self.name, group) for group in groups)


def _full(topics: Topics, names: Iterable[str], group: str = "") -> tuple[str, ...]:
    return tuple(topics.prefix + name.replace("<group>", group) for name in names)
