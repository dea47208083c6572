"""Questions to a consumer for `watch.py`: do records wait, how far is each partition, has a task inside it ended?"""

from typing import Any

from faust.exceptions import ConsumerNotStarted

from streams.runtime.kafka.consuming.consumer import Consumer
from streams.runtime.kafka.consuming.offsets import Offsets


def waited_for(consumer: Consumer) -> bool:
    """Return whether unhandled records are waiting, or the group is rebalancing."""
    if consumer.app.rebalancing or any(each.open for each in consumer._offsets.values()):
        return True
    try:
        return any(
            _has_more(consumer, tp) for tp in consumer.assignment() if not consumer._is_changelog_tp(tp)
        )
    except (ConsumerNotStarted, AttributeError, KeyError):
        return False  # it is not connected yet, or is just being assigned partitions


def standing(consumer: Consumer) -> dict[Any, tuple[int, bool]]:
    """Return, for each partition of this worker, the offset below which all is handled and whether records wait.

    Raises:
        ConsumerNotStarted: the consumer is not connected yet.
    """
    found = {}
    for tp in consumer.assignment():
        if consumer._is_changelog_tp(tp):
            continue
        offsets = consumer._offsets.get(tp) or Offsets()
        try:
            found[tp] = offsets.done, bool(offsets.open) or _has_more(consumer, tp)
        except (AttributeError, KeyError):
            continue  # it is just being assigned
    return found


def _has_more(consumer: Consumer, tp: Any) -> bool:
    subscription = consumer._thread._ensure_consumer()._subscription.subscription
    fetched = subscription.assignment.state_value(tp)
    if (course := consumer._courses.get(tp)) is None:
        return True
    if fetched.highwater is None:
        return False
    return bool(fetched.highwater > (fetched._position or 0) or fetched.highwater < course.due)


def broken(consumer: Consumer) -> str:
    """Return which task of aiokafka's consumer has ended unnoticed by faust; empty if none has."""
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
