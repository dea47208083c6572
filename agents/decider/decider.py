"""The decider: turns a Context into a Decision, learns from a Reward (Alg. 1), and acts on an AttemptFailed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np

from agents.bandit.errors import (
    CorruptState,
    DeciderError,
    DuplicateQuery,
    InvalidObservation,
    UnservedObjective,
)
from agents.bandit.features import counts
from agents.bandit.learner import choose
from agents.bandit.policy import ActionVector, Choice, Context, Objective, Policy, Target
from agents.bandit.prior import begin, outcomes_of, require_cost_basis
from agents.catalogue.action_space import ActionSpace
from agents.catalogue.control_state import ControlState
from agents.catalogue.models import ActionError
from agents.decider import snapshot
from agents.decider.categories import NO_KEYS, ContextKeys, categories_of
from agents.decider.failed_attempts import Before, Failure, Followed, affects, failed, superseded
from agents.decider.policy_fold import offer, tell
from agents.decider.recovery import Records, Recovered, restore
from agents.decider.rewards import Move, RewardRules, Verdict, applied
from agents.decider.rows import (
    ENDED,
    GROWTH,
    REFIT_BYTES,
    ActionRow,
    OfferRow,
    Row,
    decode_row,
    encode_row,
    refit_rows,
    with_question,
    without_question,
)
from agents.decider.sessions import Sessions, session_of, undrawn
from agents.decider.shares import TeachingShares
from agents.decider.snapshot import EndedIds
from schemas.action import Action
from schemas.chat import FIELDS, ONE_SAMPLE, Requirement, nobody_has
from schemas.decision import MAX_SEED, Decision, PolicyState, Predicted, ScoredAction
from schemas.errors import InvalidField, RecordTooLarge, UniscaleError
from schemas.failure import attempt_id
from schemas.objective import UNITS, CostUnit, ObjectiveInForce
from schemas.prices import Prices, Rate
from schemas.query import Origin, Query, QueryContext
from schemas.record import MAX_VALUE, decode, encode
from schemas.reward import Reward

# Results of the decider: for each record a Decision, a changed row or an error.


@dataclass(frozen=True, slots=True)
class Decided:
    """The result for one Context: a Decision to send, or the error for its dead letter.

    Attributes:
        value: The Decision's bytes; None on an error, or if the query has ended and its row has left the log.
        group: The executor group that gets the Decision in addition to the topic `action-decision`.
        row: Key and value of the row to write before sending; None if the row already exists (a redelivery).
    """

    query_id: str
    value: bytes | None = None
    group: str = ""
    row: tuple[bytes, bytes] | None = None
    error: UniscaleError | None = None

    @property
    def resent(self) -> bool:
        """Return whether this is a redelivery: the same bytes are sent again, or nothing if the query has ended."""
        return self.error is None and self.row is None


@dataclass(frozen=True, slots=True)
class Learned:
    """The result for one Reward: rows to write, nothing, or the error for its dead letter.

    Attributes:
        rows: The query's changed rows. If the call refitted the policy, the last result with rows also has the
            estimates.
        ended: Names of the attempts whose rows have ended.
    """

    query_id: str
    verdict: Verdict | None = None
    ended: tuple[str, ...] = ()
    rows: tuple[tuple[bytes, bytes], ...] = ()
    error: UniscaleError | None = None


# A Context whose query has already been decided: send the same Decision again, send nothing, or reject a duplicate.


def resend_decision(context: QueryContext, value: bytes) -> Decided:
    """Return the result for a Context whose query has a row: the existing Decision, or DuplicateQuery."""
    row = decode_row(context.query_id.encode(), value)
    assert isinstance(row, Row)
    if row.query_origin != context.origin:
        return Decided(
            context.query_id, error=DuplicateQuery(context.query_id, row.query_origin, context.origin)
        )
    decision = with_question(bytes(row.decision), context.query)
    return Decided(context.query_id, encode(decision), decision.group)


def reject_ended(context: QueryContext, place: tuple[int, int]) -> Decided:
    """Return the result for a Context whose query has ended and whose row was removed: nothing, or DuplicateQuery."""
    partition, offset = place
    if (context.origin.partition, context.origin.offset) == place:
        return Decided(context.query_id)
    first = Origin(topic=context.origin.topic, partition=partition, offset=offset)
    return Decided(context.query_id, error=DuplicateQuery(context.query_id, first, context.origin))


Timer = Callable[[], float]
"""Returns monotonic time in seconds."""

# From Context records to Decisions, each with its row of the learner's log.
#
# A Context becomes the policy's input, the policy chooses, and the choice becomes the Decision on the wire. Nothing
# here changes the learner, which counts and logs the results.


@dataclass(frozen=True, slots=True)
class DecisionEnvironment:
    """Everything a decision depends on besides the query and the policy.

    Attributes:
        control: Current catalogue and objectives.
        space: The available actions of that catalogue.
        living: Models with a recent executor heartbeat; None assumes that all are running.
        waiting: Models of that catalogue that are not available yet because no server has embedded their actions.
        excluded: Models left out because an earlier attempt at the query failed there.
        context_keys: The keys of metadata from which the policy learns.
        session_s: Seconds for which a session keeps its configuration after a turn; 0 for never.
    """

    control: ControlState
    space: ActionSpace
    living: frozenset[str] | None = None
    waiting: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    context_keys: ContextKeys = NO_KEYS
    session_s: float = 0.0

    def choices(self, query: Query) -> tuple[int, ...]:
        """Return the indices of the actions that a query may choose from.

        Raises:
            ActionError: The query's pin, allowed models and requirements, and the running executors, leave no action.
        """
        pinned, allowed = query.pinned, query.allowed_models
        asked = {pinned.model} if pinned is not None else set(allowed or ())
        if asked and asked <= self.waiting:
            field = "pin_action" if pinned is not None else "allowed_models"
            raise ActionError(
                f"{field}: {', '.join(sorted(asked))}: not on offer yet, because its descriptions are not embedded "
                "(the decider's log says why); try again later, or allow another model"
            )
        unable = frozenset(self.unable_models(query))
        if unable and unable >= (asked or set(self.space.models)):
            lacking = self.control.catalogue.lacking(query.required, asked or None) or query.required[0]
            raise ActionError(f"{FIELDS[lacking][0]} {nobody_has(lacking)}")
        if unable:
            allowed = tuple(model for model in allowed or self.space.models if model not in unable)
        living, left_out = self.living, self.short_models(query) | self.excluded
        if left_out:
            living = (frozenset(self.space.models) if living is None else living) - left_out
        return self.space.choices(
            pinned=pinned,
            allowed_models=None if allowed is None else [m for m in allowed if m not in self.waiting],
            available_models=living,
            answers=query.n,
            one_sample=not ONE_SAMPLE.isdisjoint(self.required(query)),
        )

    def kept(self, record: QueryContext, sessions: Sessions) -> str:
        """Return the configuration that a query keeps from its session's last turn; "" if it is decided freely."""
        last = sessions.last(session_of(record.query))
        if last is None or record.query.pinned is not None:
            return ""
        if record.appended_ms - last.at_ms > 1000 * self.session_s:
            return ""
        return last.action if last.action in {self.space[i].id for i in self.choices(record.query)} else ""

    def required(self, query: Query) -> tuple[Requirement, ...]:
        """Return a query's requirements, without greedy sampling if no available action draws a single sample."""
        needs = query.required
        if "greedy" not in needs:
            return needs
        allowed = query.allowed_models or self.space.models
        able = set(allowed).difference(self.unable_models(query))
        single = any(action.samples == 1 for action in self.space if action.model in able)
        return needs if single else tuple(each for each in needs if each != "greedy")

    def unable_models(self, query: Query) -> tuple[str, ...]:
        """Return the models that lack something the query requires."""
        if not (needs := query.required):
            return ()
        catalogue = self.control.catalogue
        return tuple(name for name in self.space.models if not catalogue.model(name).honours(needs))

    def masked_models(self) -> tuple[str, ...]:
        """Return the models that are excluded because no executor serves them."""
        return () if self.living is None else tuple(m for m in self.space.models if m not in self.living)

    def short_models(self, query: Query) -> frozenset[str]:
        """Return the models whose context may be too short for a question and its answer; empty if no other is left."""
        if query.pinned is not None:
            return frozenset()
        size, catalogue = len(query.question.encode()), self.control.catalogue
        short = frozenset(
            name
            for name in self.space.models
            if size > catalogue.model(name).engine.context_tokens * _TOKEN_BYTES
        )
        able = set(self.space.models).difference(self.excluded, self.unable_models(query))
        if self.living is not None:
            able &= self.living
        if query.allowed_models is not None:
            able &= set(query.allowed_models)
        return short if able - short else frozenset()

    def serves(self, query: Query) -> bool:
        """Return whether any action is available to a query."""
        try:
            return bool(self.choices(query))
        except ActionError:
            return False


