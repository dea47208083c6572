"""Many handlers at once, or one alone: a record under suspicion is tried with nothing else in hand.

When the process dies again, the file of records in hand then names the culprit and nobody beside it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Handlers together or alone. One that waits to be alone is not overtaken."""

    def __init__(self) -> None:
        self._running = 0
        self._alone = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Run beside others."""
        async with self._alone:  # passed through at once unless somebody is, or waits to be, alone
            self._running += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until nobody runs, and keep others out."""
        async with self._alone:
            await self._idle.wait()
            yield
