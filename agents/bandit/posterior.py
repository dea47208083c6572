"""Exact incremental ridge regression: `Gram` for many dimensions (Alg. 1, Lines 3-5), `Ridge` for few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.linalg import blas, lapack, solve_triangular

from agents.bandit.policy import Matrix, Vector

# A = λI + Σ x xᵀ and its inverse, updated exactly and cheaply (Alg. 1, Lines 3-5).
#
# x = [s_q; f_a] splits A⁻¹ into blocks P (query), Q (cross) and R (action). f_a is short, because the action vectors
# span at most |A| dimensions (`features`). Then xᵀA⁻¹x = s_qᵀP s_q + 2 f_aᵀQᵀs_q + f_aᵀR f_a takes one product with P
# for *all* actions.
#
# Sherman-Morrison is exact but memory-bound if applied row by row, so the last few rank-one terms are buffered: A⁻¹ =
# base - Σ σ g gᵀ with g = A⁻¹x / √(1 + σ xᵀA⁻¹x), and `flush` folds them into the base in one rank-k product. Symmetric
# blocks use one triangle (`dsymv`, `dsyrk`). A itself is also kept: for the residual that monitors the inverse, for the
# factorisation that corrects it, and for the saved state.

BLOCK: Final = 32
"""Maximum number of buffered rank-one terms. At d = 1,192, one rank-32 product takes 0.8 ms, and 32 rank-one products
take 4 ms. With more terms, a flush takes longer without being cheaper per row."""

BATCH: Final = 64
"""Maximum number of rows added in one rank-k step; more would need larger buffers for no gain."""

DRIFT: Final = 1e-10
"""A is refactorised if the residual |A·A⁻¹x - x| / |x| exceeds this. Below it, scores are accurate to 1e-9."""

THIN: Final = 1e-6
"""Smallest 1 - xᵀA⁻¹x for which removing a row by Sherman-Morrison keeps ten digits. Below it, A is refactorised."""


class Gram:
    """The Gram matrix, its inverse in blocks, and θ = A⁻¹B for every column of B.

    Args:
        query_dim: q, the length of s_q.
        action_dim: e, the length of f_a; `widen` changes it.
        columns: Number of columns of B.
        ridge: λ > 0.
    """

    def __init__(self, query_dim: int, action_dim: int, columns: int, ridge: float) -> None:
        self.q, self.e, self.ridge = query_dim, action_dim, ridge
        self.factorisations = 0
        self.theta: Matrix = np.zeros((self.dim, columns))
        self.b: Matrix = np.zeros((self.dim, columns))
        self.a: Matrix = np.asfortranarray(np.eye(self.dim) * ridge)  # lower triangle
        self.actions: Matrix = np.zeros((0, action_dim))
        self._since = 0
        self._k = 0
        self._sign: Vector = np.ones(0)
        self._x: Matrix = np.zeros((0, self.dim))
        self._gq: Matrix = np.zeros((0, query_dim))
        self._ga: Matrix = np.zeros((0, action_dim))
        self._p: Matrix = np.zeros((0, 0))
        self._cross: Matrix = np.zeros((0, 0))
        self._r: Matrix = np.zeros((0, 0))
        self._prepare(np.asfortranarray(np.eye(self.dim) / ridge))

    @property
    def dim(self) -> int:
        """Return q + e."""
        return self.q + self.e

    def attach(self, actions: Matrix) -> None:
        """Set the action rows, f_a, shape (n, e), and precompute their quadratic forms."""
        self.actions = np.ascontiguousarray(actions)
        self._ready()

    def widths(self, queries: Matrix, blocks: Matrix | None = None) -> Matrix:
        """Return √(xᵀA⁻¹x) for every query and action, shape (m, n).

        Args:
            queries: s_q for m contexts, shape (m, q).
            blocks: f_a for each query, shape (m, n, e), if it depends on the query; None uses the attached rows.
        """
        k = self._k
        if len(queries) == 1:
            own = (queries[0] @ blas.dsymv(1.0, self._p, queries[0], lower=1)).reshape(1, 1)
        else:
            own = np.einsum("mq,qm->m", queries, self._symm(queries))[:, None]
        cross = queries @ self._cross
        h = queries @ self._gq[:k].T
        if blocks is None:
            squares = own + 2.0 * (cross @ self.actions.T) + self._own
            if k:
                signed = h * self._sign[:k]
                squares -= np.sum(signed * h, axis=1)[:, None] + 2.0 * (signed @ self._h[:k]) + self._hh
        else:
            squares = np.empty(blocks.shape[:2])
            for i, rows in enumerate(blocks):
                own_action = np.einsum("ne,ne->n", rows @ self._r, rows)
                waiting = rows @ self._ga[:k].T + h[i]
                squares[i] = own[i] + 2.0 * (rows @ cross[i]) + own_action - (waiting**2) @ self._sign[:k]
        return np.asarray(np.sqrt(np.maximum(squares, 0.0)))

    def marginal(self, query: Vector) -> tuple[float, Vector, Matrix]:
        """Return (s_qᵀP s_q, Qᵀs_q, R), the covariance of (s_qᵀθ_q, θ_a), which is all that scoring needs."""
        k = self._k
        h = self._gq[:k] @ query
        signed = self._ga[:k] * self._sign[:k, None]
        own = query @ blas.dsymv(1.0, self._p, query, lower=1) - (h * self._sign[:k]) @ h
        return float(own), query @ self._cross - h @ signed, self._r - self._ga[:k].T @ signed

    def solve(self, x: Matrix) -> Matrix:
        """Return A⁻¹x for each row of x, shape (m, q + e)."""
        xq, xa = x[:, : self.q], x[:, self.q :]
        u = np.empty_like(x)
        if len(x) == 1:
            u[0, : self.q] = blas.dsymv(1.0, self._p, xq[0], lower=1)
        else:
            u[:, : self.q] = self._symm(xq).T
        u[:, : self.q] += xa @ self._cross.T
        u[:, self.q :] = xq @ self._cross + xa @ self._r
        k = self._k
        if k:
            h = (xq @ self._gq[:k].T + xa @ self._ga[:k].T) * self._sign[:k]
            u[:, : self.q] -= h @ self._gq[:k]
            u[:, self.q :] -= h @ self._ga[:k]
        return u

    def add(self, x: Matrix, targets: Matrix, sign: float = 1.0) -> None:
        """Add x xᵀ to A and x·target to B for each row, or subtract them if the sign is -1.

        Args:
            x: Rows [s_q; f_a], shape (m, q + e), already scaled by the square roots of their weights.
            targets: Rows of reward terms, shape (m, columns), with the same scaling.
            sign: 1.0 to add rows, -1.0 to remove rows that were added.
        """
        if not len(x):
            return
        self.b += sign * (x.T @ targets)
        self._since += len(x)
        if len(x) > self.dim // 4:  # one factorisation is cheaper than the rank-k form
            self.flush()
            self._accumulate(x, sign)
            self.factorise()
            return
        for start in range(0, len(x), BATCH):
            self._rank_k_update(x[start : start + BATCH], targets[start : start + BATCH], sign)

    def adjust(self, x: Matrix, column: int, amounts: Vector) -> None:
        """Add amounts·x to one column of B. A does not change, because it already contains these rows."""
        if len(x):
            self.b[:, column] += amounts @ x
            self.theta[:, column] = self.solve(self.b[None, :, column])[0]

    def rescale(self, factor: float) -> None:
        """Multiply A and B by a factor and restore the full regulariser λI."""
        self.flush()
        self.a *= factor
        self.b *= factor
        self.a[np.diag_indices(self.dim)] += (1.0 - factor) * self.ridge
        self.factorise()

    def widen(self, action_dim: int, kept: Sequence[int]) -> None:
        """Resize the action block: old columns move to the positions `kept`, and new ones get λ on the diagonal."""
        self.flush()
        old, places = self.a, np.concatenate([np.arange(self.q), self.q + np.asarray(kept, dtype=np.intp)])
        self.e = action_dim
        self.a = np.asfortranarray(np.eye(self.dim) * self.ridge)
        full = np.tril(old) + np.tril(old, -1).T
        self.a[np.ix_(places, places)] = full
        b = np.zeros((self.dim, self.b.shape[1]))
        b[places] = self.b
        self.b = b
        self.actions = np.zeros((0, action_dim))
        self.factorise()

    def restore(self, action_dim: int, triangle: Vector, b: Matrix) -> None:
        """Restore the saved A (lower triangle, row by row) and B."""
        self.e = action_dim
        low = np.zeros((self.dim, self.dim))
        low[np.tril_indices(self.dim)] = triangle
        self.a, self.b = np.asfortranarray(low), b
        self.actions = np.zeros((0, action_dim))
        self.factorise()

    def settle(self) -> None:
        """Refactorise from scratch, as `restore` does.

        Rank-one updates leave A⁻¹ numerically equal but not bit-identical to a fresh factorisation.
        """
        self.flush()
        self.factorise()

    def flush(self) -> None:
        """Fold the buffered rank-one terms into the base and check the residual."""
        k = self._k
        if not k:
            return
        probe = self._x[k - 1].copy()
        for sign in (1.0, -1.0):
            rows = np.flatnonzero(self._sign[:k] == sign)
            if not len(rows):
                continue
            whole = len(rows) == k
            x, gq, ga = (part[:k] if whole else part[rows] for part in (self._x, self._gq, self._ga))
            self._accumulate(x, sign)
            self._p = blas.dsyrk(-sign, gq.T, beta=1.0, c=self._p, lower=1, overwrite_c=1)
            self._cross -= sign * (gq.T @ ga)
            self._r -= sign * (ga.T @ ga)
        self._k = 0
        self._ready()
        if self._since >= self.dim and self.residual(probe) > DRIFT:
            self.factorise()

    def residual(self, x: Vector) -> float:
        """Return max |A·A⁻¹x - x| / max |x|, which shows how far the stored inverse has drifted."""
        self.flush()
        u = self.solve(x[None])[0]
        return float(np.abs(blas.dsymv(1.0, self.a, u, lower=1) - x).max() / np.abs(x).max())

    def factorise(self) -> None:
        """Recompute A⁻¹ and θ from A and B by Cholesky."""
        low = _factored(self.a)
        if self.b.shape[1]:
            self.theta = np.ascontiguousarray(lapack.dpotrs(low, self.b, lower=1)[0])
        else:
            self.theta = np.zeros_like(self.b)
        inverse, _ = lapack.dpotri(low, lower=1, overwrite_c=1)
        self.factorisations += 1
        self._since = 0
        self._prepare(inverse)

    def _prepare(self, inverse: Matrix) -> None:
        q = self.q
        self._p = np.asfortranarray(inverse[:q, :q])
        self._cross = np.ascontiguousarray(inverse[q:, :q].T)
        low = np.tril(inverse[q:, q:])
        self._r = np.ascontiguousarray(low + np.tril(low, -1).T)
        self._k = 0
        capacity = BLOCK + BATCH
        self._sign = np.ones(capacity)
        self._x = np.zeros((capacity, self.dim))
        self._gq, self._ga = np.zeros((capacity, q)), np.zeros((capacity, self.e))
        self._ready()

    def _ready(self) -> None:
        self._own = np.einsum("ne,ne->n", self.actions @ self._r, self.actions)
        self._h = np.zeros((len(self._sign), len(self.actions)))
        self._h[: self._k] = self._ga[: self._k] @ self.actions.T
        self._hh = self._sign[: self._k] @ self._h[: self._k] ** 2

    def _rank_k_update(self, x: Matrix, targets: Matrix, sign: float) -> None:
        u = self.solve(x)
        gain = sign * (x @ u.T)  # 1 + gain is the Sherman-Morrison denominator
        if not self._healthy(np.diagonal(gain), sign):
            self.flush()
            self._accumulate(x, sign)
            self.factorise()
            return
        m, k = len(x), self._k
        missing = targets - x @ self.theta
        if m == 1:
            root = np.sqrt(1.0 + gain[0, 0])
            g, missing = u / root, missing / root
        else:
            gain[np.diag_indices(m)] += 1.0
            low = np.linalg.cholesky(gain)
            g = solve_triangular(low, u, lower=True, check_finite=False)
            missing = solve_triangular(low, missing, lower=True, check_finite=False)
        self.theta += sign * (g.T @ missing)
        rows = slice(k, k + m)
        self._x[rows], self._sign[rows] = x, sign
        self._gq[rows], self._ga[rows] = g[:, : self.q], g[:, self.q :]
        self._h[rows] = self._ga[rows] @ self.actions.T
        self._hh += sign * np.einsum("kn,kn->n", self._h[rows], self._h[rows])
        self._k = k + m
        if self._k >= BLOCK:
            self.flush()

    @staticmethod
    def _healthy(gains: Vector, sign: float) -> bool:
        """Return whether Sherman-Morrison is safe: A⁻¹ is positive, and the remaining A is well conditioned."""
        if sign > 0:
            return bool(gains.min() > -DRIFT)
        return bool(1.0 + gains.sum() > THIN)

    def _symm(self, queries: Matrix) -> Matrix:
        return np.asarray(blas.dsymm(1.0, self._p, queries.T, lower=1))

    def _accumulate(self, x: Matrix, sign: float) -> None:
        self.a = blas.dsyrk(sign, np.ascontiguousarray(x).T, beta=1.0, c=self.a, lower=1, overwrite_c=1)


# Ridge regression with few dimensions, row by row: A = Λ + Σ w x xᵀ, B = Σ w x tᵀ and Θ = A⁻¹B, with a diagonal Λ.
#
# `Gram` is fast at a thousand dimensions, but its last bits depend on how rows are batched. `Ridge` does not depend on
# batching: a row is added by the same operations whether alone or in a batch, live or from the log, and the inverse is
# saved with the state. Everything computed from it, such as λ, is therefore the same with or without a recovery.
#
# Only one triangle of A and of A⁻¹ is updated, read and saved. Two would not stay symmetric, because BLAS may use a
# fused multiply-add for a - x·y in some entries and not in others (OpenBLAS's `dger` on Haswell does).

REFRESH: Final = 1000
"""Number of rows between factorisations of A. At 150 dimensions, the inverse drifts by 1e-12 over this many rank-one
updates."""


class Ridge:
    """Ridge regression, stored as A, B, A⁻¹ and Θ. Dimensions can be added at any time.

    Args:
        penalties: The diagonal of Λ, positive, shape (D,): how strongly each coefficient is shrunk to zero.
        columns: Number of columns of B.

    Attributes:
        a: A, shape (D, D). Only its lower triangle is valid.
        half: The lower triangle of A⁻¹, with zeros above, shape (D, D).
        b, theta: B and Θ, shape (D, columns).
        rows: Number of rows added.
    """

    def __init__(self, penalties: Vector, columns: int) -> None:
        dim = len(penalties)
        self.rows = 0
        self.a: Matrix = np.diag(penalties)
        self.half: Matrix = np.diag(1.0 / penalties)
        self.b: Matrix = np.zeros((dim, columns))
        self.theta: Matrix = np.zeros((dim, columns))

    @property
    def dim(self) -> int:
        """Return D."""
        return len(self.a)

    def arrange(self, before: Sequence[int], after: Sequence[int], penalties: Vector) -> None:
        """Move some dimensions, drop the others, and add new ones in between.

        If no dimensions are dropped, or all rows are zero in those dropped, the remaining numbers stay bit-identical.

        Args:
            before: The dimensions to keep, ascending.
            after: Their new positions, ascending.
            penalties: One penalty per resulting dimension; only those for new dimensions are used.
        """
        old, new = np.asarray(before, dtype=np.intp), np.asarray(after, dtype=np.intp)
        kept, to = np.ix_(old, old), np.ix_(new, new)
        dropped = np.setdiff1d(np.arange(self.dim), old)
        rows = np.tril(self.a, -1)
        entered = rows[dropped].any() or rows[:, dropped].any()
        a, half = np.diag(penalties), np.diag(1.0 / penalties)
        a[to], half[to] = self.a[kept], self.half[kept]
        b, theta = np.zeros((len(a), self.b.shape[1])), np.zeros((len(a), self.b.shape[1]))
        b[new], theta[new] = self.b[old], self.theta[old]
        self.a, self.half, self.b, self.theta = a, half, b, theta
        if entered:
            self.factorise()

    def repenalise(self, first: int, added: Vector) -> None:
        """Add to the penalties of the dimensions from `first` on. Negative values reduce them."""
        at = np.arange(first, self.dim)
        self.a[at, at] += added
        self.factorise()

    def solve(self, x: Vector) -> Vector:
        """Return A⁻¹x, shape (D,)."""
        return np.asarray(blas.dsymv(1.0, self.half.T, x))

    def squares(self, x: Matrix) -> Vector:
        """Return xᵀA⁻¹x for each row, shape (m,)."""
        return np.asarray(2.0 * np.sum((x @ self.half) * x, axis=1) - x**2 @ np.diagonal(self.half))

    def add(self, x: Vector, targets: Vector) -> None:
        """Add one row.

        Args:
            x: The row's features, shape (D,).
            targets: The row's targets, shape (columns,).
        """
        self.a = _rank_one_update(self.a, 1.0, x)
        self.b += np.outer(x, targets)
        u = self.solve(x)
        gain = 1.0 + float(x @ u)
        self.theta += np.outer(u, (targets - x @ self.theta) / gain)
        self.half = _rank_one_update(self.half, -1.0 / gain, u)
        self.rows += 1
        if self.rows % REFRESH == 0:
            self.factorise()

    def enter(self, a: Matrix, penalties: Vector, b: Matrix) -> None:
        """Discard all rows and start from the given Σ x xᵀ (`a`), penalties, and Σ x·targetᵀ (`b`)."""
        self.a = a.copy()
        self.a[np.diag_indices(len(a))] += penalties
        self.b = b.copy()
        self.factorise()

    def loosen(self, column: int, variance: float) -> None:
        """Increase one coefficient's variance: A⁻¹ + v·eeᵀ, with Θ unchanged."""
        own = np.concatenate([self.a[column, :column], self.a[column:, column]])
        self.a = _rank_one_update(self.a, -variance / (1.0 + variance * float(own[column])), own)
        self.half[column, column] += variance
        self.b = _times(self.a, self.theta)

    def adjust(self, x: Vector, column: int, amount: float) -> None:
        """Add amount·x to one column of B. A does not change, because it already contains the row."""
        self.b[:, column] += amount * x
        self.theta[:, column] += amount * self.solve(x)

    def factorise(self) -> None:
        """Recompute A⁻¹ and Θ from A and B.

        Raises:
            LinAlgError: A is no longer positive definite; fold the log again.
        """
        self.half = np.tril(inverted(self.a))
        self.theta = _times(self.half, self.b)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return all arrays; `restore` then continues bit for bit."""
        return {
            "ridge.a": _lower(self.a),
            "ridge.inverse": _lower(self.half),
            "ridge.b": self.b,
            "ridge.theta": self.theta,
        }

    def restore(self, arrays: dict[str, np.ndarray], rows: int) -> None:
        """Restore what `snapshot` returned after `rows` rows."""
        dim = len(arrays["ridge.b"])
        self.a, self.half = _whole(arrays["ridge.a"], dim), _whole(arrays["ridge.inverse"], dim)
        self.b, self.theta = arrays["ridge.b"], arrays["ridge.theta"]
        self.rows = rows


def _rank_one_update(lower: Matrix, factor: float, x: Vector) -> Matrix:
    """Add factor·x xᵀ to a lower triangle in place."""
    return np.asarray(blas.dsyr(factor, x, a=lower.T, overwrite_a=1).T)


def _times(lower: Matrix, columns: Matrix) -> Matrix:
    """Return the product of a symmetric matrix, represented by its lower triangle, and some columns."""
    return np.ascontiguousarray(blas.dsymm(1.0, lower.T, columns))


def _lower(matrix: Matrix) -> Vector:
    """Return a matrix's lower triangle."""
    return matrix[np.tril_indices(len(matrix))]


