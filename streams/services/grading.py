"""Whose answer a grader takes next: of the tenants whose answers wait, the one that has had graders for the least time.

A reference may take a grader seconds, and whoever sends many of them would otherwise have every grader. An answer that
waits for one keeps no other record from beginning (`Runtime.aside`), but the offset of its partition stays with it: so
many may wait, and of more, those of the tenant with the most waiting get no grade.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from schemas.errors import UniscaleError


class GradersBusy(UniscaleError):
    """Too many answers of a tenant wait for a grader. Send fewer at once, or references that are quicker to grade."""


class GraderTurns:
    """Turns of tenants with graders, in the order of the time that they have had them.

    Only tenants with an answer that waits or is graded are remembered; another begins as the one that had the least.

    Args:
        graders: So many answers are graded at once.
        most: Answers that wait at most. A tenant alone may have as many; of several, each has its share for certain.
        clock: Seconds, monotonic.
    """

    def __init__(self, graders: int, most: int, clock: Callable[[], float]) -> None:
        self._free = graders
        self._most = most
        self._clock = clock
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # whoever had a turn goes to the end
        self._graded: Counter[str] = Counter()  # by tenant, what is with a grader now
        self._had_s: dict[str, float] = {}

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a grader, and keep it while the block runs.

        Raises:
            GradersBusy: too many answers wait, and this tenant has the most of them.
        """
        await self._wait(tenant)
        began_s = self._clock()
        try:
            yield
        finally:
            self._had_s[tenant] += self._clock() - began_s
            self._leave(tenant)

    async def _wait(self, tenant: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._had_s.setdefault(tenant, min(self._had_s.values(), default=0.0))
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._next()
        self._refuse()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(KeyError, ValueError):
                    self._waiting[tenant].remove(turn)
                self._forget(tenant)
            elif turn.exception() is None:
                self._leave(tenant)  # its turn came together with what ended the wait
            raise

    def _next(self) -> None:
        while self._free and self._waiting:
            tenant = min(self._waiting, key=self._had_s.__getitem__)
            queue = self._waiting.pop(tenant)
            turn = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            if turn.done():  # cancelled
                continue
            self._free -= 1
            self._graded[tenant] += 1
            turn.set_result(None)

    def _leave(self, tenant: str) -> None:
        self._free += 1
        self._graded -= Counter([tenant])
        self._next()
        self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        if not self._waiting.get(tenant):
            self._waiting.pop(tenant, None)
            if not self._graded[tenant]:
                self._had_s.pop(tenant, None)

    def _refuse(self) -> None:
        while sum(map(len, self._waiting.values())) > self._most:
            tenant = max(self._waiting, key=lambda each: len(self._waiting[each]))
            turn = self._waiting[tenant].pop()
            self._forget(tenant)
            if not turn.done():
                turn.set_exception(
                    GradersBusy(f"{self._most} answers wait, most of them of tenant {tenant!r}")
                )
