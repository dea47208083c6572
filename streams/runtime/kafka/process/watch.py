"""Tasks that watch a running process: a stuck consumer, partitions without progress, topics that have grown."""

import asyncio
import contextlib
import gc
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import faust
from aiokafka.errors import KafkaError
from faust.exceptions import ConsumerNotStarted

from streams.metrics import Metrics
from streams.runtime.kafka.app import crash
from streams.runtime.kafka.clients import admin
from streams.runtime.kafka.consuming.consumer import SETTLE_S
from streams.runtime.kafka.process.stalls import Stalls
from streams.runtime.kafka.process.standstill import broken, standing, waited_for
from streams.runtime.kafka.runtime import KafkaRuntime
from streams.runtime.kafka.transport import consumer_of
from streams.topics import Topic

log = logging.getLogger("streams.worker")


async def notice_standstill(runtime: KafkaRuntime) -> None:
    """End the process if records wait, none is in flight and nothing moves; its successor continues from there.

    Overlapping rebalances can leave the consumer library waiting forever. Records that stay in flight for long are only
    logged: an engine step may take minutes, and one that never ends is for an operator to find.
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
                log.warning("%s: %s", task.get_name(), " > ".join(awaited(task)))
            crash(f"records wait and nothing has moved for {most_s:.0f} s")


def awaited(task: asyncio.Task[Any]) -> list[str]:
    """Return where a task waits, from its first coroutine to its innermost one; `print_stack` shows the first alone."""
    places: list[str] = []
    inner: Any = task.get_coro()
    while inner is not None:
        kind = next((k for k in ("cr", "ag", "gi") if hasattr(inner, f"{k}_frame")), "")
        if not kind:
            # An async generator's next step does not say whose it is.
            inner = next(filter(inspect.isasyncgen, gc.get_referents(inner)), None)
            continue
        if (frame := getattr(inner, f"{kind}_frame")) is not None:
            places.append(f"{inner.__qualname__}:{frame.f_lineno}")
        inner = inner.gi_yieldfrom if kind == "gi" else getattr(inner, f"{kind}_await")
    return places


async def watch_partitions(
    app: faust.App,
    metrics: Metrics,
    stalled: Callable[[Mapping[str, float]], None],
    period_s: float = 5.0,
) -> None:
    """Update the gauges of lag and of time without progress for each partition of this process, forever.

    Args:
        app: The room's app.
        metrics: The process's metrics.
        stalled: Called with the seconds without progress by "topic/partition", for partitions where records wait.
        period_s: Seconds between two updates.
    """
    stalls = Stalls()
    shown: set[tuple[str, str]] = set()
    while True:
        await asyncio.sleep(period_s)
        consumer = consumer_of(app)
        try:
            found = standing(consumer)
        except ConsumerNotStarted:
            continue  # faust reports itself started before it has connected
        ages = stalls.look(found, time.monotonic())
        labels = {(tp.topic, str(tp.partition)) for tp in ages}
        for gone in shown - labels:  # another worker owns it now, so the values from here mean nothing
            for gauge in (metrics.lag, metrics.stalled, metrics.progress):
                _remove(gauge, gone)
        shown = labels
        for tp, age_s in ages.items():
            metrics.stalled.labels(tp.topic, str(tp.partition)).set(age_s)
            high, done = consumer.highwater(tp), consumer._committed_offset.get(tp)
            if high is not None and done is not None:
                metrics.lag.labels(tp.topic, str(tp.partition)).set(max(0, high - done))
        stalled({f"{tp.topic}/{tp.partition}": age_s for tp, age_s in ages.items() if age_s})


def _remove(gauge: Any, labels: tuple[str, str]) -> None:
    with contextlib.suppress(KeyError):  # it was never set
        gauge.remove(*labels)


async def notice_growth(runtime: KafkaRuntime, period_s: float = 60.0) -> None:
    """End the process if the partition count of a topic has changed; its successor refuses to start.

    Producers that look up the count would otherwise spread the records of one query over two partitions, without any
    error.
    """
    while True:
        await asyncio.sleep(period_s)
        producer = getattr(runtime.app.producer, "_producer", None)
        if producer is None:
            continue
        declared = runtime.topics.declared(runtime.control.catalogue.groups)
        if wrong := await changed_counts(producer.client, declared):
            crash("partition counts have changed: " + "; ".join(wrong))


async def changed_counts(client: Any, declared: Iterable[Topic]) -> list[str]:
    """Return the topics whose partition count on the broker is wrong; empty if the broker does not answer.

    Args:
        client: A connected AIOKafkaClient.
        declared: The topics as this process declares them.
    """
    try:
        cluster = await client.fetch_all_metadata()
    except (KafkaError, OSError) as error:
        log.debug("partition counts are unknown: %r", error)
        return []
    return admin.miscounted(declared, lambda name: len(cluster.partitions_for_topic(name) or ()))
