"""From Contexts to Decisions, each with its row in the learner's log.

A Context becomes the policy's input, the policy makes a choice, and the choice becomes the Decision on the wire.
Nothing here changes the learner, which counts and logs the results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np

from agents.bandit.errors import DuplicateQuery, InvalidObservation, UnservedObjective
from agents.bandit.features import counts
from agents.bandit.learner import choose
from agents.bandit.policy import Choice, Context, Objective, Policy, Target
from agents.decider.categories import categories_of
from agents.decider.eligibility import DecisionEnvironment
from agents.decider.failed_attempts import PreviousAttempts
from agents.decider.rows import Row, decode_row, encode_row, with_question, without_question
from agents.decider.sessions import Sessions, session_of, without_propensity
from schemas.action import Action
from schemas.decision import MAX_SEED, Decision, PolicyState, Predicted, ScoredAction
from schemas.errors import InvalidField, RecordTooLarge, UniscaleError
from schemas.failure import attempt_id
from schemas.objective import UNITS, CostUnit, ObjectiveInForce
from schemas.prices import Prices, Rate
from schemas.query import Origin, Query, QueryContext
from schemas.record import encode

Timer = Callable[[], float]
"""Returns monotonic time in seconds."""


def untimed() -> float:
    """Return 0. This is the timer when decisions are not timed."""
    return 0.0


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """The result for one Context: a Decision to send, or the error for its dead letter.

    Attributes:
        value: The Decision's bytes; None on an error, or if the query has ended and its row has left the log.
        group: The executor group that is sent the Decision, in addition to the topic `action-decision`.
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
    previous: PreviousAttempts | None = None,
    baseline: str = "",
    sessions: Sessions,
) -> list[tuple[DecisionResult, Row]]:
    """Return a Decision for each Context, all made from the same policy state, with their rows.

    Args:
        policy: The policy. It is not updated with its choices here.
        asked: New Contexts with their origins, in offset order.
        environment: The catalogue, objectives and live executors.
        seq: Sequence number of the first Decision; the others follow consecutively.
        clock: Number of decisions before the first.
        seed: The decider's seed.
        encoder: Id of the encoder used for the action vectors; empty accepts any.
        price_factors: Each model's price, as known to the policy; a model not listed costs 1 per eFLOP.
        limit: Maximum row size, in bytes.
        timer: Measures how long the choice takes; each Decision records this time.
        previous: What a further attempt inherits from those before it; None for first attempts.
        baseline: The action to take until the policy has learned from a graded answer; empty for none.
        sessions: The last turn of each session.

    Raises:
        UniscaleError: One of the Contexts must be rejected, regardless of the others.
    """
    began_s = timer()
    # All decisions are made from the same state, so they share its shadow prices.
    shadow_price = cache(policy.pacer.shadow_price) if policy.pacer else None
    attempt = 1 if previous is None else previous.decision.attempt + 1
    objectives = [
        resolve_objective(record, environment, policy.name, shadow_price)
        if previous is None
        else previous.decision.objective
        for record, _ in asked
    ]
    session_actions = [
        environment.session_action(record, sessions) if previous is None else "" for record, _ in asked
    ]
    contexts = [
        policy_context(record, environment, encoder, policy.traits.surface, attempt, baseline, action)
        for (record, _), action in zip(asked, session_actions, strict=True)
    ]
    chosen = choose(policy, contexts, [Objective.of(o) for o in objectives], seed)
    choices = [
        without_propensity(each) if action else each
        for each, action in zip(chosen, session_actions, strict=True)
    ]
    decide_s = timer() - began_s
    made = []
    for i, ((record, origin), objective, choice) in enumerate(zip(asked, objectives, choices, strict=True)):
        decision = build_decision(
            record,
            choice,
            objective,
            environment,
            policy=policy.name,
            seq=seq + i,
            seed=seed,
            price_factors=price_factors,
            decide_s=decide_s,
            previous=previous,
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
        made.append((DecisionResult(record.query_id, value, decision.group, stored), row))
    return made


def resolve_objective(
    record: QueryContext,
    environment: DecisionEnvironment,
    policy: str,
    shadow_price: Callable[[Target], float] | None,
) -> ObjectiveInForce:
    """Return a Context's objective, with its target's shadow price λ.

    Args:
        record: The Context.
        environment: The environment with the known objectives.
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
    """Reject a budget that is not in the unit of costs, because it cannot be enforced.

    Raises:
        InvalidField: The budget is in the other unit. The message names the field and the fix.
    """
    other: CostUnit = "eflops" if unit == "usd" else "usd"
    if query.budget is not None and getattr(query.budget, other) is not None:
        why = f"is given, but costs are in {UNITS[unit]}; give budget.{unit}, or budget.tokens"
        raise InvalidField("Query", f"budget.{other}", why)


def policy_context(
    record: QueryContext,
    environment: DecisionEnvironment,
    encoder: str = "",
    surface: bool = False,
    attempt: int = 1,
    baseline: str = "",
    session_action: str = "",
) -> Context:
    """Return the policy's input for a Context record.

    Args:
        record: The record.
        environment: The catalogue, objectives and live executors.
        encoder: Id of the encoder used for the action vectors; empty accepts any.
        surface: Whether to append the question's surface counts to the embedding.
        attempt: Attempt number, 1 for the first.
        baseline: As for `decisions`.
        session_action: The configuration that the query keeps from its session; empty if the choice is free.

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
    if session_action:
        allowed = frozenset({session_action})
    vector = np.frombuffer(record.embedding, dtype="<f4").astype(np.float64)
    if surface:
        vector = np.concatenate([vector, counts(record.query.question)])
    name = attempt_id(record.query_id, attempt)
    shown = categories_of(record.query, environment.context_keys)
    return Context(name, vector, allowed, drawn=attempt == 1, baseline=baseline, categories=shown)


def build_decision(
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
    previous: PreviousAttempts | None = None,
    features: tuple[str, ...] = (),
) -> Decision:
    """Return the Decision for a choice, with every term that explains it.

    Args:
        record: The Context.
        choice: The policy's choice.
        objective: The current objective.
        environment: The catalogue, objectives and live executors at the time.
        policy: The policy's name.
        seq: Sequence number among decisions and updates.
        seed: The decider's seed; the query's seed is derived from it.
        price_factors: Each model's price, as known to the policy; a model not listed costs 1 per eFLOP.
        decide_s: Time taken by the choice, in seconds.
        previous: As for `decisions`.
        features: The request's categories.
    """
    attempt = 1 if previous is None else previous.decision.attempt + 1
    action = Action.parse(choice.action_id)
    catalogue = environment.control.catalogue
    pinned = record.query.pinned is not None
    by_policy = not pinned and choice.reason not in ("warm-up", "control", "baseline", "session")
    rate = price_factors.get(action.model, 1.0)
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
        predicted=predicted_of(choice.predicted),
        runners_up=tuple(
            ScoredAction(
                action=c.action_id,
                mean=c.mean,
                width=c.width,
                score=c.score,
                predicted=predicted_of(c.predicted),
            )
            for c in choice.runners_up
        ),
        candidates=choice.candidates,
        masked_models=environment.masked_models(),
        short_models=tuple(sorted(environment.short_models(record.query))),
        required=environment.required(record.query),
        unable_models=environment.unable_models(record.query),
        reason="pinned" if pinned else choice.reason,
        cohort=choice.cohort if previous is None else previous.decision.cohort,
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
        earlier=() if previous is None else previous.earlier,
        features=features,
    )