_TOKEN_BYTES: Final = 3
"""Bytes of a question allowed per token of context. Prose has four or five bytes per token, code and most other scripts
three; the difference leaves room for an answer."""


def decisions(
    policy: Policy,
    asked: Sequence[tuple[QueryContext, Origin]],
    environment: DecisionEnvironment,
    *,
    seq: int,
    clock: int,
    seed: int,
    encoder: str,
    price_factors: Mapping[str, Rate],
    limit: int,
    timer: Timer,
    before: Before | None = None,
    baseline: str = "",
    sessions: Sessions,
) -> list[tuple[Decided, Row]]:
    """Return a Decision for each Context, all made from one state of the policy, with their rows.

    Args:
        policy: The policy. It is not updated with its choices here.
        asked: New Contexts with their origins, in offset order.
        environment: Catalogue, objectives and living executors.
        seq: Sequence number of the first Decision; those of the others follow.
        clock: Number of decisions before the first.
        seed: The decider's seed.
        encoder: Id of the encoder of the action vectors; empty accepts any.
        price_factors: What each model charges, as known to the policy; a model not listed charges 1 per eFLOP.
        limit: Maximum bytes of a row.
        timer: Measures how long the choice takes; each Decision records this time.
        before: What further attempts inherit from earlier ones; None for first attempts.
        baseline: The action to take until the policy has learned from a graded answer; empty for none.
        sessions: The last turn of each session.

    Raises:
        UniscaleError: One of the Contexts must be rejected, regardless of the others.
    """
    began_s = timer()
    shadow_price = (
        cache(policy.pacer.shadow_price) if policy.pacer else None
    )  # all decisions are made from one state, so they share it
    attempt = 1 if before is None else before.decision.attempt + 1
    objectives = [
        in_force(record, environment, policy.name, shadow_price)
        if before is None
        else before.decision.objective
        for record, _ in asked
    ]
    earlier = [environment.kept(record, sessions) if before is None else "" for record, _ in asked]
    contexts = [
        context_of(record, environment, encoder, policy.traits.surface, attempt, baseline, action)
        for (record, _), action in zip(asked, earlier, strict=True)
    ]
    chosen = choose(policy, contexts, [Objective.of(o) for o in objectives], seed)
    choices = [undrawn(each) if action else each for each, action in zip(chosen, earlier, strict=True)]
    decide_s = timer() - began_s
    made = []
    for i, ((record, origin), objective, choice) in enumerate(zip(asked, objectives, choices, strict=True)):
        decision = decision_of(
            record,
            choice,
            objective,
            environment,
            policy=policy.name,
            seq=seq + i,
            seed=seed,
            price_factors=price_factors,
            decide_s=decide_s,
            before=before,
            features=contexts[i].categories,
        )
        value = encode(decision)
        if len(value) > limit:
            raise RecordTooLarge("Decision", "", f"takes {len(value)} bytes of {limit}; shorten the query")
        row = Row(
            query_id=record.query_id,
            seq=decision.seq,
            clock=clock + i,
            action=choice.action_id,
            embedding=contexts[i].embedding.astype("<f4").tobytes(),
            objective=decision.objective,
            query_origin=record.origin,
            context_origin=origin,
            decision=msgspec.Raw(without_question(decision)),
            batch=seq,
            attempt=attempt,
            tenant=record.query.account,
            paced=decision.cohort == "policy" and decision.reason not in ("pinned", "session"),
            features=decision.features,
            session=decision.session,
        )
        stored = (row.key, encode_row(row, limit))
        made.append((Decided(record.query_id, value, decision.group, stored), row))
    return made


