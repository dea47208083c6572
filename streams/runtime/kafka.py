"""The Kafka runtime: a faust app with handlers, tables and followers for one service."""

import asyncio
import contextlib
import functools
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import faust
from aiokafka.errors import KafkaError
from faust.exceptions import ConsumerNotStarted
from faust.sensors import Monitor
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka

from streams.control_follower import Control
from streams.log import kafka_clients
from streams.log.base import (
    ConsumerRecord,
    Outgoing,
    SendFailed,
)
from streams.log.kafka import KafkaLog
from streams.metrics import Metrics
from streams.runtime.errors import Crash
from streams.runtime.handler_guard import Crashes, HandlerGuard, InFlightFile, handling
from streams.runtime.kafka_consumer import SETTLE_S, Consumer, wait_while
from streams.runtime.kafka_sender import Changelogged, Sender
from streams.runtime.kafka_transactions import Fence, FencedTable
from streams.runtime.queues import WINDOW
from streams.runtime.runtime import Binding, Runtime
from streams.runtime.table import DeclaredTable, PlacedRow, Recovered, Table
from streams.settings import Settings
from streams.topics import Topics

# faust's app and transport, but with our own consumer and a single sender.


def _unheard(error: BaseException) -> None:
    raise error


class Producer(aiokafka.Producer):
    """faust's producer, limited to one record per batch if the broker is the embedded one."""

    def _settings_default(self) -> Mapping[str, Any]:
        app: Any = self.app
        return {**super()._settings_default(), **({"max_batch_size": 1} if app.embedded() else {})}


class Transport(aiokafka.Transport):
    """faust's transport, but with our own consumer and producer."""

    Consumer = Consumer
    Producer = Producer


class FaustTables(TableManager):
    """faust's table manager, which here subscribes without delay.

    faust waits a second in case the program declares more tables. Our tables are declared before the app starts, and
    its agents, which start before the tables, have already named their topics.
    """

    async def on_start(self) -> None:
        """Subscribe to the changelogs and start recovering the assigned partitions."""
        await self._update_channels()
        await self.recovery.start()


class App(faust.App):
    """faust's app, but with our own transport and table manager.

    Attributes:
        sender: Sends every record of the process.
        fail: Called with an exception raised by a handler. It raises the exception by default; `create_app` makes it
            end the process.
        replaced: Called when another process has joined the group under this process's instance name.
        embedded: Called once a broker is reachable, to find out whether it is the embedded one.
        concurrency: Maximum number of concurrent handler calls.
    """

    def __init__(
        self,
        *args: Any,
        embedded: Callable[[], bool],
        concurrency: int = 256,
        send_interval_s: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, TableManager=FaustTables, **kwargs)
        self.concurrency = concurrency
        self.sender = Sender(self._connected_producer, send_interval_s)
        self.fail: Callable[[BaseException], None] = _unheard
        self.replaced: Callable[[], None] = lambda: None
        self.embedded = embedded

    def _connected_producer(self) -> Any:
        producer: Any = self.producer
        return producer._ensure_producer()

    def _new_transport(self) -> Transport:
        return Transport(self.conf.broker_consumer, self)


def sender_of(app: Any) -> Sender:
    """Return the app's sender."""
    assert isinstance(app, App)
    return app.sender


def consumer_of(app: Any) -> Consumer:
    """Return the app's consumer."""
    consumer = app.consumer
    assert isinstance(consumer, Consumer)
    return consumer


# One faust app per service, with the settings that the delivery guarantees depend on.
#
# Records are delivered at least once. A record is done only when all its effects have been delivered. An unknown error
# ends the process before the offset moves. Records reach the services as raw bytes, so a bad payload never reaches
# faust's own decoder, which would acknowledge and skip it.

log = logging.getLogger("streams")

_MAX_BATCH_BYTES = 65_536
_NEVER_S = 1e9

on_crash: list[Callable[[str, BaseException | None], NoReturn]] = []
"""Functions that end this process; `streams.worker` adds one. If the list is empty, `crash` only raises `Crash`."""


