"""What recent queries are predicted to be and to cost: from it follow λ, and what an aim cannot ask for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import numpy as np

from agents.decider.policies.base import Aim, Matrix, Vector
from agents.decider.policies.contextual.caution import Doubts
from agents.decider.policies.contextual.design import Design
from agents.decider.policies.contextual.estimates import Estimates
from agents.decider.policies.contextual.pacing.forecast import Forecast, price_for_accuracy, price_for_cost
from agents.decider.policies.contextual.pacing.pacer import Pacer

WINDOW: Final = 500
"""Number of recent contexts on which λ is solved."""


class Outlook:
    """The last contexts, and the present predictions for each of them.

    Args:
        design: Which actions are on offer.
        estimates: The predictions.
        pacer: How far an aim's spend and accuracy are off by now.
        caution: κ (`caution`).
    """

    def __init__(self, design: Design, estimates: Estimates, pacer: Pacer, caution: float) -> None:
        self.design, self.estimates, self.pacer, self.caution = design, estimates, pacer, caution
        self.window: deque[Vector] = deque(maxlen=WINDOW)

    def price(self, aim: Aim) -> float:
        """Return λ at which an aim is met on the window; 0 as long as nothing is known."""
        forecast = self.forecast()
        if forecast is None:
            return 0.0
        if aim.mean_cost is not None:
            return price_for_cost(forecast, self.pacer.momentary(aim))
        assert aim.accuracy is not None
        return price_for_accuracy(forecast, aim.accuracy / self.pacer.optimism(aim))

    def shortfall(self, aim: Aim) -> float | None:
        """Return the least mean cost, or the largest share of accuracy, on the window, if an aim asks for more."""
        forecast = self.forecast()
        if forecast is None:
            return None
        if aim.mean_cost is not None:
            least = float(forecast.cost.min(axis=1).mean()) * self.pacer.dearer(aim)
            return least if least > aim.mean_cost else None
        assert aim.accuracy is not None
        best = forecast.best_accuracy()
        if best <= 0.0:
            return None  # nothing was right yet: what share can be had is not known
        most = forecast.mean_accuracy(0.0) / best * self.pacer.optimism(aim)
        return most if most < aim.accuracy else None

    def cautious(self) -> bool:
        """Return whether queries leave the incumbent only for what is clearly better."""
        return self.caution > 0 and self.estimates.settled()

    def usual(self) -> Vector:
        """Return the mean context; before the first, what the counts of questions usually are."""
        return np.asarray(self.snapshot().mean(axis=0) if self.window else np.eye(1, self.design.rank)[0])

    def replace(self, contexts: Iterable[Vector]) -> None:
        """Replace the window, whose last contexts stay if there are too many."""
        self.window.clear()
        self.window.extend(contexts)

    def snapshot(self) -> Matrix:
        """Return the window's contexts as rows, shape (m, rank)."""
        return np.array(self.window).reshape(len(self.window), self.design.rank)

    def forecast(self) -> Forecast | None:
        """Return what is predicted of everything on offer, for every context of the window; None without any."""
        on_offer = np.flatnonzero(self.design.active)
        if not self.window or not len(on_offer) or not self.estimates.any():
            return None
        window, doubts = self.snapshot(), None
        if self.cautious():
            peculiar = window - self.usual()
            doubts = Doubts(self.design, self.estimates.ridge.inverse, peculiar, on_offer)
        return Forecast(*self.estimates.outlook(window, on_offer), self.caution, doubts)
