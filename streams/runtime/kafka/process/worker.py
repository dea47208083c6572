"""faust's worker for one room: it reports when it is ready, and stops without losing records."""

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
    """faust worker that calls `ready` once it serves its partitions, and loses nothing when it is stopped."""

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
        """Report that tables are recovered and partitions are being served."""
        self._ready()

    async def stop(self) -> None:
        """End the process: wait briefly for records in flight, commit what is handled; the rest is redelivered.

        faust would cancel the handlers, acknowledge their records and commit, which loses records in flight. After an
        error inside faust, nothing is committed.
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
    """Run a room that handles no records until SIGTERM or SIGINT. faust cannot: its consumer needs a topic."""
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
