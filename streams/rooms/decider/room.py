"""The decider's room: Context in, Decision out; Reward in, learning.

One partition and one lock give decisions and updates one order. The state behind a decision is on the broker before
the decision is made: rows are delivered first, then Decisions are sent. A redelivered Context gets the stored bytes; a
redelivered Reward changes nothing. `agents.decider` does the deciding and learning.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from agents.decider.agent import Decider
from agents.decider.decisions import Surroundings
from agents.decider.errors import CorruptState, DuplicateQuery
from agents.decider.log.ended import EndedIds
from agents.decider.policies.base import ActionVector
from agents.decider.policies.contextual.prior import digest
from agents.decider.results import Decided
from agents.embedder.encoder import Encoder, encoder_id
from agents.space.action_space import ActionSpace
from agents.space.catalogue import Catalogue
from agents.space.errors import ActionError
from schemas.base import decode
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Context, Origin
from schemas.reward import Reward
from streams.rooms.decider.learner_log import LearnerLog
from streams.rooms.decider.policies import action_vectors, check_control_group, policy_of, prior_of
from streams.rooms.embedder.encoders import encoder_of
from streams.runtime.base import Outgoing, Record, Runtime, SendFailed, key_of

log = logging.getLogger("streams.decider")


class DeciderRoom:
    """The learner of one shard with its table."""

    def __init__(self, runtime: Runtime, encoder: Encoder) -> None:
        self.runtime = runtime
        self.settings = runtime.settings
        self.encoder = encoder
        self.log = LearnerLog(runtime, self._recovered)
        self.table = self.log.table
        self.lock = asyncio.Lock()
        self.decider: Decider | None = None
        self.space: ActionSpace = runtime.control.space(runtime.control.base)
        self.outstanding = 0
        # Append times of the queries decided here whose reward is outstanding, oldest first, in ms.
        self._since_ms: dict[str, int] = {}
        self._catalogue_version: int | None = None
        self._beats_awaited = False

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the encoder and embed the actions, which a new catalogue takes from the cache."""
        room = cls(runtime, await runtime.in_thread(lambda: encoder_of(runtime.settings)))
        catalogue = runtime.control.catalogue
        check_control_group(policy_of(runtime.settings, room.encoder), runtime.control.space(catalogue))
        await runtime.in_thread(lambda: room.vectors(catalogue))
        return room

    async def on_contexts(self, records: Sequence[Record]) -> None:
        """Decide for each context that is new; send the stored Decision again for one that is not."""
        async with self.lock:
            if not all(map(self.runtime.is_ours, records)):
                return  # partitions were given out while this waited: another may decide by now
            decider = await self._ready()
            await self._wait_for_executors()
            asked: list[tuple[Record, Context, Origin]] = []
            for record in records:
                try:
                    asked.append((record, decode(record.value, Context), record.origin))
                except UniscaleError as error:
                    await self.runtime.dead_letter(record, error)
            living = self.runtime.control.serving()
            served = [_served(context, self.space, living) for _, context, _ in asked]
            for trust, around_living in ((False, living), (True, None)):
                part = [each for each, known in zip(asked, served, strict=True) if known is not trust]
                if part:
                    await self._decide(decider, part, around_living)
            self._show_pending()
            await self.log.snapshot_when_due(decider)

    async def on_rewards(self, records: Sequence[Record]) -> None:
        """Apply each reward that is new."""
        async with self.lock:
            if not all(map(self.runtime.is_ours, records)):
                return
            decider = await self._ready()
            read: list[tuple[Record, Reward]] = []
            for record in records:
                try:
                    read.append((record, decode(record.value, Reward)))
                except UniscaleError as error:
                    await self.runtime.dead_letter(record, error)
            results = decider.learn([(reward, record.offset) for record, reward in read], self._row)
            await self._write([each.row for each in results if each.row])
            for (record, reward), each in zip(read, results, strict=True):
                if each.error is not None:
                    await self.runtime.dead_letter(record, each.error)
                elif each.row is not None:
                    self.runtime.metrics.rewards_applied.labels(reward.kind).inc()
                    self.outstanding -= each.verdict in ("learned", "abandoned")
                    if each.verdict in ("learned", "abandoned"):
                        self._since_ms.pop(reward.query_id, None)
                else:
                    self.runtime.metrics.rewards_ignored.labels(each.verdict).inc()
                    if each.verdict == "duplicate":
                        self.runtime.metrics.duplicates.labels(record.topic).inc()
            self._show_pending()
            self.runtime.metrics.policy_version.set(decider.policy.version)
            await self.log.snapshot_when_due(decider)

    @property
    def encoder_id(self) -> str:
        """Return the id of the encoder of queries and actions."""
        return encoder_id(self.encoder)

    def offers(self, catalogue_version: int) -> bool:
        """Return whether the learner has taken over this catalogue."""
        return self._catalogue_version == catalogue_version

    def vectors(self, catalogue: Catalogue) -> Sequence[ActionVector]:
        """Return the actions of a catalogue as the policy sees them. Slow for actions that were never embedded."""
        return action_vectors(catalogue, self.encoder, self._cache, pairs=self.runtime.control.pairs)

    def surroundings(self, context: Context, catalogue: Catalogue) -> Surroundings:
        """Return what a decision for this context would depend on now."""
        space, living = self.runtime.control.space(catalogue), self.runtime.control.serving()
        served = _served(context, space, living)
        return Surroundings(self.runtime.control.steering, space, living if served else None)

    async def _decide(
        self, decider: Decider, asked: Sequence[tuple[Record, Context, Origin]], living: frozenset[str] | None
    ) -> None:
        around = Surroundings(self.runtime.control.steering, self.space, living)
        results = decider.decide([(context, origin) for _, context, origin in asked], self._row, around)
        await self._write([each.row for each in results if each.row])
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
                self.outstanding += 1
                self._since_ms[each.query_id] = record.timestamp_ms
                self._count(decode(each.value, Decision))

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

    def _show_pending(self) -> None:
        self.runtime.metrics.pending.set(self.outstanding)
        oldest_ms = next(iter(self._since_ms.values()), self.runtime.now_ms())
        self.runtime.metrics.oldest_pending.set(oldest_ms / 1000)

    async def _ready(self) -> Decider:
        """Return the learner, with the catalogue of now."""
        decider = self.decider or await self._rebuild()
        if self._catalogue_version != self.runtime.control.catalogue_version:
            await self._offer(decider)
        return decider

    async def _rebuild(self) -> Decider:
        policy = policy_of(self.settings, self.encoder)
        decider = Decider(
            policy,
            seed=self.settings.policy.seed,
            encoder=self.encoder_id,
            limit=self.runtime.limit,
            ended=EndedIds(self.settings.policy.remembered_ids),
        )
        try:
            found = await self.log.recover(decider)
        except CorruptState as error:
            raise error.within(f"{self.log.changelog}, read with {self.log.topic}:") from error
        if self.settings.policy.prior:
            await self._begin(decider)
        self.outstanding = found.folded.outstanding
        self.runtime.metrics.pending.set(self.outstanding)
        self.runtime.metrics.policy_version.set(policy.version)
        self.decider, self._catalogue_version = decider, None
        return decider

    async def _begin(self, decider: Decider) -> None:
        """Begin from the prior of the settings, where the log is empty; else the log says what it began from."""
        prior = await self.runtime.in_thread(lambda: prior_of(self.settings))
        if decider.prior or decider.seq or decider.actions:
            if decider.prior != digest(prior):
                log.warning(
                    "the log began from %s; the prior %s counts for an empty log only",
                    f"prior {decider.prior}" if decider.prior else "nothing", self.settings.policy.prior,
                )  # fmt: skip
            return
        catalogue = self.runtime.control.catalogue
        vectors = await self.runtime.in_thread(lambda: self.vectors(catalogue))
        try:
            await self.log.begin(decider.begin(prior, vectors, self.log.chunk_bytes))
        except SendFailed as error:
            self.runtime.crash("the prior could not be written", error)
        log.info("the learner begins from prior %s", decider.prior)

    async def _offer(self, decider: Decider) -> None:
        control = self.runtime.control
        catalogue, version = control.catalogue, control.catalogue_version
        vectors = await self.runtime.in_thread(lambda: self.vectors(catalogue))
        await self._write(decider.offer(vectors, catalogue.price_factors))
        self.space, self._catalogue_version = control.space(catalogue), version
        log.info("on offer: %s", ", ".join(catalogue.model_names))

    async def _wait_for_executors(self) -> None:
        """Wait once, for a moment, for the first signs of life: without one all models would look dead."""
        if self._beats_awaited:
            return
        deadline = self.runtime.monotonic() + self.settings.executor.heartbeat_grace_s
        while self.runtime.monotonic() < deadline:
            if set(self.runtime.control.catalogue.model_names) <= self.runtime.control.serving():
                break
            await self.runtime.sleep(0.1)
        self._beats_awaited = True

    async def _write(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        try:
            await self.table.put_all((*row, 0) for row in rows)
        except SendFailed as error:
            # The learner in memory is ahead of its log, which alone says what of this was written.
            self.runtime.crash("the learner's rows could not be written", error)

    def _row(self, query_id: str) -> bytes | None:
        return self.table.get(key_of(query_id))

    @property
    def _cache(self) -> Path:
        return self.settings.state_path("actions")

    async def _recovered(self) -> None:
        """Rebuild the learner before reading begins, so that the log decides where it continues."""
        async with self.lock:
            self.decider = None
            if self.log.assigned:
                await self._rebuild()


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
