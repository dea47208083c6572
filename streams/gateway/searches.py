"""The searches that a gateway's clients wait for: sent, followed to their Reward, or cancelled if the clients leave."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec import Struct

from agents.search.search import cancelled
from schemas.answer import Answer
from schemas.control import Cancel
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import encode
from schemas.reward import Reward
from streams.gateway.errors import NO_RETRY, ApiError, ClientGone
from streams.gateway.index import MARGIN_S, Index
from streams.gateway.open_requests import Body, OpenRequests, QueryRecord, Queue, arriving
from streams.gateway.quotas import Gone
from streams.gateway.request import kept_of
from streams.log.base import Outgoing, Unavailable, key_of
from streams.runtime.runtime import Runtime

LOOK_S: Final = 0.5
"""Seconds between two checks that the client is still connected."""

REJOIN_S: Final = 10.0
"""Seconds that a search continues after its client timed out: the official clients retry within eight."""

_BEHIND_S: Final = 5.0  # if one follower is further behind another than this, it is broken

_CANCEL_AGAIN_S: Final = 1.0
"""Seconds after which a Cancel that the broker did not accept is sent again."""


class Admitted(Struct, frozen=True):
    """A request whose query has been sent.

    Attributes:
        query_id: The query's id.
        created: When the query was created, in seconds since the epoch.
        timeout_s: How long to wait for its Answer, in seconds; negative if its deadline has passed.
        digest: Digest of the request's body; empty if any body may match.
        body: Key and digest by which a retry can join the query; None if the Idempotency-Key identifies it.
    """

    query_id: str
    created: int
    timeout_s: float
    digest: str = ""
    body: Body | None = None


class Sends:
    """Sends in progress, so that a concurrent retry finds the first one and shares its outcome."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Future[None]] = {}

    async def joined(self, what: Hashable) -> bool:
        """Wait for a send in progress, and return whether there was one. Raises the error of that send."""
        if (first := self._running.get(what)) is None:
            return False
        await asyncio.shield(first)
        return True

    async def send(self, what: Hashable, send: Coroutine[Any, Any, None]) -> None:
        """Run a send under a name, by which `joined` finds it."""
        self._running[what] = asyncio.ensure_future(send)
        try:
            await self._running[what]
        finally:
            self._running.pop(what, None)


