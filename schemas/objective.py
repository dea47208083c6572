"""What a query is served for, as it was in force when the action was chosen (§3.4, Eq. 4)."""

import math

from msgspec import Struct

from schemas.errors import InvalidField
from schemas.query import Weights


class CostRange(Struct, frozen=True, kw_only=True):
    """The cost per query at which C̃ is 0 and at which it is 1. C̃ itself is never clipped.

    Attributes:
        low_eflops: Lower bound, above zero.
        high_eflops: Upper bound, above the lower.
    """

    low_eflops: float
    high_eflops: float

    def __post_init__(self) -> None:
        """Refuse bounds between which nothing lies."""
        if not 0 < self.low_eflops < self.high_eflops < math.inf:
            why = f"is {self.low_eflops}, high_eflops {self.high_eflops}; want 0 < low < high, finite"
            raise InvalidField("CostRange", "low_eflops", why)


class ObjectiveInForce(Struct, frozen=True, kw_only=True):
    """An objective with everything that fixes the reward it asks for.

    Attributes:
        weights: w₁, w₂, w₃; sum 1.
        cost_range: The bounds that normalise log C.
        name: Its name in `control`; None when the query brought weights of its own.
        version: Offset in `control` of the last record that changed it; −1 for the deployment's own setting.
    """

    weights: Weights
    cost_range: CostRange
    name: str | None = None
    version: int = -1

    def reward(self, correct: float, score: float, log_cost: float) -> float:
        """Return w₁·correct + w₂·score + w₃·(1 − C̃), with the natural log of the cost in eFLOPs."""
        low, high = math.log(self.cost_range.low_eflops), math.log(self.cost_range.high_eflops)
        w = self.weights
        return w.correct * correct + w.score * score + w.cost * (1.0 - (log_cost - low) / (high - low))
