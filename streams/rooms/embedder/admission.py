"""Admission: limits how many queries are in flight. No other part of the pipeline holds queries back.

Without it, thousands of decisions would be made before the first reward. A query counts from when its Context is sent
until its Answer appears on the `answer` topic. A separate reader watches that topic: a handler that waited for a
record of its own app would block every topic of the worker.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from schemas.query import Origin


class Admission:
    """Let at most `most` queries be in flight.

    Args:
        most: Queries in flight.
        clock: Seconds, monotonic.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.most = most
        self._clock = clock
        self._open: OrderedDict[str, tuple[float, Origin | None]] = OrderedDict()
        # A query redelivered after a restart may already have its Answer: it must not hold a slot forever.
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return how many queries are in flight."""
        return len(self._open)

    def __contains__(self, query_id: object) -> bool:
        """Return whether a query is in flight."""
        return query_id in self._open

    async def enter(self, query_id: str, timeout_s: float, origin: Origin | None = None) -> None:
        """Wait for a slot and take it; a query that is already in flight takes no second one.

        Args:
            query_id: The query.
            timeout_s: Its slot is freed after this time, should its Answer never be seen.
            origin: Where its record lies, which tells it from a later one of the same id.
        """
        if query_id in self._ended:
            return
        while query_id not in self._open and len(self._open) >= self.most:
            self._changed.clear()
            self._expire()
            if len(self._open) < self.most:
                break
            try:
                await asyncio.wait_for(self._changed.wait(), 1.0)
            except TimeoutError:
                continue
        if query_id not in self._open:
            self._open[query_id] = (self._clock() + timeout_s, origin)

    def leave(self, query_id: str) -> None:
        """Release the slot of a query. An unknown query is not an error: it belongs to another process."""
        if self._open.pop(query_id, None) is not None:
            self._changed.set()

    def refused(self, query_id: str, origin: Origin) -> None:
        """Release the slot taken by the record at `origin`; an earlier query with the same id keeps its own."""
        if query_id in self._open and self._open[query_id][1] == origin:
            self.leave(query_id)

    def ended(self, query_id: str) -> None:
        """Record that a query has its Answer: its slot is free, and it takes none when it is redelivered."""
        self._ended[query_id] = None
        while len(self._ended) > 16 * self.most:
            self._ended.popitem(last=False)
        self.leave(query_id)

    def _expire(self) -> None:
        now = self._clock()
        for query_id in [q for q, (until, _) in self._open.items() if until < now]:
            self.leave(query_id)