class Searches:
    """The searches of one gateway.

    Args:
        runtime: Access to the topics.
        index: Recent queries.
    """

    def __init__(self, runtime: Runtime, index: Index) -> None:
        self._runtime = runtime
        self._index = index
        self.requests = OpenRequests(index.most)
        self.sends = Sends()
        # Queries in flight sent by this gateway, with the digest of the body. Other gateways cancel their own.
        self._sent: dict[str, str] = {}
        self._left: set[str] = set()  # cancelled but not ended yet: no request may join these
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, query: Query, admitted: Admitted, now_ms: int) -> None:
        """Send a query. Raises RecordTooLarge and Unavailable as `Runtime.send` does."""
        value = encode(query)
        # Index it before sending, so that a fast retry can join it.
        self._index.query(query, now_ms)
        self._sent[query.query_id] = admitted.digest
        outgoing = Outgoing(self._runtime.topics.query, key_of(query.query_id), value)
        try:
            await self.sends.send(query.query_id, self._runtime.send(outgoing))
        except BaseException:
            # No retry may wait for a query that was not sent. If the query reached the topic after all, the index reads
            # it from there.
            self._index.withdraw(query.query_id)
            self._sent.pop(query.query_id, None)
            if admitted.body is not None:
                self.requests.lose(query.query_id, admitted.body, now_ms)
            raise

    async def rejoined(self, body: Body, digest: str, now_ms: int) -> str | None:
        """Return the query that a retry joins; None if there is none."""
        found = await self.requests.take(body, now_ms, self._runs)
        if found is not None and not self._index.has_answer(found):
            self._sent[found] = digest  # the failed send had removed this entry
        return found

    def _runs(self, query_id: str) -> bool:
        """Return whether a query is known and not cancelled, so that a retry may join it."""
        if query_id in self._left or self._index.find(query_id) is None:
            return False
        answer = self._index.answer_of(query_id)
        return answer is None or answer.status != "cancelled"

    @contextmanager
    def open(self, admitted: Admitted, gone: Gone, may_return: Callable[[], bool]) -> Iterator[Queue]:
        """Wait for a query while the block runs; leaving the block before the Answer cancels the search.

        Only the last waiting request cancels the search, and only on the gateway that sent it. Requests that only watch
        a query do not keep it running.

        Args:
            admitted: The request.
            gone: Returns whether its client disconnected before the response started.
            may_return: Returns whether a client that is gone may have timed out and may retry. If so, the search
                continues for REJOIN_S, so that the retry finds it.
        """
        query_id, body = admitted.query_id, admitted.body
        try:
            with self.requests.on(query_id, gone, body) as this:
                try:
                    yield this.queue
                except ClientGone:
                    if body is not None and not this.joined:
                        self.requests.lose(query_id, body, self._runtime.clock.now_ms())
                    raise
        finally:
            if self._is_abandoned(query_id):
                self._later(self._give_up(query_id, REJOIN_S if may_return() else 0.0))

    def _is_abandoned(self, query_id: str) -> bool:
        sent, held = query_id in self._sent, self.requests.hold(query_id)
        return sent and not held and not self._index.has_answer(query_id)

    async def _give_up(self, query_id: str, after_s: float) -> None:
        if after_s:
            await asyncio.sleep(after_s)
        if self._is_abandoned(query_id) and query_id not in self._left:
            self._left.add(query_id)
            await self._cancel_left(query_id)

    async def _cancel_left(self, query_id: str) -> None:
        """Cancel a search whose client left; retry while the broker is unavailable, until the Answer arrives."""
        while query_id in self._left:
            try:
                return await self._cancel(query_id)
            except Unavailable:
                await asyncio.sleep(_CANCEL_AGAIN_S)

    async def _cancel(self, query_id: str) -> None:
        """End a search whose client left: its executor drops it at the next step.

        Before the Decision there is no executor to send a Cancel to; `decided` calls this again. If the model has no
        live executor, this sends the `cancelled` Answer itself.

        Raises:
            Unavailable: the broker does not accept the Cancel or the Answer.
        """
        decision = self._index.decision_of(query_id)
        if decision is None:
            return
        record = Cancel(query_id=query_id, by="gateway", reason="client disconnected")
        topic = self._runtime.topics.cancel_for(decision.group)
        await self._runtime.send(Outgoing(topic, key_of(query_id), encode(record)))
        if decision.action.model not in self._runtime.control.serving():
            ended = cancelled(decision, f"cancelled by gateway: {record.reason}")
            answer = msgspec.structs.replace(ended, by="gateway")
            await self._runtime.send(Outgoing.of(self._runtime.topics.answer, answer))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The records that a request receives: Decision, steps, Answer and Rewards, as they are read from the topics.

    async def events(self, admitted: Admitted, queue: Queue, gone: Gone) -> AsyncIterator[QueryRecord | None]:
        """Yield the Decision, the steps and finally the Answer of a query; None periodically while nothing arrives.

        Raises:
            ApiError: 504 when no Answer arrived before the deadline.
            ClientGone: when the client has disconnected.
        """
        query_id, decision = admitted.query_id, None
        for known in (self._index.decision_of(query_id), self._index.answer_of(query_id)):
            if known is not None:
                queue.put_nowait(known)
        looked_s = self._runtime.monotonic()
        until = looked_s + admitted.timeout_s + MARGIN_S
        async for what in arriving(queue, LOOK_S):
            if isinstance(what, DeadLetter):
                await self._check_first(query_id)
                continue
            if isinstance(what, Decision):
                decision = what
                _check_body(admitted, what)
            elif (
                isinstance(what, Answer)
                and decision is None
                and what.action is not None  # otherwise nothing was chosen
                and (behind := await self._decided(query_id)) is not None  # topics are followed independently
            ):
                _check_body(admitted, behind)
                yield behind
            yield what
            if isinstance(what, Answer):
                return
            now_s = self._runtime.monotonic()
            # A steady stream of records must not delay noticing that the client has disconnected.
            if what is None or now_s - looked_s >= LOOK_S:
                looked_s = now_s
                if await gone():
                    raise ClientGone
            # Deliver what is already known first: a watcher may connect after the deadline.
            if now_s > until and queue.empty():
                raise ApiError(
                    504,
                    f"no answer came within {admitted.timeout_s:.0f} s",
                    type="timeout_error",
                    code="expired",
                    headers=dict(NO_RETRY),
                )

    async def rewards(self, answer: Answer, queue: Queue, gone: Gone) -> AsyncIterator[Reward | None]:
        """Yield the rewards of a query that has ended, up to the one that closes it; None while nothing arrives.

        Raises:
            ClientGone: when the client has disconnected.
        """
        known = self._index.reward_of(answer.query_id)
        if known is not None:
            yield known
        if answer.action is None or (known is not None and known.closes):
            return
        async for what in arriving(queue, LOOK_S):
            if what is None:
                if await gone():
                    raise ClientGone
                yield None
            elif isinstance(what, Reward) and (known is None or what.reward_id != known.reward_id):
                known = what
                yield what
                if what.closes:
                    return

    async def _check_first(self, query_id: str) -> None:
        """Refuse a query whose id an earlier query used, unless the index has that query, whose Answer then counts.

        Raises:
            ApiError: 409.
        """
        if await self._decided(query_id) is None:
            self._index.forget(query_id)
            self._sent.pop(query_id, None)
            raise ApiError(
                409,
                f"a query with the id {query_id} was answered before, and its answer is no longer kept; use "
                "a new Idempotency-Key",
                param="Idempotency-Key",
                code="id_taken",
                headers=dict(NO_RETRY),
            )

    async def _decided(self, query_id: str) -> Decision | None:
        """Return the Decision of a query; None if it is not read within _BEHIND_S."""
        until_s = self._runtime.monotonic() + _BEHIND_S
        while (  # noqa: ASYNC110 - the index is filled record by record
            decision := self._index.decision_of(query_id)
        ) is None and self._runtime.monotonic() <= until_s:
            await asyncio.sleep(0.01)
        return decision

    # Records about a query, as read from the topics.

    def release(self, decision: Decision) -> None:
        """Give up a query whose Decision is for a different body, accepted by another gateway under the same key."""
        if (sent := self._sent.get(decision.query_id)) is not None and sent != _digest_of(decision):
            del self._sent[decision.query_id]
            self._left.discard(decision.query_id)
            self._index.forget(decision.query_id)

    def decided(self, decision: Decision, *, first: bool) -> None:
        """Pass on a Decision. If it is the first one of a query whose client has left, cancel the search."""
        self.requests.seen(decision.query_id, decision)
        if first and decision.query_id in self._left:
            self._later(self._cancel_left(decision.query_id))

    def ended(self, query_id: str) -> None:
        """Record that a query has its Answer."""
        self._left.discard(query_id)
        self._sent.pop(query_id, None)


def other_body() -> ApiError:
    """Return the 422 for an idempotency key that was used with a different body."""
    return ApiError(
        422,
        "this Idempotency-Key came with another body before; use a new key for a new request",
        param="Idempotency-Key",
        code="idempotency_mismatch",
        headers=dict(NO_RETRY),
    )


def _digest_of(decision: Decision) -> str:
    return kept_of(decision.query).get("digest", "")


def _check_body(admitted: Admitted, decision: Decision) -> None:
    """Refuse a Decision for another body: another gateway may have accepted the same Idempotency-Key concurrently."""
    if admitted.digest and _digest_of(decision) != admitted.digest:
        raise other_body()
