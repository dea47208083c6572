"""Which ids a caller may see: those of its tenant, the latest from the index, older ones from their topic."""

import asyncio
from typing import Final

from schemas.base import decode
from schemas.errors import RecordError
from schemas.query import Query
from streams.rooms.gateway.ids import time_of
from streams.rooms.gateway.index.recent import Index
from streams.rooms.gateway.limits import Credential
from streams.rooms.gateway.openai.errors import ApiError, not_found
from streams.runtime.base import Runtime
from streams.runtime.records import key_of

_CLOCKS_MS: Final = 60_000
"""A gateway's clock and the broker's are taken to differ by no more than this, the time of sending included."""

_LOOKUPS: Final = 2
"""Old ids that are looked up at a time."""


class KnownIds:
    """The ids that exist, and who may see them.

    Args:
        runtime: The way to the topics.
        index: Recent queries.
    """

    def __init__(self, runtime: Runtime, index: Index) -> None:
        self.runtime = runtime
        self.index = index
        self._looking_up = asyncio.Semaphore(_LOOKUPS)

    def visible(self, query_id: str, who: Credential) -> None:
        """Refuse an id that is not this caller's to see.

        Raises:
            ApiError: 404 for an id that is unknown, or another tenant's; 410 for one that is too old to be known.
        """
        known = self.index.find(query_id)
        if known is not None and who.may_see(known.tenant):
            return
        oldest_ms, asked_ms = self.index.oldest_ms, time_of(query_id)
        if oldest_ms is not None and asked_ms is not None and asked_ms < oldest_ms:
            raise ApiError(
                410, f"id {query_id!r} is older than the {self.index.most} queries that this gateway keeps; its "
                "records are on the topics for as long as their retention says",
                param="id", code="gone",
            )  # fmt: skip
        raise not_found("id", query_id[:200])

    async def exists(self, query_id: str, who: Credential) -> None:
        """Refuse an id that is not this caller's; look for one that is too old for the index on its topic.

        An id of another tenant is refused as one that nobody has.

        Raises:
            ApiError: see `visible`; 410 only where the topic does not have it either.
            Unavailable: the broker does not say.
        """
        try:
            self.visible(query_id, who)
        except ApiError as error:
            asked_ms = time_of(query_id)
            if error.status != 410 or asked_ms is None:
                raise
            if not await self._has_asked(query_id, asked_ms, who):
                raise

    async def _has_asked(self, query_id: str, asked_ms: int, who: Credential) -> bool:
        """Return whether the topic has a query of this id that is this caller's to see."""
        topic, span = self.runtime.topics.query, (asked_ms - _CLOCKS_MS, asked_ms + _CLOCKS_MS)
        async with self._looking_up:
            record = await self.runtime.find(topic, key_of(query_id), *span)
        try:
            return record is not None and who.may_see(decode(record.value, Query).tenant)
        except RecordError:
            return False
