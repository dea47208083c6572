"""k-NN router (App. B.3, Eq. 8): the mean reward of the k most similar past (query, action) pairs.

Similarity is the cosine of the joint vectors. Ties are frequent (repeated pairs, few rows): both which of
equally near rows count and which of equally good actions is taken are decided by seeded chance, never by
lowest index. Where chance decides among neighbours the propensity has no simple closed form and is logged as
not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from agents.decider.features import FeatureMap
from agents.decider.policies.base import (
    ActionVector,
    Choice,
    Context,
    Objective,
    Observation,
    Pending,
    Scores,
    Vector,
    generator,
)
from agents.decider.policies.choosing import choices, pick
from agents.decider.policies.envelope import pack, unpack
from agents.decider.policies.history import History

EQUAL_DIGITS: Final = 12
"""Decimals at which two cosines are the same: above the rounding of a sum of 2,048 products."""


class KNN:
    """k nearest neighbours in the joint space, greedy in their mean reward."""

    name = "knn"
    order_free = False  # which of tied rows is drawn depends on their order
    counts_decisions = False

    def __init__(self, features: FeatureMap, k: int = 5) -> None:
        self.features = features
        self.k = k
        self.history = History(features.settings.query_dim)
        self._corrections = 0

    @property
    def version(self) -> int:
        """Return the number of rewards and corrections applied."""
        return len(self.history) + self._corrections

    def add_actions(self, actions: Sequence[ActionVector]) -> None:
        """Make actions available."""
        self.features.add(actions)

    def remove_actions(self, action_ids: Sequence[str]) -> None:
        """Stop choosing actions; their rows stay neighbours."""
        self.features.remove(action_ids)

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Return the neighbours' mean reward of every allowed action."""
        queries = self.features.queries([(c.query_id, c.embedding) for c in contexts])
        return [self._scores(query, context, seed) for query, context in zip(queries, contexts, strict=True)]

    def select(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Choice]:
        """Choose the action of largest neighbour mean for each context."""
        return choices(contexts, self.scores(contexts, objectives, seed), self.version)

    def expect(self, decisions: Sequence[Pending]) -> None:
        """Do nothing: only rewarded rows are neighbours."""

    def abandon(self, decisions: Sequence[Pending]) -> None:
        """Do nothing."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Keep the rows."""
        self.history.append(self.features, observations)

    def correct(self, observations: Sequence[Observation]) -> None:
        """Replace the rewards of known rows."""
        self.history.correct(self.features, observations)
        self._corrections += len(observations)

    def state(self) -> bytes:
        """Serialise the rows and the feature map."""
        features, arrays = self.features.snapshot()
        rows, more = self.history.snapshot()
        meta = {"features": features, "rows": rows, "corrections": self._corrections}
        return pack(self.name, self._identity(), meta, arrays | more)

    def load(self, data: bytes) -> None:
        """Become a serialised state."""
        meta, arrays = unpack(data, self.name, self._identity())
        self.features.restore(meta["features"], arrays)
        self.history.restore(meta["rows"], arrays)
        self._corrections = meta["corrections"]

    def _identity(self) -> dict[str, Any]:
        return {"k": self.k, "features": asdict(self.features.settings)}

    def _scores(self, query: Vector, context: Context, seed: int) -> Scores:
        rows = self.features.choosable(context.query_id, context.allowed)
        mean, ambiguous = self._means(query, rows, context, seed)
        chosen, probability = pick(mean, seed, context.query_id)
        ids = [self.features.ids[j] for j in rows]
        return Scores(ids, mean, np.zeros(len(rows)), mean, chosen, None if ambiguous else probability)

    def _means(self, query: Vector, rows: np.ndarray, context: Context, seed: int) -> tuple[Vector, bool]:
        """Return each action's neighbour mean and whether chance decided which rows were neighbours."""
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
