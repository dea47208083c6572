"""faust's worker for one room: ready line and orderly stop. `watch.py` looks after it while it runs."""

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import NoReturn

import faust

from streams.runtime.kafka.app import crash
from streams.runtime.kafka.consuming.consumer import SETTLE_S
from streams.runtime.kafka.runtime import KafkaRuntime

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
