"""How a reward changes its decision's row.

x enters A once, with the first reward that anything can be learned from. A reward that is repeated, late or without a
row changes nothing.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
from msgspec import Struct

from agents.bandit.policy import (
    check_log_cost,
    check_outcome,
    check_share,
)
from agents.decider.rows import ENDED, EventKind, Row
from agents.decider.shares import TeachingShares
from schemas.reward import Reward

Verdict = Literal[
    "learned",
    "corrected",
    "closed",
    "priced",
    "failed",
    "abandoned",
    "duplicate",
    "differs",
    "late",
    "orphan",
    "unlearnable",
]


class RewardRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to learn from a reward without correctness.

    Attributes:
        impute: Value used for Correct until it is known: the path's `score`, or a constant from 0 to 1.
        default: What to do if correctness never becomes known: `impute` keeps the imputed value, `wrong` counts it as
            0, and `drop` ends a row that has not entered A without learning from it.
    """

    impute: Literal["score"] | float = "score"
    default: Literal["impute", "wrong", "drop"] = "impute"

    def __post_init__(self) -> None:
        """Reject a constant outside [0, 1]."""
        if self.impute != "score" and not 0.0 <= self.impute <= 1.0:
            raise ValueError(f"impute is {self.impute}; write score, or a number from 0 to 1")


class RowTransition(Struct, frozen=True):
    """The policy update caused by a reward."""

    what: EventKind
    row: Row


def apply_reward(
    row: Row | None, reward: Reward, offset: int, seq: int, rules: RewardRules, shares: TeachingShares
) -> tuple[Verdict, RowTransition | None]:
    """Return the verdict on a reward, and the changed row with its policy update.

    Args:
        row: The decision's row; None if there is none.
        reward: The reward.
        offset: The reward's offset in its topic.
        seq: The next sequence number, used by any returned transition.
        rules: How to learn from a reward without correctness.
        shares: The tenants of earlier outcomes. An outcome is added if it is learned or has weight 0.

    Raises:
        InvalidObservation: A term is out of range; nothing has changed.
    """
    if row is None or reward.seq != row.seq or reward.action.id != row.action:
        return "orphan", None
    if reward.kind in row.kinds:
        return "differs" if _differs(row, reward) else "duplicate", None
    if row.stage in ENDED or (reward.kind == "provisional" and row.stage == "learned"):
        return "late", None
    change: dict[str, Any] = {"kinds": (*row.kinds, reward.kind), "reward_offset": offset}
    if row.stage == "learned":
        return _resolved(row, reward, seq, rules, change)
    score = reward.score_learned
    log_cost = reward.log_cost if _countable(row, reward) else None
    if not (reward.learn or reward.closes):
        return "unlearnable", None
    if log_cost is not None:
        check_log_cost(row.query_id, log_cost)
    # The cost is charged to the tenant's account whether or not anything is learned.
    paid = {} if log_cost is None else {"paid": math.exp(log_cost)}
    if reward.failed:
        move = ended_by_failure(row, seq, change | paid, shares, at_fault=True, learn=reward.learn)
        return ("failed" if move.what == "failure" else "abandoned"), move
    if reward.closes and reward.cost_only and score is None:
        score = 0.0  # nothing is learned from it
    if score is None or log_cost is None:
        return _abandoned(row, seq, change | paid) if reward.closes else ("unlearnable", None)
    if reward.kind == "default" and rules.default == "drop" and not reward.cost_only:
        return _abandoned(row, seq, change | paid)
    imputed = score if rules.impute == "score" else float(rules.impute)
    correct = 0.0 if _counts_as_wrong(reward, rules) and not reward.cost_only else reward.correct
    check_outcome(row.query_id, correct, score, log_cost, imputed)
    if not (reward.learn and _weighed(row, shares, change)):
        return _abandoned(row, seq, change | paid | {"entered": correct})
    change |= {
        "score": score,
        "log_cost": log_cost,
        "imputed": imputed,
        "entered": correct,
        "correct": correct,
        "price_factor": _factor(reward),
        "tokens": _tokens(reward),
    }
    if reward.cost_only:
        return "priced", _transition("cost", row, {**change, "stage": "priced", "ended_seq": seq})
    change |= {"stage": "closed" if reward.closes else "learned", "learned_seq": seq}
    return "learned", _transition("reward", row, change)


