"""One room as one process: prepare, then hand the event loop to faust.

Order matters. Topics are checked before anything is read, `control` is read to its end before the first
record is handled, and engines are loaded before partitions are asked for, so that no query waits in a
process that cannot serve it.
"""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Coroutine
from typing import Any, NoReturn

import faust
import uvloop
from faust.exceptions import ConsumerNotStarted

from streams.flow import connect
from streams.local.supervisor import READY
from streams.metrics import Metrics, watch_lag
from streams.runtime.kafka import admin
from streams.runtime.kafka.app import crash, create_app
from streams.runtime.kafka.consumer import SETTLE_S, consumer_of
from streams.runtime.plumbing import Plumbing
from streams.settings import Settings
from streams.topics import Topics

log = logging.getLogger("streams.worker")

ROOMS = ("embedder", "decider", "executor", "verifier", "aggregator")


class Worker(faust.Worker):
    """A faust worker that prints one line when it is ready, and no spinner."""

    def __init__(self, plumbing: Plumbing, loop: asyncio.AbstractEventLoop) -> None:
        app = plumbing.app
        super().__init__(app, loop=loop, quiet=True, redirect_stdouts=False, override_logging=False)
        self.spinner = None
        self.plumbing = plumbing
        self._ending = False

    async def on_startup_finished(self) -> None:
        """Say that tables are recovered and partitions are served."""
        log.info(READY)

    async def stop(self) -> None:
        """End the process: what is in hand gets a moment, what is done is committed, the rest is read again.

        faust's own way cancels the handlers, acknowledges their records and commits, so that what was in hand would
        be lost. After an error inside faust not even the commit is tried.
        """
        if self.crash_reason is not None:
            crash("faust failed", self.crash_reason)
        if self._ending:
            return
        self._ending = True
        log.info("stopping")
        await self.plumbing.settle(SETTLE_S)
        with contextlib.suppress(ConsumerNotStarted):
            await self.plumbing.app.consumer.commit()
        for close in self.plumbing.closers:
            await close()
        self.plumbing.in_hand.clear()
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def run_room(
    settings: Settings, room: str, *, group: str = "", instance: str = "0", metrics_port: int = 0
) -> NoReturn:
    """Run one room until it is told to stop.

    Args:
        settings: The settings of the process.
        room: One of ROOMS.
        group: The executor group, for an executor.
        instance: Stable name of this worker among those of its room.
        metrics_port: Port for Prometheus; 0 serves none.
    """
    logging.basicConfig(
        level=settings.log_level,
        stream=sys.stdout,
        format="%(levelname)-7s %(name)s: %(message)s",
        force=True,
    )
    for noisy in ("kafka", "faust", "mode", "aiokafka", "httpx", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(settings.log_level)))
    # kafka-python warns of a busy machine; mode logs every part of faust under the module of its class.
    logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)
    for name in (
        "streams.runtime.kafka.app",
        "streams.runtime.kafka.table",
        "streams.runtime.kafka.consumer",
    ):
        logging.getLogger(name).setLevel(logging.WARNING)
    settings.state_path().mkdir(parents=True, exist_ok=True)
    # Of faust's consumer thread too. The same streams take a fifth less time than on asyncio's own loop.
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    app = create_app(settings, room, group, instance)
    metrics = Metrics(room)
    plumbing = Plumbing(settings, app, metrics, room=room, group=group, instance=instance)
    if metrics_port:
        metrics.serve(metrics_port)
    loop.run_until_complete(_prepare(plumbing))
    tasks = [watch_lag(app, metrics), _notice_standstill(plumbing)]
    if parent := os.environ.get("STREAMS_PARENT_PID"):
        tasks.append(_end_with(int(parent)))
    for task in tasks:
        _forever(loop, task)
    Worker(plumbing, loop).execute_from_commandline()


async def _prepare(plumbing: Plumbing) -> None:
    settings = plumbing.settings
    await plumbing.control.start()
    groups = plumbing.control.catalogue.groups
    for note in admin.require(settings, Topics(settings).declared(groups)):
        log.info("topics: %s", note)
    await connect(plumbing)


async def _notice_standstill(plumbing: Plumbing) -> None:
    """End the process where records wait, none is in hand and nothing moves: the next one begins where this one stood.

    A rebalance that overtakes another can leave the consumer library waiting for ever. What is in hand for long is
    named: a step of an engine may take minutes, what never ends is a fault to be found.
    """
    most_s = 2 * plumbing.settings.rebalance_timeout_s + SETTLE_S
    moved, since = -1, time.monotonic()
    told = False
    while True:
        await asyncio.sleep(1.0)
        consumer = consumer_of(plumbing.app)
        if consumer.broken:
            crash(f"the Kafka consumer: {consumer.broken}")
        if consumer.moved != moved or not (consumer.busy or consumer.waited_for):
            moved, since, told = consumer.moved, time.monotonic(), False
        if time.monotonic() - since <= most_s:
            continue
        if consumer.busy:
            names = plumbing.in_hand.coordinates
            if not told and names:
                some = ", ".join(names[:8])
                log.warning(
                    "nothing has moved for %.0f s; in hand: %d records (%s)", most_s, len(names), some
                )
            told = True
        else:
            for task in asyncio.all_tasks():
                task.print_stack(limit=6)
            crash(f"records wait and nothing has moved for {most_s:.0f} s")


async def _end_with(parent: int) -> None:
    """End when the supervisor is gone, however it went: an orphan would hold its partitions."""
    while os.getppid() == parent:  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(1.0)
    crash(f"the supervisor (process {parent}) is gone")


def _forever(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            crash("a background task failed", error)

    loop.create_task(coroutine).add_done_callback(ended)
