"""k-NN router (App. B.3, Eq. 8): the mean reward of the k most similar past (query, action) pairs.

Similarity is the cosine of the joint vectors. Ties are frequent (repeated pairs, few rows). A seeded random draw, never
the lowest index, decides which of equally near rows count and which of equally good actions is taken. If it decides
among neighbours, the propensity has no simple closed form and is logged as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from agents.decider.features import FeatureMap
from agents.decider.policies.base import Context, Observation, Scores, Vector, generator
from agents.decider.policies.choosing import pick
from agents.decider.policies.history import History
from agents.decider.policies.learner import Learner
from agents.decider.policies.policy import Policy
from agents.decider.policies.registry import Inputs, Options, policy

EQUAL_DIGITS: Final = 12
"""Decimals to which two cosines are compared, coarser than the rounding of a sum of 2,048 products."""


class KNN(Learner):
    """k nearest neighbours in the joint space, greedy in their mean reward."""

    name = "knn"
    order_free = False  # the draw among tied rows depends on their order

    def __init__(self, features: FeatureMap, k: int = 5) -> None:
        super().__init__(features)
        self.k = k
        self.history = History(features.settings.query_dim)

    def take(self, observations: Sequence[Observation]) -> None:
        """Keep the rows."""
        self.history.append(self.features, observations)

    def amend(self, observations: Sequence[Observation]) -> None:
        """Replace the rewards of known rows."""
        self.history.correct(self.features, observations)

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the rows."""
        rows, arrays = self.history.snapshot()
        return {"rows": rows}, arrays

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Take the rows back."""
        self.history.restore(meta["rows"], arrays)

    def identity(self) -> dict[str, Any]:
        """Return k and the features' settings."""
        return {"k": self.k, **super().identity()}

    def score(self, query: Vector, context: Context, seed: int) -> Scores:
        """Return the neighbours' mean reward of every allowed action."""
        rows = self.features.choosable(context.query_id, context.allowed)
        mean, ambiguous = self._means(query, rows, context, seed)
        chosen, probability = pick(mean, seed, context.query_id)
        ids = [self.features.ids[j] for j in rows]
        return Scores(ids, mean, np.zeros(len(rows)), mean, chosen, None if ambiguous else probability)

    def _means(self, query: Vector, rows: np.ndarray, context: Context, seed: int) -> tuple[Vector, bool]:
        """Return the neighbours' mean of each action, and whether a draw decided which rows were neighbours."""
        history, actions = self.history, self.features.coordinates
        n = len(history)
        if not n:
            return np.zeros(len(rows)), False
        if n <= self.k:
            return np.full(len(rows), history.rewards.mean()), False
        order = generator(seed, context.query_id, "neighbours").permutation(n)
        past, places, rewards = history.queries[order], history.places[order], history.rewards[order]
        products = past @ query + actions[rows] @ actions.T[:, places]
        lengths = np.sqrt(np.einsum("nq,nq->n", past, past) + np.sum(actions[places] ** 2, axis=1))
        own = np.sqrt(query @ query + np.sum(actions[rows] ** 2, axis=1))
        similarity = np.round(products / (own[:, None] * lengths), EQUAL_DIGITS)
        near = np.argpartition(similarity, n - self.k, axis=1)[:, n - self.k :]
        edge = np.take_along_axis(similarity, near, axis=1).min(axis=1)
        ambiguous = bool(np.any(np.sum(similarity >= edge[:, None], axis=1) > self.k))
        return rewards[near].mean(axis=1), ambiguous


class KNNOptions(Options, frozen=True, kw_only=True):
    """Options of k-NN.

    Attributes:
        k: Number of neighbours.
    """

    k: int = 5

    def __post_init__(self) -> None:
        """Refuse numbers it cannot run with."""
        super().__post_init__()
        self.positive("k")


@policy("knn", KNNOptions)
def _knn(options: KNNOptions, on: Inputs) -> Policy:
    return KNN(on.features(options), options.k)
