"""Which open requests a search runs for, and which search a retry joins: one whose response was never received."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct

RETRY_MS: Final = 10 * 60 * 1000
"""A client's retry within this time joins the query it repeats."""

_LOOKS: Final = 16
"""Most open requests of one body, oldest first, that a retry checks for disconnected clients."""

Body: TypeAlias = tuple[str, str]
"""The API key of a request and the digest of its body, which are the same in a retry."""


class Held(Struct, eq=False):
    """A request waiting for its query.

    Attributes:
        query_id: The query.
        body: Key and digest that a retry would have; None if retries do not join by body.
        gone: Whether its client disconnected before the response started.
        joined: Whether a retry of it is waiting for the query.
    """

    query_id: str
    body: Body | None
    gone: Callable[[], Awaitable[bool]]
    joined: bool = False


class Rejoin:
    """The open requests of one gateway, and the queries whose response was never received.

    A retry header says only that the request was tried before, not whether or which query it got. So each query without
    a reader is given to one retry only, and every waiting client gets an answer.

    Args:
        most: How many queries without a reader to keep; the oldest are dropped first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: defaultdict[str, list[Held]] = defaultdict(list)
        self._lost: dict[str, tuple[Body, int]] = {}

    def __contains__(self, query_id: object) -> bool:
        """Return whether any request is waiting for a query."""
        return query_id in self._held

    @contextmanager
    def holding(self, held: Held) -> Iterator[None]:
        """Count a request while the block runs."""
        self._held[held.query_id].append(held)
        try:
            yield
        finally:
            self._held[held.query_id].remove(held)
            if not self._held[held.query_id]:
                del self._held[held.query_id]

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
        same = (each for requests in self._held.values() for each in requests if each.body == body)
        for held in list(islice(same, _LOOKS)):
            if not await held.gone() or held.joined or not runs(held.query_id):
                continue
            if held in self._held.get(held.query_id, ()):  # otherwise it has ended and may be in `_lost`
                held.joined = True
                return held.query_id
        for query_id, (lost, lost_ms) in self._lost.items():
            if lost == body and lost_ms >= now_ms - RETRY_MS and runs(query_id):
                del self._lost[query_id]
                return query_id
        return None
