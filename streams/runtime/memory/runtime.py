"""The Runtime protocol over lists: one worker of one room, which can die after any single effect.

What a room asks the broker outside its consumer group is in `lookups`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, NoReturn, TypeVar

from schemas.base import MAX_RECORD, MAX_VALUE
from schemas.errors import RecordTooLarge
from schemas.query import Origin
from streams.control import Control
from streams.metrics import Metrics
from streams.runtime.base import BatchHandler, Begin, Handler
from streams.runtime.crashes import Crashes
from streams.runtime.errors import Crash, SendFailed
from streams.runtime.guard import Guard
from streams.runtime.memory import tail
from streams.runtime.memory.broker import Broker, Effect
from streams.runtime.memory.in_flight import InFlightList
from streams.runtime.memory.lookups import Lookups
from streams.runtime.memory.subscription import Subscription
from streams.runtime.memory.table import MemoryTable
from streams.runtime.partitions import partition_for
from streams.runtime.records import Outgoing, Record
from streams.runtime.spec import RoomSpec
from streams.settings import Settings

T = TypeVar("T")

_LATENCY_S = 0.02


class Died(BaseException):
    """This worker was killed: whatever it has not done yet never happens."""


class MemoryRuntime(Lookups):
    """One worker of one room; see `streams.runtime.base.Runtime` for what each method promises."""

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        spec: RoomSpec,
        *,
        group: str = "",
        instance: str = "0",
        crashes: Crashes,
        left: Sequence[str] = (),
        rng: random.Random | None = None,
        dies_after: Callable[[Effect], bool] = lambda effect: False,
    ) -> None:
        super().__init__(settings, broker, spec, group)
        self.instance = instance
        self.metrics = Metrics(spec.name)
        self.app = self.topics.app_id(spec.name, group)
        self.control = Control(settings, self.monotonic)
        self.limit = settings.kafka.max_record_bytes - (MAX_RECORD - MAX_VALUE)
        self.answers_for: Callable[[str], bool] = lambda query_id: True
        self.in_flight = InFlightList(left)
        self.guard = Guard(self, crashes, self.in_flight)
        self.subscriptions: list[Subscription] = []
        self.tables: list[MemoryTable] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.epoch = 0
        self.partitions: dict[str, frozenset[int]] = {}
        self.dead = False
        self.left_in_flight: list[str] = []
        self.later: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self._rng = rng
        self._dies_after = dies_after

    def each(self, topic: str, handle: Handler, *, stage: str) -> None:
        """Bind a handler; see the protocol."""

        async def one(records: Sequence[Record]) -> None:
            await handle(records[0])

        self._bind(topic, one, 1, stage)

    def batches(self, topic: str, handle: BatchHandler, *, stage: str, most: int) -> None:
        """Bind a handler of batches; see the protocol."""
        self._bind(topic, handle, most, stage)

    def _bind(self, topic: str, handle: BatchHandler, most: int, stage: str) -> None:
        if topic not in self.spec.reads(self.topics, self.group):
            raise ValueError(f"{self.room}: reads {topic}, which is not among the inputs of its RoomSpec")
        self.broker.partitions(topic)
        self.subscriptions.append(Subscription(topic, handle, most, stage))

    def table(
        self,
        name: str,
        partitions: int,
        *,
        source: str,
        recovered: Callable[[], Awaitable[None]],
        one_writer: bool = False,
        begins: Callable[[], Awaitable[int]] | None = None,
    ) -> "MemoryTable":
        """Declare a table; see the protocol."""
        if begins is not None and not one_writer:
            raise ValueError(f"{name}: only a table of one writer begins at an offset")
        changelog = self.topics.changelog(self.room, name)
        self.require_own(changelog)
        if one_writer != self.spec.one_writer:
            raise ValueError(f"{self.room}: one_writer of {name} differs from its RoomSpec")
        self.broker.create(changelog, partitions)
        table = MemoryTable(self, changelog, source, recovered, begins)
        self.tables.append(table)
        return table

    async def follow(
        self, topics: Sequence[str], on_record: Callable[[Record], None], *, begin: Begin
    ) -> None:
        """Show what is there, then what is appended; see the protocol."""
        tail.follow(self, topics, on_record, begin)

    def require_own(self, topic: str) -> None:
        """Refuse to write a topic that is not of the room's own state."""
        if topic not in self.spec.keeps(self.topics):
            raise ValueError(f"{self.room}: {topic} is not among the state of its RoomSpec")

    async def send(self, *records: Outgoing) -> None:
        """Append in order, each an effect of its own; see the protocol."""
        for record in records:
            if len(record.value) > self.limit:
                why = (
                    f"takes {len(record.value)} bytes of {self.limit}; shorten the text or narrow the search"
                )
                raise RecordTooLarge(record.topic, "", why)
            if not self.spec.writes(self.topics, record.topic):
                raise ValueError(
                    f"{self.room}: writes {record.topic}, which is not among the outputs of its RoomSpec"
                )
        for record in records:
            await self.effect("send", record.topic, record.key, record.value, record.partition)

    def partition_for(self, key: bytes, partitions: int) -> int:
        """Hash the key; see the protocol."""
        return partition_for(key, partitions)

    async def send_again(self, origin: Origin) -> bool:
        """Append what lies at an origin; see the protocol."""
        found = self.broker.at(origin.topic, origin.partition, origin.offset)
        if found is None or found[1].offset != origin.offset:
            return False
        await self.effect("send", origin.topic, found[1].key, found[1].value)
        return True

    async def dead_letter(
        self,
        record: Record,
        error: Exception,
        *,
        answer: bool = True,
        query_origin: Origin | None = None,
    ) -> None:
        """Send a record to the dead-letter topic; see the protocol."""
        await self.guard.dead_letter(record, error, answer=answer, query_origin=query_origin)

    def is_ours(self, record: Record) -> bool:
        """Compare the record's assignment with the present one; see the protocol."""
        return record.epoch == self.epoch and not self.dead

    def assigned(self, topic: str) -> frozenset[int]:
        """Return the partitions of the last assignment; see the protocol."""
        return self.partitions.get(topic, frozenset())

    async def hold_back(self, offsets: Mapping[str, int]) -> Mapping[str, int]:
        """Lower committed offsets; see the protocol."""
        ahead = {}
        for topic, offset in offsets.items():
            committed = self.broker.committed.get((self.app, topic, 0), 0)
            back = max(offset, self.broker.first(topic, 0))
            if committed > back:
                self.broker.committed[self.app, topic, 0] = back
                ahead[topic] = committed
        return ahead

    def now_ms(self) -> int:
        """Return the broker's time: there is one clock."""
        return self.broker.now_ms()

    def monotonic(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Wait on the loop's clock."""
        await asyncio.sleep(seconds)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run inline: a thread would make the order of events a matter of luck."""
        return work()

    def background(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run once the worker serves; see the protocol."""
        self.later.append((name, run))

    def on_stop(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close it when the worker stops."""
        self.closers.append(close)

    def crash(self, reason: str, error: BaseException | None = None) -> NoReturn:
        """End the worker; see the protocol."""
        raise Crash(reason) from error

    async def effect(
        self,
        kind: Literal["send", "row"],
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
    ) -> None:
        """Append a record unless the broker refuses it, and die after it where that is asked for."""
        await self._latency()
        if why := self.broker.refuses(topic, key):
            raise SendFailed(f"{topic}: the broker did not take a record: {why}")
        self.broker.append(topic, key, value, partition)
        self.done(Effect(self.app, kind, topic, key or b""))

    async def commit(self, topic: str, partition: int, offset: int) -> None:
        """Commit an offset."""
        await self._latency()
        self.broker.committed[self.app, topic, partition] = offset
        self.done(Effect(self.app, "commit", topic, b""))

    def done(self, effect: Effect) -> None:
        """Note an effect; die after it where that is asked for."""
        self.broker.effects.append(effect)
        if self._dies_after(effect):
            self.die()
            raise Died(f"{self.app} died after {effect}")

    def die(self) -> None:
        """Do nothing more; what is in flight stays noted for the successor."""
        if not self.dead:
            self.dead = True
            self.left_in_flight = self.in_flight.coordinates

    async def _latency(self) -> None:
        if self._rng is not None:
            await asyncio.sleep(self._rng.random() * _LATENCY_S)
        if self.dead:
            raise Died(f"{self.app} is dead")
