"""Models whose searches have come to cost something else than what was learned.

A model that is served in another version, or asked other things, may write searches several times as long. The
regression forgets nothing, so after a long history it takes hundreds of outcomes to follow. Until then, the predicted
costs of that model are multiplied by what its latest outcomes cost over their predictions. Prices need none of this:
the policy is told of them.
"""

from __future__ import annotations

import math
from typing import Any, Final

FADING: Final = 0.95
"""Weight of an outcome relative to the model's next one: the last 20 make up two thirds of the total."""

TRUST: Final = 5.0
"""Weight of the regression, in outcomes."""

LEAST: Final = 0.5
"""Least mean of ln(cost / prediction) that counts: below a factor of 1.65, up or down, it may well be chance."""


class CostDrift:
    """The mean of ln(cost / prediction) of each model's latest outcomes.

    Attributes:
        sums: For each model the faded number of its outcomes, and the faded sum.
    """

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}

    def learn(self, model: str, surprise: float) -> bool:
        """Add an outcome; return whether the model's factor is another one now.

        Args:
            model: Its model.
            surprise: ln(cost / prediction), without price and without this correction.
        """
        before = self.factor(model)
        count, total = self.sums.get(model, (0.0, 0.0))
        self.sums[model] = (FADING * count + 1.0, FADING * total + surprise)
        return self.factor(model) != before

    def factor(self, model: str) -> float:
        """Return what to multiply a model's predicted costs by.

        >>> drift = CostDrift()
        >>> drift.factor("mini-1m")
        1.0
        >>> for _ in range(60):
        ...     _ = drift.learn("mini-1m", math.log(3))
        >>> round(drift.factor("mini-1m"), 1)
        2.4
        """
        count, total = self.sums.get(model, (0.0, 0.0))
        mean = total / (count + TRUST)
        return math.exp(mean) if abs(mean) > LEAST else 1.0

    def snapshot(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {model: list(sums) for model, sums in self.sums.items()}

    def restore(self, sums: dict[str, Any]) -> None:
        """Become what `snapshot` returned."""
        self.sums = {model: (count, total) for model, (count, total) in sums.items()}
