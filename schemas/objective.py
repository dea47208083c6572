"""A query's objective, as in force when the action was chosen (§3.4, Eq. 4).

Instead of the paper's weights, an objective can set a target: a mean cost that must not be exceeded, or a share of the
accuracy within reach that must be maintained. Either target implies a shadow price λ per unit of cost. The λ in force
when the action was chosen is recorded, so that the Decision can be reproduced from the record alone.
"""

import math
from typing import Final, Literal

import msgspec
from msgspec import Struct

from schemas.errors import InvalidField
from schemas.record import check_name


class Weights(Struct, frozen=True, kw_only=True):
    """Weights of the reward's terms, w₁·Correct + w₂·Score + w₃·(1 − C̃) (Eq. 4), normalised to sum to 1.

    >>> Weights(correct=1, score=1, cost=2).cost
    0.5
    """

    correct: float = 0.0
    score: float = 0.0
    cost: float = 0.0

    def __post_init__(self) -> None:
        """Reject weights that are not a convex combination, and normalise the rest to preserve the meaning of α."""
        terms = {"correct": float(self.correct), "score": float(self.score), "cost": float(self.cost)}
        for name, weight in terms.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise InvalidField("Weights", name, f"is {weight}; give a finite weight, zero or more")
        total = sum(terms.values())
        if not (math.isfinite(total) and total > 0):
            raise InvalidField("Weights", "", f"sum to {total}; give at least one weight above zero")
        # Weights that already sum to 1 stay bit-identical every time they are decoded.
        if abs(total - 1.0) > 1e-12:
            for name, weight in terms.items():
                msgspec.structs.force_setattr(self, name, weight / total)


def check_targets(kind: str, *, mean_cost: float | None, accuracy: float | None) -> None:
    """Reject a target that no λ can meet, or two targets at once.

    Args:
        kind: The record's name, for the message.
        mean_cost: Mean cost per query, above zero.
        accuracy: Share of the accuracy predicted to be within reach, above 0 and at most 1.

    Raises:
        InvalidField: A target is invalid; the message names the field.
    """
    if mean_cost is not None and accuracy is not None:
        raise InvalidField(kind, "accuracy", "cannot be combined with mean_cost; give one of the two")
    if mean_cost is not None and not 0.0 < mean_cost < math.inf:
        raise InvalidField(kind, "mean_cost", f"is {mean_cost}; give eFLOPs per query, finite and above 0")
    if accuracy is not None and not 0.0 < accuracy <= 1.0:
        why = f"is {accuracy}; give a share above 0, at most 1, of the accuracy within reach"
        raise InvalidField(kind, "accuracy", why)


CostUnit = Literal["eflops", "usd"]
"""The unit of a deployment's costs: equivalent FLOPs (App. D.3), or US dollars."""

UNITS: Final[dict[CostUnit, str]] = {"eflops": "eFLOPs", "usd": "USD"}
"""The units as displayed in text."""


class CostRange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The costs per query where C̃ is 0 and 1. C̃ itself is never clipped.

    Attributes:
        low: Lower bound, above zero.
        high: Upper bound, above `low`.
        unit: Unit of the bounds, of the costs they normalise, and of an objective's `mean_cost`.
    """

    low: float
    high: float
    unit: CostUnit = "eflops"

    def __post_init__(self) -> None:
        """Reject bounds that are not a range."""
        if not 0 < self.low < self.high < math.inf:
            why = f"is {self.low}, high {self.high}; give finite numbers with 0 < low < high"
            raise InvalidField("CostRange", "low", why)


ObjectiveKind = Literal["weights", "mean_cost", "accuracy"]


class ObjectiveInForce(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An objective, with everything that determines the reward.

    Attributes:
        weights: w₁, w₂ and w₃, which sum to 1.
        cost_range: The bounds that normalise log C.
        name: Name of the objective in `control`; None if the query set its own weights or target.
        version: Offset in `control` of the last record that changed it; −1 for the deployment's own setting.
        price: Shadow price λ: the reward subtracted per unit of cost, on top of Eq. 4's cost term. At 0, Eq. 4 is
            unchanged.
        mean_cost: Target for the mean cost per query, in the unit of `cost_range`. It determines `price`.
        accuracy: Target for accuracy, as a share of the predicted accuracy within reach. It determines `price`.
    """

    weights: Weights
    cost_range: CostRange
    name: str | None = None
    version: int = -1
    price: float = 0.0
    mean_cost: float | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        """Reject a λ below zero, two targets at once, or a name that no control record can set."""
        if self.name is not None:
            check_name("ObjectiveInForce", "name", self.name)
        if not 0.0 <= self.price < math.inf:
            raise InvalidField("ObjectiveInForce", "price", f"is {self.price}; give zero or more, finite")
        check_targets("ObjectiveInForce", mean_cost=self.mean_cost, accuracy=self.accuracy)

    @property
    def kind(self) -> ObjectiveKind:
        """Return the kind of objective: `weights`, `mean_cost` or `accuracy`."""
        if self.mean_cost is not None:
            return "mean_cost"
        return "weights" if self.accuracy is None else "accuracy"

    def reward(self, correct: float, score: float, log_cost: float) -> float:
        """Return the reward of one outcome (`scalar`). `log_cost` is the natural logarithm of the cost."""
        w = self.weights
        bounds = math.log(self.cost_range.low), math.log(self.cost_range.high)
        return scalar((w.correct, w.score, w.cost), bounds, self.price, correct, score, log_cost)


def scalar(
    weights: tuple[float, float, float],
    log_bounds: tuple[float, float],
    shadow_price: float,
    correct: float,
    score: float,
    log_cost: float,
) -> float:
    """Return w₁·Correct + w₂·Score + w₃·(1 − C̃) − λ·C, which is Eq. 4 with a shadow price λ on the cost.

    C̃ = (log C − low) / (high − low) is not clipped: the weights and bounds can be changed exactly only if the reward
    is linear in log C.

    Args:
        weights: w₁, w₂, w₃.
        log_bounds: Natural logarithms of the bounds that normalise the cost.
        shadow_price: λ, the reward subtracted per unit of cost. At 0, the result is bit-identical to Eq. 4.
        correct: 1, 0 or a grade in between.
        score: V(y*), the chosen path's mean score.
        log_cost: Natural logarithm of the cost C.

    >>> scalar((0.25, 0.25, 0.5), (0.0, 2.0), 0.0, 1.0, 1.0, 1.0)
    0.75
    """
    low, high = log_bounds
    plain = weights[0] * correct + weights[1] * score + weights[2] * (1.0 - (log_cost - low) / (high - low))
    return plain - shadow_price * math.exp(log_cost) if shadow_price else plain
