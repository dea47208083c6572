"""One faust app per room, with the settings that this system's guarantees depend on.

Delivery is at least once. A record counts as done only when everything it caused has been delivered. An unknown
error ends the process before the offset moves. Records reach the rooms as raw bytes, so a bad payload never reaches
faust's own decoder, which would acknowledge and skip it.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn

import faust
from faust.sensors import Monitor

from streams.runtime.errors import Crash
from streams.runtime.kafka.clients import connections
from streams.runtime.kafka.transport import App
from streams.runtime.kafka.writing.table import Changelogged
from streams.settings import Settings
from streams.topics import Topics

log = logging.getLogger("streams")

_MAX_BATCH_BYTES = 65_536

on_crash: list[Callable[[str, BaseException | None], NoReturn]] = []
"""Functions that end this process; `streams.worker` adds its own. Without one, `crash` only raises."""


def crash(reason: str, error: BaseException | None = None) -> NoReturn:
    """End this room immediately, so that no offset moves past the failure.

    Call it where raising is not enough: faust swallows exceptions raised in its callbacks, agents and tasks.
    """
    for end in on_crash:
        end(reason, error)
    raise Crash(reason) from error


class Quiet(Monitor):
    """faust monitor that ends the process when a record could not be delivered, and collects no statistics.

    faust itself would only log a warning. Its statistics cost time and nothing reads them: `metrics.py` counts.
    """

    def on_send_error(self, producer: Any, exc: BaseException, state: Any) -> None:
        """Crash."""
        crash(f"a record could not be delivered: {exc!r}", exc)

    def on_message_in(self, tp: Any, offset: int, message: Any) -> None:
        """Keep nothing."""

    def on_message_out(self, tp: Any, offset: int, message: Any) -> None:
        """Keep nothing."""

    def on_stream_event_in(self, tp: Any, offset: int, stream: Any, event: Any) -> None:
        """Record the time: faust warns about a stalled stream."""
        self.stream_inbound_time[tp] = self.time()

    def on_stream_event_out(self, tp: Any, offset: int, stream: Any, event: Any, state: Any = None) -> None:
        """Keep nothing."""

    def on_send_initiated(self, producer: Any, topic: str, message: Any, keysize: int, valsize: int) -> None:
        """Keep nothing."""

    def on_send_completed(self, producer: Any, state: Any, metadata: Any) -> None:
        """Keep nothing."""

    def track_tp_end_offset(self, tp: Any, offset: int) -> None:
        """Keep nothing; `watch_partitions` reads the lag from the consumer."""


class RateLimit(logging.Filter):
    """Log filter that passes one line per period and logger: without a broker, aiokafka logs ten lines a second."""

    def __init__(self, period_s: float = 10.0) -> None:
        super().__init__()
        self.period_s = period_s
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


def create_app(settings: Settings, room: str, group: str = "", instance: str = "0") -> faust.App:
    """Return the faust app of one room (and executor group). Nothing is connected or started.

    Args:
        settings: The settings of the process.
        room: embedder, decider, executor, verifier or aggregator.
        group: The executor group; empty for other rooms.
        instance: Stable name of this worker: a static member rejoins without waiting for its old session to expire.
    """
    app_id = Topics(settings).app_id(room, group)
    app = App(
        app_id,
        broker=connections.faust_brokers(settings),
        broker_credentials=connections.faust_credentials(settings),
        processing_guarantee="at_least_once",
        key_serializer="raw",
        value_serializer="raw",
        store="memory://",
        datadir=str(settings.state_path(app_id)),
        # With the defaults (2.8 s and 10,000 records), a crash would repeat too much work.
        broker_commit_interval=settings.kafka.commit_interval_s,
        broker_commit_every=1000,
        broker_max_poll_records=500,
        broker_session_timeout=settings.kafka.session_timeout_s,
        broker_heartbeat_interval=min(3.0, settings.kafka.session_timeout_s / 3),
        broker_rebalance_timeout=settings.kafka.rebalance_timeout_s,
        broker_request_timeout=max(60.0, settings.kafka.session_timeout_s + 5),
        producer_request_timeout=60.0,
        producer_acks=-1,
        producer_max_request_size=settings.kafka.max_record_bytes,
        producer_max_batch_size=_MAX_BATCH_BYTES,
        consumer_max_fetch_size=settings.kafka.max_record_bytes + 65_536,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=f"{app_id}.{instance}",
        # A full buffer stops every topic of the worker, so it must hold everything that can be in flight.
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
        send_interval_s=settings.kafka.send_interval_ms / 1000,
        embedded=lambda: connections.embedded(settings),
    )
    app.fail = lambda error: crash(f"a handler failed: {error}", error)
    for name in ("aiokafka", "aiokafka.conn", "aiokafka.cluster", "aiokafka.consumer.fetcher",
                 "aiokafka.producer.sender",
                 "aiokafka.consumer.group_coordinator", "faust.transport.drivers.aiokafka"):  # fmt: skip
        logging.getLogger(name).addFilter(RateLimit())
    return app


def changelogged(app: faust.App, name: str, partitions: int) -> Changelogged:
    """Return a table that faust recovers, whose changelog is declared in `topics.py`."""
    table = Changelogged(
        app,
        name=name,
        key_type=bytes,
        value_type=bytes,
        partitions=partitions,
        # The default of 1,000 rows takes gigabytes if rows are large; with 1, faust would follow the changelog forever.
        recovery_buffer_size=50,
        beacon=app.tables.beacon,
    )
    app.tables.add(table)
    return table
