"""How the contextual policy ranks: predicted reward, priced optimism, caution.

Exploration accounts for cost. If the objective has a price, the optimism α·√(xᵀA⁻¹x) of an action that costs k times as
much as the best predicted one is divided by k, so that very expensive actions are not explored like the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agents.decider.policies.base import Context, Matrix, Objective, Scores, Vector
from agents.decider.policies.choosing import pick
from agents.decider.policies.contextual.caution import lengths
from agents.decider.policies.contextual.design import COST, ONE
from agents.decider.policies.contextual.pacing.outlook import Outlook


class Seen(NamedTuple):
    """What is predicted for one query z: terms of every action, shape (n, 5), and Q (`Estimates.curvature`)."""

    z: Vector
    terms: Matrix
    curvature: Matrix


class Ranking:
    """Scores the actions of queries. Changes nothing.

    Args:
        outlook: The recent queries, and the regression.
        alpha: Exploration factor.
    """

    def __init__(self, outlook: Outlook, alpha: float) -> None:
        self._outlook, self._alpha = outlook, alpha
        self._design, self._estimates = outlook.design, outlook.estimates

    def scores(
        self, queries: Matrix, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int
    ) -> list[Scores]:
        """Score every allowed action of every context.

        Args:
            queries: Checked vectors of the contexts, as rows.
            contexts: The contexts.
            objectives: One for each context.
            seed: Of ties.
        """
        usual = self._seen(self._outlook.usual()) if self._outlook.cautious() else None
        asked = zip(queries, contexts, objectives, strict=True)
        return [self._scored(query, context, objective, seed, usual) for query, context, objective in asked]

    def _seen(self, z: Vector) -> Seen:
        return Seen(z, self._estimates.predicted(z), self._estimates.curvature(z))

    def _scored(
        self, query: Vector, context: Context, objective: Objective, seed: int, usual: Seen | None
    ) -> Scores:
        d = self._design
        keep = d.choosable(context.query_id, context.allowed)
        seen = self._seen(d.short(query))
        mean, width = self._optimistic(seen, keep, objective)
        score = mean + width
        if usual is not None:
            incumbent = keep[int(np.add(*self._optimistic(usual, keep, objective)).argmax())]
            peculiar = self._estimates.curvature(seen.z - usual.z)
            doubt = lengths(d.sides[keep] - d.sides[incumbent], peculiar)
            score = score - self._outlook.caution * doubt
        chosen, probability = pick(score, seed, context.query_id)
        correct, path_score, log_cost = seen.terms[keep[chosen], :ONE].tolist()
        return Scores(
            [d.ids[j] for j in keep],
            mean,
            width,
            score,
            chosen,
            probability,
            predicted=(correct, path_score, log_cost),
        )

    def _optimistic(self, seen: Seen, keep: np.ndarray, objective: Objective) -> tuple[Vector, Vector]:
        """Return predicted reward and priced optimism of some actions."""
        terms = seen.terms[keep]
        width = self._alpha * lengths(self._design.sides[keep], seen.curvature)
        mean = terms[:, :COST] @ objective.coefficients - objective.price * terms[:, COST]
        if objective.price:
            best = terms[int(mean.argmax()), COST]
            width = width * np.minimum(1.0, best / terms[:, COST])
        return mean, width
