"""Whose answer a grader takes next: tenants take turns, and one whose references take long holds up nobody else.

A handler that waits for a grader holds one of the worker's places (`streams/runtime/queues.py`). As long as graders are
quick that is as it should be: what comes waits its turn. But a reference may take a grader all of its time, and whoever
sends many of them would hold every place.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from schemas.errors import UniscaleError

SLOW_S: Final = 1.0
"""Mean time with a grader, in seconds, from which on a tenant is slow: it then has one grader at most."""

SHARE: Final = 32
"""Of so many places of the worker, a slow tenant's answers that wait for their turn take one at most."""

PATIENCE_S: Final = 30.0
"""Longest wait for a grader, in seconds."""

_WEIGHT = 1 / 8  # of the last time in the mean: that two graders start, 3 s each, makes nobody slow
_TENANTS = 10_000


class GradersBusy(UniscaleError):
    """No grader is free for this answer in time. Send references that are quicker to compare with."""


class GraderTurns:
    """Turns of tenants with graders, and how long each tenant's answers take.

    Args:
        graders: So many answers are graded at once.
        places: Records that the worker handles at once.
        clock: Seconds, monotonic.
    """

    def __init__(self, graders: int, places: int, clock: Callable[[], float]) -> None:
        self._free = graders
        self._most = max(1, places // SHARE)
        self._clock = clock
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # whoever had a turn goes to the end
        self._graded: Counter[str] = Counter()  # by tenant, what is with a grader now
        self._mean_s: dict[str, float] = {}  # the longest unheard of first

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a grader, and keep it while the block runs.

        Raises:
            GradersBusy: none is free in time, or too much of a slow tenant waits already.
        """
        await self._wait(tenant)
        began_s = self._clock()
        try:
            yield
        finally:
            self._took(tenant, self._clock() - began_s)
            self._leave(tenant)

    async def _wait(self, tenant: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._refuse(tenant)
        self._next()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave(tenant)  # its turn came together with what ended the wait
            if isinstance(error, TimeoutError):
                raise GradersBusy(f"no grader was free in {PATIENCE_S:g} s") from None
            raise

    def _next(self) -> None:
        while self._free:
            able = (each for each in self._waiting if not (self._graded[each] and self._slow(each)))
            if (tenant := next(able, None)) is None:
                return
            queue = self._waiting.pop(tenant)
            turn = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            if not turn.done():
                self._free -= 1
                self._graded[tenant] += 1
                turn.set_result(None)

    def _leave(self, tenant: str) -> None:
        self._free += 1
        self._graded -= Counter([tenant])
        self._next()

    def _slow(self, tenant: str) -> bool:
        return self._mean_s.get(tenant, 0.0) > SLOW_S

    def _took(self, tenant: str, seconds: float) -> None:
        before_s = self._mean_s.pop(tenant, 0.0)
        self._mean_s[tenant] = before_s + _WEIGHT * (seconds - before_s)
        if len(self._mean_s) > _TENANTS:
            del self._mean_s[next(iter(self._mean_s))]
        self._refuse(tenant)

    def _refuse(self, tenant: str) -> None:
        """Let of a slow tenant only the first few wait, those included that wait since before it was slow."""
        queue = self._waiting.get(tenant, ())
        while self._slow(tenant) and len(queue) > self._most:
            if not (turn := queue.pop()).done():  # type: ignore[union-attr]
                turn.set_exception(GradersBusy(f"they are busy with others of tenant {tenant!r}"))
