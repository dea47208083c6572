"""What recent queries are predicted to be and to cost: from it follow λ, and what an aim cannot ask for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import numpy as np

from agents.decider.policies.base import Aim, Matrix, Vector
from agents.decider.policies.contextual.design import Design
from agents.decider.policies.contextual.estimates import Estimates
from agents.decider.policies.contextual.pacer import Pacer, price_for_accuracy, price_for_cost

WINDOW: Final = 500
"""Number of recent contexts on which λ is solved."""


class Outlook:
    """The last contexts, and the present predictions for each of them.

    Args:
        design: Which actions are on offer.
        estimates: The predictions.
        pacer: How far an aim's spend and accuracy are off by now.
    """

    def __init__(self, design: Design, estimates: Estimates, pacer: Pacer) -> None:
        self.design, self.estimates, self.pacer = design, estimates, pacer
        self.window: deque[Vector] = deque(maxlen=WINDOW)

    def price(self, aim: Aim) -> float:
        """Return λ at which an aim is met on the window; 0 as long as nothing is known."""
        predicted = self._predicted()
        if predicted is None:
            return 0.0
        accuracy, cost = predicted
        if aim.mean_cost is not None:
            return price_for_cost(accuracy, cost, self.pacer.momentary(aim))
        assert aim.accuracy is not None
        return price_for_accuracy(accuracy, cost, aim.accuracy / self.pacer.optimism(aim))

    def shortfall(self, aim: Aim) -> float | None:
        """Return the least mean cost, or the largest share of accuracy, on the window, if an aim asks for more."""
        predicted = self._predicted()
        if predicted is None:
            return None
        accuracy, cost = predicted
        if aim.mean_cost is not None:
            least = float(cost.min(axis=1).mean()) * self.pacer.dearer(aim)
            return least if least > aim.mean_cost else None
        assert aim.accuracy is not None
        most = float(accuracy.max(axis=1).mean() / accuracy.mean(axis=0).max()) * self.pacer.optimism(aim)
        return most if most < aim.accuracy else None

    def replace(self, contexts: Iterable[Vector]) -> None:
        """Replace the window, whose last contexts stay if there are too many."""
        self.window.clear()
        self.window.extend(contexts)

    def snapshot(self) -> Matrix:
        """Return the window's contexts as rows, shape (m, rank)."""
        return np.array(self.window).reshape(len(self.window), self.design.rank)

    def _predicted(self) -> tuple[Matrix, Matrix] | None:
        """Return accuracy and cost of what is on offer, for every context of the window; None without any."""
        on_offer = np.flatnonzero(self.design.active)
        if not self.window or not len(on_offer) or not self.estimates.any():
            return None
        return self.estimates.outlook(self.snapshot(), on_offer)
