"""Circuit breaker of one endpoint, without I/O; the clock is passed in.

An endpoint that is down, hangs or refuses our key fails every request, often fast. After a few failures in a row, its
breaker opens: requests are refused here, and heartbeats omit its model, so the decider chooses a different one. After a
pause the breaker is half-open: requests pass again, and the first outcome closes or reopens it. Each pause is twice the
previous one.
"""

from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half-open"]

FAILURES = 5
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0
LONGEST_REST_S = 3600.0
"""Upper bound on the pause an endpoint may ask for, in case it used a unit other than seconds."""


class Breaker:
    """Circuit breaker of an endpoint. It opens after `FAILURES` failures in a row.

    Args:
        clock: Seconds, monotonic.

    >>> breaker = Breaker(lambda: 0.0)
    >>> [(breaker.failed("no connection"), breaker.state)[1] for _ in range(5)]
    ['closed', 'closed', 'closed', 'closed', 'open']
    >>> breaker.why
    'no connection'
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._until: float | None = None
        self._rests = False
        self.why = ""

    @property
    def state(self) -> State:
        """Return `closed` (requests pass), `open` (they do not) or `half-open` (the next outcome decides)."""
        if self._until is None:
            return "closed"
        return "open" if self._clock() < self._until else "half-open"

    @property
    def wait_s(self) -> float:
        """Return the seconds until requests pass again; 0 if they already do."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    def succeeded(self) -> None:
        """Record that the endpoint answered. This closes the breaker, except during a pause that it asked for."""
        if self._rests and self.state == "open":
            return
        self._rests = False
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._until = None
        self.why = ""

    def rest(self, seconds: float, why: str) -> None:
        """Block requests for as long as the endpoint asked, but at most an hour."""
        self.why, self._rests = why, True
        self._until = max(self._until or 0.0, self._clock() + min(seconds, LONGEST_REST_S))

    def failed(self, why: str) -> None:
        """Record a failure of the endpoint.

        A request that fails while the breaker is open was sent before it opened, and is not counted.
        """
        match self.state:
            case "closed":
                self.why = why
                self._failures += 1
                if self._failures >= FAILURES:
                    self._until = self._clock() + self._pause_s
            case "half-open":
                self.why = why
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
                self._until = self._clock() + self._pause_s
