"""Watchdogs of a running process. They detect a stuck consumer, stalled partitions and topics that have grown."""

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

from schemas.record import readable_id
from streams.log import kafka_admin
from streams.log.base import ConsumerRecord
from streams.metrics import Metrics
from streams.runtime.kafka import KafkaRuntime, consumer_of, crash
from streams.runtime.kafka_consumer import SETTLE_S, Consumer
from streams.runtime.queues import Offsets
from streams.topics import Topic

# The time without progress is measured per partition, because a process's totals do not show that one of its partitions
# is stuck.


class PartitionProgress:
    """Tracks how long each partition has had records waiting without making progress."""

    def __init__(self) -> None:
        self._since: dict[Any, tuple[int, float]] = {}

    def look(self, found: Mapping[Any, tuple[int, bool]], now_s: float) -> dict[Any, float]:
        """Return how many seconds each partition has gone without progress; 0 if no record is waiting.

        The time is measured from when a record was first seen waiting, so an idle hour is not taken for a stall.

        Args:
            found: For each partition, how many records were handled, and whether a record is waiting or in flight.
            now_s: Seconds on a monotonic clock.
        """
        before, self._since = self._since, {}
        for tp, (done, waits) in found.items():
            known = before.get(tp)
            if waits and known is not None and known[0] == done:
                self._since[tp] = known
            elif waits:
                self._since[tp] = (done, now_s)
        return {tp: now_s - self._since[tp][1] if tp in self._since else 0.0 for tp in found}


# Consumer state for `watch_liveness`: whether records are waiting, how far each partition is, and whether an internal
# task has ended.


def waited_for(consumer: Consumer) -> bool:
    """Return whether unhandled records are waiting, or the group is rebalancing."""
    if consumer.app.rebalancing or any(each.open for each in consumer._offsets.values()):
        return True
    try:
        return any(
            _has_more(consumer, tp) for tp in consumer.assignment() if not consumer._is_changelog_tp(tp)
        )
    except (ConsumerNotStarted, AttributeError, KeyError):
        return False  # the consumer is not connected yet, or partitions are being assigned


def standing(consumer: Consumer) -> dict[Any, tuple[int, bool]]:
    """Return, for each partition of this worker, how many of its records were handled and whether others are waiting.

    Raises:
        ConsumerNotStarted: the consumer is not connected yet.
    """
    found = {}
    for tp in consumer.assignment():
        if consumer._is_changelog_tp(tp):
            continue
        offsets = consumer._offsets.get(tp) or Offsets()
        try:
            found[tp] = offsets.count, bool(offsets.open) or _has_more(consumer, tp)
        except (AttributeError, KeyError):
            continue  # the partition is being assigned
    return found


def _has_more(consumer: Consumer, tp: Any) -> bool:
    subscription = consumer._thread._ensure_consumer()._subscription.subscription
    fetched = subscription.assignment.state_value(tp)
    if tp in consumer.fetched or (cursor := consumer._cursors.get(tp)) is None:
        return True  # fetched but undelivered records are below the position
    if fetched.highwater is None:
        return False
    return bool(fetched.highwater > (fetched._position or 0) or fetched.highwater < cursor.due)


def broken(consumer: Consumer) -> str:
    """Return which of the aiokafka consumer's tasks has ended unnoticed by faust; empty if none has."""
    inner = getattr(consumer._thread, "_consumer", None)
    if inner is None or inner._fetcher is None or inner._closed:
        return ""
    if inner._fetcher._fetch_task.done():
        return "the fetcher ended"
    task = getattr(inner._coordinator, "_coordination_task", None)
    if task is not None and task.done():
        return "the group membership ended"
    pending = getattr(inner._coordinator, "_pending_exception", None)
    return repr(pending) if pending else ""


log = logging.getLogger("streams.worker")


