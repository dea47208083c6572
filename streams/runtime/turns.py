"""Run many handlers at once, or one alone: a suspect record is handled with nothing else in flight.

If the process dies again, the file of records in flight then names only the culprit.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager


class Turns:
    """Lets handlers run together or alone. A handler waiting to run alone is not overtaken."""

    def __init__(self) -> None:
        self._running = 0
        self._alone = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._together = _Together(self)

    def together(self) -> AbstractAsyncContextManager[None]:
        """Run beside others."""
        return self._together

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until no other handler runs, and keep others out."""
        async with self._alone:
            await self._idle.wait()
            yield


class _Together:
    """Shared entry and exit, written as a class because it runs for every record."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def __aenter__(self) -> None:
        if self._turns._alone.locked():  # a handler runs alone, or waits to
            async with self._turns._alone:
                self._enter()
        else:
            self._enter()

    def _enter(self) -> None:
        self._turns._running += 1
        self._turns._idle.clear()

    async def __aexit__(self, *_: object) -> None:
        turns = self._turns
        turns._running -= 1
        if not turns._running:
            turns._idle.set()