def _whole(lower: Vector, dim: int) -> Matrix:
    """Return the matrix with this lower triangle and zeros above it."""
    matrix = np.zeros((dim, dim))
    matrix[np.tril_indices(dim)] = lower
    return matrix


def _factored(a: Matrix) -> Matrix:
    """Return the lower Cholesky factor of a positive definite matrix, represented by its lower triangle."""
    low, info = lapack.dpotrf(a, lower=1, clean=0)
    if info:
        raise np.linalg.LinAlgError(f"A is not positive definite at pivot {info}; fold the log again")
    return np.asarray(low)


def inverted(a: Matrix) -> Matrix:
    """Return the inverse of a positive definite matrix, represented by its lower triangle.

    Raises:
        LinAlgError: A is no longer positive definite; fold the log again.
    """
    low = _factored(a)
    half, _ = lapack.dpotri(low, lower=1, overwrite_c=1)
    half += 0.0  # turns -0.0 into 0.0, so that equal states are bit-identical
    np.copyto(half.T, half, where=np.tri(len(half), k=-1, dtype=bool))
    return np.asarray(half.T)  # row-major, like every other matrix


def marginal(a: Matrix, b: Vector, first: int) -> tuple[Matrix, Vector]:
    """Return A and b for the coefficients from `first` on, with the others integrated out.

    Args:
        a: A, positive definite, shape (D, D). Only its lower triangle is valid.
        b: b, shape (D,).
        first: Index of the first coefficient to keep.

    Raises:
        LinAlgError: A is not positive definite.
    """
    both = np.vstack([a[first:, :first], b[:first]]).T
    along, _ = lapack.dtrtrs(_factored(a[:first, :first]), both, lower=1)
    gram = a[first:, first:] - along[:, :-1].T @ along[:, :-1]
    return gram, b[first:] - along[:, :-1].T @ along[:, -1]
