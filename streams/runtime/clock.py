"""An estimate of the broker's clock that does not depend on this machine's clock. All deadlines are measured on it."""

import logging
import math
from collections.abc import Callable

log = logging.getLogger("streams.clock")

NOTICED_S = 5.0
"""A warning is logged if the two clocks differ by at least this many seconds."""

_REMEMBERED_S = 300.0


class BrokerClock:
    """Estimates the broker's time as a record's append time plus the time elapsed since the record was seen.

    A record is seen only after it was appended, so each record yields a lower bound, and the highest one is used.
    Observations expire after five to ten minutes, so that the estimate follows a broker whose clock was set back.
    Before the first record, this machine's clock is used.

    Args:
        monotonic: Monotonic clock, in seconds.
        wall_ms: This machine's clock, ms since the epoch.
        skewed: Called at each new estimate with the number of seconds this machine is ahead of the broker.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        wall_ms: Callable[[], int],
        skewed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self._skewed = skewed
        # Lower bounds on how far the broker's clock is ahead of `monotonic`, from the current and the previous period.
        self._ahead_ms = [-math.inf, -math.inf]
        self._until_s = monotonic() + _REMEMBERED_S
        self._said = False

    def now_ms(self) -> int:
        """Return the broker's time, ms since the epoch."""
        ahead_ms = max(self._ahead_ms)
        return self._wall_ms() if ahead_ms == -math.inf else int(ahead_ms + self._monotonic() * 1000)

    def handled(self, appended_ms: int) -> None:
        """Note the append time of a record that may have waited for a long time."""
        if appended_ms <= 0:
            return
        now_s = self._monotonic()
        if now_s > self._until_s:
            self._ahead_ms = [-math.inf, self._ahead_ms[0]]
            self._until_s = now_s + _REMEMBERED_S
        self._ahead_ms[0] = max(self._ahead_ms[0], appended_ms - now_s * 1000)

    def arrived(self, appended_ms: int) -> None:
        """Note the append time of a record that has just been appended, and report a clock difference."""
        self.handled(appended_ms)
        skew_s = (self._wall_ms() - self.now_ms()) / 1000
        self._skewed(skew_s)
        if (abs(skew_s) >= NOTICED_S) != self._said:
            self._said = not self._said
            if self._said:
                log.warning(
                    "this machine's clock is %+.0f s from the broker's; deadlines go by the broker's, but logs and "
                    "metrics of this machine do not: set its clock",
                    skew_s,
                )
            else:
                log.warning("this machine's clock agrees with the broker's again")
