"""The gateway's work between HTTP and the topics: admit a request, send its Query, wait, cancel, take feedback."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from agents.space.catalogue import Catalogue
from schemas.answer import Answer
from schemas.base import encode
from schemas.cancel import Cancel
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import RecordError
from schemas.query import Query
from schemas.reward import Feedback, Reward
from streams.rooms.gateway.following import Admitted, Following, other_body
from streams.rooms.gateway.ids import keyed_id, new_id
from streams.rooms.gateway.index.marks import Marks
from streams.rooms.gateway.index.recent import Index
from streams.rooms.gateway.index.usage import Used
from streams.rooms.gateway.known import KnownIds
from streams.rooms.gateway.limits import Credential, Gate
from streams.rooms.gateway.openai import responses
from streams.rooms.gateway.openai.errors import ApiError, of_record
from streams.rooms.gateway.openai.names import Asked, asked
from streams.rooms.gateway.openai.request import ChatRequest, to_query
from streams.rooms.gateway.waiting import Seen, Waiting
from streams.runtime.base import Runtime
from streams.runtime.records import Outgoing, key_of

RETRY_MS: Final = 10 * 60 * 1000
"""A client's retry within this time joins the query it repeats."""

REJOIN_S: Final = 10.0
"""Seconds that a search goes on after its client timed out: the official clients repeat a request within eight."""


