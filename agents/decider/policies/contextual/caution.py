"""Caution: a query leaves the incumbent only for what is predicted to be clearly better.

The incumbent is the configuration that is best for the usual query, at the price in force. The best of many predictions
is mostly the luckiest: of 42 configurations of which several are as good as each other, the highest prediction for a
query is too high, and following it query by query loses accuracy against always taking the incumbent b. So every other
configuration a is charged κ·√(dᵀA⁻¹d), d = x_a - x_b: the uncertainty of the difference, which is what is decided on.

Until 1,000 outcomes are known, a prior's among them, there is no caution: following the luckiest prediction is also how
the policy learns what it is not sure of. After that the incumbent is still chosen with optimism, so what is tried out
is tried on the traffic as a whole.
"""

from __future__ import annotations

import numpy as np

from agents.decider.policies.base import Matrix, Vector
from agents.decider.policies.contextual.design import Design


def lengths(vectors: Matrix, curvature: Matrix) -> Vector:
    """Return √(vᵀQv) of each row v.

    Args:
        vectors: Sides of actions or differences between them, shape (n, J).
        curvature: Q of one query (`Design.compress`), shape (J, J).
    """
    return np.asarray(np.sqrt(np.maximum(np.einsum("nj,nj->n", vectors @ curvature, vectors), 0.0)))


class Doubts:
    """√(dᵀA⁻¹d) of the same actions for many queries, against any incumbent.

    Args:
        design: Computes x.
        inverse: A⁻¹.
        z: The queries, shape (m, rank).
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