def ended_by_failure(
    row: Row, seq: int, change: dict[str, Any], shares: TeachingShares, *, at_fault: bool, learn: bool
) -> RowTransition:
    """Return the final row of an attempt without an answer, which counts as a wrong answer if its model is at fault.

    Args:
        row: The row.
        seq: The next sequence number.
        change: Other row fields that change, such as `paid`.
        shares: As for `apply_reward`.
        at_fault: Whether the model is at fault; otherwise nothing is learned.
        learn: Whether anything may be learned from the query.
    """
    change = change | {"entered": 0.0} if at_fault else change
    if not (at_fault and learn and _weighed(row, shares, change)):
        return _abandoned(row, seq, change)[1]
    return _transition("failure", row, change | {"correct": 0.0, "stage": "failed", "learned_seq": seq})


def _weighed(row: Row, shares: TeachingShares, change: dict[str, Any]) -> int:
    """Return an outcome's weight, and record it in the row and in the tenant's share."""
    shares.add(row.tenant, weight := shares.weight(row.tenant))
    change["weight"] = weight
    return weight


def _differs(row: Row, reward: Reward) -> bool:
    """Return whether a reward contradicts the one of its kind already applied: its worker had lost the partition."""
    pairs = [(row.correct, reward.correct)]
    # Other kinds have no score, and a row that nothing was learned from has neither score nor cost.
    if row.kinds[0] == reward.kind and row.stage not in ("failed", "abandoned"):
        pairs += [(row.score, reward.score_learned), (row.log_cost, reward.log_cost)]
    return any(known is not None and told is not None and known != told for known, told in pairs)


def _counts_as_wrong(reward: Reward, rules: RewardRules) -> bool:
    """Return whether missing feedback counts as a wrong answer. If the wait was cut short, it does not."""
    return reward.kind == "default" and rules.default == "wrong" and not reward.closed_early


def _resolved(
    row: Row, reward: Reward, seq: int, rules: RewardRules, change: dict[str, Any]
) -> tuple[Verdict, RowTransition | None]:
    """Close a row that is already in A: replace the imputed value, or keep it."""
    change["stage"] = "closed"
    correct = 0.0 if _counts_as_wrong(reward, rules) else reward.correct
    if correct is None or not reward.learn:
        closed = msgspec.structs.replace(row, **change, ended_seq=seq)
        return "closed", RowTransition("nothing", closed)
    check_share(row.query_id, "correct", correct)
    return "corrected", _transition("correction", row, {**change, "correct": correct, "corrected_seq": seq})


def _abandoned(row: Row, seq: int, change: dict[str, Any]) -> tuple[Verdict, RowTransition]:
    """Close a row without learning from it."""
    return "abandoned", _transition("abandoned", row, {**change, "stage": "abandoned", "ended_seq": seq})


def _transition(what: EventKind, row: Row, change: dict[str, Any]) -> RowTransition:
    return RowTransition(what, msgspec.structs.replace(row, **change))


def _countable(row: Row, reward: Reward) -> bool:
    """Return whether a cost can be learned: it is in the log's unit and, if that is USD, records the billed tokens."""
    unit = row.objective.cost_range.unit
    if reward.objective.cost_range.unit != unit:
        return False
    return unit == "eflops" or (reward.price is not None and reward.price.billed is not None)


def _factor(reward: Reward) -> float:
    return reward.price.factor if reward.price is not None else 1.0


def _tokens(reward: Reward) -> tuple[int, int] | None:
    if reward.price is None or reward.price.billed is None:
        return None
    return reward.price.billed.output, reward.price.billed.input
