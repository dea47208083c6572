"""What the policy, as it predicts now, would choose for recent queries at any price λ, and which λ meets a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from agents.decider.policies.base import Matrix
from agents.decider.policies.contextual.caution import Doubts

STEPS: Final = 30
"""Halvings of the interval of ln λ, e^±10 around the scale of the predictions: λ to eight digits."""


@dataclass(frozen=True)
class Forecast:
    """Predictions of every action on offer for each of m contexts.

    Attributes:
        accuracy: Predicted accuracy, shape (m, n).
        cost: Predicted cost, alike.
        caution: κ.
        doubts: The uncertainties that κ multiplies; None for none.
    """

    accuracy: Matrix
    cost: Matrix
    caution: float = 0.0
    doubts: Doubts | None = None

    def choices(self, price: float) -> np.ndarray:
        """Return the index of the action chosen for each context at a price, shape (m,)."""
        score = self.accuracy - price * self.cost
        if self.doubts is not None:
            score = score - self.caution * self.doubts.against(int(score.mean(axis=0).argmax()))
        return np.asarray(score.argmax(axis=1))

    def mean_cost(self, price: float) -> float:
        """Return the mean cost of what is chosen at a price."""
        return _mean(self.cost, self.choices(price))

    def mean_accuracy(self, price: float) -> float:
        """Return the mean accuracy of what is chosen at a price."""
        return _mean(self.accuracy, self.choices(price))

    def best_accuracy(self) -> float:
        """Return the mean accuracy of the single action that is best on average."""
        return float(self.accuracy.mean(axis=0).max())


def price_for_cost(forecast: Forecast, target: float) -> float:
    """Return the least λ at which the mean cost of the choices stays within a target.

    >>> two = Forecast(np.array([[0.5, 0.9]] * 2), np.array([[1.0, 3.0], [1.0, 9.0]]))
    >>> price_for_cost(two, 2.0).__round__(3)
    0.05
    """

    def within(price: float) -> bool:
        return forecast.mean_cost(price) <= target

    return 0.0 if within(0.0) else _least(within, _scale(forecast))


def price_for_accuracy(forecast: Forecast, share: float) -> float:
    """Return the largest λ at which the mean accuracy of the choices is a share of the best action's mean.

    Where nothing is predicted to be right ever, λ is 0. Any λ keeps a share of nothing, so the target says nothing of
    it; but λ is accuracy per eFLOP, and falls to 0 with the accuracies. The largest λ would be wrong: it would choose
    the cheapest action for good, and never find out that a dearer one is right at times.

    >>> cost = np.array([[1.0, 3.0], [1.0, 9.0]])
    >>> right = np.array([[0.5, 0.9]] * 2)
    >>> [round(price_for_accuracy(Forecast(share * right, cost), 0.8), 6) for share in (1.0, 0.01, 0.0)]
    [0.05, 0.0005, 0.0]
    """
    best = forecast.best_accuracy()
    if best <= 0.0:
        return 0.0
    target = share * best

    def below(price: float) -> bool:
        return forecast.mean_accuracy(price) < target

    # Just below the first price that falls short.
    return _least(below, _scale(forecast)) * (1.0 - 1e-6)


def _mean(of: Matrix, chosen: np.ndarray) -> float:
    return float(np.take_along_axis(of, chosen[:, None], axis=1).mean())


def _scale(forecast: Forecast) -> float:
    return 1.0 / max(float(np.median(forecast.cost)), 1e-300)


def _least(holds: Callable[[float], bool], scale: float) -> float:
    """Return the least λ, within e^±10 of a scale, at which a condition that stays true holds."""
    low, high = -10.0, 10.0
    if not holds(scale * float(np.exp(high))):
        return scale * float(np.exp(high))
    for _ in range(STEPS):
        middle = (low + high) / 2
        if holds(scale * float(np.exp(middle))):
            high = middle
        else:
            low = middle
    return scale * float(np.exp(high))
