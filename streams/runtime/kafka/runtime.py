"""The Runtime protocol on Kafka: composes app, consumer, outbox and tables for one room.

What a room asks the broker outside its consumer group is in `lookups`.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from aiokafka.errors import KafkaError
from faust.exceptions import ConsumerNotStarted
from kafka.errors import KafkaError as ClientError
from kafka.errors import TopicAuthorizationFailedError

from schemas.base import MAX_RECORD, MAX_VALUE
from schemas.query import Origin
from streams.control import Control
from streams.metrics import Metrics
from streams.runtime.base import BatchHandler, Begin, Handler
from streams.runtime.crashes import Crashes, InFlightFile
from streams.runtime.errors import Crash, NotAllowed, SendFailed
from streams.runtime.guard import Guard
from streams.runtime.kafka import handlers
from streams.runtime.kafka.app import crash, create_app
from streams.runtime.kafka.clients import connections
from streams.runtime.kafka.clients.again import Again
from streams.runtime.kafka.consuming.consumer import wait_while
from streams.runtime.kafka.lookups import Lookups
from streams.runtime.kafka.tables import Tables
from streams.runtime.kafka.tail import Follower
from streams.runtime.kafka.transport import consumer_of, sender_of
from streams.runtime.kafka.writing.outbox import Outbox
from streams.runtime.kafka.writing.table import KafkaTable
from streams.runtime.partitions import partition_for
from streams.runtime.records import Outgoing, Record
from streams.settings import Settings
from streams.topics import Topics

T = TypeVar("T")


class KafkaRuntime(Lookups):
    """One worker of one room on Kafka; see `streams.runtime.base.Runtime` for what each method promises."""

    def __init__(
        self, settings: Settings, metrics: Metrics, *, room: str, group: str = "", instance: str = "0"
    ) -> None:
        super().__init__(settings)
        self.metrics = metrics
        self.room = room
        self.group = group
        self.instance = instance
        self.topics = Topics(settings)
        self.app = create_app(settings, room, group, instance)
        self.control = Control(settings, self.monotonic)
        self.limit = settings.kafka.max_record_bytes - (MAX_RECORD - MAX_VALUE)
        self.answers_for: Callable[[str], bool] = lambda query_id: True
        name = self.topics.app_id(room, group)
        self.in_flight = InFlightFile(settings.state_path("crashes", f"{name}.{instance}.in-hand"))
        self.guard = Guard(
            self, Crashes(settings.state_path("crashes", f"{name}.{instance}.json")), self.in_flight
        )
        self._outbox = Outbox(sender_of(self.app), settings)
        self._tables = Tables(self.app, settings, metrics, room)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._counters = functools.cache(
            lambda topic, stage: (metrics.records.labels(room, topic), metrics.stage.labels(stage))
        )
        self._progress = functools.cache(lambda topic, at: metrics.progress.labels(topic, str(at)))

    def each(self, topic: str, handle: Handler, *, stage: str) -> None:
        """Bind a handler; see the protocol."""

        async def guarded(records: Sequence[Record]) -> None:
            await self._guarded(records, lambda records: handle(records[0]), stage)

        handlers.bind(self.app, topic, guarded, name=f"{self.room}-{stage}")

    def batches(self, topic: str, handle: BatchHandler, *, stage: str, most: int) -> None:
        """Bind a handler of batches; see the protocol."""

        async def guarded(records: Sequence[Record]) -> None:
            await self._guarded(records, handle, stage)

        handlers.bind(self.app, topic, guarded, name=f"{self.room}-{stage}", most=most)

    async def _guarded(self, records: Sequence[Record], handle: BatchHandler, stage: str) -> None:
        try:
            await self.guard.call(records, handle)
        except Crash as error:
            crash(str(error), error.__cause__ or error)
        for record in records:
            counted, seconds = self._counters(record.topic, stage)
            counted.inc()
            if record.timestamp_ms > 0:
                seconds.observe(max(0.0, time.time() - record.timestamp_ms / 1000))
        self._progress(records[-1].topic, records[-1].partition).set(time.time())

    def table(
        self,
        name: str,
        partitions: int,
        *,
        source: str,
        recovered: Callable[[], Awaitable[None]],
        one_writer: bool = False,
        begins: Callable[[], Awaitable[int]] | None = None,
    ) -> KafkaTable:
        """Declare a table; see the protocol."""
        return self._tables.declare(
            name, partitions,
            owned=lambda: self.assigned(source), recovered=recovered, one_writer=one_writer, begins=begins,
        )  # fmt: skip

    async def follow(
        self, topics: Sequence[str], on_record: Callable[[Record], None], *, begin: Begin
    ) -> None:
        """Follow topics outside faust; see the protocol."""
        follower = Follower(self.settings, topics, on_record, begin=begin)
        await follower.start()
        self._closers.append(follower.stop)

    async def send(self, *records: Outgoing) -> None:
        """Send and wait; see the protocol."""
        try:
            await self._outbox.send_all(records)
        except KafkaError as error:
            raise SendFailed(f"{records[0].topic}: the broker refused a record: {error!r}") from error

    def partition_for(self, key: bytes, partitions: int) -> int:
        """Hash the key; see the protocol."""
        return partition_for(key, partitions)

    async def send_again(self, origin: Origin) -> bool:
        """Read and send with separate clients: this is rare, and the room's consumer reads only what it is assigned."""

        def again() -> bool:
            with Again(self.settings) as found:
                return found.send(origin.topic, origin.partition, origin.offset)

        try:
            return await self.in_thread(again)
        except TopicAuthorizationFailedError as error:
            raise NotAllowed(f"{origin}: {error}") from error
        except (ClientError, connections.BrokerUnreachable) as error:
            raise SendFailed(f"{origin}: {error}") from error

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
        return consumer_of(self.app).is_ours(record.epoch)

    def assigned(self, topic: str) -> frozenset[int]:
        """Ask the consumer; see the protocol."""
        try:
            return frozenset(tp.partition for tp in self.app.consumer.assignment() if tp.topic == topic)
        except ConsumerNotStarted:
            return frozenset()

    async def hold_back(self, offsets: Mapping[str, int]) -> Mapping[str, int]:
        """Commit lower offsets, to which faust then seeks; see the protocol."""
        consumer: Any = self.app.consumer
        committed = await consumer.seek_to_committed()
        ahead = {tp: o for tp, o in committed.items() if tp.topic in offsets and o and o > offsets[tp.topic]}
        first = await consumer.earliest_offsets(*ahead) if ahead else {}
        back = {tp: max(offsets[tp.topic], first.get(tp) or 0) for tp in ahead}
        back = {tp: offset for tp, offset in back.items() if offset < ahead[tp]}
        if back and not await consumer._commit(back):
            raise Crash("the committed offsets of the group could not be moved back")
        return {tp.topic: ahead[tp] for tp in back}

    def now_ms(self) -> int:
        """Return the time of this machine."""
        return int(time.time() * 1000)

    def monotonic(self) -> float:
        """Return the monotonic clock of this machine."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run in a thread, while the event loop continues."""
        return await asyncio.to_thread(work)

    def background(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run once the producer is connected; see the protocol."""

        async def body() -> None:
            # faust reports the producer started before it has connected.
            while getattr(self.app.producer, "_producer", None) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            try:
                await run()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if not self.app.should_stop:
                    crash(f"{name} failed: {error}", error)

        task = asyncio.get_running_loop().create_task(body(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_stop(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close it when the room stops."""
        self._closers.append(close)

    def crash(self, reason: str, error: BaseException | None = None) -> NoReturn:
        """End the room; see the protocol."""
        crash(reason, error)

    async def stop(self, settle_s: float) -> None:
        """Wait up to `settle_s` seconds for records in flight, commit what is handled, close what was opened."""
        self.guard.stop()
        await wait_while(lambda: self.in_flight.held, settle_s)
        with contextlib.suppress(ConsumerNotStarted):
            await self.app.consumer.commit()
        for task in self._tasks:
            task.cancel()
        for close in self._closers:
            await close()
        self.in_flight.clear()
