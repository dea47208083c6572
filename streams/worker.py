"""Runs one service as one process: prepares it, then hands the event loop over to faust. Only this module ends workers.

Order matters. Topics are checked before anything is read, `control` is read to its end before the first record is
handled, and engines are loaded before joining the consumer group, so that no query waits in a process that cannot serve
it.
"""

import asyncio
import gc
import logging
import os
import sys
import warnings
from collections.abc import Coroutine
from typing import Any, Final, NoReturn

import uvloop

from streams.http.health import Health, serve
from streams.local.deployment import READY
from streams.log import kafka_admin, kafka_clients
from streams.metrics import Metrics
from streams.runtime.effects import connect
from streams.runtime.errors import Crash
from streams.runtime.handler_guard import InFlightFile
from streams.runtime.kafka import KafkaRuntime, KafkaWorker, crash, on_crash, run_without_handlers
from streams.runtime.kafka_consumer import InstanceName
from streams.runtime.kafka_watchdog import notice_growth, watch_liveness, watch_partitions
from streams.services import SERVICES
from streams.settings import Settings
from streams.topics import Topics

log = logging.getLogger("streams.worker")

CRASH_EXIT = 70

_NEW_OBJECTS: Final = 20_000
"""Number of new container objects that trigger a garbage collection; Python's default is 700."""


def run_service(
    settings: Settings, service: str, *, group: str = "", instance: str = "0", metrics_port: int = 0
) -> NoReturn:
    """Run one service until it is stopped.

    Args:
        settings: The process's settings.
        service: One of `streams.services.SERVICES`.
        group: The executor group, for an executor.
        instance: Stable name of this worker among those of its service.
        metrics_port: Port for metrics and health probes; 0 serves neither.
    """
    _log_to_stdout(settings.log_level)
    settings.state_path().mkdir(parents=True, exist_ok=True)
    # The policy also applies to faust's consumer thread. Streams take a fifth less time than on asyncio's own loop.
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    kafka_clients.expect_uvloop()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    metrics = Metrics(service)
    health = Health(lag=metrics.loop_lag.observe)
    if metrics_port:
        serve(settings.metrics_host, metrics_port, metrics.registry, health)
    name = InstanceName(settings, Topics(settings).app_id(service, group), instance)
    if SERVICES[service].inputs:
        name.lock()  # before its crash-count files are opened
    runtime = KafkaRuntime(settings, metrics, service=service, group=group, instance=instance)
    app: Any = runtime.app
    app.replaced = lambda: name.replaced(crash)

    def end(reason: str, error: BaseException | None) -> NoReturn:
        exit_crashed(reason, error, runtime.in_flight)

    on_crash[:] = [end]
    try:
        loop.run_until_complete(_prepare(runtime, name))
    except Crash as error:
        end(str(error), error.__cause__)
    handles = bool(SERVICES[service].inputs)
    tasks: set[Coroutine[Any, Any, None]] = {health.beat(), notice_growth(runtime)}
    if handles:
        tasks |= {watch_partitions(runtime.app, metrics, health.stalled), watch_liveness(runtime)}
    if parent := os.environ.get("STREAMS_PARENT_PID"):
        tasks.add(_end_with(int(parent), end))
    kept = {_forever(loop, task, end) for task in tasks}

    def ready() -> None:
        _collect_less()
        health.ready()
        log.info(READY)

    if not handles:
        loop.run_until_complete(run_without_handlers(runtime, ready=ready, ended=lambda: _exit(0)))
    worker = KafkaWorker(runtime, loop, ready=ready, stopping=health.stopping, ended=lambda: _exit(0))
    worker.execute_from_commandline()
    raise AssertionError(f"faust returned with {len(kept)} tasks running")


def _collect_less() -> None:
    """Exclude objects loaded at startup from garbage collection, and collect less often.

    Records are freed by reference counting, so a collection finds almost nothing but walks every loaded module.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


def _log_to_stdout(level: str) -> None:
    logging.basicConfig(
        level=level,
        stream=sys.stdout,
        format="%(levelname)-7s %(name)s: %(message)s",
        force=True,
    )
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # deprecations in libraries do not concern operators
    # Set this before torch is imported, because torch logs the NUMA binding of each engine.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for noisy in ("kafka", "faust", "mode", "aiokafka", "httpx", "asyncio", "vllm"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))
    # kafka-python and mode's timers warn about a busy machine, kafka-python about faust's member metadata, and torch
    # about a missing Triton; mode logs every faust component under the module of its class.
    for wordy in ("kafka.net.selector", "kafka.admin._groups", "mode.timers", "torch._library.triton"):
        logging.getLogger(wordy).setLevel(logging.ERROR)
    for parts in ("kafka", "kafka_consumer", "kafka_sender"):
        logging.getLogger(f"streams.runtime.{parts}").setLevel(logging.WARNING)


async def _prepare(runtime: KafkaRuntime, name: InstanceName) -> None:
    await name.wait()
    await runtime.control.start(runtime.log)
    groups = runtime.control.catalogue.groups
    for note in kafka_admin.require(runtime.settings, runtime.topics.declared(groups)):
        log.info("topics: %s", note)
    await connect(runtime, SERVICES[runtime.service])


def exit_crashed(reason: str, error: BaseException | None, in_flight: InFlightFile) -> NoReturn:
    """End this process and log why.

    Logging may fail too, for example when out of memory. The process exits anyway, because otherwise it would keep its
    partitions without handling anything.
    """
    try:
        # The failure has been counted, or no record is at fault: do not blame the records in flight.
        in_flight.clear()
        log.critical("crash: %s", reason, exc_info=error)
        _exit(CRASH_EXIT)
    finally:
        os._exit(CRASH_EXIT)


def _exit(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _end_with(parent: int, end: Any) -> None:
    """End this process once the supervisor is gone for any reason: an orphan would keep its partitions."""
    while os.getppid() == parent:  # noqa: ASYNC110 - the kernel sends no notification
        await asyncio.sleep(1.0)
    end(f"the supervisor (process {parent}) is gone", None)


def _forever(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], end: Any) -> Any:
    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            end("a background task failed", error)

    task = loop.create_task(coroutine)
    task.add_done_callback(ended)
    return task
