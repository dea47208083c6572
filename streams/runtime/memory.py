"""The in-memory runtime, with a virtual clock: a worker of a service that can die after any effect."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import selectors
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Literal, NoReturn, TypeVar

from streams.control_follower import Control
from streams.log.base import ConsumerRecord, Outgoing, SendFailed
from streams.log.memory import Appended, Effect, MemoryBroker, MemoryLog
from streams.metrics import Metrics
from streams.runtime.errors import Crash, PartitionLost
from streams.runtime.handler_guard import Crashes, HandlerGuard, handling
from streams.runtime.queues import Offsets, Queues
from streams.runtime.runtime import Binding, Runtime, ServiceSpec
from streams.runtime.table import DeclaredTable, FileRows, PlacedRow, Table
from streams.settings import Settings

log = logging.getLogger("streams.runtime.memory")

# An event loop on virtual time, which jumps to the next timer when there is nothing else to do.

T = TypeVar("T")


class Standstill(RuntimeError):
    """A deadlock: every task is waiting and no timer is set."""


class _Jumping(selectors.SelectSelector):
    """A selector that moves the loop's clock instead of waiting."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Standstill("every task waits and no timer is set")
        self.loop.now += max(0.0, timeout)
        return []  # no file descriptors here


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that never waits. It does not support threads, so work must run inline."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual seconds since the loop started."""
        return self.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a virtual clock and return the coroutine's result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


# An in-memory worker's list of records in flight, which outlives the worker.


class InFlightList:
    """A worker's records in flight, kept for its successor; see `streams.runtime.handler_guard.InFlight`."""

    def __init__(self, left: Sequence[str] = ()) -> None:
        self.left = list(left)
        self._held: list[str] = []

    @property
    def noted(self) -> list[str]:
        """Return the records in flight."""
        return list(self._held)

    @contextlib.contextmanager
    def holding(self, identities: Iterable[str]) -> Iterator[None]:
        """Keep records listed while they are handled."""
        names = list(identities)
        self._held += names
        try:
            yield
        finally:
            for name in names:
                self._held.remove(name)


# Tables on the in-memory broker.


class MemoryTable(Table):
    """A worker's table; `recover` reads its changelog again."""

    def __init__(self, runtime: MemoryRuntime, changelog: str, declared: DeclaredTable) -> None:
        limit = runtime.settings.kafka.max_record_bytes
        one = declared.one_writer
        super().__init__(
            changelog,
            runtime.write,
            lambda: runtime.assigned(declared.source),
            limit,
            FileRows(runtime.settings.state_path()) if one else None,
            None if one else {},
        )
        self.runtime = runtime
        self.declared = declared
        self._readings, self._read_in = 0, -1
        self._one_at_a_time = asyncio.Lock()

    @property
    def reading(self) -> int:
        """Count recoveries within the current assignment; see the base class."""
        return self._readings if self._owned() and self.runtime.epoch == self._read_in else 0

    async def recover(self) -> None:
        """Once any other recovery has ended, read the assigned partitions' changelog."""
        async with self._one_at_a_time:
            await self._recover()

    async def _recover(self) -> None:
        owned, epoch, declared = sorted(self._owned()), self.runtime.epoch, self.declared
        late = set[bytes]()
        self._read_in = -1
        # The table stays empty until it has been read: services must not handle records in the meantime.
        self._rows.clear()
        if self._places is not None:
            self._places.clear()
        begin = await declared.begins() if declared.begins and owned else 0
        if declared.one_writer:
            await self.runtime.reading()
        for partition in owned:
            rows = self.runtime.broker.changelog(self.changelog, partition, begin, declared.newer, late)
            self.seed((key, value, partition) for key, value in rows.items())
        self._readings, self._read_in = self._readings + 1, epoch
        await self.put_again(late)
        await declared.recovered()


_LATENCY_S = 0.02
_READING_S = 3.0


class Died(BaseException):
    """This worker was killed, so nothing else it does takes effect."""


class Subscription:
    """A handler bound to a topic. Tracks the records delivered and handled in each assigned partition."""

    def __init__(self, topic: str, binding: Binding) -> None:
        self.topic = topic
        self.binding = binding
        self.offsets: dict[int, Offsets] = {}


