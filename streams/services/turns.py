"""Turns of tenants at what does only so much at once: the one that has had the least time is next.

Whoever sends many references that take a grader seconds, or many texts that take the encoder long, would otherwise
hold up everybody.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from schemas.errors import UniscaleError


class TooManyWait(UniscaleError):
    """Too much work of a tenant waits for its turn. Send less at once, or what takes less time."""


class Turns:
    """Turns of tenants, in the order of the time that they have had.

    Only tenants whose work waits or is done now are remembered; another begins as the one that had the least.

    Args:
        at_once: So many have their turn at once.
        clock: Seconds, monotonic.
        most: So many wait at most. A tenant alone may have as many; of several, each has its share for certain.
    """

    def __init__(self, at_once: int, clock: Callable[[], float], *, most: float = math.inf) -> None:
        self._free = at_once
        self._most = most
        self._clock = clock
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # whoever had a turn goes to the end
        self._now: Counter[str] = Counter()  # by tenant, how many have their turn
        self._had_s: dict[str, float] = {}

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the block.

        Raises:
            TooManyWait: more wait than may, and this tenant has the most of them.
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
            self._now[tenant] += 1
            turn.set_result(None)

    def _leave(self, tenant: str) -> None:
        self._free += 1
        self._now -= Counter([tenant])
        self._next()
        self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        if not self._waiting.get(tenant):
            self._waiting.pop(tenant, None)
            if not self._now[tenant]:
                self._had_s.pop(tenant, None)

    def _refuse(self) -> None:
        while sum(map(len, self._waiting.values())) > self._most:
            tenant = max(self._waiting, key=lambda each: len(self._waiting[each]))
            turn = self._waiting[tenant].pop()
            self._forget(tenant)
            if not turn.done():
                turn.set_exception(TooManyWait(f"{self._most} wait, most of them of tenant {tenant!r}"))
