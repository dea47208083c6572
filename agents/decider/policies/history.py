"""All observations, for the policies that need each of them again: k-NN, MLP, NeuralUCB.

They learn the paper's scalar reward: r of Eq. 4 under the objective in force when the decision was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agents.decider import intake
from agents.decider.features import FeatureMap
from agents.decider.policies.base import Matrix, Observation, Vector


class History:
    """Rows (s_q, action, r) in the order they were learned; a correction replaces r in its row."""

    def __init__(self, query_dim: int) -> None:
        self.ids: list[str] = []
        self.index: dict[str, int] = {}
        self._queries: Matrix = np.zeros((64, query_dim))
        self._places = np.zeros(64, dtype=np.intp)
        self._rewards: Vector = np.zeros(64)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)

    @property
    def queries(self) -> Matrix:
        """Return s_q of every row, shape (n, query_dim)."""
        return self._queries[: len(self)]

    @property
    def places(self) -> np.ndarray:
        """Return the feature map's row of every action, shape (n,)."""
        return self._places[: len(self)]

    @property
    def rewards(self) -> Vector:
        """Return r of every row, shape (n,)."""
        return self._rewards[: len(self)]

    def append(self, features: FeatureMap, observations: Sequence[Observation]) -> None:
        """Add checked rows."""
        for o in observations:
            intake.outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)
        queries = features.queries([(o.observation_id, o.embedding) for o in observations])
        places = [features.position(o.observation_id, o.action_id) for o in observations]
        n, m = len(self), len(observations)
        while n + m > len(self._places):
            self._queries = np.concatenate([self._queries, np.zeros_like(self._queries)])
            self._places = np.concatenate([self._places, np.zeros_like(self._places)])
            self._rewards = np.concatenate([self._rewards, np.zeros_like(self._rewards)])
        self._queries[n : n + m], self._places[n : n + m] = queries, places
        self._rewards[n : n + m] = [o.objective.reward(o.entered, o.score, o.log_cost) for o in observations]
        for o in observations:
            self.index[o.observation_id] = len(self.ids)
            self.ids.append(o.observation_id)

    def correct(self, features: FeatureMap, observations: Sequence[Observation]) -> None:
        """Replace the reward of known rows with the one that uses the true Correct."""
        features.queries([(o.observation_id, o.embedding) for o in observations])
        for o in observations:
            intake.outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)
            if (row := self.index.get(o.observation_id)) is not None:
                self._rewards[row] = o.objective.reward(o.entered, o.score, o.log_cost)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return (plain values, arrays) from which `restore` rebuilds the rows."""
        arrays = {"queries": self.queries, "places": self.places.astype("<i8"), "rewards": self.rewards}
        return {"ids": self.ids}, arrays

    def restore(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Become the rows that `snapshot` saved."""
        self.ids = list(meta["ids"])
        self.index = {observation_id: i for i, observation_id in enumerate(self.ids)}
        room = max(64, len(self.ids))
        self._queries = np.zeros((room, arrays["queries"].shape[1]))
        self._places, self._rewards = np.zeros(room, dtype=np.intp), np.zeros(room)
        n = len(self.ids)
        self._queries[:n], self._places[:n] = arrays["queries"], arrays["places"]
        self._rewards[:n] = arrays["rewards"]
