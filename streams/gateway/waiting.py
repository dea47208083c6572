"""Requests waiting for a query: each receives its Decision, search steps, Answer and Rewards as they arrive."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.reward import Reward
from schemas.search import SearchStep

QueryRecord: TypeAlias = Decision | SearchStep | Answer | Reward | DeadLetter


class Waiting:
    """Delivers records to the open requests that wait for them.

    A request may attach to a query that another one sent, so several can wait for one id. Records that arrived before a
    request started waiting are in the index.
    """

    def __init__(self) -> None:
        self._queues: defaultdict[str, list[asyncio.Queue[QueryRecord]]] = defaultdict(list)

    def __len__(self) -> int:
        """Return how many queries have a request waiting."""
        return len(self._queues)

    def __contains__(self, query_id: object) -> bool:
        """Return whether any request waits for a query."""
        return query_id in self._queues

    def seen(self, query_id: str, what: QueryRecord) -> None:
        """Deliver a record to the requests that wait for its query."""
        for queue in self._queues.get(query_id, ()):
            queue.put_nowait(what)

    @contextmanager
    def on(self, query_id: str) -> Iterator[asyncio.Queue[QueryRecord]]:
        """Wait for a query while the block runs."""
        queue: asyncio.Queue[QueryRecord] = asyncio.Queue()
        self._queues[query_id].append(queue)
        try:
            yield queue
        finally:
            self._queues[query_id].remove(queue)
            if not self._queues[query_id]:
                del self._queues[query_id]


async def each(queue: asyncio.Queue[QueryRecord], every_s: float) -> AsyncIterator[QueryRecord | None]:
    """Yield records as they arrive, up to the Answer; None whenever nothing has arrived for `every_s` seconds."""
    while True:
        try:
            what = await asyncio.wait_for(queue.get(), every_s)
        except TimeoutError:
            yield None
            continue
        yield what
        if isinstance(what, Answer):
            return
