"""History as a table of outcomes of configurations, one per row.

Either every configuration answered every question, or the rows are logged decisions with one configuration each and its
propensity. Every outcome is an observation, except that a rare action's may count for several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from agents.decider.errors import InvalidObservation
from agents.decider.policies.base import Matrix, Vector

MOST_WEIGHT: Final = 10.0
"""Bound of 1/propensity, so that the rows of a rare action do not dominate."""


@dataclass(frozen=True)
class History:
    """Rows of history, each with one outcome.

    Attributes:
        queries: Embedding and surface counts of every question, shape (Q, d).
        question: Index of the question, shape (m,).
        action: Index of the action among the policy's, shape (m,).
        correct, score, log_cost: The terms, shape (m,).
        propensity: Probability with which the action was drawn; ones for a full table.
    """

    queries: Matrix
    question: np.ndarray
    action: np.ndarray
    correct: Vector
    score: Vector
    log_cost: Vector
    propensity: Vector

    def __post_init__(self) -> None:
        """Refuse values that would poison A or B; the message names the field."""
        for name in ("correct", "score", "propensity"):
            values = getattr(self, name)
            if not (np.isfinite(values).all() and (values >= 0).all() and (values <= 1).all()):
                raise InvalidObservation("history", name, "outside 0 to 1", "correct the table")
        if not np.isfinite(self.log_cost).all() or not np.isfinite(self.queries).all():
            raise InvalidObservation("history", "log_cost", "not finite", "give what each search cost")
        if not (self.propensity > 0).all():
            raise InvalidObservation("history", "propensity", 0.0, "log with exploration, above 0 everywhere")

    @property
    def weights(self) -> Vector:
        """Return the weight of each row, corrected for its propensity: 1 on average."""
        inverse = np.minimum(1.0 / self.propensity, MOST_WEIGHT)
        return np.asarray(inverse / inverse.mean())
