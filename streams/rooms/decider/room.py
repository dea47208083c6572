"""The decider's room: Context in, Decision out; Reward in, learning.

One partition and one lock give decisions and updates one order. The state behind a decision is on the broker before
the decision is made: rows are delivered first, then Decisions are sent. A redelivered Context gets the stored bytes; a
redelivered Reward changes nothing. `agents.decider` does the deciding and learning.
"""

import asyncio
from collections.abc import Sequence
from typing import Self

from agents.decider.agent import Decider
from agents.decider.decisions import Surroundings
from agents.decider.errors import DuplicateQuery
from agents.decider.results import Decided
from agents.embedder.encoder import Encoder
from agents.space.action_space import ActionSpace
from agents.space.catalogue import Catalogue
from agents.space.errors import ActionError
from schemas.base import decode
from schemas.context import Context
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Origin
from schemas.reward import Reward
from streams.rooms.decider.learner import Learner
from streams.rooms.decider.pacing import Pacing
from streams.rooms.decider.pending import Pending
from streams.rooms.decider.policies import check_control_group, policy_of
from streams.rooms.embedder.encoders import encoder_of
from streams.runtime.base import Runtime
from streams.runtime.records import Outgoing, Record, key_of


class DeciderRoom:
    """The handlers of one shard, which take turns with its learner.

    Attributes:
        learner: What they decide and learn with.
        lock: Held while the learner is used.
    """

    def __init__(self, runtime: Runtime, encoder: Encoder) -> None:
        self.runtime = runtime
        self.encoder = encoder
        self.pending = Pending(runtime)
        self.learner = Learner(runtime, encoder, self.pending, self._recovered)
        self.pacing = Pacing(runtime.metrics)
        self.lock = asyncio.Lock()
        self._beats_awaited = False

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the encoder and embed the actions, which a new catalogue takes from the cache."""
        room = cls(runtime, await runtime.in_thread(lambda: encoder_of(runtime.settings)))
        catalogue = runtime.control.catalogue
        check_control_group(policy_of(runtime.settings, room.encoder), runtime.control.space(catalogue))
        await runtime.in_thread(lambda: room.learner.vectors(catalogue))
        return room

    async def on_contexts(self, records: Sequence[Record]) -> None:
        """Decide for each context that is new; send the stored Decision again for one that is not."""
        async with self.lock:
            if not all(map(self.runtime.is_ours, records)):
                return  # the group has rebalanced while this waited: another worker may decide by now
            decider = await self.learner.ready()
            await self._wait_for_executors()
            asked: list[tuple[Record, Context, Origin]] = []
            for record in records:
                try:
                    asked.append((record, decode(record.value, Context), record.origin))
                except UniscaleError as error:
                    await self.runtime.dead_letter(record, error)
            living = self.runtime.control.serving()
            served = [_served(context, self.learner.space, living) for _, context, _ in asked]
            for trust, around_living in ((False, living), (True, None)):
                part = [each for each, known in zip(asked, served, strict=True) if known is not trust]
                if part:
                    await self._decide(decider, part, around_living)
            self.pending.show()
            await self.learner.log.snapshot_when_due(decider)

    async def on_rewards(self, records: Sequence[Record]) -> None:
        """Apply each reward that is new."""
        async with self.lock:
            if not all(map(self.runtime.is_ours, records)):
                return
            decider = await self.learner.ready()
            read: list[tuple[Record, Reward]] = []
            for record in records:
                try:
                    read.append((record, decode(record.value, Reward)))
                except UniscaleError as error:
                    await self.runtime.dead_letter(record, error)
            with self.learner.changing():
                results = decider.learn(
                    [(reward, record.offset) for record, reward in read], self.learner.row
                )
                await self.learner.write([each.row for each in results if each.row])
            for (record, reward), each in zip(read, results, strict=True):
                if each.error is not None:
                    await self.runtime.dead_letter(record, each.error)
                elif each.row is not None:
                    self.runtime.metrics.rewards_applied.labels(reward.kind).inc()
                    if each.verdict in ("learned", "priced", "abandoned"):
                        self.pending.remove(reward.query_id)
                else:
                    self.runtime.metrics.rewards_ignored.labels(each.verdict).inc()
                    if each.verdict == "duplicate":
                        self.runtime.metrics.duplicates.labels(record.topic).inc()
            self.pending.show()
            self.runtime.metrics.policy_version.set(decider.policy.version)
            await self.learner.log.snapshot_when_due(decider)

    @property
    def decider(self) -> Decider | None:
        """Return the learner; None until it has recovered."""
        return self.learner.decider

    def surroundings(self, context: Context, catalogue: Catalogue) -> Surroundings:
        """Return what a decision for this context would depend on now."""
        space, living = self.runtime.control.space(catalogue), self.runtime.control.serving()
        served = _served(context, space, living)
        return Surroundings(self.runtime.control.steering, space, living if served else None)

    async def _decide(
        self, decider: Decider, asked: Sequence[tuple[Record, Context, Origin]], living: frozenset[str] | None
    ) -> None:
        around = Surroundings(self.runtime.control.steering, self.learner.space, living)
        with self.learner.changing():
            results = decider.decide(
                [(context, origin) for _, context, origin in asked], self.learner.row, around
            )
            await self.learner.write([each.row for each in results if each.row])
        await self.runtime.send(*(out for each in results for out in self._outgoing(each)))
        for (record, context, _), each in zip(asked, results, strict=True):
            if each.error is not None:
                # A duplicate's first query has, or will have, the Answer that counts.
                taken = isinstance(each.error, DuplicateQuery)
                await self.runtime.dead_letter(
                    record, each.error, answer=not taken, query_origin=context.origin if taken else None
                )
            elif each.resent:
                self.runtime.metrics.duplicates.labels(record.topic).inc()
            elif each.value is not None:
                self.pending.add(each.query_id, record.timestamp_ms)
                decision = decode(each.value, Decision)
                self._count(decision)
                self.pacing.decided(decision.objective, decider.policy)

    def _outgoing(self, decided: Decided) -> list[Outgoing]:
        if decided.value is None:
            return []
        key = key_of(decided.query_id)
        topics = self.runtime.topics
        # The aggregator first: when the executor's Answer comes, its deadline is already known.
        return [
            Outgoing(topics.decision, key, decided.value),
            Outgoing(topics.decision_for(decided.group), key, decided.value),
        ]

    def _count(self, decision: Decision) -> None:
        metrics, action = self.runtime.metrics, decision.action
        metrics.decisions.labels(decision.reason).inc()
        metrics.choices.labels(action.model, str(action.qp), str(action.cp), str(action.bs)).inc()
        for model in decision.masked_models:
            metrics.masked.labels(model).inc()

    async def _wait_for_executors(self) -> None:
        """Wait once, for a moment, for the first signs of life: without one all models would look dead."""
        if self._beats_awaited:
            return
        deadline = self.runtime.monotonic() + self.runtime.settings.executor.heartbeat_grace_s
        while self.runtime.monotonic() < deadline:
            if set(self.runtime.control.catalogue.model_names) <= self.runtime.control.serving():
                break
            await self.runtime.sleep(0.1)
        self._beats_awaited = True

    async def _recovered(self) -> None:
        """Rebuild the learner before reading begins, so that the log decides where it continues.

        The models go on offer here too: the first question does not wait for it.
        """
        async with self.lock:
            self.learner.decider = None
            if self.learner.log.assigned:
                await self.learner.ready()


def _served(context: Context, space: ActionSpace, living: frozenset[str]) -> bool:
    """Say whether a living executor can take what is asked for.

    Where none can, the query is decided all the same: its deadline then starts, and it ends in an `expired` Answer,
    never in silence.
    """
    query = context.query
    try:
        space.choices(
            pinned=query.pinned,
            allowed_models=query.allowed_models,
            available_models=living,
            answers=query.n,
        )
    except ActionError:
        return False
    return True
