"""What a request sees of its query: Decision, steps, Answer and rewards, as the topics bring them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from msgspec import Struct

from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.reward import Reward
from streams.rooms.gateway.index.recent import MARGIN_S, Index
from streams.rooms.gateway.openai.errors import NO_RETRY, ApiError
from streams.rooms.gateway.openai.request import kept_of
from streams.rooms.gateway.waiting import Seen, each
from streams.runtime.base import Runtime

LOOK_S: Final = 0.5
"""Seconds between two checks that the client is still connected."""

_BEHIND_S: Final = 5.0  # a follower that is behind another by more than this is broken


class Admitted(Struct, frozen=True):
    """A request whose query has been sent.

    Attributes:
        query_id: Its id.
        created: Seconds since the epoch.
        attached: Whether another request sent it.
        timeout_s: How long to wait for its Answer.
        digest: Of the request's body; empty where any body will do.
    """

    query_id: str
    created: int
    attached: bool
    timeout_s: float
    digest: str = ""


class Following:
    """Follows single queries, from what the index has and what is still to come.

    Args:
        runtime: The clock.
        index: Recent queries.
    """

    def __init__(self, runtime: Runtime, index: Index) -> None:
        self.runtime = runtime
        self.index = index

    async def events(
        self,
        admitted: Admitted,
        queue: "asyncio.Queue[Seen]",
        gone: Callable[[], Awaitable[bool]],
    ) -> AsyncIterator[Seen | None]:
        """Yield Decision, steps and at last the Answer of a query; None now and then while nothing comes.

        Raises:
            ApiError: 504 when no Answer came although its time is over.
            ClientGone: when the client is.
        """
        if (decision := self.index.decision_of(admitted.query_id)) is not None:
            self._check_body(admitted, decision)
            yield decision
        if (answer := self.index.answer_of(admitted.query_id)) is not None:
            if decision is None and (decision := await self._decision_behind(answer)) is not None:
                self._check_body(admitted, decision)
                yield decision
            yield answer
            return
        looked_s = self.runtime.monotonic()
        until = looked_s + admitted.timeout_s + MARGIN_S
        async for what in each(queue, LOOK_S):
            if isinstance(what, Decision):
                decision = what
                self._check_body(admitted, decision)
            elif isinstance(what, DeadLetter):
                await self._check_first(admitted.query_id)
                continue
            elif (
                isinstance(what, Answer)
                and decision is None
                and (decision := await self._decision_behind(what)) is not None
            ):
                self._check_body(admitted, decision)
                yield decision
            yield what
            now_s = self.runtime.monotonic()
            # News that keep coming must not hide that nobody listens any more.
            if what is None or now_s - looked_s >= LOOK_S:
                looked_s = now_s
                if await gone():
                    raise ClientGone
            if now_s > until:
                raise ApiError(
                    504, f"no answer came within {admitted.timeout_s:.0f} s", type="timeout_error", code="expired",
                    headers=dict(NO_RETRY),
                )  # fmt: skip

    async def rewards(
        self, answer: Answer, queue: "asyncio.Queue[Seen]", gone: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[Reward | None]:
        """Yield the rewards of a query that has ended, up to the one that closes it; None while nothing comes.

        Raises:
            ClientGone: when the client is.
        """
        known = self.index.reward_of(answer.query_id)
        if known is not None:
            yield known
        while answer.action is not None and not (known is not None and known.closes):
            try:
                what = await asyncio.wait_for(queue.get(), LOOK_S)
            except TimeoutError:
                if await gone():
                    raise ClientGone from None
                yield None
                continue
            if isinstance(what, Reward) and (known is None or what.reward_id != known.reward_id):
                known = what
                yield what

    def _check_body(self, admitted: Admitted, decision: Decision) -> None:
        """Refuse the answer to another body: another gateway may have taken the same Idempotency-Key at once."""
        digest = kept_of(decision.query).get("digest", "")
        if admitted.digest and digest != admitted.digest:
            raise other_body()

    async def _check_first(self, query_id: str) -> None:
        """Refuse a query whose id an earlier one had, unless that one is known here: its Answer counts.

        Raises:
            ApiError: 409.
        """
        until_s = self.runtime.monotonic() + _BEHIND_S
        while self.index.decision_of(query_id) is None:
            if self.runtime.monotonic() > until_s:
                self.index.forget(query_id)
                raise ApiError(
                    409, f"a query with the id {query_id} was answered before, and its answer is no longer kept; use "
                    "a new Idempotency-Key",
                    param="Idempotency-Key", code="id_taken", headers=dict(NO_RETRY),
                )  # fmt: skip
            await asyncio.sleep(0.01)

    async def _decision_behind(self, answer: Answer) -> Decision | None:
        """Return the Decision of an Answer that was read before it: each topic is followed on its own.

        None where nothing was chosen, or where the Decision is not read within _BEHIND_S.
        """
        until_s = self.runtime.monotonic() + _BEHIND_S
        while (decision := self.index.decision_of(answer.query_id)) is None and answer.action is not None:
            if self.runtime.monotonic() > until_s:
                break
            await asyncio.sleep(0.01)
        return decision


def other_body() -> ApiError:
    """Return the 422 for a key that came with another body before."""
    return ApiError(
        422, "this Idempotency-Key came with another body before; use a new key for a new request",
        param="Idempotency-Key", code="idempotency_mismatch", headers=dict(NO_RETRY),
    )  # fmt: skip


class ClientGone(Exception):
    """The client closed its connection."""
