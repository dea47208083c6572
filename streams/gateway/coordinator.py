"""The gateway's work between HTTP and Kafka: admit a request, send its Query, wait, cancel, accept feedback."""

import asyncio
import hashlib
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec import Struct

from agents.catalogue.models import Catalogue, Model
from agents.decider.preview import PREVIEW, Preview
from agents.search.search import cancelled
from schemas.answer import Answer
from schemas.control import Cancel
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import RecordError
from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Feedback, Reward
from streams.gateway import responses
from streams.gateway.auth import Credential, Gate, Used
from streams.gateway.deciders import Deciders
from streams.gateway.errors import NO_RETRY, ApiError, ClientGone, invalid, not_found
from streams.gateway.index import MARGIN_S, Index, IndexedQuery, Marks
from streams.gateway.rejoin import Body, Held, Rejoin
from streams.gateway.request import BASELINE_OF, ChatRequest, ModelChoice, asked, kept_of, to_query
from streams.gateway.waiting import QueryRecord, Waiting, each
from streams.log.base import ConsumerRecord, Outgoing, Unavailable, key_of
from streams.runtime.runtime import Runtime

# Ids of queries sent by a gateway.

ID: Final = "chatcmpl-"
"""Prefix of every id."""

_TIMED: Final = re.compile(ID + "([0-9a-f]{12})[0-9a-f]{20}")


def new_id(now_ms: int) -> str:
    """Return a new query id. It starts with its time, so that a gateway can tell an old id from an unknown one."""
    return f"{ID}{now_ms:012x}{uuid.uuid4().hex[:20]}"


def time_of(query_id: str) -> int | None:
    """Return when a gateway created an id, in ms since the epoch; None if the id does not contain it.

    >>> time_of(new_id(1_700_000_000_000)), time_of("q-1")
    (1700000000000, None)
    """
    found = _TIMED.fullmatch(query_id)
    return int(found[1], 16) if found else None


def keyed_id(account: str, key: str) -> str:
    """Return the id of a query with an Idempotency-Key: the same for the same account and key."""
    scope = f"{account}\0{key}"
    return f"{ID}{hashlib.sha256(scope.encode()).hexdigest()[:40]}"


LOOK_S: Final = 0.5
"""Seconds between two checks that the client is still connected."""

_BEHIND_S: Final = 5.0  # a follower further behind another than this is broken


class Admitted(Struct, frozen=True):
    """A request whose query has been sent.

    Attributes:
        query_id: Its id.
        created: Seconds since the epoch.
        timeout_s: How long to wait for its Answer, in seconds; negative if its deadline has passed.
        digest: Digest of the request's body; empty if any body may match.
        body: Digest by which a retry of the request can join its query; None if the Idempotency-Key identifies it.
    """

    query_id: str
    created: int
    timeout_s: float
    digest: str = ""
    body: Body | None = None


def other_body() -> ApiError:
    """Return the 422 for an idempotency key that was used with another body."""
    return ApiError(
        422,
        "this Idempotency-Key came with another body before; use a new key for a new request",
        param="Idempotency-Key",
        code="idempotency_mismatch",
        headers=dict(NO_RETRY),
    )


def _digest_of(decision: Decision) -> str:
    return kept_of(decision.query).get("digest", "")


_CLOCKS_MS: Final = 60_000
"""Assumed maximum difference between a gateway's clock and the broker's, including the time to send."""

_LOOKUPS: Final = 2
"""Old ids looked up concurrently."""


TOKEN_BYTES: Final = 8
"""Average bytes per token of a long question: four to five for prose in most tokenizers, three for Python code."""

REJOIN_S: Final = 10.0
"""Seconds that a search continues after its client timed out: the official clients retry within eight."""


_CANCEL_AGAIN_S: Final = 1.0
"""Seconds after which a Cancel that the broker did not accept is sent again."""


