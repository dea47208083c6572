"""Time without progress, partition by partition: one that stands still is invisible in what a whole process does."""

from collections.abc import Mapping
from typing import Any


class Stalls:
    """Remembers since when each partition has records waiting and makes no progress."""

    def __init__(self) -> None:
        self._since: dict[Any, tuple[int, float]] = {}

    def look(self, found: Mapping[Any, tuple[int, bool]], now_s: float) -> dict[Any, float]:
        """Return the seconds without progress of each partition; 0 where nothing waits.

        A partition counts from when its records were first seen waiting: one that was idle for an hour has not stood
        still for an hour.

        Args:
            found: By partition, the offset up to where all is handled, and whether a record waits or is in flight.
            now_s: Seconds on a clock that never goes backwards.
        """
        before, self._since = self._since, {}
        for tp, (done, waits) in found.items():
            known = before.get(tp)
            if waits and known is not None and known[0] == done:
                self._since[tp] = known
            elif waits:
                self._since[tp] = (done, now_s)
        return {tp: now_s - self._since[tp][1] if tp in self._since else 0.0 for tp in found}
