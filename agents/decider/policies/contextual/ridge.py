"""Ridge regression with few dimensions, row by row: A = Λ + Σ w x xᵀ, B = Σ w x tᵀ, Θ = A⁻¹B, Λ diagonal.

`gram` is fast at a thousand dimensions and exact up to rounding. This is exact to the bit: a row is added by the same
operations whether it comes alone or in a batch, live or from the log, and the inverse is saved with the state. So
everything computed from it, such as a price λ, is the same after a recovery as without one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.linalg import lapack

from agents.decider.policies.base import Matrix, Vector

REFRESH: Final = 1000
"""Rows between two factorisations of A; at 150 dimensions, the inverse drifts by 1e-12 over as many rank-one steps."""


class Ridge:
    """A, B, A⁻¹ and Θ; dimensions can be added at any time.

    Args:
        penalties: The diagonal of Λ, above zero, shape (D,): how strongly each coefficient is held at zero.
        columns: Columns of B.
    """

    def __init__(self, penalties: Vector, columns: int) -> None:
        dim = len(penalties)
        self.rows = 0
        self.a: Matrix = np.diag(penalties)
        self.inverse: Matrix = np.diag(1.0 / penalties)
        self.b: Matrix = np.zeros((dim, columns))
        self.theta: Matrix = np.zeros((dim, columns))

    @property
    def dim(self) -> int:
        """Return D."""
        return len(self.a)

    def grow(self, penalties: Vector) -> None:
        """Append dimensions, in which no row has a value yet, with these penalties."""
        if not len(penalties):
            return
        self.a = _padded(self.a, penalties)
        self.inverse = _padded(self.inverse, 1.0 / penalties)
        self.b, self.theta = (np.pad(m, ((0, len(penalties)), (0, 0))) for m in (self.b, self.theta))

    def add(self, x: Vector, targets: Vector) -> None:
        """Add one row.

        Args:
            x: Shape (D,).
            targets: Shape (columns,).
        """
        self.a += np.outer(x, x)
        self.b += np.outer(x, targets)
        u = self.inverse @ x
        gain = 1.0 + float(x @ u)
        self.theta += np.outer(u, (targets - x @ self.theta) / gain)
        self.inverse -= np.outer(u, u / gain)
        self.rows += 1
        if self.rows % REFRESH == 0:
            self.factorise()

    def add_all(self, x: Matrix, targets: Matrix, weights: Vector) -> None:
        """Add many weighted rows at once, to make a prior."""
        self.a += x.T @ (x * weights[:, None])
        self.b += x.T @ (targets * weights[:, None])
        self.factorise()

    def adjust(self, x: Vector, column: int, amount: float) -> None:
        """Add amount·x to one column of B; the row itself is in A already."""
        self.b[:, column] += amount * x
        self.theta[:, column] += amount * (self.inverse @ x)

    def factorise(self) -> None:
        """Recompute A⁻¹ and Θ from A and B.

        Raises:
            LinAlgError: A is no longer positive definite; fold the log again.
        """
        low, info = lapack.dpotrf(self.a, lower=1, clean=1)
        if info:
            raise np.linalg.LinAlgError(f"A is not positive definite at pivot {info}; fold the log again")
        half, _ = lapack.dpotri(low, lower=1)
        self.inverse = np.tril(half) + np.tril(half, -1).T
        self.theta = self.inverse @ self.b

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return every array, from which `restore` continues with the same bits."""
        return {
            "ridge.a": self.a,
            "ridge.inverse": self.inverse,
            "ridge.b": self.b,
            "ridge.theta": self.theta,
        }

    def restore(self, arrays: dict[str, np.ndarray], rows: int) -> None:
        """Become what `snapshot` returned after this many rows."""
        self.a, self.inverse = arrays["ridge.a"], arrays["ridge.inverse"]
        self.b, self.theta = arrays["ridge.b"], arrays["ridge.theta"]
        self.rows = rows


def _padded(matrix: Matrix, diagonal: Vector) -> Matrix:
    out = np.pad(matrix, ((0, len(diagonal)), (0, len(diagonal))))
    at = np.arange(len(matrix), len(out))
    out[at, at] = diagonal
    return np.asarray(out)
