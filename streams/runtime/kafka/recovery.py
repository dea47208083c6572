"""The end of a recovery of a changelog that is written in transactions (`fence.py`), which faust does not see."""

from collections.abc import Container, Mapping
from typing import Any

from streams.runtime.kafka.offsets import Course


def look_past_markers(
    tables: Any, fenced: Container[str], courses: Mapping[Any, Course], subscription: Any
) -> None:
    """End a recovery that waits for a record where the end of a transaction stands.

    The offsets before the end of a changelog are such marks, which nobody is given; faust waits for a record.

    Args:
        tables: faust's manager of tables.
        fenced: The changelogs that are written in transactions.
        courses: What is due in each partition.
        subscription: aiokafka's, whose positions tell how far the fetcher is.
    """
    recovery = tables.recovery
    for tp in recovery.active_tps:
        last, seen = recovery.active_highwaters.get(tp), recovery.active_offsets.get(tp)
        course = courses.get(tp)
        if tp.topic not in fenced or last is None or seen is None or course is None or seen >= last:
            continue
        position = subscription.assignment.state_value(tp)._position
        if seen >= course.due - 1 and position is not None and position > last:
            recovery.active_offsets[tp] = last
    if recovery.in_recovery and not recovery.need_recovery():
        recovery.flush_buffers()
        recovery._set_recovery_ended()
        recovery.signal_recovery_end.set()
