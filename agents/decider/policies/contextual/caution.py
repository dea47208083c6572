"""Caution: a query leaves the incumbent only for what is predicted to be clearly better for it.

The incumbent b is the configuration that is best for the usual query z̄, at the price in force. The best of many
predictions is mostly the luckiest: of 42 configurations of which several are as good as each other, the highest
prediction for a query is too high, and following it query by query loses accuracy against always taking the incumbent.
So every other configuration a is charged κ·√(dᵀA⁻¹d) with d = (z - z̄) ⊗ (g_a - g_b): how uncertain it is what this
query, unlike the usual one, makes of the difference between the two.

What the usual query makes of it is not charged for. A model that was added a moment ago is uncertain for every query
alike, and must not be avoided for that; which configuration is best overall, optimism finds out.

Until 1,000 outcomes are known, a prior's among them, there is no caution: following the luckiest prediction is also how
the policy learns for which queries a configuration is good.
"""

from __future__ import annotations

import numpy as np

from agents.decider.policies.base import Matrix, Vector
from agents.decider.policies.contextual.design import Design


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
