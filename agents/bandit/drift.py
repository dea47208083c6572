"""Drift: a model's searches start to cost more or less than learned, or its answers become wrong more or less often.

On its own, a regression with a long history would take hundreds of outcomes to adapt. Price changes need no detection,
because the policy is told the new prices.
"""

import math
from typing import Final

FADING: Final = 0.95
"""Weight of an outcome relative to the model's next one. The latest 20 outcomes carry two thirds of the total."""

TRUST: Final = 5.0
"""Weight of the cost regression's prediction, as a number of outcomes."""

LEAST: Final = 0.5
"""Smallest absolute mean of ln(cost / prediction) that counts as drift. A deviation of less than a factor of 1.65 could
well be chance."""

SURPRISE: Final = 4.0
"""A model's accuracy is relearned once its latest answers deviate by more than this many standard deviations."""

STEP: Final = 0.3
"""Assumed standard deviation of the change in accuracy once `SURPRISE` is exceeded."""

SETTLED: Final = 1000
"""Minimum number of outcomes, including a prior's, for cost drift to be corrected. With fewer, the regression's errors
have other causes."""


class CostDrift:
    """The mean of ln(cost / prediction) over each model's latest outcomes.

    Attributes:
        sums: For each model, the discounted number of its outcomes and the discounted sum of ln(cost / prediction).
    """

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}

    def learn(self, model: str, surprise: float) -> bool:
        """Add an outcome; return whether it changed the model's factor.

        Args:
            model: The outcome's model.
            surprise: ln(cost / prediction), excluding the price factor and this correction.
        """
        before = self.factor(model)
        count, total = self.sums.get(model, (0.0, 0.0))
        self.sums[model] = (FADING * count + 1.0, FADING * total + surprise)
        return self.factor(model) != before

    def factor(self, model: str) -> float:
        """Return the factor that corrects a model's predicted costs.

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


class AccuracyDrift:
    """Detects models whose latest answers are right more or less often than predicted.

    Outcomes that have a score in place of Correct are ignored, because uncalibrated scores would look like drift.

    Attributes:
        sums: For each model, three discounted sums: of (correct - predicted), of its variance, and of the error that
            could be due to scores used in place of Correct.
        changed: For each model whose accuracy changed, the sequence number of the outcome that revealed it.
    """

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float, float]] = {}
        self.changed: dict[str, int] = {}

    def learn(
        self, model: str, correct: float, predicted: float, *, share: float = 0.0, seq: int = 0
    ) -> bool:
        """Add an outcome; return whether the model's accuracy has changed. If so, its sums restart from zero.

        Args:
            model: The outcome's model.
            correct: The outcome's known correctness.
            predicted: The outcome's predicted accuracy.
            share: Share of the model's outcomes that have a score in place of Correct; predictions may be biased by
                up to this amount.
            seq: Sequence number of the outcome.

        >>> drift = AccuracyDrift()
        >>> [drift.learn("mini-1m", 0.0, 0.8) for _ in range(6)]
        [False, False, False, False, True, False]
        """
        chance = min(max(predicted, 0.05), 0.95)
        total, variance, slack = self.sums.get(model, (0.0, 0.0, 0.0))
        total = FADING * total + correct - predicted
        variance = FADING**2 * variance + chance * (1.0 - chance)
        slack = FADING * slack + share
        changed = abs(total) - slack > SURPRISE * math.sqrt(variance)
        self.sums[model] = (0.0, 0.0, 0.0) if changed else (total, variance, slack)
        if changed:
            self.changed[model] = seq
        return changed

    def is_past(self, model: str, seq: int) -> bool:
        """Return whether an outcome was learned before its model changed. If so, it now carries less weight in A."""
        return seq < self.changed.get(model, 0)
