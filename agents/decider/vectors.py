"""What a vector must be, and the short projection of a query that interactions use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from agents.decider.errors import InvalidObservation
from agents.decider.policies.base import Matrix, Vector

SPANNED: Final = 1e-12
"""Norm of a unit vector's part outside the basis below which the vector counts as inside: float64 rounding."""

LONG: Final = 1e6
"""Squared length above which a vector cannot be an embedding. Encoders return unit vectors; one of length 1,000 would
weigh as much as a million observations in A."""


@dataclass(frozen=True, slots=True)
class QueryBasis:
    """A projection z_q = directions · (s_q - offset), fitted on queries that are not evaluated.

    Attributes:
        offset: Shape (query_dim,).
        directions: Shape (query_rank, query_dim).
    """

    offset: Vector
    directions: Matrix

    @classmethod
    def fitted(cls, queries: Matrix, rank: int) -> QueryBasis:
        """Fit the leading principal directions of queries, shape (n, query_dim); z_q has unit RMS."""
        offset = queries.mean(axis=0)
        _, sizes, directions = np.linalg.svd(queries - offset, full_matrices=False)
        spread = np.sqrt(np.sum(sizes[:rank] ** 2) / len(queries))
        return cls(offset, directions[:rank] / max(float(spread), SPANNED))

    @classmethod
    def random(cls, dim: int, rank: int, seed: int) -> QueryBasis:
        """Draw a random projection whose z_q has unit RMS for unit s_q."""
        draws = np.random.default_rng(seed).standard_normal((dim, rank))
        return cls(np.zeros(dim), np.linalg.qr(draws)[0].T * np.sqrt(dim / rank))


def checked(subject: str, vector: Vector, dim: int, name: str) -> Vector:
    """Return a vector as float64, after checking it.

    Raises:
        InvalidObservation: It has the wrong length or zero norm, or is not finite; the message names the field.
    """
    out = np.asarray(vector, dtype=np.float64)
    if out.shape != (dim,):
        raise InvalidObservation(
            subject, name, out.shape, f"give one vector of length {dim}, of the configured encoder"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(out @ out)
    if not square < LONG:  # NaN fails every comparison
        raise InvalidObservation(subject, name, "not finite or far from unit length", "embed the text again")
    if square < SPANNED:
        raise InvalidObservation(subject, name, "of zero norm", "embed a text that is not empty")
    return out
