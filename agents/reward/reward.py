"""A query's reward: Equation 4 over its terms, as the Reward record for each stage.

A Reward always contains the raw terms as well as the scalar, so that any other objective can be applied later.
"""

import math

from agents.reward.join_row import DecisionInfo, JoinRow, ScoredAnswer
from schemas.objective import ObjectiveInForce
from schemas.reward import Charge, GradedBy, Kind, Reward, reward_id


def reward_of(
    row: JoinRow, kind: Kind, correct: float | None, graded_by: GradedBy, closed_early: bool = False
) -> Reward:
    """Return the Reward record for one stage of a query that has its Decision and Answer.

    The scalar is None if a term is missing.
    """
    decision, scored, answered_ms = row.decision, row.scored, row.answered_ms
    assert decision is not None
    assert scored is not None
    log_cost = math.log(scored.price.cost) if scored.price is not None else None
    alike = decision.verified == "all" and not scored.unscored
    score = scored.score if alike else correct
    return Reward(
        reward_id=reward_id(row.query_id, kind),
        query_id=row.query_id,
        kind=kind,
        seq=decision.seq,
        action=decision.action,
        status=scored.status,
        correct=correct,
        score=scored.score,
        log_cost=log_cost,
        price=scored.price,
        objective=decision.objective,
        reward=_scalar(correct, score, log_cost, decision.objective),
        graded_by=graded_by,
        grader=scored.grader if scored.correct is not None else "",
        rule=scored.rule if scored.correct is not None else "",
        latency_s=(answered_ms - decision.appended_ms) / 1000 if answered_ms is not None else None,
        fault=scored.fault,
        learn=decision.learn,
        bounded=scored.bounded,
        unscored=scored.unscored,
        charge=_charge(decision, scored),
        missing=scored.missing,
        closed_early=closed_early,
        verified=decision.verified,
        attempt=decision.attempt,
        earlier=decision.earlier,
    )


def _charge(decision: DecisionInfo, scored: ScoredAnswer) -> Charge | None:
    spent = scored.cut_cost + (0.0 if scored.price is None else scored.price.cost)
    spent += sum(each.cost for each in decision.earlier)
    if not decision.key or not spent:
        return None
    unit = decision.objective.cost_range.unit
    return Charge(key=decision.key, **{unit: spent})


def _scalar(
    correct: float | None, score: float | None, log_cost: float | None, objective: ObjectiveInForce
) -> float | None:
    if correct is None or score is None or log_cost is None:
        return None
    return objective.reward(correct, score, log_cost)


def substitute(row: JoinRow) -> GradedBy:
    """Return the substitute for unknown correctness: `score` if one verifier scores every model, otherwise empty."""
    assert row.decision is not None
    assert row.scored is not None
    return "" if row.scored.score is None or row.decision.verified != "all" else "score"