class Service:
    """What the routes call.

    Args:
        runtime: The way to the topics.
        index: Recent queries.
        gate: Keys and limits.
    """

    def __init__(self, runtime: Runtime, index: Index, gate: Gate) -> None:
        self.runtime = runtime
        self.index = index
        self.gate = gate
        self.ids = KnownIds(runtime, index)
        self.waiting = Waiting()
        self.following = Following(runtime, index)
        self.marks = Marks(runtime.control.base.model_names)
        self._cancelled: dict[str, str] = {}  # ids to cancel as soon as their group is known, with the reason
        self._sent: set[str] = set()  # sent from here and not ended: another gateway's are its own to cancel
        self._left: set[str] = set()  # cancelled, not ended yet: no request joins these
        self._tasks: set[asyncio.Task[None]] = set()
        self._space: tuple[Catalogue, Mapping[str, None]] | None = None  # the configurations of a catalogue

    def asked(self, name: str) -> Asked:
        """Return what a model name asks for. Raises ApiError 404."""
        control = self.runtime.control
        return asked(name, control.catalogue.model_names, control.objectives.named, self.configurations())

    def configurations(self) -> Mapping[str, None]:
        """Return the ids of the configurations on offer, in the order of the action space."""
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
        """Send the request's Query, or join the one that it repeats.

        Args:
            request: The request.
            who: Who asks.
            digest: Of its body.
            idempotency_key: The client's own, scoped by tenant.
            is_retry: Whether the client says that this is its second try.

        Raises:
            ApiError: 422 where the idempotency key came with another body before; 400, 404, 429.
        """
        wanted = self.asked(request.model)
        now_ms = self.runtime.now_ms()
        query_id = new_id(now_ms)
        timeout_s = request.extension.timeout_s or self.runtime.settings.queries.timeout_s
        if idempotency_key is not None:
            if not 1 <= len(idempotency_key) <= 255:
                raise ApiError(400, "Idempotency-Key must have 1 to 255 characters", param="Idempotency-Key")
            query_id = keyed_id(who.tenant, idempotency_key)
            if (known := self.index.find(query_id)) is not None:
                if known.digest != digest:
                    raise other_body()
                return Admitted(query_id, known.created_ms // 1000, True, timeout_s, digest)
        elif (
            is_retry
            and (again := self.index.same_body(who.key, digest, now_ms - RETRY_MS)) is not None
            and not self._is_cancelled(again.query_id)
        ):
            return Admitted(again.query_id, again.created_ms // 1000, True, timeout_s, digest)
        query = to_query(
            request, wanted, query_id=query_id, tenant=who.tenant, kept={"key": who.key, "digest": digest}
        )
        self.gate.admit(who, request.model, query, self._used(who, now_ms))
        await self._send_query(query, now_ms)
        return Admitted(query_id, now_ms // 1000, False, timeout_s, digest)

    def _used(self, who: Credential, now_ms: int) -> Used:
        return self.index.usage.used(who.key, now_ms) if who.is_limited else Used()

    def limits(self, who: Credential) -> dict[str, str]:
        """Return how much of its limit a minute a key has left, as headers."""
        return self.gate.headers(who, self._used(who, self.runtime.now_ms()))

    def _is_cancelled(self, query_id: str) -> bool:
        if query_id in self._left:
            return True
        answer = self.index.answer_of(query_id)
        return answer is not None and answer.status == "cancelled"

    async def _send_query(self, query: Query, now_ms: int) -> None:
        try:
            value = encode(query)
        except RecordError as error:
            raise of_record(error) from None
        # Known before it is sent, so that a retry that overtakes the topic joins it.
        self.index.query(query, now_ms)
        self._sent.add(query.query_id)
        try:
            await self.runtime.send(Outgoing(self.runtime.topics.query, key_of(query.query_id), value))
        except BaseException:
            # No retry may wait for a query that nobody has.
            self.index.forget(query.query_id)
            self._sent.discard(query.query_id)
            raise

    @contextmanager
    def open(
        self, admitted: Admitted, may_return: Callable[[], bool] = lambda: False
    ) -> Iterator["asyncio.Queue[Seen]"]:
        """Wait for a query while the block runs; a block that ends before the Answer cancels the search.

        Only the last waiting request cancels the search, and only the gateway that sent it.

        Args:
            admitted: The request.
            may_return: Whether a client that is gone has timed out and may repeat its request. The search then goes
                on for REJOIN_S, so that the retry finds it.
        """
        try:
            with self.waiting.on(admitted.query_id) as queue:
                yield queue
        finally:
            if self._is_abandoned(admitted.query_id):
                self._later(self._give_up(admitted.query_id, REJOIN_S if may_return() else 0.0))

    def _is_abandoned(self, query_id: str) -> bool:
        return query_id in self._sent and query_id not in self.waiting and not self.index.has_answer(query_id)

    async def _give_up(self, query_id: str, after_s: float) -> None:
        if after_s:
            await asyncio.sleep(after_s)
        if self._is_abandoned(query_id) and query_id not in self._left:
            self._left.add(query_id)
            await self.cancel(query_id, "client disconnected")

    async def cancel(self, query_id: str, reason: str) -> None:
        """End a search: its executors drop it at the next step. Before its Decision, this waits for that."""
        decision = self.index.decision_of(query_id)
        if decision is None:
            self._cancelled[query_id] = reason
            return
        record = Cancel(query_id=query_id, by="gateway", reason=reason)
        topic = self.runtime.topics.cancel_for(decision.group)
        await self.runtime.send(Outgoing(topic, key_of(query_id), encode(record)))

    def on_decision(self, decision: Decision, value: bytes, at_ms: int) -> None:
        """Process a Decision read from the topic, with its bytes there."""
        self.index.decision(decision, value, at_ms)
        self.waiting.seen(decision.query_id, decision)
        if (reason := self._cancelled.pop(decision.query_id, None)) is not None:
            self._later(self.cancel(decision.query_id, reason))

    def on_answer(self, answer: Answer, value: bytes, at_ms: int) -> None:
        """Process an Answer read from the topic, with its bytes there; the first one counts."""
        self._cancelled.pop(answer.query_id, None)
        self._left.discard(answer.query_id)
        self._sent.discard(answer.query_id)
        if self.index.answer(answer, value, at_ms):
            self.index.priced(answer.query_id, responses.price(answer, self.runtime.control.pricing))
            self.waiting.seen(answer.query_id, answer)

    def on_reward(self, reward: Reward, value: bytes) -> None:
        """Process a Reward read from the topic, with its bytes there."""
        self.index.reward(reward, value)
        self.waiting.seen(reward.query_id, reward)

    def on_letter(self, letter: DeadLetter, value: bytes, at_ms: int) -> None:
        """Process a dead letter read from the topic, with its bytes there."""
        self.index.letter(letter, value, at_ms)
        # Other queries that cannot be handled get an Answer that says why.
        if letter.query_id is not None and letter.query_origin is not None:
            self.waiting.seen(letter.query_id, letter)

    async def feedback(self, query_id: str, value: bool | float, comment: str, who: Credential) -> bool:
        """Send feedback and return whether this source is known to have given it already.

        Whether the query's reward is still open is for the aggregator to say, which has every open row: the index
        keeps the latest queries only.

        Raises:
            ApiError: 404 and 410, see `KnownIds.exists`; 400.
            Unavailable: the broker does not say whether an old id exists, or does not take the feedback.
        """
        await self.ids.exists(query_id, who)
        try:
            record = Feedback(
                query_id=query_id, correct=value, source=who.name, metadata={"comment": comment} if comment else {}
            )  # fmt: skip
            sent = encode(record)
        except RecordError as error:
            raise of_record(error) from None
        if self.index.told(query_id, who.name, float(value)):
            return True
        try:
            await self.runtime.send(Outgoing(self.runtime.topics.feedback, key_of(query_id), sent))
        except BaseException:
            self.index.untold(query_id, who.name)
            raise
        return False

    def _later(self, work: "Awaitable[None]") -> None:
        async def run() -> None:
            await work

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
