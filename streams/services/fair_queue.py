"""Fair queueing for a resource shared by tenants: the tenant that has used the least time is next.

Without this, a tenant with many references that are slow to grade, or many texts that are slow to encode, would block
everyone.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from schemas.errors import UniscaleError


class QueueFull(UniscaleError):
    """Too much of a tenant's work is waiting for its turn. Send less at once, or requests that take less time."""


class FairQueue:
    """Gives tenants turns, in order of the time they have used.

    Only tenants with waiting or running work are tracked. A new tenant starts with the least time that any has used.

    Args:
        at_once: The number of concurrent turns.
        clock: A monotonic clock, in seconds.
        most: Maximum number of waiting calls. A single tenant may use them all; with several, each has a guaranteed
            share.
    """

    def __init__(self, at_once: int, clock: Callable[[], float], *, most: float = math.inf) -> None:
        self._free = at_once
        self._most = most
        self._clock = clock
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # a tenant that had a turn goes to the end
        self._running: Counter[str] = Counter()  # running turns by tenant
        self._used_s: dict[str, float] = {}

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn, which lasts until the block ends.

        Raises:
            QueueFull: too many calls are waiting, and this tenant has the most of them.
        """
        await self._wait(tenant)
        began_s = self._clock()
        try:
            yield
        finally:
            self._used_s[tenant] += self._clock() - began_s
            self._leave(tenant)

    async def _wait(self, tenant: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._used_s.setdefault(tenant, min(self._used_s.values(), default=0.0))
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._grant()
        self._shed()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(KeyError, ValueError):
                    self._waiting[tenant].remove(turn)
                self._forget(tenant)
            elif turn.exception() is None:
                self._leave(tenant)  # the turn was granted just as the wait was cancelled
            raise

    def _grant(self) -> None:
        while self._free and self._waiting:
            tenant = min(self._waiting, key=self._used_s.__getitem__)
            queue = self._waiting.pop(tenant)
            turn = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            if turn.done():  # cancelled
                continue
            self._free -= 1
            self._running[tenant] += 1
            turn.set_result(None)

    def _leave(self, tenant: str) -> None:
        self._free += 1
        self._running -= Counter([tenant])
        self._grant()
        self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        if not self._waiting.get(tenant):
            self._waiting.pop(tenant, None)
            if not self._running[tenant]:
                self._used_s.pop(tenant, None)

    def _shed(self) -> None:
        while sum(map(len, self._waiting.values())) > self._most:
            tenant = max(self._waiting, key=lambda each: len(self._waiting[each]))
            turn = self._waiting[tenant].pop()
            self._forget(tenant)
            if not turn.done():
                turn.set_exception(QueueFull(f"{self._most} wait, most of them of tenant {tenant!r}"))
