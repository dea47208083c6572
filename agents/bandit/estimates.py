"""What the contextual policy has learned: the expected terms of every action for a query, and their doubts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

import numpy as np

from agents.bandit.design import CORRECT, COST, LOG_COST, ONE, Design
from agents.bandit.policy import Matrix, Vector
from agents.bandit.ridge import Ridge

# Models whose searches have come to cost something else than what was learned.
#
# A model that is served in another version, or asked other things, may write searches several times as long. The
# regression forgets nothing, so after a long history it takes hundreds of outcomes to follow. Until then, the
# predicted costs of that model are multiplied by what its latest outcomes cost over their predictions. Prices need
# none of this: the policy is told of them.

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


# Caution: a query leaves the incumbent only for what is predicted to be clearly better for it.
#
# The incumbent b is the configuration that is best for the usual query z̄, at the price in force. The best of many
# predictions is mostly the luckiest: of 42 configurations of which several are as good as each other, the highest
# prediction for a query is too high, and following it query by query loses accuracy against always taking the
# incumbent. So every other configuration a is charged κ·√(dᵀA⁻¹d) with d = (z - z̄) ⊗ (g_a - g_b): how uncertain it
# is what this query, unlike the usual one, makes of the difference between the two.
#
# What the usual query makes of it is not charged for. A model that was added a moment ago is uncertain for every
# query alike, and must not be avoided for that; which configuration is best overall, optimism finds out.
#
# Until 1,000 outcomes are known, a prior's among them, there is no caution: following the luckiest prediction is
# also how the policy learns for which queries a configuration is good.


def lengths(vectors: Matrix, curvature: Matrix) -> Vector:
    """Return √(vᵀQv) of each row v.

    Args:
        vectors: Sides of actions, or differences between them, shape (n, J).
        curvature: Q of one query (`Design.compress`), shape (J, J).
    """
    return np.asarray(np.sqrt(np.maximum(np.einsum("nj,nj->n", vectors @ curvature, vectors), 0.0)))


class Doubts:
    """√(dᵀA⁻¹d) of the same actions for many queries, against any incumbent.

    Args:
        design: Computes x.
        inverse: A⁻¹.
        z: The queries, less the usual one, shape (m, rank).
        actions: Indices of the n actions.
    """

    def __init__(self, design: Design, inverse: Matrix, z: Matrix, actions: np.ndarray) -> None:
        self._sides = design.sides[actions]
        self._quadratic = design.quadratic(inverse)
        self._squares = (z[:, :, None] * z[:, None, :]).reshape(len(z), -1)
        self._known: dict[int, Matrix] = {}

    def against(self, incumbent: int) -> Matrix:
        """Return those of every action against one of them, shape (m, n)."""
        if (found := self._known.get(incumbent)) is None:
            d = self._sides - self._sides[incumbent]
            pairs = (d[:, :, None] * d[:, None, :]).reshape(len(d), -1)
            squared = self._squares @ (pairs @ self._quadratic).T
            found = self._known[incumbent] = np.sqrt(np.maximum(squared, 0.0))
        return found


# What the contextual policy has learned: the expected terms of every action for a query.
#
# Five columns of B share one A: Correct, Score, log C, 1, and C itself. Costs are measured in units of each
# action's anchor, so that expensive and cheap actions share a scale. The column of ones makes every term regress
# towards its own mean rather than towards zero.
#
# Costs are learned in eFLOPs. Predictions are multiplied by the price factors in force, so a new price takes effect
# at once and nothing has to be relearned; and by `drift`, where a model's searches have come to cost something
# else.
#
# Of a search whose answer was cut by its client, only the cost is known. From the first of these on, the costs have
# an A of their own, which every outcome enters, while the A of the other terms, and so every width, takes whole
# outcomes only.

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
