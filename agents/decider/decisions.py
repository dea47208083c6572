"""From Context records to Decisions, each with the row that it leaves in the learner's log.

A Context becomes the policy's input, the policy chooses, and the choice becomes the Decision on the wire. Nothing here
changes the learner: it counts and logs what is returned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from agents.decider.errors import InvalidObservation, UnservedObjective
from agents.decider.log.rows import Row, aim_of, encode_row, policy_objective
from agents.decider.policies.base import Choice, Context
from agents.decider.policies.policy import Policy
from agents.decider.results import Decided
from agents.decider.surface import counts
from agents.space.action_space import ActionSpace
from agents.space.steering import Steering
from schemas.action import Action
from schemas.base import encode
from schemas.context import Context as ContextRecord
from schemas.decision import MAX_SEED, Candidate, Decision, PolicyState, Predicted
from schemas.objective import ObjectiveInForce
from schemas.query import Origin, Query


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a decision depends on, besides the query and the policy.

    Attributes:
        steering: Catalogue and objectives in force.
        space: The actions of that catalogue.
        living: Models with a recent executor heartbeat; None takes all to be running.
    """

    steering: Steering
    space: ActionSpace
    living: frozenset[str] | None = None


def choose(
    policy: Policy,
    asked: Sequence[tuple[ContextRecord, Origin]],
    around: Surroundings,
    *,
    seq: int,
    clock: int,
    seed: int,
    encoder: str,
    price_factors: Mapping[str, float],
    limit: int,
) -> list[tuple[Decided, Row]]:
    """Return a Decision for each Context, all made from one state of the policy, with their rows.

    Args:
        policy: The policy, which is not told yet what it chose.
        asked: New Contexts with their origins, in offset order.
        around: What can be chosen now.
        seq: Sequence number of the first Decision; those of the others follow.
        clock: Decisions made before the first.
        seed: The decider's seed.
        encoder: Id of the encoder of the action vectors; empty accepts any.
        price_factors: What an eFLOP costs on each model where that is not 1, as the policy knows it.
        limit: Most bytes of a row.

    Raises:
        UniscaleError: One of them must be refused, whatever the others are.
    """
    objectives = [in_force(record, around, policy) for record, _ in asked]
    contexts = [context_of(record, around, encoder, policy.surface) for record, _ in asked]
    choices = policy.select(contexts, [policy_objective(o) for o in objectives], seed)
    made = []
    for i, ((record, origin), objective, choice) in enumerate(zip(asked, objectives, choices, strict=True)):
        decision = decision_of(
            record, choice, objective, around,
            policy=policy.name, seq=seq + i, seed=seed, price_factors=price_factors,
        )  # fmt: skip
        value = encode(decision)
        row = Row(
            query_id=record.query_id,
            seq=decision.seq,
            clock=clock + i,
            action=choice.action_id,
            embedding=contexts[i].embedding.astype("<f4").tobytes(),
            objective=decision.objective,
            query_origin=record.origin,
            context_origin=origin,
            decision=msgspec.Raw(value),
            batch=seq,
            paced=choice.cohort == "policy" and record.query.learn and record.query.pinned is None,
        )
        stored = (record.query_id.encode(), encode_row(row, limit))
        made.append((Decided(record.query_id, value, decision.group, stored), row))
    return made


def in_force(record: ContextRecord, around: Surroundings, policy: Policy) -> ObjectiveInForce:
    """Return the objective of a Context, with the policy's price λ of its aim.

    Raises:
        ObjectiveError: It names an objective that does not exist.
        UnservedObjective: It states a mean cost or an accuracy, and the policy cannot aim at either.
    """
    objective = around.steering.objectives.of(record.query)
    aim = aim_of(objective)
    if aim is None:
        return objective
    if not policy.paces:
        raise UnservedObjective(record.query_id, objective.aim, policy.name)
    return msgspec.structs.replace(objective, price=policy.price(aim))


def context_of(
    record: ContextRecord, around: Surroundings, encoder: str = "", surface: bool = False
) -> Context:
    """Return a Context as the policy takes it.

    Args:
        record: The record.
        around: What can be chosen now.
        encoder: Id of the encoder of the action vectors; empty accepts any.
        surface: Whether surface counts of the question follow the embedding.

    Raises:
        InvalidObservation: The embedding comes from another encoder.
        ActionError: The pin, the allowed models and the running executors together leave no action.
    """
    if encoder and record.encoder != encoder:
        fix = f"embed the query with {encoder!r}"
        raise InvalidObservation(record.query_id, "encoder", record.encoder, fix)
    query = record.query
    indices = around.space.choices(
        pinned=query.pinned,
        allowed_models=query.allowed_models,
        available_models=around.living,
        answers=query.n,
    )
    allowed = None
    if len(indices) < len(around.space):
        allowed = frozenset(around.space[i].id for i in indices)
    vector = np.frombuffer(record.embedding, dtype="<f4").astype(np.float64)
    if surface:
        vector = np.concatenate([vector, counts(query.question)])
    return Context(record.query_id, vector, allowed)


def decision_of(
    record: ContextRecord,
    choice: Choice,
    objective: ObjectiveInForce,
    around: Surroundings,
    *,
    policy: str,
    seq: int,
    seed: int,
    price_factors: Mapping[str, float],
) -> Decision:
    """Return the Decision for a choice, with every term that explains it.

    Args:
        record: The Context.
        choice: What the policy chose.
        objective: The objective in force.
        around: What could be chosen.
        policy: The policy's name.
        seq: Sequence number among decisions and updates.
        seed: The decider's seed, from which the query's seed derives.
        price_factors: What an eFLOP costs on each model where that is not 1, as the policy knew it.
    """
    action = Action.parse(choice.action_id)
    catalogue, living = around.steering.catalogue, around.living
    pinned = record.query.pinned is not None
    by_policy = not pinned and choice.reason not in ("warm-up", "control")
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
        seed=seed_of(seed, record.query),
        objective=objective,
        policy=PolicyState(name=policy, version=choice.version),
        catalogue_version=catalogue.version,
        mean=choice.mean if by_policy else None,
        width=choice.width if by_policy else None,
        score=choice.score if by_policy else None,
        predicted=predicted,
        runners_up=tuple(
            Candidate(action=c.action_id, mean=c.mean, width=c.width, score=c.score)
            for c in choice.runners_up
        ),
        candidates=choice.candidates,
        masked_models=() if living is None else tuple(m for m in around.space.models if m not in living),
        reason="pinned" if pinned else choice.reason,
        cohort=choice.cohort,
        randomised=choice.randomised,
        propensity=choice.propensity,
        propensity_draws=choice.propensity_draws,
        propensity_error=choice.propensity_error,
        appended_ms=record.appended_ms,
        price_factor=price_factors.get(action.model, 1.0),
    )


def seed_of(seed: int, query: Query) -> int:
    """Return the seed of one query, from which those of its steps and paths derive: from the client's, or from its id.

    >>> first, second = Query(query_id="q-1", text="Hm?", seed=7), Query(query_id="q-2", text="Hm?", seed=7)
    >>> seed_of(0, first) == seed_of(0, second) != seed_of(1, first)
    True
    """
    # No id has a space, so a client's seed never meets the id of another query.
    name = query.query_id if query.seed is None else f"seed {query.seed}"
    digest = hashlib.blake2b(f"{seed}\x1f{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED
