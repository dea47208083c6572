"""Time without progress of each partition. The totals of a process do not show that one of its partitions is stuck."""

from collections.abc import Mapping
from typing import Any


class Stalls:
    """Remembers how long each partition has had records waiting without making progress."""

    def __init__(self) -> None:
        self._since: dict[Any, tuple[int, float]] = {}

    def look(self, found: Mapping[Any, tuple[int, bool]], now_s: float) -> dict[Any, float]:
        """Return the seconds without progress of each partition; 0 where no record waits.

        The time counts from when a record was first seen waiting, so an idle hour does not count as a stall.

        Args:
            found: By partition, the offset below which all is handled, and whether a record waits or is in flight.
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