class MemoryRuntime(Runtime):
    """One worker of one service; the base class documents each method."""

    def __init__(
        self,
        settings: Settings,
        broker: MemoryBroker,
        spec: ServiceSpec,
        *,
        group: str = "",
        instance: str = "0",
        crashes: Crashes,
        left: Sequence[str] = (),
        errors: list[BaseException],
        rng: random.Random | None = None,
        dies_after: Callable[[Effect], bool] = lambda effect: False,
    ) -> None:
        self.broker = broker
        self.spec = spec
        control, metrics = Control(settings, self.monotonic), Metrics(spec.name)
        Runtime.__init__(
            self,
            settings,
            metrics,
            control,
            wall_ms=self.wall_ms,
            service=spec.name,
            group=group,
            instance=instance,
        )
        self.log = MemoryLog(
            broker, self, check=self.require_read, arrived=self._arrived, append=self._append
        )
        self.app = self.topics.app_id(spec.name, group)
        self.in_flight = InFlightList(left)
        self.interrupted = frozenset(left)
        self.guard = HandlerGuard(self, crashes, self.in_flight)
        self.queues = Queues(self, settings.kafka.concurrency)
        self.built: Any = None
        """The service, once built."""
        self.subscriptions: list[Subscription] = []
        self.tables: list[MemoryTable] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.epoch = 0
        self.partitions: dict[str, frozenset[int]] = {}
        self.dead = False
        self.left_in_flight: list[str] = []
        self.later: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self._rng = rng
        self._dies_after = dies_after
        self._errors = errors

    def _bind(self, topic: str, binding: Binding, stage: str) -> None:
        if topic not in self.spec.input_topics(self.topics, self.group):
            raise ValueError(
                f"{self.service}: reads {topic}, which is not among the inputs of its ServiceSpec"
            )
        self.broker.partitions(topic)
        self.subscriptions.append(Subscription(topic, binding))

    def _table(self, declared: DeclaredTable) -> MemoryTable:
        changelog = self.topics.changelog(self.service, declared.name)
        self.require_own(changelog)
        if declared.one_writer != self.spec.one_writer:
            raise ValueError(f"{self.service}: one_writer of {declared.name} differs from its ServiceSpec")
        self.broker.create(changelog, declared.partitions)
        table = MemoryTable(self, changelog, declared)
        self.tables.append(table)
        return table

    def _arrived(self, at_ms: int) -> bool:
        if not self.dead:
            self.clock.arrived(at_ms)
        return not self.dead

    async def _append(self, record: Outgoing) -> None:
        await self.effect("send", record.topic, (record.key, record.value, None))

    def require_read(self, topic: str) -> None:
        """Raise an error if the ServiceSpec does not list a topic that the service reads."""
        if topic not in self.spec.readable_topics(self.topics, self.group):
            raise ValueError(f"{self.service}: reads {topic}, which its ServiceSpec does not name")

    async def delivered_until(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        """Compare the delivered offsets with the broker's; see the base class."""
        now_ms, found = self.clock.now_ms(), {}
        for each in self.subscriptions:
            for p, offsets in each.offsets.items() if each.topic in topics else ():
                if offsets.next >= self.broker.end(each.topic, p):
                    found[each.topic, p] = now_ms
                elif newest := self.broker.at(each.topic, p, offsets.next - 1):
                    found[each.topic, p] = newest[1].timestamp_ms - 1
        return found

    def require_own(self, topic: str) -> None:
        """Raise an error if a topic that the service writes is not part of its own state."""
        if topic not in self.spec.state_topics(self.topics):
            raise ValueError(f"{self.service}: {topic} is not among the state of its ServiceSpec")

    async def _send(self, records: Sequence[Outgoing]) -> None:
        """Append records in order, each as a separate effect."""
        for record in records:
            if not self.spec.writes(self.topics, record.topic):
                raise ValueError(
                    f"{self.service}: writes {record.topic}, which is not among the outputs of its ServiceSpec"
                )
        for record in records:
            await self.effect("send", record.topic, (record.key, record.value, record.partition))

    def release_slot(self) -> contextlib.AbstractContextManager[None]:
        """Release a slot in the queues; see the base class."""
        return self.queues.release_slot()

    def is_ours(self, record: ConsumerRecord) -> bool:
        """Compare the record's assignment with the current one; see the base class."""
        return record.epoch == self.epoch and not self.dead

    def handled(self, records: Sequence[ConsumerRecord]) -> None:
        """Do nothing, because the cluster tracks handled records; see `streams.runtime.queues.Watch`."""

    def failed(self, error: Exception) -> None:
        """Report an error that does not end the worker; see `streams.runtime.queues.Watch`."""
        if not self.dead:
            self._errors.append(error)

    def assigned(self, topic: str) -> frozenset[int]:
        """Return the partitions of the last assignment; see the base class."""
        return self.partitions.get(topic, frozenset())

    async def rewind_commits(self, offsets: Mapping[str, int]) -> Mapping[str, int]:
        """Lower committed offsets; see the base class."""
        committed = {topic: self.broker.committed.get((self.app, topic, 0), 0) for topic in offsets}
        for topic, offset in offsets.items():
            back = max(offset, self.broker.first(topic, 0))
            if committed[topic] > back:
                self.broker.committed[self.app, topic, 0] = back
        return committed

    def wall_ms(self) -> int:
        """Return the time on this worker's machine, in ms since the epoch. It agrees with the broker's."""
        return self.broker.now_ms()

    def monotonic(self) -> float:
        """Return the loop's time, which the broker shares."""
        return self.broker.monotonic()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` inline, because threads would make the order of events nondeterministic."""
        return work()

    def background(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run the task once the worker serves its partitions; see the base class."""
        self.later.append((name, run))

    def crash(self, reason: str, error: BaseException | None = None) -> NoReturn:
        """End the worker; see the base class."""
        raise Crash(reason) from error

    async def write(self, topic: str, rows: Sequence[PlacedRow]) -> None:
        """Write records of the service's own state: atomically if it has a single writer, otherwise one by one."""
        self.require_own(topic)
        if self.spec.one_writer:
            await self.effect("row", topic, *rows)
            return
        for row in rows:
            await self.effect("row", topic, row)

    async def effect(self, kind: Literal["send", "row"], topic: str, *records: Appended) -> None:
        """Append records atomically, unless the broker refuses one; afterwards die if `dies_after` says so."""
        await self._latency()
        for handled in handling.get():
            if handled.partition not in self.assigned(handled.topic):
                raise PartitionLost(f"{handled.coordinates}: its partition has moved to another worker")
        for key, _, _ in records:
            if why := self.broker.refuses(topic, key):
                raise SendFailed(f"{topic}: the broker did not take a record: {why}")
        for record in records:
            self.broker.append(topic, *record)
        self.done(*(Effect(self.app, kind, topic, key or b"") for key, _, _ in records))

    async def commit(self, subscription: Subscription, partition: int) -> None:
        """Commit the offset below which every record of a partition is handled, if that offset has advanced."""
        await self._latency()
        offsets = subscription.offsets.get(partition)
        if offsets is not None and (offset := offsets.take()) is not None:
            self.broker.committed[self.app, subscription.topic, partition] = offset
            self.done(Effect(self.app, "commit", subscription.topic, b""))

    def done(self, *effects: Effect) -> None:
        """Record effects; afterwards die if `dies_after` says so for one of them."""
        self.broker.effects += effects
        for effect in [effect for effect in effects if self._dies_after(effect)]:
            self.die()
            raise Died(f"{self.app} died after {effect}")

    def die(self) -> None:
        """Kill this worker; records in flight stay listed for its successor."""
        if not self.dead:
            self.dead = True
            self.left_in_flight = self.in_flight.noted

    async def reading(self) -> None:
        """Simulate the time it takes to read a single-writer table from its log."""
        if self._rng is not None:
            await asyncio.sleep(self._rng.random() * _READING_S)

    async def _latency(self) -> None:
        if self._rng is not None:
            await asyncio.sleep(self._rng.random() * _LATENCY_S)
        if self.dead:
            raise Died(f"{self.app} is dead")
