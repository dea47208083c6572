"""Circuit breaker of one endpoint: pure, with the clock handed in.

An endpoint that is down, hangs or refuses our key fails every request it is given, often fast. After a few
failures in a row its breaker opens: requests are refused here, and heartbeats leave its model out, so the
decider chooses another. After a pause the breaker is half-open: requests pass again, and the first outcome
decides. Each pause is twice the one before.
"""

from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Whether an endpoint may be asked.

    Args:
        clock: Seconds, monotonic.
        failures: So many in a row open it.
        pause_s: From opening to half-open, the first time.
        longest_pause_s: Bound on later pauses, which double.

    >>> breaker = Breaker(lambda: 0.0, failures=2)
    >>> breaker.failed("no connection"), breaker.state
    (None, 'closed')
    >>> breaker.failed("no connection"), breaker.state, breaker.why
    (None, 'open', 'no connection')
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        failures: int = 5,
        pause_s: float = 10.0,
        longest_pause_s: float = 300.0,
    ) -> None:
        self._clock = clock
        self._most = failures
        self._first_pause_s = pause_s
        self._longest_pause_s = longest_pause_s
        self._failures = 0
        self._pause_s = pause_s
        self._until: float | None = None
        self.why = ""

    @property
    def state(self) -> State:
        """Return `closed` (requests pass), `open` (they do not) or `half-open` (the next outcome decides)."""
        if self._until is None:
            return "closed"
        return "open" if self._clock() < self._until else "half-open"

    @property
    def wait_s(self) -> float:
        """Return the seconds until requests pass again; 0 when they do."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    def succeeded(self) -> None:
        """Record that the endpoint answered: the breaker closes."""
        self._failures = 0
        self._pause_s = self._first_pause_s
        self._until = None
        self.why = ""

    def failed(self, why: str) -> None:
        """Record a failure of the endpoint.

        What fails while the breaker is open was sent before it opened, and counts no further.
        """
        match self.state:
            case "closed":
                self.why = why
                self._failures += 1
                if self._failures >= self._most:
                    self._until = self._clock() + self._pause_s
            case "half-open":
                self.why = why
                self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
                self._until = self._clock() + self._pause_s
