"""Which requests hold a search, and which search a client's retry joins: one whose response its client never got."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct

RETRY_MS: Final = 10 * 60 * 1000
"""A client's retry within this time joins the query it repeats."""

_LOOKS: Final = 16
"""Open requests of one body, oldest first, whose clients a retry looks for: who is gone is missed soon anyway."""

Body: TypeAlias = tuple[str, str]
"""The API key of a request and the digest of its body: a client's retry has the same."""


class Held(Struct, eq=False):
    """One request that waits for its query, whose search runs for it.

    Attributes:
        query_id: The query.
        body: What its retry would have; None for a request that no retry joins by its body.
        gone: Whether its client has left before the response began.
        joined: Whether a retry of it waits for the query now.
    """

    query_id: str
    body: Body | None
    gone: Callable[[], Awaitable[bool]]
    joined: bool = False


class Rejoin:
    """The open requests of one gateway, and the queries whose response never reached a client.

    That a request is a retry says only that this one was tried before, not that it got a query then, nor which: each
    query without a reader is for one retry, so that as many answers are sent as clients wait for.

    Args:
        most: How many queries without a reader are kept. Older ones are forgotten, oldest first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: defaultdict[str, list[Held]] = defaultdict(list)
        self._lost: dict[str, tuple[Body, int]] = {}

    def __contains__(self, query_id: object) -> bool:
        """Return whether any request waits for a query."""
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
        """Keep a query whose response its client cannot have got."""
        self._lost[query_id] = (body, now_ms)
        for old, (_, lost_ms) in list(self._lost.items()):
            if lost_ms >= now_ms - RETRY_MS and len(self._lost) <= self._most:
                break
            del self._lost[old]

    async def take(self, body: Body, now_ms: int, runs: Callable[[str], bool]) -> str | None:
        """Return a query for a retry to join, for this one only; None where it repeats no query without a reader.

        Args:
            body: Of the retry.
            now_ms: The time.
            runs: Whether a query is known, and not cancelled.
        """
        # A client that is gone may not have been missed yet.
        same = (each for requests in self._held.values() for each in requests if each.body == body)
        for held in list(islice(same, _LOOKS)):
            if not await held.gone() or held.joined or not runs(held.query_id):
                continue
            if held in self._held.get(held.query_id, ()):  # else it has left, and may be among the lost
                held.joined = True
                return held.query_id
        for query_id, (lost, lost_ms) in self._lost.items():
            if lost == body and lost_ms >= now_ms - RETRY_MS and runs(query_id):
                del self._lost[query_id]
                return query_id
        return None