def crash(reason: str, error: BaseException | None = None) -> NoReturn:
    """End this service immediately, so that no offset moves past the failure.

    Call it where raising is not enough: faust swallows exceptions raised in its callbacks, agents and tasks.
    """
    for end in on_crash:
        end(reason, error)
    raise Crash(reason) from error


class Quiet(Monitor):
    """A faust monitor that ends the process when a record could not be delivered, and collects no statistics.

    faust itself would only log a warning. Its statistics take time and nothing reads them, because `metrics.py` counts.
    """

    def on_send_error(self, producer: Any, exc: BaseException, state: Any) -> None:
        """End the process, so that no offset moves past the undelivered record."""
        crash(f"a record could not be delivered: {exc!r}", exc)

    def on_stream_event_in(self, tp: Any, offset: int, stream: Any, event: Any) -> None:
        """Record the time, so that faust can tell whether a stream has stalled."""
        self.stream_inbound_time[tp] = self.time()

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing; `watch_partitions` reads the lag from the consumer."""

    on_message_in = on_message_out = on_stream_event_out = _nothing
    on_send_initiated = on_send_completed = track_tp_end_offset = _nothing


class RateLimit(logging.Filter):
    """A log filter that passes one line per period, logger and level.

    While no broker is reachable, aiokafka would otherwise log ten lines a second.
    """

    period_s = 10.0

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        if record.levelno < logging.WARNING:
            return record.levelno >= logging.INFO
        key = (record.name, record.levelno)
        now = time.monotonic()
        if now - self._last.get(key, -1e9) < self.period_s:
            return False
        self._last[key] = now
        return True


def create_app(settings: Settings, service: str, group: str = "", instance: str = "0") -> faust.App:
    """Return the faust app of one service (and executor group). Nothing is connected or started.

    Args:
        settings: The settings of the process.
        service: The service's name in `SERVICES`.
        group: The executor group; empty for other services.
        instance: A stable name for this worker. It rejoins the consumer group under this name as a static member,
            without waiting for its old session to expire.
    """
    app_id = Topics(settings).app_id(service, group)
    app = App(
        app_id,
        # faust also reads settings from the environment, under names that other programs use: Kubernetes sets
        # WEB_PORT=tcp://… if a service is called "web".
        env={},
        broker=kafka_clients.faust_brokers(settings),
        broker_credentials=kafka_clients.faust_credentials(settings),
        processing_guarantee="at_least_once",
        key_serializer="raw",
        value_serializer="raw",
        store="memory://",
        datadir=str(settings.state_path(app_id)),
        # With the defaults (2.8 s and 10,000 records), a crash would repeat too much work.
        broker_commit_interval=settings.kafka.commit_interval_s,
        broker_commit_every=1000,
        broker_max_poll_records=min(500, settings.kafka.concurrency),
        broker_session_timeout=settings.kafka.session_timeout_s,
        broker_heartbeat_interval=min(3.0, settings.kafka.session_timeout_s / 3),
        broker_rebalance_timeout=settings.kafka.rebalance_timeout_s,
        # A standby fetches nothing and would be removed from the group as idle; `kafka_watchdog` detects stuck workers.
        broker_max_poll_interval=_NEVER_S,
        broker_request_timeout=max(60.0, settings.kafka.session_timeout_s + 5),
        producer_request_timeout=60.0,
        producer_acks=-1,
        producer_max_request_size=settings.kafka.max_record_bytes,
        producer_max_batch_size=_MAX_BATCH_BYTES,
        consumer_max_fetch_size=settings.kafka.max_record_bytes + 65_536,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=f"{app_id}.{instance}",
        # A full buffer stops every topic of the worker, so the buffer must hold everything that can be in flight.
        stream_buffer_maxsize=max(4096, 4 * settings.queries.max_in_flight),
        # A handler can run for minutes; by default, every rebalance and stop would wait for it.
        stream_wait_empty=False,
        stream_recovery_delay=0.0,
        topic_replication_factor=settings.kafka.replication,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        web_enabled=False,
        worker_redirect_stdouts=False,
        monitor=Quiet(),
        concurrency=settings.kafka.concurrency,
        send_interval_s=settings.kafka.send_interval_ms / 1000,
        embedded=lambda: kafka_clients.embedded(settings),
    )
    app.fail = lambda error: crash(f"a handler failed: {error}", error)
    for name in (
        "aiokafka",
        "aiokafka.conn",
        "aiokafka.cluster",
        "aiokafka.consumer.fetcher",
        "aiokafka.producer.sender",
        "aiokafka.consumer.group_coordinator",
        "faust.transport.drivers.aiokafka",
    ):
        logging.getLogger(name).addFilter(RateLimit())
    return app


def changelogged(app: faust.App, name: str, partitions: int) -> Changelogged:
    """Return a table that faust recovers. Its changelog is declared in `topics.py`."""
    table = Changelogged(
        app,
        name=name,
        key_type=bytes,
        value_type=bytes,
        partitions=partitions,
        # The default of 1,000 takes gigabytes if rows are large; with 1, faust would follow the changelog forever.
        recovery_buffer_size=50,
        beacon=app.tables.beacon,
    )
    app.tables.add(table)
    return table


# Handlers are bound to topics. A record is done when its handler has returned, and not before.
#
# Each handler has a faust agent, which starts with the worker, subscribes to the topic and ends with the app. The
# agent itself receives no records, because they go through the consumer's queues (`streams/runtime/queues.py`).


def bind(app: faust.App, topic: str, binding: Binding, *, name: str) -> None:
    """Bind a handler to a topic."""

    async def agent(stream: Any) -> None:
        consumer_of(app).bind(topic, binding)
        await asyncio.Future()

    channel = app.topic(topic, key_serializer="raw", value_serializer="raw", allow_empty=True)
    app.agent(channel, name=name)(agent)


T = TypeVar("T")


class KafkaRuntime(Runtime):
    """One worker of one service on Kafka; the base class documents each method."""

    def __init__(
        self, settings: Settings, metrics: Metrics, *, service: str, group: str = "", instance: str = "0"
    ) -> None:
        control = Control(settings, self.monotonic)
        Runtime.__init__(
            self,
            settings,
            metrics,
            control,
            wall_ms=lambda: int(time.time() * 1000),
            service=service,
            group=group,
            instance=instance,
        )
        self.log = KafkaLog(settings, arrived=self.clock.arrived, failed=crash)
        self.closers.append(self.log.close)
        self.app = create_app(settings, service, group, instance)
        name = self.topics.app_id(service, group)
        self.in_flight = InFlightFile(
            settings.state_path("crashes", f"{name}.{instance}.in-hand"),
            # The most records that the embedder can have in flight. Its calls wait for other queries, so other services
            # have fewer.
            slots=WINDOW * settings.kafka.concurrency * settings.kafka.query_partitions,
        )
        self.interrupted = frozenset(self.in_flight.left)
        self.guard = HandlerGuard(
            self, Crashes(settings.state_path("crashes", f"{name}.{instance}.json")), self.in_flight
        )
        self._tasks: set[asyncio.Task[None]] = set()
        # By topic and partition: each end offset not reached yet, preceded by the time the broker reported it.
        self._ends: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._counters = functools.cache(
            lambda topic, stage: (metrics.records.labels(service, topic), metrics.stage.labels(stage))
        )

    def _bind(self, topic: str, binding: Binding, stage: str) -> None:
        async def guarded(records: Sequence[ConsumerRecord]) -> None:
            try:
                await self.guard.call(records, binding.handle)
            except Crash as error:
                crash(str(error), error.__cause__ or error)
            for record in records:
                counted, seconds = self._counters(record.topic, stage)
                counted.inc()
                if record.timestamp_ms > 0:
                    seconds.observe(max(0, self.clock.now_ms() - record.timestamp_ms) / 1000)

        bind(self.app, topic, binding._replace(handle=guarded), name=f"{self.service}-{stage}")

    def _table(self, declared: DeclaredTable) -> Table:
        return self._fenced(declared) if declared.one_writer else self._shared(declared)

    def _shared(self, declared: DeclaredTable) -> Table:
        """Declare a table that faust recovers."""
        rows = changelogged(self.app, declared.name, declared.partitions)
        rows.newer = declared.newer
        source = declared.source
        began_s = time.monotonic()

        async def on_assigned(*_: Any, **__: Any) -> None:
            nonlocal began_s
            began_s = time.monotonic()

        async def on_recover() -> None:
            self.metrics.recovery_seconds.labels("read").set(time.monotonic() - began_s)
            with consumer_of(self.app).at_work():
                await table.put_again(rows.late)
                rows.late.clear()
                await declared.recovered()

        async def write(topic: str, rows: Sequence[PlacedRow]) -> None:
            await self._deliver([(topic, where, key, value) for key, value, where in rows])

        rows.on_recover(self._or_crash(on_recover))
        self.app.on_partitions_assigned.connect(on_assigned, weak=False)
        changelog = rows.changelog_topic.get_topic_name()
        limit = self.settings.kafka.max_record_bytes
        table = Table(changelog, write, lambda: self.assigned(source), limit, rows.data, rows.places)
        return table

    def _fenced(self, declared: DeclaredTable) -> Table:
        """Declare a table that recovers without faust, which only assigns its changelog."""
        known = changelogged(self.app, declared.name, 1)
        connect: Any = self.app.producer
        changelog = known.changelog_topic.get_topic_name()
        fence = Fence(
            changelog, connect._new_producer, transactions=lambda: not kafka_clients.embedded(self.settings)
        )
        consumer = consumer_of(self.app)
        consumer.fences[changelog] = fence

        async def on_recovered() -> None:
            self.metrics.recovery_seconds.labels("read").set(table.read_s)
            await declared.recovered()

        table = FencedTable(
            self.settings,
            fence,
            self.log,
            consumer,
            lambda: self.assigned(declared.source),
            begins=declared.begins,
            recovered=on_recovered,
        )
        known.on_recover(self._or_crash(table.recover))
        return table

    def _or_crash(self, recover: Recovered) -> Recovered:
        """Return a callback that ends the service if `recover` fails; faust would go on without the table's rows."""

        async def whole() -> None:
            try:
                await recover()
            except Exception as error:
                crash(f"the {self.service} cannot recover: {error}", error)

        return whole

    async def delivered_until(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        """Use the newest delivered record and the end offsets that the broker has reported; see the base class.

        Both are needed: a partition with constant traffic may never be read up to its current end, and an idle
        partition has no newer record.
        """
        asked_ms = self.clock.now_ms()
        ends = await self.log.end_offsets(topics)
        found = {}
        for part, end in ends.items():
            if (delivered := consumer_of(self.app).delivered_until(*part)) is None:
                continue
            offset, newest_ms = delivered
            known = [*self._ends.pop(part, ()), (asked_ms, end)]
            self._ends[part] = [each for each in known if each[1] > offset][:1]
            # Another record may follow with the same timestamp as the newest.
            found[part] = max([newest_ms - 1, *(at_ms for at_ms, end in known if end <= offset)])
        return found

    async def _send(self, records: Sequence[Outgoing]) -> None:
        await self._deliver([(each.topic, each.partition, each.key, each.value) for each in records])

    async def _deliver(self, records: Sequence[tuple[str, int | None, bytes | None, bytes | None]]) -> None:
        """Deliver records (topic, partition, key, value), unless the calling handler's partition was reassigned."""
        for record in handling.get():
            await consumer_of(self.app).keep_ours(record)
        try:
            await sender_of(self.app).send(records)
        except KafkaError as error:
            raise SendFailed(f"{records[0][0]}: the broker refused a record: {error!r}") from error

    def release_slot(self) -> contextlib.AbstractContextManager[None]:
        """Release a slot in the queues; see the base class."""
        return consumer_of(self.app).queues.release_slot()

    def is_ours(self, record: ConsumerRecord) -> bool:
        """Compare the record's assignment epoch with the current one; see the base class."""
        return consumer_of(self.app).is_ours(record.epoch)

    def assigned(self, topic: str) -> frozenset[int]:
        """Return the consumer's assignment; see the base class."""
        try:
            return frozenset(tp.partition for tp in self.app.consumer.assignment() if tp.topic == topic)
        except ConsumerNotStarted:
            return frozenset()

    async def rewind_commits(self, offsets: Mapping[str, int]) -> Mapping[str, int]:
        """Commit the lower offsets, which faust then seeks to; see the base class."""
        consumer: Any = self.app.consumer
        committed = await consumer.seek_to_committed()
        ahead = {tp: o for tp, o in committed.items() if tp.topic in offsets and o and o > offsets[tp.topic]}
        first = await consumer.earliest_offsets(*ahead) if ahead else {}
        back = {tp: max(offsets[tp.topic], first.get(tp) or 0) for tp in ahead}
        back = {tp: offset for tp, offset in back.items() if offset < ahead[tp]}
        if back and not await consumer._commit(back):
            raise Crash("the committed offsets of the group could not be moved back")
        return {tp.topic: offset or 0 for tp, offset in committed.items() if tp.topic in offsets}

    def monotonic(self) -> float:
        """Return the machine's monotonic clock, in seconds."""
        return time.monotonic()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread while the event loop continues."""
        return await asyncio.to_thread(work)

    def background(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run the task once the producer is connected; see the base class."""

        async def body() -> None:
            # faust reports the producer as started before it has connected.
            while getattr(self.app.producer, "_producer", None) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            try:
                await self.guard.beside(run)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if not self.app.should_stop:
                    crash(f"{name} failed: {error}", error)

        task = asyncio.get_running_loop().create_task(body(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def crash(self, reason: str, error: BaseException | None = None) -> NoReturn:
        """End the service; see the base class."""
        crash(reason, error)

    async def stop(self, settle_s: float) -> None:
        """Wait up to `settle_s` seconds for records in flight, commit handled records, and close all connections."""
        self.guard.stop()
        await wait_while(lambda: self.in_flight.held, settle_s)
        with contextlib.suppress(ConsumerNotStarted):
            await self.app.consumer.commit()
        for task in self._tasks:
            task.cancel()
        for close in self.closers:
            await close()
        self.in_flight.clear()


class KafkaWorker(faust.Worker):
    """A faust worker that calls `ready` once it serves its partitions, and that loses no records when stopped."""

    def __init__(
        self,
        runtime: KafkaRuntime,
        loop: asyncio.AbstractEventLoop,
        *,
        ready: Callable[[], None],
        stopping: Callable[[], None],
        ended: Callable[[], NoReturn],
    ) -> None:
        super().__init__(runtime.app, loop=loop, quiet=True, redirect_stdouts=False, override_logging=False)
        self.spinner = None
        self.runtime = runtime
        self._ready = ready
        self._stopping = stopping
        self._ended = ended
        self._ending = False

    async def on_startup_finished(self) -> None:
        """Report that the tables have been recovered and the partitions are being served."""
        self._ready()

    async def stop(self) -> None:
        """Wait briefly for records in flight, commit handled records, and end the process. The rest is redelivered.

        faust would cancel the handlers, acknowledge their records and commit, which would lose records in flight. After
        an error inside faust, nothing is committed.
        """
        if self.crash_reason is not None:
            crash("faust failed", self.crash_reason)
        if self._ending:
            return
        self._ending = True
        log.info("stopping")
        self._stopping()
        await self.runtime.stop(SETTLE_S)
        self._ended()


async def run_without_handlers(
    runtime: KafkaRuntime, *, ready: Callable[[], None], ended: Callable[[], NoReturn]
) -> NoReturn:
    """Run a service without handlers until SIGTERM or SIGINT. faust cannot, because its consumer requires a topic."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await runtime.app.producer.maybe_start()
    ready()
    await stop.wait()
    log.info("stopping")
    await runtime.stop(SETTLE_S)
    ended()