class RequestCoordinator:
    """Implements the gateway's routes on top of the topics.

    Args:
        runtime: Access to the topics.
        index: Recent queries.
        gate: API keys and limits.
    """

    def __init__(self, runtime: Runtime, index: Index, gate: Gate) -> None:
        self.runtime = runtime
        self.index = index
        self.gate = gate
        # Creation time in the list of models, in seconds since the epoch.
        self.started = runtime.clock.now_ms() // 1000
        self.deciders = Deciders.of(runtime.settings)
        self.waiting = Waiting()
        self._looking_up = asyncio.Semaphore(_LOOKUPS)
        self.marks = Marks(runtime.control.base.model_names)
        self.rejoin = Rejoin(index.most)
        # Queries in flight sent by this gateway, with the digest of the body. Other gateways cancel their own.
        self._sent: dict[str, str] = {}
        # Sends in progress: queries by id, feedback by query and source.
        self._sending: dict[str | tuple[str, str], asyncio.Future[None]] = {}
        self._left: set[str] = set()  # cancelled but not ended yet: no request may join these
        self._tasks: set[asyncio.Task[None]] = set()
        self._space: tuple[Catalogue, Mapping[str, None]] | None = None  # the configurations of a catalogue

    def asked(self, name: str) -> ModelChoice:
        """Return the model choice for a model name. Raises ApiError 404."""
        control = self.runtime.control
        return asked(name, control.catalogue.model_names, control.objectives.named, self.configurations())

    def configurations(self) -> Mapping[str, None]:
        """Return the ids of the offered configurations, in the order of the action space."""
        control = self.runtime.control
        if self._space is None or self._space[0] is not control.catalogue:
            offered = dict.fromkeys(action.id for action in control.space(control.catalogue))
            self._space = (control.catalogue, offered)
        return self._space[1]

    async def admit(
        self,
        request: ChatRequest,
        who: Credential,
        *,
        digest: str,
        idempotency_key: str | None,
        is_retry: bool,
    ) -> Admitted:
        """Send the request's Query, or join an earlier query that it retries.

        Args:
            request: The request.
            who: The caller.
            digest: Digest of its body.
            idempotency_key: The client's idempotency key, scoped to its account.
            is_retry: Whether the client says that this is a retry.

        Raises:
            ApiError: 422 if the idempotency key was used with another body; 400, 404, 429.
            RecordError: it does not fit into a record.
            Unavailable: the broker does not accept the query, or the one being sent that it joins.
        """
        now_ms = self.runtime.clock.now_ms()
        query_id, body = new_id(now_ms), (who.key, digest)
        timeout_s = request.extension.timeout_s or self.runtime.settings.queries.timeout_s
        if idempotency_key is not None:
            if not 1 <= len(idempotency_key) <= 255:
                raise ApiError(400, "Idempotency-Key must have 1 to 255 characters", param="Idempotency-Key")
            query_id = keyed_id(who.account, idempotency_key)
            if (known := self.index.find(query_id)) is not None:
                if known.digest != digest:
                    raise other_body()
                if (first := self._sending.get(query_id)) is not None:
                    await asyncio.shield(first)
                return Admitted(query_id, known.created_ms // 1000, timeout_s, digest)
        elif is_retry and (lost := await self.rejoin.take(body, now_ms, self._runs)) is not None:
            if not self.index.has_answer(lost):
                self._sent[lost] = digest  # the failed send had removed it
            return Admitted(lost, (time_of(lost) or now_ms) // 1000, timeout_s, digest, body)
        query = self._query(request, who, query_id, {"key": who.key, "digest": digest})
        if not self.gate.teaches(who, query):
            # It is answered and graded for its owner, but must not influence what others get.
            query = msgspec.structs.replace(query, learn=False)
        if BASELINE_OF in query.metadata:
            who.require("admin")  # it joins the control group that the policy is compared with
        self.gate.admit(who, query, self._used(who, now_ms))
        self.gate.aim(who, query, now_ms)
        by_body = body if idempotency_key is None else None
        admitted = Admitted(query_id, now_ms // 1000, timeout_s, digest, by_body)
        await self._send_query(query, admitted, now_ms)
        return admitted

    def _query(self, request: ChatRequest, who: Credential, query_id: str, kept: dict[str, str]) -> Query:
        """Return the Query of a request, restricted to the models its API key may use.

        Raises:
            ApiError: 400, 403 or 404 for an invalid or forbidden request.
        """
        wanted, models = self.asked(request.model), self.runtime.control.catalogue.model_names
        query = to_query(request, wanted, query_id=query_id, tenant=who.tenant, kept=kept)
        query = self.gate.permitted(who, request.model, query, models)
        if unknown := set(query.allowed_models or ()) - set(models):
            why = f"uniscale.allowed_models holds {min(unknown)!r}; choose from {', '.join(models)}"
            raise invalid("uniscale.allowed_models", why, "invalid_value")
        self._check_length(query)
        return query

    def _check_length(self, query: Query) -> None:
        """Refuse a question too long for every model that may answer it. Raises ApiError 400."""
        names = (query.pinned.model,) if query.pinned else query.allowed_models
        models = [m for m in self.runtime.control.catalogue.models if names is None or m.name in names]
        if not models:
            return
        size = len(query.question.encode())
        tokens, said = max(map(self._holds, models))
        if size > (most := tokens * TOKEN_BYTES):
            raise ApiError(
                400,
                f"messages: the question takes {size} bytes; the largest context of the models that may answer it "
                f"{said}: {most} bytes at most; shorten the question",
                param="messages",
                code="context_length_exceeded",
            )

    def _holds(self, model: Model) -> tuple[int, str]:
        """Return the tokens that a question for a model may have, and why.

        Every step that is scored has its question before it.
        """
        tokens, verifier = model.engine.context_tokens, self.runtime.control.verifier_of(model)
        if verifier is None:
            return tokens, f"has {tokens} tokens"
        scored = verifier.engine.context_tokens
        return min(tokens, scored), f"has {tokens} tokens, the verifier's {scored}"

    def _used(self, who: Credential, now_ms: int) -> Used:
        return self.index.usage.used(who.key, now_ms) if who.entry is not None else Used()

    async def preview(self, request: ChatRequest, who: Credential) -> Preview:
        """Return what would be chosen for a request. Nothing runs, and nothing is learned.

        Raises:
            ApiError: 400, 403, 404 or 429 as for the request itself; 503 if no decider answers.
            RecordError: it does not fit into a record.
        """
        query, now_ms = self._query(request, who, PREVIEW, {"key": who.key}), self.runtime.clock.now_ms()
        self.gate.preview(who, len(encode(query)), self._used(who, now_ms), now_ms)
        self.gate.aim(who, query, now_ms)
        return await self.deciders.preview(query)

    def limits(self, who: Credential) -> dict[str, str]:
        """Return a key's remaining requests per minute, as headers."""
        if who.entry is None or who.entry.per_minute is None:
            return {}
        return self.gate.headers(who, self._used(who, self.runtime.clock.now_ms()))

    def _runs(self, query_id: str) -> bool:
        """Return whether a query is known and not cancelled, so that a retry may join it."""
        if query_id in self._left or self.index.find(query_id) is None:
            return False
        answer = self.index.answer_of(query_id)
        return answer is None or answer.status != "cancelled"

    async def _send_query(self, query: Query, admitted: Admitted, now_ms: int) -> None:
        value = encode(query)
        # Index it before sending, so that a fast retry can join it.
        self.index.query(query, now_ms)
        self._sent[query.query_id] = admitted.digest
        outgoing = Outgoing(self.runtime.topics.query, key_of(query.query_id), value)
        try:
            await self._joinable(query.query_id, self.runtime.send(outgoing))
        except BaseException:
            # No retry may wait for a query that was not sent. If it reached the topic after all, the index reads it
            # there.
            self.index.withdraw(query.query_id)
            self._sent.pop(query.query_id, None)
            if admitted.body is not None:
                self.rejoin.lose(query.query_id, admitted.body, now_ms)
            raise

    async def _joinable(self, what: str | tuple[str, str], send: Coroutine[Any, Any, None]) -> None:
        """Send a query or feedback; a concurrent retry finds it in `_sending` and shares its outcome."""
        self._sending[what] = asyncio.ensure_future(send)
        try:
            await self._sending[what]
        finally:
            self._sending.pop(what, None)

    @contextmanager
    def open(
        self, admitted: Admitted, gone: Callable[[], Awaitable[bool]], may_return: Callable[[], bool]
    ) -> Iterator["asyncio.Queue[QueryRecord]"]:
        """Wait for a query while the block runs; leaving the block before the Answer cancels the search.

        Only the last waiting request cancels the search, and only on the gateway that sent it. Requests that only watch
        a query do not keep it running.

        Args:
            admitted: The request.
            gone: Whether its client disconnected before the response started.
            may_return: Whether a client that is gone may have timed out and may retry. The search then continues for
                REJOIN_S, so that the retry finds it.
        """
        held = Held(admitted.query_id, admitted.body, gone)
        try:
            with self.waiting.on(admitted.query_id) as queue, self.rejoin.holding(held):
                yield queue
        except ClientGone:
            if held.body is not None and not held.joined:
                self.rejoin.lose(held.query_id, held.body, self.runtime.clock.now_ms())
            raise
        finally:
            if self._is_abandoned(admitted.query_id):
                self._later(self._give_up(admitted.query_id, REJOIN_S if may_return() else 0.0))

    def _is_abandoned(self, query_id: str) -> bool:
        return query_id in self._sent and query_id not in self.rejoin and not self.index.has_answer(query_id)

    async def _give_up(self, query_id: str, after_s: float) -> None:
        if after_s:
            await asyncio.sleep(after_s)
        if self._is_abandoned(query_id) and query_id not in self._left:
            self._left.add(query_id)
            await self._cancel_left(query_id)

    async def _cancel_left(self, query_id: str) -> None:
        """Cancel a search whose client left; retry while the broker is unavailable, until the Answer."""
        while query_id in self._left:
            try:
                return await self.cancel(query_id)
            except Unavailable:
                await asyncio.sleep(_CANCEL_AGAIN_S)

    # What a request receives of its query: Decision, steps, Answer and Rewards, as they are read from the topics.

    async def events(
        self, admitted: Admitted, queue: "asyncio.Queue[QueryRecord]", gone: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[QueryRecord | None]:
        """Yield the Decision, the steps and finally the Answer of a query; None periodically while nothing arrives.

        Raises:
            ApiError: 504 when no Answer arrived before the deadline.
            ClientGone: when the client has disconnected.
        """
        query_id, decision = admitted.query_id, None
        for known in (self.index.decision_of(query_id), self.index.answer_of(query_id)):
            if known is not None:
                queue.put_nowait(known)
        looked_s = self.runtime.monotonic()
        until = looked_s + admitted.timeout_s + MARGIN_S
        async for what in each(queue, LOOK_S):
            if isinstance(what, DeadLetter):
                await self._check_first(query_id)
                continue
            if isinstance(what, Decision):
                decision = what
                self._check_body(admitted, what)
            elif (
                isinstance(what, Answer)
                and decision is None
                and what.action is not None  # otherwise nothing was chosen
                and (behind := await self._decided(query_id)) is not None  # topics are followed independently
            ):
                self._check_body(admitted, behind)
                yield behind
            yield what
            now_s = self.runtime.monotonic()
            # A steady stream of records must not delay noticing that the client has disconnected.
            if what is None or now_s - looked_s >= LOOK_S:
                looked_s = now_s
                if await gone():
                    raise ClientGone
            # Deliver what is already known first: a watcher may connect after the deadline.
            if now_s > until and not isinstance(what, Answer) and queue.empty():
                raise ApiError(
                    504,
                    f"no answer came within {admitted.timeout_s:.0f} s",
                    type="timeout_error",
                    code="expired",
                    headers=dict(NO_RETRY),
                )

    async def rewards(
        self, answer: Answer, queue: "asyncio.Queue[QueryRecord]", gone: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[Reward | None]:
        """Yield the rewards of a query that has ended, up to the one that closes it; None while nothing arrives.

        Raises:
            ClientGone: when the client has disconnected.
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
        """Refuse an answer to another body: another gateway may have accepted the same Idempotency-Key concurrently."""
        if admitted.digest and _digest_of(decision) != admitted.digest:
            raise other_body()

    async def _check_first(self, query_id: str) -> None:
        """Refuse a query whose id an earlier query used, unless that one is in the index: its Answer counts.

        Raises:
            ApiError: 409.
        """
        if await self._decided(query_id) is None:
            self.index.forget(query_id)
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
        until_s = self.runtime.monotonic() + _BEHIND_S
        while (  # noqa: ASYNC110 - the index is filled record by record
            decision := self.index.decision_of(query_id)
        ) is None and self.runtime.monotonic() <= until_s:
            await asyncio.sleep(0.01)
        return decision

    # Which ids a caller may see: those of its tenant, looked up in the index, or on the topic if they are older.

    def visible(self, query_id: str, who: Credential) -> IndexedQuery:
        """Return a query; refuse an id that this caller may not see.

        Raises:
            ApiError: 404 for an id that is unknown or belongs to another tenant; 410 for one too old for the index.
        """
        known = self.index.find(query_id)
        if known is not None and who.may_see(known.tenant):
            return known
        complete_ms, asked_ms = self.index.complete_ms, time_of(query_id)
        if complete_ms is not None and asked_ms is not None and asked_ms < complete_ms:
            raise ApiError(
                410,
                f"id {query_id!r} is older than the {self.index.most} queries that this gateway keeps; its "
                "records stay on the topics for their retention time",
                param="id",
                code="gone",
            )
        raise not_found("id", query_id[:200])

    async def exists(self, query_id: str, who: Credential) -> None:
        """Refuse an id that is not this caller's; search the topic for one too old for the index.

        An id of another tenant is treated as unknown.

        Raises:
            ApiError: see `visible`; 410 only if the topic does not have it either.
            Unavailable: the broker cannot be read.
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
        """Return whether the topic has a query with this id that this caller may see."""
        topic, span = self.runtime.topics.query, (max(0, asked_ms - _CLOCKS_MS), asked_ms + _CLOCKS_MS)
        async with self.gate.lookup(who), self._looking_up:
            record = await self.runtime.log.find(topic, key_of(query_id), *span)
        try:
            return record is not None and who.may_see(decode(record.value, Query).tenant)
        except RecordError:
            return False

    # What happens to a query: cancelled, decided, answered, rewarded, refused.

    async def cancel(self, query_id: str) -> None:
        """End a search whose client left: its executor drops it at the next step.

        Before the Decision there is no executor to send a Cancel to; `on_decision` calls this again. If no executor of
        its model is alive, this sends the `cancelled` Answer itself.

        Raises:
            Unavailable: the broker does not accept the Cancel or the Answer.
        """
        decision = self.index.decision_of(query_id)
        if decision is None:
            return
        record = Cancel(query_id=query_id, by="gateway", reason="client disconnected")
        topic = self.runtime.topics.cancel_for(decision.group)
        await self.runtime.send(Outgoing(topic, key_of(query_id), encode(record)))
        if decision.action.model not in self.runtime.control.serving():
            ended = cancelled(decision, f"cancelled by gateway: {record.reason}")
            answer = msgspec.structs.replace(ended, by="gateway")
            await self.runtime.send(Outgoing(self.runtime.topics.answer, key_of(query_id), encode(answer)))

    def on_decision(self, decision: Decision, raw: ConsumerRecord) -> None:
        """Process a Decision read from the topic."""
        if (sent := self._sent.get(decision.query_id)) is not None and sent != _digest_of(decision):
            # Another gateway accepted the same Idempotency-Key concurrently, for another body: this is its search.
            del self._sent[decision.query_id]
            self._left.discard(decision.query_id)
            self.index.forget(decision.query_id)
        first = self.index.decision(decision, raw.value or b"", raw.timestamp_ms)
        self.waiting.seen(decision.query_id, decision)
        if first and decision.query_id in self._left:
            self._later(self._cancel_left(decision.query_id))

    def on_answer(self, answer: Answer, raw: ConsumerRecord) -> None:
        """Process an Answer read from the topic; the first one counts."""
        self._left.discard(answer.query_id)
        self._sent.pop(answer.query_id, None)
        if self.index.answer(answer, raw.value or b"", raw.timestamp_ms):
            price = responses.price(answer, self.runtime.control.cost_model)
            self.index.priced(answer.query_id, price, responses.cut(answer, self.runtime.control.cost_model))
            self.waiting.seen(answer.query_id, answer)

    def on_reward(self, reward: Reward, raw: ConsumerRecord) -> None:
        """Process a Reward read from the topic."""
        self.index.reward(reward, raw.value or b"")
        self.index.spent(reward, raw.timestamp_ms)
        self.waiting.seen(reward.query_id, reward)

    def on_dead_letter(self, letter: DeadLetter, raw: ConsumerRecord) -> None:
        """Process a dead letter read from the topic."""
        self.index.dead_letter(letter, raw.value or b"", raw.timestamp_ms)
        # Other queries that cannot be handled get an Answer that says why.
        if letter.query_id is not None and letter.query_origin is not None:
            self.waiting.seen(letter.query_id, letter)

    async def feedback(self, query_id: str, value: bool | float, comment: str, who: Credential) -> bool:
        """Send feedback and return whether this source is known to have sent some already.

        Only the aggregator, which has every open row, knows whether the query's reward is still open: the index keeps
        the latest queries only.

        Raises:
            ApiError: 404 and 410, see `exists`.
            RecordError: it is not valid feedback, or does not fit into a record.
            Unavailable: the broker cannot be searched for an old id, or does not accept the feedback, or the identical
                feedback still being sent.
        """
        await self.exists(query_id, who)
        record = Feedback(
            query_id=query_id,
            correct=value,
            source=who.name,
            learn=who.teaches,
            metadata={"comment": comment} if comment else {},
        )
        outgoing = Outgoing(self.runtime.topics.feedback, key_of(query_id), encode(record))
        given = (query_id, who.name)
        if (first := self._sending.get(given)) is not None:
            await asyncio.shield(first)
            return True
        if self.index.note_feedback(record):
            return True
        try:
            await self._joinable(given, self.runtime.send(outgoing))
        except BaseException:
            self.index.withdraw_feedback(*given)
            raise
        return False

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
