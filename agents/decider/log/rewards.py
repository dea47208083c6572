"""What a reward does to the row of its decision.

x enters A once, with the first reward that can be learned. A reward that is repeated, late or without a row changes
nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from agents.decider import intake
from agents.decider.log.rows import ENDED, Row
from schemas.reward import Reward

Verdict = Literal[
    "learned", "corrected", "closed", "priced", "abandoned", "duplicate", "late", "orphan", "unlearnable"
]
Tell = Literal["update", "correct", "price", "abandon", "nothing"]


class RewardRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to learn from a reward without correctness.

    Attributes:
        impute: Value used for Correct until it is known: the path's `score`, or a constant from 0 to 1.
        default: What to do if correctness never becomes known: `impute` keeps the imputed value, `wrong` counts it as
            0, `drop` keeps a row that has not entered A out of it.
    """

    impute: Literal["score"] | float = "score"
    default: Literal["impute", "wrong", "drop"] = "impute"

    def __post_init__(self) -> None:
        """Refuse a constant outside 0 to 1."""
        if self.impute != "score" and not 0.0 <= self.impute <= 1.0:
            raise ValueError(f"impute is {self.impute}; write score, or a number from 0 to 1")


class Move(Struct, frozen=True):
    """What to tell the policy after a reward."""

    tell: Tell
    row: Row


def applied(
    row: Row | None, reward: Reward, offset: int, seq: int, rules: RewardRules
) -> tuple[Verdict, Move | None]:
    """Return the verdict on a reward, and the changed row with what to tell the policy.

    Args:
        row: The decision's row; None if there is none.
        reward: The reward.
        offset: The reward's offset in its topic.
        seq: The next sequence number; a returned move has used it.
        rules: What to learn from a reward without correctness.

    Raises:
        InvalidObservation: A term is out of range; nothing has changed.
    """
    if row is None or reward.seq != row.seq or reward.action.id != row.action:
        return "orphan", None
    if reward.kind in row.kinds:
        return "duplicate", None
    if row.stage in ENDED or (reward.kind == "provisional" and row.stage == "learned"):
        return "late", None
    change: dict[str, Any] = {"kinds": (*row.kinds, reward.kind), "reward_offset": offset}
    if row.stage == "learned":
        return _resolved(row, reward, seq, rules, change)
    score, log_cost = reward.score, reward.log_cost
    if not reward.learn or score is None or log_cost is None:
        if not reward.closes:
            return "unlearnable", None
        return "abandoned", _move("abandon", row, {**change, "stage": "abandoned", "ended_seq": seq})
    if reward.bounded:
        intake.outcome(row.query_id, None, score, log_cost, score)
        change |= {"score": score, "log_cost": log_cost, "imputed": score, "price_factor": _factor(reward)}
        return "priced", _move("price", row, {**change, "stage": "priced", "ended_seq": seq})
    if reward.kind == "default" and rules.default == "drop":
        return "abandoned", _move("abandon", row, {**change, "stage": "abandoned", "ended_seq": seq})
    imputed = score if rules.impute == "score" else float(rules.impute)
    correct = 0.0 if reward.kind == "default" and rules.default == "wrong" else reward.correct
    intake.outcome(row.query_id, correct, score, log_cost, imputed)
    change |= {
        "score": score,
        "log_cost": log_cost,
        "imputed": imputed,
        "entered": correct,
        "correct": correct,
        "price_factor": _factor(reward),
    }
    change |= {"stage": "closed" if reward.closes else "learned", "learned_seq": seq}
    return "learned", _move("update", row, change)


def _resolved(
    row: Row, reward: Reward, seq: int, rules: RewardRules, change: dict[str, Any]
) -> tuple[Verdict, Move | None]:
    """Close a row that is in A already: replace what was imputed, or let it stand."""
    change["stage"] = "closed"
    correct = reward.correct if reward.kind != "default" else 0.0 if rules.default == "wrong" else None
    if correct is None:
        closed = msgspec.structs.replace(row, **change, ended_seq=seq)
        return "closed", Move("nothing", closed)
    intake.share(row.query_id, "correct", correct)
    return "corrected", _move("correct", row, {**change, "correct": correct, "corrected_seq": seq})


def _move(tell: Tell, row: Row, change: dict[str, Any]) -> Move:
    return Move(tell, msgspec.structs.replace(row, **change))


def _factor(reward: Reward) -> float:
    return reward.price.factor if reward.price is not None else 1.0
