"""faust's worker for one room: ready line, orderly stop, and stall detection for the consumer."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

import faust
from faust.exceptions import ConsumerNotStarted

from streams.metrics import Metrics
from streams.runtime.kafka.app import crash
from streams.runtime.kafka.consumer import SETTLE_S
from streams.runtime.kafka.runtime import KafkaRuntime
from streams.runtime.kafka.standstill import broken, waited_for
from streams.runtime.kafka.transport import consumer_of

log = logging.getLogger("streams.worker")


class Worker(faust.Worker):
    """A faust worker that calls `ready` once it serves, shows no spinner, and loses nothing when it is stopped."""

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
        """Say that tables are recovered and partitions are served."""
        self._ready()

    async def stop(self) -> None:
        """End the process: records in flight get a moment, what is done is committed, the rest is redelivered.

        faust's own way cancels the handlers, acknowledges their records and commits, so that records in flight would
        be lost. After an error inside faust not even the commit is tried.
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
    """Run a room that handles no record, until SIGTERM or SIGINT. faust cannot: its consumer needs a topic."""
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


async def notice_standstill(runtime: KafkaRuntime) -> None:
    """End the process if records wait, none is in flight and nothing moves; its successor continues from there.

    A rebalance that overtakes another can leave the consumer library waiting forever. Records that stay in flight for
    long are only logged: an engine step may take minutes, and one that never ends is a fault for an operator to find.
    """
    most_s = 2 * runtime.settings.kafka.rebalance_timeout_s + SETTLE_S
    moved, since = -1, time.monotonic()
    told = False
    while True:
        await asyncio.sleep(1.0)
        consumer = consumer_of(runtime.app)
        if ended := broken(consumer):
            crash(f"the Kafka consumer: {ended}")
        if consumer.moved != moved or not (consumer.busy or waited_for(consumer)):
            moved, since, told = consumer.moved, time.monotonic(), False
        if time.monotonic() - since <= most_s:
            continue
        if consumer.busy:
            names = runtime.in_flight.coordinates
            if not told and names:
                some = ", ".join(names[:8])
                log.warning(
                    "nothing has moved for %.0f s; in flight: %d records (%s)", most_s, len(names), some
                )
            told = True
        else:
            for task in asyncio.all_tasks():
                task.print_stack(limit=6)
            crash(f"records wait and nothing has moved for {most_s:.0f} s")


async def watch_lag(app: faust.App, metrics: Metrics, period_s: float = 5.0) -> None:
    """Set the lag gauges from what the consumer last heard, for ever."""
    while True:
        await asyncio.sleep(period_s)
        consumer: Any = app.consumer
        try:
            assigned = consumer.assignment()
        except ConsumerNotStarted:
            continue  # faust calls itself started before it has connected
        for tp in assigned:
            high = consumer.highwater(tp)
            done = consumer._committed_offset.get(tp)
            if high is None or done is None or tp.topic.endswith("-changelog"):
                continue
            metrics.lag.labels(tp.topic, str(tp.partition)).set(max(0, high - done))
