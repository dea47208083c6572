"""The decider on Kafka: Context in, Decision out; Reward in, learning.

One partition and one lock give decisions and updates one order. What a later decision rests on is on the broker
before that decision is made: a row is delivered first, then the policy is told, then the Decision is sent. A
Context that comes again gets the stored bytes; a Reward that comes again changes nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Self

import msgspec

from agents.decider import intake
from agents.decider.policies.base import ActionVector, Choice, Policy
from agents.decider.policies.base import Context as Seen
from agents.embedder.encoder import Encoder, encoder_id
from agents.space.action_space import ActionSpace, uis_space
from schemas.action import Action
from schemas.base import decode, encode
from schemas.decision import Candidate, Decision, PolicyState, Predicted
from schemas.errors import UniscaleError
from schemas.objective import ObjectiveInForce
from schemas.query import Context
from schemas.reward import Reward
from streams.app import Outgoing, Record, durable_table
from streams.encoders import encoder_of
from streams.policies import action_vectors, policy_of
from streams.room import Plumbing, key_of
from streams.rooms.rows import (
    ROW_VERSION,
    Applied,
    Row,
    decode_row,
    encode_row,
    fold,
    objective_of,
    observation_of,
    pending_of,
    told_as,
    vector,
)

log = logging.getLogger("streams.decider")


class DuplicateQuery(UniscaleError):
    """A query_id that was used before, by another record. Give every query an id of its own."""


class OtherEncoder(UniscaleError):
    """A Context whose vector another encoder made. Vectors of two encoders do not mix."""


class DeciderRoom:
    """The policy of one shard with its rows."""

    def __init__(self, plumbing: Plumbing, encoder: Encoder, vectors: Sequence[ActionVector]) -> None:
        self.plumbing = plumbing
        self.settings = plumbing.settings
        self.encoder = encoder
        self.table = durable_table(plumbing.app, "pending", 1)
        self.lock = asyncio.Lock()
        self.policy: Policy | None = None
        self.space: ActionSpace = uis_space(plumbing.control.base)
        self.seq = 0
        self.open = 0
        self._base_vectors = vectors
        self._base_ids = frozenset(v.action_id for v in vectors)
        self._vectors = {v.action_id: v for v in vectors}
        self._catalogue_version = -1
        self._beats_awaited = False
        self.table.on_recover(self._forget)

    @classmethod
    async def build(cls, plumbing: Plumbing) -> Self:
        """Load the encoder and embed the actions of the catalogue file."""
        encoder = await asyncio.to_thread(encoder_of, plumbing.settings)
        cache = plumbing.settings.state_path("actions")
        vectors = await asyncio.to_thread(action_vectors, plumbing.control.base, encoder, cache)
        return cls(plumbing, encoder, vectors)

    async def on_contexts(self, records: Sequence[Record]) -> None:
        """Decide for each context that is new; send the stored Decision again for one that is not."""
        async with self.lock:
            policy = await self._ready()
            await self._wait_for_executors()
            fresh: list[tuple[Record, Context, frozenset[str], ObjectiveInForce]] = []
            again: list[Row] = []
            batch: set[str] = set()
            for record in records:
                try:
                    context = decode(record.value, Context)
                    known = self.table.data.get(key_of(context.query_id))
                    if known is not None or context.query_id in batch:
                        self._known(context, known, again)
                        continue
                    if context.encoder != encoder_id(self.encoder):
                        raise OtherEncoder(
                            f"{context.query_id}: encoder is {context.encoder!r}, the decider's {encoder_id(self.encoder)!r}"
                        )
                    fresh.append((record, context, self._allowed(context), self.plumbing.control.objectives.of(context.query)))
                    batch.add(context.query_id)
                except DuplicateQuery as error:
                    await self.plumbing.bury(record, error, answer=False)
                except UniscaleError as error:
                    await self.plumbing.bury(record, error)
            rows = self._choose(policy, fresh) if fresh else []
            await self.table.put_all(
                (key_of(context.query_id), encode_row(row), record.partition)
                for (record, context, _, _), row in zip(fresh, rows, strict=True)
            )
            if rows:
                policy.expect([pending_of(c.query_id, row) for (_, c, _, _), row in zip(fresh, rows, strict=True)])
                self.open += len(rows)
            await self.plumbing.outbox.send_all([out for row in [*again, *rows] for out in self._outgoing(row)])
            self.plumbing.metrics.pending.set(self.open)

    async def on_rewards(self, records: Sequence[Record]) -> None:
        """Apply each reward that is new: its row first, then the policy."""
        async with self.lock:
            policy = await self._ready()
            changed: dict[str, Row] = {}
            told: list[tuple[str, str, Applied]] = []
            for record in records:
                try:
                    reward = decode(record.value, Reward)
                    row = changed.get(reward.query_id) or self._row(reward.query_id)
                    if row is None:
                        self._ignored("orphan")
                        log.warning("%s: reward without a decision", reward.reward_id)
                        continue
                    applied = self._applied(reward, row)
                    if applied is None:
                        continue
                    row = msgspec.structs.replace(row, applied=(*row.applied, applied))
                    self.seq += 1
                    changed[reward.query_id] = row
                    told.append((reward.query_id, told_as(row, applied), applied))
                    self.plumbing.metrics.rewards_applied.labels(reward.kind).inc()
                except UniscaleError as error:
                    await self.plumbing.bury(record, error)
            partition = records[0].partition
            await self.table.put_all((key_of(q), encode_row(row), partition) for q, row in changed.items())
            for query_id, kind, applied in told:
                self._tell(policy, query_id, changed[query_id], kind, applied)
            self.plumbing.metrics.pending.set(self.open)
            self.plumbing.metrics.policy_version.set(policy.version)

    def _applied(self, reward: Reward, row: Row) -> Applied | None:
        if reward.kind in row.kinds:
            self._ignored("duplicate")
            self.plumbing.metrics.duplicates.labels(self.plumbing.topics.reward).inc()
            return None
        if row.kinds & {"final", "correction", "default"}:
            self._ignored("closed")
            return None
        if reward.kind != "correction" and row.learned is not None and reward.kind != "default":
            self._ignored("superseded")
            return None
        score, cost = reward.score, reward.log_cost
        if score is None or cost is None:
            return Applied(self.seq, reward.kind, reward.correct, None, None, 0.0)
        imputed = score if reward.correct is None else reward.correct
        intake.outcome(reward.reward_id, reward.correct, score, cost, imputed)
        return Applied(self.seq, reward.kind, reward.correct, score, cost, imputed)

    def _tell(self, policy: Policy, query_id: str, row: Row, kind: str, applied: Applied) -> None:
        entered = row.learned
        if kind == "abandon":
            policy.abandon([pending_of(query_id, row)])
            self.open -= 1
        elif kind in ("update", "correct") and entered is not None:
            observation = observation_of(query_id, row, applied, entered)
            if kind == "update":
                policy.update([observation])
                self.open -= 1
            else:
                policy.correct([observation])

    def _known(self, context: Context, data: bytes | None, again: list[Row]) -> None:
        row = decode_row(data) if data else None
        if row is None or row.origin != context.origin:
            here = f"{context.origin.topic}/{context.origin.partition}/{context.origin.offset}"
            raise DuplicateQuery(f"{context.query_id}: query_id: used before; the record at {here} is not decided again")
        self.plumbing.metrics.duplicates.labels(self.plumbing.topics.context).inc()
        again.append(row)

    def _allowed(self, context: Context) -> frozenset[str]:
        query = context.query
        available: frozenset[str] | None = self.plumbing.control.serving()
        assert available is not None
        wanted = self.space.choices(pinned=query.pinned, allowed_models=query.allowed_models)
        if not any(self.space[i].model in available for i in wanted):
            # Nobody serves what is asked for: decide all the same, so that the deadline starts and the query
            # ends in an `expired` Answer, never in silence.
            return frozenset(self.space[i].id for i in wanted)
        for model in set(self.space.models) - available:
            self.plumbing.metrics.masked.labels(model).inc()
        return frozenset(self.space[i].id for i in wanted if self.space[i].model in available)

    def _choose(
        self, policy: Policy, fresh: Sequence[tuple[Record, Context, frozenset[str], ObjectiveInForce]]
    ) -> list[Row]:
        everything = frozenset(action.id for action in self.space)
        seen = [
            Seen(c.query_id, vector(c.embedding), None if allowed == everything else allowed) for _, c, allowed, _ in fresh
        ]
        objectives = [objective_of(o) for _, _, _, o in fresh]
        choices = policy.select(seen, objectives, self.settings.seed)
        serving = self.plumbing.control.serving()
        masked = tuple(m for m in self.space.models if m not in serving)
        rows = []
        decisions = len(self.table.data)
        for at, ((_, context, allowed, objective), choice) in enumerate(zip(fresh, choices, strict=True)):
            decision = self._decision(policy, context, choice, objective, len(allowed), masked)
            foreign = choice.action_id not in self._base_ids
            rows.append(
                Row(
                    version=ROW_VERSION,
                    seq=self.seq,
                    clock=decisions + at,
                    origin=context.origin,
                    decision=encode(decision),
                    embedding=context.embedding,
                    action_id=choice.action_id,
                    model=decision.action.model,
                    objective=objective,
                    action_vector=self._vectors[choice.action_id].embedding.astype("<f4").tobytes() if foreign else b"",
                )
            )
            self.seq += 1
            action = decision.action
            self.plumbing.metrics.decisions.labels(decision.reason).inc()
            self.plumbing.metrics.choices.labels(action.model, str(action.qp), str(action.cp), str(action.bs)).inc()
        return rows

    def _decision(
        self, policy: Policy, context: Context, choice: Choice, objective: ObjectiveInForce,
        candidates: int, masked: tuple[str, ...],
    ) -> Decision:  # fmt: skip
        action = Action.parse(choice.action_id)
        pinned = context.query.pinned is not None
        return Decision(
            query=context.query,
            origin=context.origin,
            action=action,
            group=self.plumbing.control.catalogue.model(action.model).group,
            seq=self.seq,
            seed=self.settings.seed,
            objective=objective,
            policy=PolicyState(name=policy.name, version=choice.version),
            catalogue_version=self._catalogue_version,
            mean=choice.mean,
            width=choice.width,
            score=choice.score,
            predicted=_predicted(choice),
            runners_up=tuple(
                Candidate(action=c.action_id, mean=c.mean, width=c.width, score=c.score) for c in choice.runners_up
            ),
            candidates=candidates,
            masked_models=masked,
            reason="pinned" if pinned else choice.reason,
            propensity=1.0 if pinned else choice.propensity,
            propensity_draws=0 if pinned else choice.propensity_draws,
            propensity_error=0.0 if pinned else choice.propensity_error,
            appended_ms=context.appended_ms,
        )

    def _outgoing(self, row: Row) -> list[Outgoing]:
        decision = decode(row.decision, Decision)
        key = key_of(decision.query_id)
        topics = self.plumbing.topics
        # The aggregator first: when the executor's Answer comes, its deadline is already known.
        return [
            Outgoing(topics.decision, key, row.decision),
            Outgoing(topics.decision_for(decision.group), key, row.decision),
        ]

    async def _ready(self) -> Policy:
        """Return the policy, folded from the table after a recovery and with the catalogue of now."""
        policy = self.policy
        if policy is None:
            policy = policy_of(self.settings, self.encoder)
            policy.add_actions(self._base_vectors)
            self._catalogue_version = -1
            self.space = uis_space(self.plumbing.control.base)
            rows = [(k.decode(), decode_row(v)) for k, v in self.table.data.items()]
            self.seq = fold(policy, rows)
            self.open = sum(not row.applied for _, row in rows)
            self.policy = policy
            log.info("%d rows folded: policy version %d, next seq %d", len(rows), policy.version, self.seq)
        if self._catalogue_version != self.plumbing.control.catalogue_version:
            await self._change_catalogue(policy)
        return policy

    async def _change_catalogue(self, policy: Policy) -> None:
        control = self.plumbing.control
        catalogue, version = control.catalogue, control.catalogue_version
        cache = self.settings.state_path("actions")
        vectors = await asyncio.to_thread(action_vectors, catalogue, self.encoder, cache)
        self._vectors |= {v.action_id: v for v in vectors}
        now = {v.action_id for v in vectors}
        policy.remove_actions([a.id for a in self.space if a.id not in now])
        policy.add_actions(vectors)
        self.space, self._catalogue_version = uis_space(catalogue), version
        log.info("catalogue version %d: %s", version, ", ".join(catalogue.model_names))

    async def _wait_for_executors(self) -> None:
        """Wait once, for a moment, for the first signs of life: without one all models would look dead."""
        if self._beats_awaited:
            return
        deadline = asyncio.get_running_loop().time() + self.settings.heartbeat_grace_s
        while asyncio.get_running_loop().time() < deadline:
            if set(self.plumbing.control.catalogue.model_names) <= self.plumbing.control.serving():
                break
            await asyncio.sleep(0.1)
        self._beats_awaited = True

    def _row(self, query_id: str) -> Row | None:
        data = self.table.data.get(key_of(query_id))
        return decode_row(data) if data else None

    def _ignored(self, why: str) -> None:
        self.plumbing.metrics.rewards_ignored.labels(why).inc()

    async def _forget(self) -> None:
        self.policy = None


def _predicted(choice: Choice) -> Predicted | None:
    if choice.predicted is None:
        return None
    correct, score, log_cost = choice.predicted
    return Predicted(correct=correct, score=score, log_cost=log_cost)
