"""Open requests: the records they wait for, and which search a retry joins."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct

from schemas.answer import Answer
from schemas.chunk import AnswerChunk
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.reward import Reward
from schemas.search import SearchStep
from streams.gateway.quotas import Gone

QueryRecord: TypeAlias = Decision | SearchStep | AnswerChunk | Answer | Reward | DeadLetter

Queue: TypeAlias = "asyncio.Queue[QueryRecord]"

Body: TypeAlias = tuple[str, str]
"""The API key of a request and the digest of its body, which are the same in a retry."""

RETRY_MS: Final = 10 * 60 * 1000
"""A client's retry within this time joins the query it repeats."""

_LOOKS: Final = 16
"""Maximum open requests of one body, oldest first, that a retry checks for disconnected clients."""


class OpenRequest(Struct, eq=False):
    """A request waiting for its query.

    Attributes:
        query_id: The query.
        queue: The query's records as they arrive.
        gone: Returns whether its client disconnected before the response started. None for a request that only watches
            the query and does not keep it running.
        body: Key and digest that a retry would have; None if retries do not join by body.
        joined: Whether a retry of it is waiting for the query.
    """

    query_id: str
    queue: Queue
    gone: Gone | None
    body: Body | None
    joined: bool = False


class OpenRequests:
    """The open requests of one gateway, and the queries whose response was never received.

    A request may join a query that another request sent, so several can wait for one id. Records that arrived before a
    request started waiting are in the index.

    A retry header says only that the request was tried before, not whether that led to a query, or to which one. So
    each query without a reader is given to one retry only, and every waiting client gets an answer.

    Args:
        most: How many queries without a reader to keep; the oldest are dropped first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: defaultdict[str, list[OpenRequest]] = defaultdict(list)
        self._lost: dict[str, tuple[Body, int]] = {}

    def __len__(self) -> int:
        """Return how many queries have a request waiting."""
        return len(self._open)

    def __contains__(self, query_id: object) -> bool:
        """Return whether any request waits for a query."""
        return query_id in self._open

    def hold(self, query_id: str) -> bool:
        """Return whether any open request keeps a query running."""
        return any(each.gone is not None for each in self._open.get(query_id, ()))

    def seen(self, query_id: str, what: QueryRecord) -> None:
        """Deliver a record to the requests that wait for its query."""
        for each in self._open.get(query_id, ()):
            each.queue.put_nowait(what)

    @contextmanager
    def on(self, query_id: str, gone: Gone | None = None, body: Body | None = None) -> Iterator[OpenRequest]:
        """Wait for a query while the block runs."""
        this = OpenRequest(query_id, asyncio.Queue(), gone, body)
        self._open[query_id].append(this)
        try:
            yield this
        finally:
            self._open[query_id].remove(this)
            if not self._open[query_id]:
                del self._open[query_id]

    def lose(self, query_id: str, body: Body, now_ms: int) -> None:
        """Keep a query whose client cannot have received the response."""
        self._lost[query_id] = (body, now_ms)
        for old, (_, lost_ms) in list(self._lost.items()):
            if lost_ms >= now_ms - RETRY_MS and len(self._lost) <= self._most:
                break
            del self._lost[old]

    async def take(self, body: Body, now_ms: int, runs: Callable[[str], bool]) -> str | None:
        """Return a query for this retry alone to join; None if there is no matching query without a reader.

        Args:
            body: Key and digest of the retry.
            now_ms: The current time, ms since the epoch.
            runs: Returns whether a query is known and not cancelled.
        """
        # A disconnected client may not have been noticed yet.
        same = (each for requests in self._open.values() for each in requests if each.body == body)
        for each in list(islice(same, _LOOKS)):
            if each.gone is None or not await each.gone() or each.joined or not runs(each.query_id):
                continue
            if each in self._open.get(each.query_id, ()):  # otherwise it has ended and may be in `_lost`
                each.joined = True
                return each.query_id
        for query_id, (lost, lost_ms) in self._lost.items():
            if lost == body and lost_ms >= now_ms - RETRY_MS and runs(query_id):
                del self._lost[query_id]
                return query_id
        return None


async def arriving(queue: Queue, every_s: float) -> AsyncIterator[QueryRecord | None]:
    """Yield records as they arrive; None whenever nothing has arrived for `every_s` seconds."""
    while True:
        try:
            yield await asyncio.wait_for(queue.get(), every_s)
        except TimeoutError:
            yield None
