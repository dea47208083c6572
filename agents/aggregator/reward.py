"""The Reward record of each stage: the raw terms, and the scalar under the objective in force.

The scalar is Equation 4, `ObjectiveInForce.reward`. The raw terms always go with it, so that any other
objective can be applied to them later.
"""

import math
from typing import Literal

from agents.aggregator.row import Opened, Valued
from schemas.objective import ObjectiveInForce
from schemas.reward import Kind, Reward, reward_id


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
        fault=valued.fault,
        learn=opened.learn,
        bounded=valued.bounded,
        missing=valued.missing,
    )


def _scalar(
    correct: float | None, score: float | None, log_cost: float | None, objective: ObjectiveInForce
) -> float | None:
    if correct is None or score is None or log_cost is None:
        return None
    return objective.reward(correct, score, log_cost)
