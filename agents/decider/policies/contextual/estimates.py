"""What the contextual policy has learned: the expected terms of every action for a query.

Five columns of B share one A: Correct, Score, log C, 1, and C itself. Costs are measured in units of each action's
anchor, so that expensive and cheap actions share a scale. The column of ones makes every term regress towards its own
mean rather than towards zero.

Costs are learned in eFLOPs. Predictions are multiplied by the price factors in force, so a new price takes effect at
once and nothing has to be relearned; and by `drift`, where a model's searches have come to cost something else.

Of a search whose answer was cut by its client, only the cost is known. From the first of these on, the costs have an A
of their own, which every outcome enters, while the A of the other terms, and so every width, takes whole outcomes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

import numpy as np

from agents.decider.policies.base import Matrix, Vector
from agents.decider.policies.contextual.design import CORRECT, COST, LOG_COST, ONE, Design
from agents.decider.policies.contextual.drift import CostDrift
from agents.decider.policies.contextual.ridge import Ridge

COSTS: Final = [LOG_COST, COST]
"""The columns that are learned from a cost alone."""

CHEAPEST: Final = 0.3
"""Least predicted cost, as a share of the mean ratio of cost to anchor. A linear prediction can fall below zero: an
expensive configuration would then look like a bargain for that query, and be chosen for it."""

SETTLED: Final = 1000
"""Outcomes, a prior's among them, before `drift` and `caution` begin: a regression that knows fewer errs for other
reasons, and has to try what it is not sure of."""


class Estimates:
    """Five ridge regressions on z_q ⊗ g_a.

    Args:
        design: Computes x. It grows with the actions; call `grow` after it has grown.
        penalties: Of a column of each kind (`Design.kinds`).
        settled: Outcomes before `drift` and caution begin.

    Attributes:
        ridge: A and B.
        totals: Sum of the targets, shape (5,).
        costs, cost_totals: The same for the columns of cost, once there was an outcome of which only the cost is known;
            before, None, and the same as `totals`. Their other columns are not used.
        price_factors: Price of an eFLOP on each model; models left out have 1.
        drift: By how much each model's latest costs differ from their predictions.
        factors: Price times drift of each action, shape (n,).
    """

    def __init__(self, design: Design, penalties: tuple[float, float, float], settled: int = SETTLED) -> None:
        self.design, self._settled = design, settled
        self._penalties = np.array(penalties)
        self.ridge = Ridge(np.zeros(0), 5)
        self.totals: Vector = np.zeros(5)
        self.costs: Ridge | None = None
        self.cost_totals: Vector = self.totals
        self.price_factors: dict[str, float] = {}
        self.drift = CostDrift()
        self.factors: Vector = np.ones(0)

    def any(self) -> bool:
        """Return whether anything has been learned."""
        return bool(self.totals.any())

    def settled(self) -> bool:
        """Return whether enough outcomes were learned to judge the regression by its errors and uncertainties."""
        return bool(self.totals[ONE] >= self._settled)

    def grow(self) -> None:
        """Append the columns of new features."""
        for ridge in (self.ridge, self.costs):
            if ridge is not None:
                ridge.grow(self._penalties[self.design.kinds[ridge.dim :]])
        self.reprice(self.price_factors)

    def reprice(self, price_factors: Mapping[str, float]) -> None:
        """Set the price of an eFLOP on each of these models, and 1 on all others."""
        self.price_factors = dict(price_factors)
        self._refactor()

    def means(self) -> Vector:
        """Return the mean of each target; a guess before the first outcome."""
        count = self.totals[ONE]
        means = self.totals / count if count else np.array([0.5, 0.5, 0.0, 1.0, 1.0])
        if self.costs is not None:
            means[COSTS] = self.cost_totals[COSTS] / self.cost_totals[ONE]
        return means

    def predicted(self, z: Vector) -> Matrix:
        """Return the predicted terms of every known action, shape (n, 5): Correct, Score, log C, 1, C.

        C is in eFLOPs at the prices in force.
        """
        d = self.design
        means = self.means()
        lifts = self.ridge.theta - np.outer(self.ridge.theta[:, ONE], means)
        if self.costs is not None:
            lifts[:, COSTS] = np.stack([self._lift(term, means) for term in COSTS], axis=1)
        lifted = d.sides @ d.project(z, lifts)
        terms = means + lifted
        terms[:, LOG_COST] += np.log(d.anchors)
        terms[:, COST] = d.anchors * np.maximum(terms[:, COST], CHEAPEST * means[COST])
        if (self.factors != 1.0).any():
            terms[:, LOG_COST] += np.log(self.factors)
            terms[:, COST] *= self.factors
        terms[:, ONE] = 1.0
        return np.asarray(terms)

    def outlook(self, z: Matrix, actions: np.ndarray) -> tuple[Matrix, Matrix]:
        """Return predicted accuracy and cost of some actions for many queries, each of shape (m, n)."""
        d, means = self.design, self.means()
        sides, anchors = d.sides[actions], d.anchors[actions]
        found = []
        for term in (CORRECT, COST):
            parts = np.add.reduceat(z[:, d.which] * self._lift(term, means), d.starts[:-1], axis=1)
            found.append(means[term] + parts @ sides.T)
        cost = anchors * np.maximum(found[1], CHEAPEST * means[COST])
        return np.clip(found[0], 0.0, 1.0), cost * self.factors[actions]

    def curvature(self, z: Vector) -> Matrix:
        """Return Q of one query, with g_aᵀQg_a = xᵀA⁻¹x for every action, shape (J, J)."""
        return self.design.compress(z, self.ridge.inverse)

    def targets(self, correct: float, score: float, log_cost: float, action: int) -> Vector:
        """Return the row for B of one outcome, with costs in units of the action's anchor, shape (5,).

        `log_cost` is ln(eFLOPs), without a price.
        """
        anchor = float(self.design.anchors[action])
        return np.array([correct, score, log_cost - np.log(anchor), 1.0, np.exp(log_cost) / anchor])

    def add(self, z: Vector, action: int, targets: Vector) -> None:
        """Add one outcome."""
        row, means = self.design.row(z, action), self.means()
        expected = means[LOG_COST] + row @ self._lift(LOG_COST, means)
        surprise = float(targets[LOG_COST] - expected)
        if self.settled() and self.drift.learn(self.design.models[action], surprise):
            self._refactor()
        self.ridge.add(row, targets)
        self.totals += targets
        if self.costs is not None:
            self.costs.add(row, targets)
            self.cost_totals += targets

    def add_cost(self, z: Vector, action: int, log_cost: float) -> None:
        """Add the cost of one outcome of which nothing else is known.

        It says nothing about drift: the client ended the search early, which is no property of the model.
        """
        if self.costs is None:
            self.costs, self.cost_totals = deepcopy(self.ridge), self.totals.copy()
        targets = self.targets(0.0, 0.0, log_cost, action)
        self.costs.add(self.design.row(z, action), targets)
        self.cost_totals += targets

    def adjust(self, z: Vector, action: int, late: float) -> None:
        """Add a correction to the column of Correct; A does not change."""
        self.ridge.adjust(self.design.row(z, action), CORRECT, late)
        self.totals[CORRECT] += late

    def replace(self, z: Matrix, actions: np.ndarray, targets: Matrix, weights: Vector) -> None:
        """Forget everything and learn these rows.

        Args:
            z: Shape (m, rank).
            actions: Shape (m,).
            targets: Shape (m, 5).
            weights: Shape (m,).
        """
        self.ridge, self.costs = Ridge(self._penalties[self.design.kinds], targets.shape[1]), None
        self.drift = CostDrift()
        self._refactor()
        self.ridge.add_all(self.design.rows(z, actions), targets, weights)
        self.totals = self.cost_totals = weights @ targets

    def snapshot(self) -> tuple[int, dict[str, np.ndarray]]:
        """Return the rows entered, and every array, from which `restore` continues to the bit."""
        arrays = self.ridge.snapshot() | {"totals": self.totals}
        if self.costs is not None:
            arrays |= {f"costs.{name}": array for name, array in self.costs.snapshot().items()}
            arrays |= {
                "costs.totals": self.cost_totals,
                "costs.rows": np.array([self.costs.rows], dtype="<i8"),
            }
        return self.ridge.rows, arrays

    def restore(self, rows: int, arrays: dict[str, Any]) -> None:
        """Become what `snapshot` returned."""
        self.ridge.restore(arrays, rows)
        self.totals = self.cost_totals = arrays["totals"]
        self.costs = None
        if "costs.rows" in arrays:
            own = {
                name.removeprefix("costs."): array
                for name, array in arrays.items()
                if name.startswith("costs.")
            }
            self.costs, self.cost_totals = Ridge(np.zeros(0), 5), own["totals"]
            self.costs.restore(own, int(own["rows"][0]))

    def _lift(self, term: int, means: Vector) -> Vector:
        """Return θ_t - m_t·θ_1, shape (D,): the regression of t - m_t, so predictions shrink towards the mean."""
        ridge = self.costs if self.costs is not None and term in COSTS else self.ridge
        return np.asarray(ridge.theta[:, term] - means[term] * ridge.theta[:, ONE])

    def _refactor(self) -> None:
        of = {
            m: self.price_factors.get(m, 1.0) * self.drift.factor(m)
            for m in dict.fromkeys(self.design.models)
        }
        self.factors = np.array([of[model] for model in self.design.models])