def in_force(
    record: QueryContext,
    environment: DecisionEnvironment,
    policy: str,
    shadow_price: Callable[[Target], float] | None,
) -> ObjectiveInForce:
    """Return the objective of a Context, with the shadow price λ of its target.

    Args:
        record: The Context.
        environment: Contains the known objectives.
        policy: The policy's name.
        shadow_price: Returns the pacer's λ for a target; None if the policy has no pacer.

    Raises:
        ObjectiveError: The query names an objective that does not exist.
        UnservedObjective: The objective has a target, and the policy does not support targets.
    """
    objective = environment.control.objectives.of(record.query)
    check_budget(record.query, objective.cost_range.unit)
    target = Target.of(objective, record.query.account)
    if target is None:
        return objective
    if shadow_price is None:
        raise UnservedObjective(record.query_id, objective.kind, policy)
    return msgspec.structs.replace(objective, price=shadow_price(target))


def check_budget(query: Query, unit: CostUnit) -> None:
    """Reject a budget whose unit is not that of costs, because it cannot be enforced.

    Raises:
        InvalidField: The budget is in the other unit. The message names the field and the fix.
    """
    other: CostUnit = "eflops" if unit == "usd" else "usd"
    if query.budget is not None and getattr(query.budget, other) is not None:
        why = f"is given, but costs are in {UNITS[unit]}; give budget.{unit}, or budget.tokens"
        raise InvalidField("Query", f"budget.{other}", why)