async def watch_liveness(runtime: KafkaRuntime) -> None:
    """End the process if records are waiting, none is in flight and there is no progress; its successor continues.

    Overlapping rebalances can leave the consumer library waiting forever. A record that has been in flight for a long
    time is only logged, because an engine step may take minutes; operators must judge whether a step will ever end.
    In a slow queue that moves, another record is the oldest every second, so at most one is logged per `most_s`.
    """
    most_s = 2 * runtime.settings.kafka.rebalance_timeout_s + SETTLE_S
    moved, since = -1, time.monotonic()
    told: ConsumerRecord | None = None
    told_at = -most_s
    while True:
        await asyncio.sleep(1.0)
        consumer = consumer_of(runtime.app)
        if ended := broken(consumer):
            crash(f"the Kafka consumer: {ended}")
        record, age_s = consumer.queues.oldest() or (None, 0.0)
        runtime.metrics.oldest_open.set(age_s)
        now = time.monotonic()
        if record is not None and age_s > most_s and record is not told and now - told_at > most_s:
            told, told_at = record, now
            log.warning(
                "%s (query %s) has been in flight for %.0f s",
                record.coordinates,
                readable_id(record.value),
                age_s,
            )
        if consumer.moved != moved or not (consumer.busy or waited_for(consumer)):
            moved, since = consumer.moved, now
        if now - since > most_s and not consumer.busy:
            reason = f"records wait and nothing has moved for {most_s:.0f} s"
            log.error("%s; what each task waits for:", reason)
            for task in asyncio.all_tasks():
                log.info("%s: %s", task.get_name(), " > ".join(awaited(task)))
            crash(reason)


def awaited(task: asyncio.Task[Any]) -> list[str]:
    """Return where a task is waiting, from its outermost to its innermost coroutine.

    `Task.print_stack` shows only the outermost one.
    """
    places: list[str] = []
    inner: Any = task.get_coro()
    while inner is not None:
        kind = next((k for k in ("cr", "ag", "gi") if hasattr(inner, f"{k}_frame")), "")
        if not kind:
            # The awaitable for an async generator's next step has no attribute that refers to the generator.
            inner = next(filter(inspect.isasyncgen, gc.get_referents(inner)), None)
            continue
        if (frame := getattr(inner, f"{kind}_frame")) is not None:
            places.append(f"{inner.__qualname__}:{frame.f_lineno}")
        inner = inner.gi_yieldfrom if kind == "gi" else getattr(inner, f"{kind}_await")
    return places


_GAUGES_S = 5.0
_COUNTS_S = 60.0


async def watch_partitions(
    app: faust.App,
    metrics: Metrics,
    stalled: Callable[[Mapping[str, float]], None],
) -> None:
    """Keep each partition's gauges up to date: its lag, and the time it has gone without progress.

    Args:
        app: The service's app.
        metrics: The process's metrics.
        stalled: Called with the seconds without progress, by "topic/partition", of partitions with waiting records.
    """
    progress = PartitionProgress()
    shown: set[tuple[str, str]] = set()
    while True:
        await asyncio.sleep(_GAUGES_S)
        consumer = consumer_of(app)
        try:
            found = standing(consumer)
        except ConsumerNotStarted:
            continue  # faust reports itself started before it has connected
        ages = progress.look(found, time.monotonic())
        labels = {(tp.topic, str(tp.partition)) for tp in ages}
        for gone in shown - labels:  # another worker now owns the partition, so its values here are stale
            for gauge in (metrics.lag, metrics.stalled):
                _remove(gauge, gone)
        shown = labels
        for tp, age_s in ages.items():
            metrics.stalled.labels(tp.topic, str(tp.partition)).set(age_s)
            high, done = consumer.highwater(tp), consumer._committed_offset.get(tp)
            if high is not None and done is not None:
                metrics.lag.labels(tp.topic, str(tp.partition)).set(max(0, high - done))
        stalled({f"{tp.topic}/{tp.partition}": age_s for tp, age_s in ages.items() if age_s})


def _remove(gauge: Any, labels: tuple[str, str]) -> None:
    with contextlib.suppress(KeyError):  # the gauge was never set
        gauge.remove(*labels)


async def notice_growth(runtime: KafkaRuntime) -> None:
    """End the process if a topic's partition count has changed; its successor then refuses to start.

    Otherwise, producers that look up the count would spread the records of one query over two partitions, without any
    error.
    """
    while True:
        await asyncio.sleep(_COUNTS_S)
        producer = getattr(runtime.app.producer, "_producer", None)
        if producer is None:
            continue
        declared = runtime.topics.declared(runtime.control.catalogue.groups)
        if wrong := await changed_counts(producer.client, declared):
            crash("partition counts have changed: " + "; ".join(wrong))


async def changed_counts(client: Any, declared: Iterable[Topic]) -> list[str]:
    """Return a finding for each topic with the wrong partition count on the broker; none if the broker doesn't answer.

    Args:
        client: A connected AIOKafkaClient.
        declared: The topics as this process declares them.
    """
    try:
        cluster = await client.fetch_all_metadata()
    except (KafkaError, OSError) as error:
        log.debug("partition counts are unknown: %r", error)
        return []
    return kafka_admin.miscounted(declared, lambda name: len(cluster.partitions_for_topic(name) or ()))
