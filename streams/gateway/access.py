"""Callers' access to queries: which queries they may see, in the index or on the topic, and feedback on them."""

import asyncio
from typing import Final

from schemas.errors import RecordError
from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Feedback, GradeSource
from streams.gateway.auth import Credential
from streams.gateway.errors import ApiError, not_found
from streams.gateway.index import Index, IndexedQuery
from streams.gateway.quotas import KeyLimits
from streams.gateway.searches import Sends
from streams.gateway.submission import time_of
from streams.log.base import Outgoing, key_of
from streams.runtime.runtime import Runtime

_CLOCKS_MS: Final = 60_000
"""Assumed maximum difference between a gateway's clock and the broker's, including the time to send."""

_LOOKUPS: Final = 2
"""Maximum concurrent lookups of old ids."""


class QueryAccess:
    """What a caller may do with a query. The id of another tenant's query is treated as unknown.

    Args:
        runtime: Access to the topics.
        index: Recent queries.
        limits: The limits of API keys.
    """

    def __init__(self, runtime: Runtime, index: Index, limits: KeyLimits) -> None:
        self._runtime = runtime
        self._index = index
        self._limits = limits
        self._looking_up = asyncio.Semaphore(_LOOKUPS)
        self._sends = Sends()

    def visible(self, query_id: str, who: Credential) -> IndexedQuery:
        """Return a query; refuse an id that this caller may not see.

        Raises:
            ApiError: 404 for an id that is unknown, belongs to another tenant, or was sent with `store: false`; 410 for
                an id too old for the index.
        """
        known = self._known(query_id, who)
        if not known.stored:
            raise not_found("id", query_id[:200])
        return known

    def _known(self, query_id: str, who: Credential) -> IndexedQuery:
        known = self._index.find(query_id)
        if known is not None and who.may_see(known.tenant):
            return known
        complete_ms, asked_ms = self._index.complete_ms, time_of(query_id)
        if complete_ms is not None and asked_ms is not None and asked_ms < complete_ms:
            raise ApiError(
                410,
                f"id {query_id!r} is too old for this gateway, which keeps the newest {self._index.most} queries; "
                "older records may be gone from the topics too",
                param="id",
                code="gone",
            )
        raise not_found("id", query_id[:200])

    async def _exists(self, query_id: str, who: Credential) -> None:
        """Refuse an id that is not this caller's; if it is too old for the index, search the topic for it.

        Raises:
            ApiError: see `visible`; 410 only if the topic does not have it either.
            Unavailable: the broker cannot be read.
        """
        try:
            self._known(query_id, who)
        except ApiError as error:
            asked_ms = time_of(query_id)
            if error.status != 410 or asked_ms is None or not await self._has_asked(query_id, asked_ms, who):
                raise

    async def _has_asked(self, query_id: str, asked_ms: int, who: Credential) -> bool:
        """Return whether the topic has a query with this id that this caller may see."""
        topic, span = self._runtime.topics.query, (max(0, asked_ms - _CLOCKS_MS), asked_ms + _CLOCKS_MS)
        async with self._limits.lookup(who), self._looking_up:
            record = await self._runtime.log.find(topic, key_of(query_id), *span)
        try:
            return record is not None and who.may_see(decode(record.value, Query).tenant)
        except RecordError:
            return False

    async def feedback(
        self, query_id: str, value: bool | float, comment: str, graded_by: GradeSource, who: Credential
    ) -> bool:
        """Send feedback and return whether this source is known to have sent some already.

        Only the aggregator, which has every open row, knows whether the query's reward is still open, because the index
        keeps only the latest queries.

        Raises:
            ApiError: 404 or 410; see `visible`.
            RecordError: the feedback is not valid, or does not fit into a record.
            Unavailable: the broker cannot be searched for an old id, or it does not accept the feedback, or the
                feedback for the same query and source that was still being sent.
        """
        await self._exists(query_id, who)
        record = Feedback(
            query_id=query_id,
            correct=value,
            graded_by=graded_by,
            source=who.name,
            learn=who.teaches,
            metadata={"comment": comment} if comment else {},
        )
        outgoing = Outgoing(self._runtime.topics.feedback, key_of(query_id), encode(record))
        given = (query_id, who.name)
        if await self._sends.joined(given) or self._index.note_feedback(record):
            return True
        try:
            await self._sends.send(given, self._runtime.send(outgoing))
        except BaseException:
            self._index.withdraw_feedback(*given)
            raise
        return False
