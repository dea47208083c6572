"""What the watch over a standstill asks of a consumer (`watch.py`): do records wait, and did something end."""

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
        return False  # not connected yet, or it is just given its partitions


def standing(consumer: Consumer) -> dict[Any, tuple[int, bool]]:
    """Return, for each partition of this worker, up to where it is handled and whether records wait there.

    Raises:
        ConsumerNotStarted: it is not connected yet.
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
    """Return what ended inside aiokafka's consumer without faust noticing; empty while all is well."""
    inner = getattr(consumer._thread, "_consumer", None)
    if inner is None or inner._fetcher is None or inner._closed:
        return ""
    if inner._fetcher._fetch_task.done():
        return "the fetcher ended"
    task = getattr(inner._coordinator, "_coordination_task", None)
    if task is not None and task.done():
        return "the membership of the group ended"
    pending = getattr(inner._coordinator, "_pending_exception", None)
    return repr(pending) if pending else ""