def predicted_of(terms: Sequence[float] | None) -> Predicted | None:
    """Return predicted reward terms (Correct, Score, log C) as a record has them."""
    return None if terms is None else Predicted(correct=terms[0], score=terms[1], log_cost=terms[2])


def seed_of(seed: int, query: Query, attempt: int = 1) -> int:
    """Return an attempt's seed; the seeds of its steps and paths are derived from it.

    It depends on the decider's seed, the client's seed (or the query id if the client set none) and the attempt.

    >>> first, second = Query(query_id="q-1", text="Hm?", seed=7), Query(query_id="q-2", text="Hm?", seed=7)
    >>> seed_of(0, first) == seed_of(0, second) != seed_of(1, first)
    True
    """
    # Ids contain no spaces, so a client's seed never collides with another query's id.
    name = query.query_id if query.seed is None else f"seed {query.seed}"
    name = name if attempt == 1 else f"{name} attempt {attempt}"
    digest = hashlib.blake2b(f"{seed}\x1f{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED


# A Context whose query has already been decided: send the same Decision again, send nothing, or reject a duplicate.


def resend_decision(context: QueryContext, value: bytes) -> DecisionResult:
    """Return the result for a Context whose query has a row: the existing Decision, or DuplicateQuery."""
    row = decode_row(context.query_id.encode(), value)
    assert isinstance(row, Row)
    if row.query_origin != context.origin:
        return DecisionResult(
            context.query_id, error=DuplicateQuery(context.query_id, row.query_origin, context.origin)
        )
    decision = with_question(bytes(row.decision), context.query)
    return DecisionResult(context.query_id, encode(decision), decision.group)


def reject_ended(context: QueryContext, place: tuple[int, int]) -> DecisionResult:
    """Return the result for a Context whose query has ended and had its row removed: nothing, or DuplicateQuery."""
    partition, offset = place
    if (context.origin.partition, context.origin.offset) == place:
        return DecisionResult(context.query_id)
    first = Origin(topic=context.origin.topic, partition=partition, offset=offset)
    return DecisionResult(context.query_id, error=DuplicateQuery(context.query_id, first, context.origin))
