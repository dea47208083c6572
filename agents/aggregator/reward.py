"""The composite reward (Eq. 4): r = w₁·Correct + w₂·Score + w₃·(1 − C̃), with C̃ the min–max of log C.

C̃ is never clipped: an exact change of weights or bounds needs the reward linear in log C. The raw terms
always go with the scalar, so that any other objective can be applied to them later.
"""

import math
from typing import Literal

from agents.aggregator.row import Opened, Valued
from schemas.objective import CostRange, ObjectiveInForce
from schemas.query import Weights
from schemas.reward import Kind, Reward, reward_id


def normalised_cost(log_cost: float, cost_range: CostRange) -> float:
    """Return C̃: 0 at the lower bound, 1 at the upper, unclipped beyond (§3.4).

    Args:
        log_cost: Natural logarithm of the eFLOPs.
        cost_range: The bounds, in eFLOPs.

    >>> normalised_cost(math.log(1e14), CostRange(low_eflops=1e12, high_eflops=1e16))
    0.5
    """
    low, high = math.log(cost_range.low_eflops), math.log(cost_range.high_eflops)
    return (log_cost - low) / (high - low)


def composite_reward(
    correct: float, score: float, log_cost: float, weights: Weights, cost_range: CostRange
) -> float:
    """Return r (Eq. 4).

    Args:
        correct: 1, 0 or a grade between.
        score: V(y*), the chosen path's mean score.
        log_cost: Natural logarithm of the eFLOPs.
        weights: Convex: `Weights` normalises them.
        cost_range: What C̃ is normalised by.
    """
    objective = ObjectiveInForce(weights=weights, cost_range=cost_range)
    return objective.reward(correct, score, log_cost)


def sparse_reward(correct: float, log_cost: float, weights: Weights, cost_range: CostRange) -> float:
    """Return the reward without dense feedback: (w₁ + w₂)·Correct + w₃·(1 − C̃), for the ablation."""
    return composite_reward(correct, correct, log_cost, weights, cost_range)


def reward_of(
    query_id: str,
    kind: Kind,
    opened: Opened,
    valued: Valued,
    answered_ms: int | None,
    correct: float | None,
    graded_by: Literal["", "reference", "feedback"],
) -> Reward:
    """Return the Reward record of one stage, its scalar where no term is missing."""
    log_cost = math.log(valued.price.eflops) if valued.price is not None else None
    return Reward(
        reward_id=reward_id(query_id, kind),
        query_id=query_id,
        kind=kind,
        seq=opened.seq,
        action=opened.action,
        status=valued.status,
        correct=correct,
        score=valued.score,
        log_cost=log_cost,
        price=valued.price,
        objective=opened.objective,
        reward=_scalar(correct, valued.score, log_cost, opened.objective),
        graded_by=graded_by,
        grader=valued.grader if graded_by == "reference" else "",
        latency_s=(answered_ms - opened.appended_ms) / 1000 if answered_ms is not None else None,
    )


def _scalar(
    correct: float | None, score: float | None, log_cost: float | None, objective: ObjectiveInForce
) -> float | None:
    if correct is None or score is None or log_cost is None:
        return None
    return objective.reward(correct, score, log_cost)