def context_of(
    record: QueryContext,
    environment: DecisionEnvironment,
    encoder: str = "",
    surface: bool = False,
    attempt: int = 1,
    baseline: str = "",
    kept: str = "",
) -> Context:
    """Return the policy's input for a Context record.

    Args:
        record: The record.
        environment: Catalogue, objectives and living executors.
        encoder: Id of the encoder of the action vectors; empty accepts any.
        surface: Whether to append surface counts of the question to the embedding.
        attempt: Number of the attempt at the query, 1 for the first.
        baseline: As for `decisions`.
        kept: The configuration that the query keeps from its session; empty if the choice is free.

    Raises:
        InvalidObservation: The embedding comes from a different encoder.
        ActionError: No action is left for the query; see `DecisionEnvironment.choices`.
    """
    if encoder and record.encoder != encoder:
        fix = f"embed the query with {encoder!r}"
        raise InvalidObservation(record.query_id, "encoder", record.encoder, fix)
    indices = environment.choices(record.query)
    allowed = None
    if len(indices) < len(environment.space):
        allowed = frozenset(environment.space[i].id for i in indices)
    if kept:
        allowed = frozenset({kept})
    vector = np.frombuffer(record.embedding, dtype="<f4").astype(np.float64)
    if surface:
        vector = np.concatenate([vector, counts(record.query.question)])
    name = attempt_id(record.query_id, attempt)
    shown = categories_of(record.query, environment.context_keys)
    return Context(name, vector, allowed, drawn=attempt == 1, baseline=baseline, categories=shown)


def decision_of(
    record: QueryContext,
    choice: Choice,
    objective: ObjectiveInForce,
    environment: DecisionEnvironment,
    *,
    policy: str,
    seq: int,
    seed: int,
    price_factors: Mapping[str, Rate],
    decide_s: float,
    before: Before | None = None,
    features: tuple[str, ...] = (),
) -> Decision:
    """Return the Decision for a choice, with every term that explains it.

    Args:
        record: The Context.
        choice: The policy's choice.
        objective: The current objective.
        environment: Catalogue, objectives and living executors at the time.
        policy: The policy's name.
        seq: Sequence number among decisions and updates.
        seed: The decider's seed, from which the query's seed derives.
        price_factors: What each model charges, as the policy knew it; a model not listed charges 1 per eFLOP.
        decide_s: Seconds that the choice took.
        before: What a further attempt inherits from the one before; None for a first attempt.
        features: The request's categories.
    """
    attempt = 1 if before is None else before.decision.attempt + 1
    action = Action.parse(choice.action_id)
    catalogue = environment.control.catalogue
    pinned = record.query.pinned is not None
    by_policy = not pinned and choice.reason not in ("warm-up", "control", "baseline", "session")
    rate = price_factors.get(action.model, 1.0)
    predicted = None
    if choice.predicted is not None:
        correct, score, log_cost = choice.predicted
        predicted = Predicted(correct=correct, score=score, log_cost=log_cost)
    return Decision(
        query=record.query,
        origin=record.origin,
        action=action,
        group=catalogue.model(action.model).group,
        seq=seq,
        seed=seed_of(seed, record.query, attempt),
        objective=objective,
        policy=PolicyState(name=policy, version=choice.version),
        catalogue_version=catalogue.version,
        mean=choice.mean if by_policy else None,
        width=choice.width if by_policy else None,
        score=choice.score if by_policy else None,
        predicted=predicted,
        runners_up=tuple(
            ScoredAction(action=c.action_id, mean=c.mean, width=c.width, score=c.score)
            for c in choice.runners_up
        ),
        candidates=choice.candidates,
        masked_models=environment.masked_models(),
        short_models=tuple(sorted(environment.short_models(record.query))),
        required=environment.required(record.query),
        unable_models=environment.unable_models(record.query),
        reason="pinned" if pinned else choice.reason,
        cohort=choice.cohort if before is None else before.decision.cohort,
        session=session_of(record.query),
        randomised=choice.randomised,
        propensity=choice.propensity,
        propensity_draws=choice.propensity_draws,
        propensity_error=choice.propensity_error,
        appended_ms=record.appended_ms,
        price_factor=1.0 if isinstance(rate, Prices) else rate,
        prices=rate if isinstance(rate, Prices) else None,
        spent=record.spent.plus(decide_s=decide_s),
        verified=catalogue.verified,
        attempt=attempt,
        excluded=tuple(sorted(environment.excluded)),
        earlier=() if before is None else before.earlier,
        features=features,
    )


def seed_of(seed: int, query: Query, attempt: int = 1) -> int:
    """Return the seed of an attempt, from which the seeds of its steps and paths derive.

    It depends on the decider's seed, the client's seed (or the query's id if the client gave none) and the attempt.

    >>> first, second = Query(query_id="q-1", text="Hm?", seed=7), Query(query_id="q-2", text="Hm?", seed=7)
    >>> seed_of(0, first) == seed_of(0, second) != seed_of(1, first)
    True
    """
    # Ids have no spaces, so a client's seed never collides with the id of another query.
    name = query.query_id if query.seed is None else f"seed {query.seed}"
    name = name if attempt == 1 else f"{name} attempt {attempt}"
    digest = hashlib.blake2b(f"{seed}\x1f{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED


# The decider: Context in, Decision out; Reward in, learning (Alg. 1).
#
# It works on lists and does no I/O. Every call returns the rows that must be durable before anything is sent or
# acknowledged; the service writes them, waits, then sends. If a call raises, or a write fails, the learner may be ahead
# of its log and must not be used again: call `recover` in a new one. Each record has its own result, so one bad record
# in a batch does not affect the others.

Rows = Callable[[str], bytes | None]
"""Looks up a row of the table by the id of its attempt (`attempt_id`); None if there is none."""


def untimed() -> float:
    """Return 0. This is the timer when decisions are not timed."""
    return 0.0


@dataclass(slots=True)
class Decider:
    """One shard's learner.

    Args:
        policy: Any policy, without actions.
        rules: How to learn from a reward without correctness.
        seed: Seed of every random choice.
        encoder: Id of the encoder of the action vectors; a Context from another encoder is rejected. Empty accepts any.
        unit: Unit of costs; a log or a prior in the other unit is rejected.
        limit: Maximum bytes of a row. A Context whose row could exceed it is rejected before it is decided. The
            Decision is part of the row, so it fits as well.

    Attributes:
        seq: Next sequence number of decisions and updates.
        clock: Number of decisions.
        offered: Ids of the available actions.
        price_factors: What each model charges; a model not listed charges 1 per eFLOP.
        baseline: The action to take until the policy has learned from a graded answer; empty for none.
        prior: SHA-256 of the prior that the log started from; empty for none.
        shares: The tenants of the latest outcomes.
        sessions: The last turns of sessions.
        ended: Ids of ended queries, to recognise duplicates whose row has left the log.
        verdicts: Number of rewards by verdict; for metrics.
    """

    policy: Policy
    rules: RewardRules = field(default_factory=RewardRules)
    seed: int = 0
    encoder: str = ""
    unit: CostUnit = "eflops"
    limit: int = MAX_VALUE
    seq: int = 0
    clock: int = 0
    context_offset: int = -1
    reward_offset: int = -1
    failure_offset: int = -1
    verdicts: Counter[str] = field(default_factory=Counter)
    actions: dict[str, ActionRow] = field(default_factory=dict)
    offered: tuple[str, ...] = ()
    price_factors: Mapping[str, Rate] = field(default_factory=dict)
    baseline: str = ""
    prior: str = ""
    shares: TeachingShares = field(default_factory=TeachingShares)
    sessions: Sessions = field(default_factory=Sessions)
    ended: EndedIds = field(default_factory=EndedIds)

    def offer(
        self,
        actions: Sequence[ActionVector],
        price_factors: Mapping[str, Rate] | None = None,
        baseline: str = "",
    ) -> list[tuple[bytes, bytes]]:
        """Make exactly these actions available; return the new rows, which must be written before deciding.

        An action keeps the vector from its first appearance, because every x in A was computed with that vector.

        Args:
            actions: The available actions.
            price_factors: What each model charges; a model not listed charges 1 per eFLOP.
            baseline: The action to take until the policy has learned from a graded answer; empty for none.
        """
        first = not self.actions
        rows = []
        for action in [each for each in actions if each.action_id not in self.actions]:
            known = ActionRow.of(action, len(self.actions), anchor=first)
            self.actions[known.action] = known
            rows.append((known.key, encode_row(known)))
        wanted = tuple(dict.fromkeys(a.action_id for a in actions))
        row = OfferRow(
            seq=self.seq,
            actions=wanted,
            price_factors=dict(price_factors or {}),
            unit=self.unit,
            baseline=baseline,
        )
        offer(self.policy, row, self.actions)
        if (wanted, row.price_factors, baseline) != (self.offered, self.price_factors, self.baseline):
            rows.append((row.key, encode_row(row)))
            self.offered, self.price_factors, self.baseline = wanted, row.price_factors, baseline
        return rows

    def decide(
        self,
        asked: Sequence[tuple[QueryContext, Origin]],
        rows: Rows,
        environment: DecisionEnvironment,
        timer: Timer = untimed,
    ) -> list[Decided]:
        """Choose an action for each Context.

        Args:
            asked: Contexts with their origins, in offset order.
            rows: The table.
            environment: Catalogue, objectives and living executors.
            timer: Measures how long the choice takes. Decisions record this, and nothing else depends on it.
        """
        results: dict[int, Decided] = {}
        fresh: dict[str, tuple[int, QueryContext, Origin]] = {}
        repeated: list[tuple[int, QueryContext]] = []
        for at, (context, origin) in enumerate(asked):
            if (value := rows(context.query_id)) is not None:
                results[at] = resend_decision(context, value)
            elif (place := self.ended.find(context.query_id)) is not None:
                results[at] = reject_ended(context, place)
            elif context.query_id in fresh:
                repeated.append((at, context))
            else:
                fresh[context.query_id] = (at, context, origin)
        places, records = [at for at, _, _ in fresh.values()], [(c, o) for _, c, o in fresh.values()]
        results |= zip(places, self._decide_fresh(records, environment, timer), strict=True)
        for at, context in repeated:
            first = results[fresh[context.query_id][0]]
            results[at] = resend_decision(context, first.row[1]) if first.row else first
        return [results[at] for at in range(len(asked))]

    def learn(self, rewards: Sequence[tuple[Reward, int]], rows: Rows) -> list[Learned]:
        """Apply each reward once.

        Args:
            rewards: Rewards with their offsets, in offset order.
            rows: The table.
        """
        # Compute every row before changing anything.
        newer: dict[str, Row] = {}
        results: list[Learned] = []
        moves: list[Move] = []
        for reward, offset in rewards:
            try:
                verdict, found = self._applied(reward, offset, newer, rows, self.seq + len(moves))
            except DeciderError as error:
                results.append(Learned(reward.query_id, error=error))
                continue
            moves += found
            newer |= {move.row.name: move.row for move in found}
            results.append(
                Learned(
                    reward.query_id,
                    verdict,
                    tuple(move.row.name for move in found if move.row.stage in ENDED),
                    tuple((move.row.key, encode_row(move.row)) for move in found),
                )
            )
        self._tell(moves)
        self.seq += len(moves)
        self.reward_offset = max([self.reward_offset, *(move.row.reward_offset for move in moves)])
        self.verdicts.update(each.verdict for each in results if each.verdict is not None)
        if moves and (estimated := self._estimated()):
            last = max(at for at, each in enumerate(results) if each.rows)
            results[last] = replace(results[last], rows=results[last].rows + estimated)
        return results

    def follow(
        self,
        failures: Sequence[Failure],
        rows: Rows,
        environment: DecisionEnvironment,
        *,
        attempts: int,
        timer: Timer = untimed,
    ) -> list[Followed]:
        """Close the row of each failed attempt, and decide again for its query without the models that failed.

        Args:
            failures: The failures, in offset order.
            rows: The table.
            environment: Catalogue, objectives and living executors.
            attempts: Maximum attempts at a query.
            timer: As for `decide`.
        """
        made: dict[bytes, bytes] = {}
        results: list[Followed] = []
        for failure in failures:

            def newer(name: str) -> bytes | None:
                return made.get(name.encode()) or rows(name)

            try:
                results.append(self._follow(failure, newer, environment, attempts, timer))
            except DeciderError as error:
                results.append(Followed(failure.record.query_id, error=error))
            made.update(results[-1].rows)
        return results

    def recover(
        self, log: Records, snapshots: Records = (), *, whole: bool = True, without: Collection[bytes] = ()
    ) -> Recovered:
        """Rebuild the learner from its log; call once, before anything else.

        Records that the learner cannot have written are skipped. If one of them has replaced a row, a sequence number
        will be missing.

        Args:
            log: Every key and value of the log, in any order, starting at the offset that the snapshots name.
            snapshots: Every key and value of the snapshots' topic.
            whole: Whether to reject a log in which a sequence number is missing.
            without: Keys of open rows of the snapshot to leave out.

        Raises:
            CorruptState: A row comes from another release; a sequence number has no row, or two; or rows have been
                removed and no snapshot that replaces them is complete.
        """
        restored = restore(
            self.policy, log, snapshots, self.ended, whole=whole, without=without, unit=self.unit
        )
        self.seq, self.clock = restored.seq, restored.clock
        self.context_offset, self.reward_offset = restored.context_offset, restored.reward_offset
        self.failure_offset = restored.failure_offset
        self.actions, self.offered = restored.actions, restored.offered.actions
        self.price_factors, self.baseline = restored.offered.price_factors, restored.offered.baseline
        self.prior, self.shares, self.ended = restored.prior, restored.shares, restored.ended
        self.sessions = restored.sessions
        return restored.found

    def begin(
        self,
        prior: bytes,
        actions: Sequence[ActionVector],
        chunk_bytes: int = snapshot.CHUNK_BYTES,
        cost_basis: Mapping[str, float | str] | None = None,
    ) -> list[tuple[bytes, bytes]]:
        """Start from a prior; return the records of snapshot -1, which must be written before anything else.

        Args:
            prior: A policy's state made from history.
            actions: The actions that will be available.
            chunk_bytes: Size of a chunk.
            cost_basis: The cost basis of these actions; None accepts any.

        Raises:
            PriorRefused: The prior does not fit this learner; nothing has changed.
            CorruptState: The bytes are damaged, or the log is not empty.
        """
        if self.seq or self.actions:
            raise CorruptState("the log", f"sequence number {self.seq}", "an empty log to start from a prior")
        if cost_basis is not None:
            require_cost_basis(prior, cost_basis)
        begin(self.policy, prior, actions)
        self.prior = hashlib.sha256(prior).hexdigest()
        self.shares = TeachingShares(outcomes_of(prior))
        return self.snapshot(chunk_bytes, prior=self.prior)

    def snapshot(
        self,
        chunk_bytes: int = snapshot.CHUNK_BYTES,
        prior: str = "",
        carried: snapshot.Carried | None = None,
        present: Collection[bytes] = (),
    ) -> list[tuple[bytes, bytes]]:
        """Return the records of a snapshot of the current state, in the order in which they must be written.

        Args:
            chunk_bytes: Size of a chunk.
            prior: SHA-256 of the prior, if this is the snapshot of one.
            carried: Everything except the policy's state; None for a snapshot that needs the whole log, such as a
                prior.
            present: Keys of the snapshot records that already exist.
        """
        names = ("context_offset", "reward_offset", "failure_offset")
        offsets = {name: getattr(self, name) for name in names}
        written = snapshot.write(
            self.policy.state(),
            version=self.seq - 1,
            clock=self.clock,
            **offsets,
            chunk_bytes=chunk_bytes,
            prior=prior,
            taught=self.shares.window(),
            sessions=self.sessions.turns(),
            carried=carried,
            present=present,
        )
        return list(written)

    def _decide_fresh(
        self, asked: Sequence[tuple[QueryContext, Origin]], environment: DecisionEnvironment, timer: Timer
    ) -> list[Decided]:
        step = 1 if self.policy.traits.counts_decisions else max(1, len(asked))
        results: list[Decided] = []
        for start in range(0, len(asked), step):
            part = asked[start : start + step]
            try:
                made = self._decisions(part, environment, timer)
            except UniscaleError as error:
                if len(part) == 1:
                    results.append(Decided(part[0][0].query_id, error=error))
                else:
                    for one in part:
                        results += self._decide_fresh([one], environment, timer)
                continue
            # All rows have been validated. From here on, no error is due to a record.
            tell(self.policy, "decided", [row for _, row in made])
            self.seq += len(made)
            self.clock += len(made)
            self.context_offset = max([self.context_offset, *(origin.offset for _, origin in part)])
            for _, row in made:
                self.sessions.add(row.turn)
            results += [decided for decided, _ in made]
        return results

    def _estimated(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return rows with the estimates that the policy has made since the last call."""
        size = min(REFIT_BYTES, self.limit // 2)
        found = [
            row
            for outcomes, result in self.policy.refits.results.items()
            for row in refit_rows(outcomes, result, self.seq - 1, size)
        ]
        self.policy.refits.results.clear()
        return tuple((row.key, encode_row(row)) for row in found)

    def _applied(
        self, reward: Reward, offset: int, newer: Mapping[str, Row], rows: Rows, seq: int
    ) -> tuple[Verdict, list[Move]]:
        """Return the verdict on a reward, and the rows that it changes, of its own attempt and of later attempts."""
        query_id, attempt = reward.query_id, reward.attempt
        name = attempt_id(query_id, attempt)
        row = newer.get(name) or self._row(name, rows)
        verdict: Verdict = "late"
        moves: list[Move] = []
        if row is not None or self.ended.find(query_id) is None:
            self._checked(row)
            verdict, move = applied(row, reward, offset, seq, self.rules, self.shares)
            moves += [] if move is None else [move]
        # A search that ran twice may have failed once and answered once. The attempt after the failure is then void.
        while reward.closes:
            attempt += 1
            name = attempt_id(query_id, attempt)
            if (later := newer.get(name) or self._row(name, rows)) is None:
                break
            if later.stage not in ENDED:
                self._checked(later)
                moves.append(superseded(later, offset, seq + len(moves)))
        return verdict, moves

    def _follow(
        self, failure: Failure, rows: Rows, environment: DecisionEnvironment, attempts: int, timer: Timer
    ) -> Followed:
        record, context = failure.record, failure.context
        query_id, attempt = record.query_id, record.attempt
        next_ = self._row(attempt_id(query_id, attempt + 1), rows)
        if next_ is not None:  # the failure was delivered before
            if context is None:
                return Followed(query_id)
            decision = with_question(bytes(next_.decision), context.query)
            return Followed(query_id, encode(decision), decision.group)
        row = self._row(attempt_id(query_id, attempt), rows)
        if row is None:
            # After a reset, the log has no row for the query, but the query must still get an Answer.
            return Followed(query_id, answer=None if self.ended.find(query_id) else record.answer)
        if row.failure_offset == failure.offset:
            return Followed(query_id, answer=record.answer)
        if not affects(row, record):
            return Followed(query_id)  # its query has been answered, or the record is a copy
        self._checked(row)
        before = Before.of(decode(bytes(row.decision), Decision), failure)
        move = failed(row, failure, self.seq, self.shares, learn=before.decision.query.learn)
        self._tell([move])
        self.seq += 1
        self.failure_offset = max(self.failure_offset, failure.offset)
        ended = ((row.key, encode_row(move.row)), *self._estimated())
        possible = failure.in_time and attempt < attempts
        made = self._again(row, failure.context, before, environment, timer) if possible else None
        if made is None or made.row is None:
            return Followed(query_id, answer=record.answer, rows=ended)
        return Followed(query_id, made.value, made.group, rows=(*ended, made.row))

    def _again(
        self,
        row: Row,
        context: QueryContext | None,
        before: Before,
        environment: DecisionEnvironment,
        timer: Timer,
    ) -> Decided | None:
        """Return the next Decision for the query of an attempt that failed; None if there can be none."""
        if context is None or context.query.pinned is not None or not before.affordable(context.query):
            return None
        try:
            usable = {environment.space[at].model for at in environment.choices(context.query)}
            excluded = before.left_out(environment.control.catalogue, usable)
            asked = [(context, row.context_origin)]
            [(made, next_)] = self._decisions(asked, replace(environment, excluded=excluded), timer, before)
        except UniscaleError:  # no other model can take it now
            return None
        tell(self.policy, "decided", [next_])
        self.sessions.add(next_.turn)
        self.seq += 1
        self.clock += 1
        return made

    def _decisions(
        self,
        asked: Sequence[tuple[QueryContext, Origin]],
        environment: DecisionEnvironment,
        timer: Timer,
        before: Before | None = None,
    ) -> list[tuple[Decided, Row]]:
        """Return what `decisions` returns for the current state, without changing the state."""
        return decisions(
            self.policy,
            asked,
            environment,
            seq=self.seq,
            clock=self.clock,
            seed=self.seed,
            encoder=self.encoder,
            price_factors=self.price_factors,
            limit=self.limit - GROWTH,
            timer=timer,
            before=before,
            baseline=self.baseline,
            sessions=self.sessions,
        )

    def _row(self, name: str, rows: Rows) -> Row | None:
        value = rows(name)
        if value is None:
            return None
        row = decode_row(name.encode(), value)
        return row if isinstance(row, Row) else None

    def _checked(self, row: Row | None) -> None:
        """Reject a row with an action that is not in the log, before changing anything."""
        if row is not None and row.action not in self.actions:
            raise CorruptState(f"row {row.query_id!r} action", row.action, "an action row of that id")

    def _tell(self, moves: Sequence[Move]) -> None:
        """Update the policy in order, batching consecutive moves of the same kind."""
        for kind, group in groupby(moves, key=attrgetter("what")):
            tell(self.policy, kind, [move.row for move in group])
