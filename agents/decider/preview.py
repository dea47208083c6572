"""What the policy would choose for a query now, with every configuration's predicted terms. No state changes.

A preview draws its randomness from one fixed id, `PREVIEW`, so it neither affects any query's draws nor reveals which
ids belong to the control group. The randomisation around the policy (warm-up, exploration floor, control group)
shows up in the propensities instead.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec import Struct

from agents.bandit.learner import predictions
from agents.bandit.policy import ActionVector, Contribution, Drift, Objective, Target
from agents.decider.decider import Decider
from agents.decider.decisions import policy_context, predicted_of, resolve_objective
from agents.decider.eligibility import DecisionEnvironment
from schemas.chat import Requirement
from schemas.decision import PolicyState, Predicted
from schemas.objective import ObjectiveInForce
from schemas.prices import Rate
from schemas.query import Query, QueryContext

PREVIEW: Final = "preview"
"""The query id used to score previews."""


class Configuration(Struct, frozen=True, kw_only=True):
    """One configuration as the policy sees it for a query.

    Attributes:
        action: The configuration's id, `model/qp/cp/bs`.
        mean: Predicted reward.
        width: Uncertainty of the prediction: α·√(xᵀA⁻¹x), or the policy's equivalent.
        score: The value used to rank actions.
        propensity: Probability that such a query runs it; None if unknown.
        predicted: The predicted terms, if the policy models them.
    """

    action: str
    mean: float
    width: float
    score: float
    propensity: float | None = None
    predicted: Predicted | None = None


class Preview(Struct, frozen=True, kw_only=True):
    """What would be chosen.

    Attributes:
        action: The policy's preferred action.
        group: The executor group that would run it.
        reason: `pinned` if the query leaves no choice; `warm-up` while actions are still drawn at random; `baseline`
            until the policy has learned from a graded answer; otherwise `policy`.
        seq: Sequence number of the next decision.
        objective: The query's objective, including λ.
        shortfall: The closest feasible value if the objective's target cannot be met on recent queries: the smallest
            mean cost, or the largest share of the achievable accuracy. None if it can be met.
        policy: Name and version of the policy.
        prior: Digest of the prior that the learner began from; empty if it began without one.
        catalogue_version: Offset in `control` of the last change to the catalogue.
        masked_models: Models excluded because no executor serves them.
        short_models: Models excluded because their context may be too short for the question and an answer.
        required: The query's requirements on a configuration.
        unable_models: Models excluded because they do not meet these requirements.
        served: Whether a live executor serves a model that the query allows; otherwise the query waits for one.
        configurations: All available configurations, by descending score.
        contributions: Parts of the action's predicted accuracy, by model term; empty if the model has no parts.
        drifted: Models whose latest outcomes show drift.
        features: The request's categories.
    """

    action: str
    group: str
    reason: Literal["policy", "warm-up", "pinned", "baseline", "session"]
    seq: int
    objective: ObjectiveInForce
    policy: PolicyState
    catalogue_version: int
    masked_models: tuple[str, ...]
    short_models: tuple[str, ...]
    served: bool
    configurations: tuple[Configuration, ...]
    required: tuple[Requirement, ...] = ()
    unable_models: tuple[str, ...] = ()
    shortfall: float | None = None
    contributions: tuple[Contribution, ...] = ()
    drifted: dict[str, Drift] = {}
    features: tuple[str, ...] = ()
    prior: str = ""


def anonymous(query: Query) -> Query:
    """Return a copy of a query under the id used by previews."""
    return msgspec.structs.replace(query, query_id=PREVIEW)


def preview(decider: Decider, record: QueryContext, environment: DecisionEnvironment) -> Preview:
    """Return what would be chosen for a context.

    Args:
        decider: The learner, which is not changed.
        record: The context; its query comes from `anonymous`.
        environment: The catalogue, objectives and live executors.

    Raises:
        UniscaleError: Any error that the query itself would be rejected with.
    """
    policy = decider.policy
    shadow_price = policy.pacer.shadow_price if policy.pacer else None
    objective = resolve_objective(record, environment, policy.name, shadow_price)
    surface, baseline = policy.traits.surface, decider.offered.baseline
    keeps = environment.session_action(record, decider.sessions)
    context = policy_context(
        record, environment, decider.encoder, surface, baseline=baseline, session_action=keeps
    )
    (of,) = predictions(policy, [context], [Objective.of(objective)], decider.seed)
    terms = of.terms and of.terms()
    # A draw by the floor or the control group is not the policy's choice.
    chosen = of.chosen if of.reason in ("policy", "baseline") else int(np.argmax(of.score))
    found = [
        Configuration(
            action=action,
            mean=float(of.mean[at]),
            width=float(of.width[at]),
            score=float(of.score[at]),
            propensity=None if of.probability is None else float(of.probability[at]),
            predicted=predicted_of(None if terms is None else terms[at].tolist()),
        )
        for at, action in enumerate(of.action_ids)
    ]
    action, target = found[chosen].action, Target.of(objective, record.query.account)
    living, catalogue = environment.living, environment.control.catalogue
    drawn = of.reason if of.reason in ("warm-up", "baseline") else "policy"
    return Preview(
        action=action,
        group=catalogue.model(action.partition("/")[0]).group,
        reason="pinned" if record.query.pinned is not None else "session" if keeps else drawn,
        seq=decider.seq,
        objective=objective,
        policy=PolicyState(name=policy.name, version=policy.version),
        catalogue_version=catalogue.version,
        masked_models=environment.masked_models(),
        short_models=tuple(sorted(environment.short_models(record.query))),
        required=environment.required(record.query),
        unable_models=environment.unable_models(record.query),
        served=living is not None,
        configurations=tuple(sorted(found, key=lambda each: (-each.score, each.action != action))),
        shortfall=None if target is None or policy.pacer is None else policy.pacer.shortfall(target),
        contributions=tuple(policy.explain(context, action)),
        drifted=dict(policy.drifted()),
        features=context.categories,
        prior=decider.prior,
    )


def offering(
    decider: Decider,
    actions: Sequence[ActionVector],
    price_factors: Mapping[str, Rate],
    baseline: str = "",
    *,
    mixed: bool = False,
) -> Decider:
    """Return a learner for previews that has these actions available before the real learner does.

    It has its own copy of the policy and shares the rest. Use it for previews only, and only until the learner changes.
    """
    other = replace(decider, policy=copy.deepcopy(decider.policy), actions=dict(decider.actions))
    other.offer(actions, price_factors, baseline, mixed=mixed)
    return other
