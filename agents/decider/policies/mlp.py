"""MLP router (App. B.3): greedy in a two-layer network retrained on the whole history after each observation.

Warm start: weights and Adam moments carry on. That is 1,000 full-batch iterations per observation, 80-200 s
for a run of 210 rounds on two cores; a smaller `iterations` is a different method and the settings say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from agents.decider.features import FeatureMap
from agents.decider.policies.base import (
    ActionVector,
    Choice,
    Context,
    Matrix,
    Objective,
    Observation,
    Pending,
    Scores,
    Vector,
)
from agents.decider.policies.choosing import choices, pick
from agents.decider.policies.envelope import pack, unpack
from agents.decider.policies.history import History
from agents.decider.policies.network import Network, NetworkSettings


class MLP:
    """Predict the scalar reward from x = [s_q; s_a] and take the best action."""

    order_free = False  # training visits the history as it grew
    counts_decisions = False

    def __init__(
        self, features: FeatureMap, settings: NetworkSettings | None = None, *, name: str = "mlp"
    ) -> None:
        self.name = name
        self.features = features
        self.settings = settings or NetworkSettings()
        f = features.settings
        self.network = Network(f.query_dim + f.action_dim, self.settings)
        self.history = History(f.query_dim)
        self._corrections = 0

    @property
    def version(self) -> int:
        """Return the number of rewards and corrections applied."""
        return len(self.history) + self._corrections

    def add_actions(self, actions: Sequence[ActionVector]) -> None:
        """Make actions available. With one-hot features, action_dim is the room for actions ever added."""
        self.features.add(actions)

    def remove_actions(self, action_ids: Sequence[str]) -> None:
        """Stop choosing actions; their rows are still trained on."""
        self.features.remove(action_ids)

    def scores(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Scores]:
        """Return the predicted reward of every allowed action."""
        queries = self.features.queries([(c.query_id, c.embedding) for c in contexts])
        return [self._scores(query, context, seed) for query, context in zip(queries, contexts, strict=True)]

    def select(self, contexts: Sequence[Context], objectives: Sequence[Objective], seed: int) -> list[Choice]:
        """Choose the action of largest score for each context."""
        return choices(contexts, self.scores(contexts, objectives, seed), self.version)

    def expect(self, decisions: Sequence[Pending]) -> None:
        """Do nothing: only rewarded rows train."""

    def abandon(self, decisions: Sequence[Pending]) -> None:
        """Do nothing."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Append each observation and train on the whole history after it."""
        for observation in observations:
            self.history.append(self.features, [observation])
            x = self.inputs(self.history.queries, self.history.places)
            self.entered(x[-1:])
            self.network.train(x, self.history.rewards)

    def correct(self, observations: Sequence[Observation]) -> None:
        """Replace the targets of known rows; the next observation trains on them."""
        self.history.correct(self.features, observations)
        self._corrections += len(observations)

    def state(self) -> bytes:
        """Serialise network, rows and feature map."""
        features, arrays = self.features.snapshot()
        rows, more = self.history.snapshot()
        meta = {"features": features, "rows": rows, "corrections": self._corrections}
        return pack(self.name, self._identity(), meta, arrays | more | self.extra() | self.network.snapshot())

    def load(self, data: bytes) -> None:
        """Become a serialised state."""
        meta, arrays = unpack(data, self.name, self._identity())
        self.features.restore(meta["features"], arrays)
        self.history.restore(meta["rows"], arrays)
        self._corrections = meta["corrections"]
        self.network.restore(arrays)
        self.regain(arrays)

    def inputs(self, queries: Matrix, places: np.ndarray) -> Matrix:
        """Return x = [s_q; s_a] in the embedding's own axes, shape (m, query_dim + action_dim).

        Adam is not invariant under rotation, so the shorter basis of the linear policies would be another
        method.
        """
        vectors = self.features.vectors[places]
        room = self.features.settings.action_dim
        if vectors.shape[1] > room:
            raise ValueError(
                f"action_dim is {room} but {vectors.shape[1]} one-hot actions are known; raise action_dim"
            )
        padding = np.zeros((len(vectors), room - vectors.shape[1]))
        return np.concatenate([queries, vectors, padding], axis=1)

    def entered(self, x: Matrix) -> None:
        """Do nothing; NeuralUCB takes the gradient of the row before it is trained on."""

    def extra(self) -> dict[str, np.ndarray]:
        """Return more arrays for the state; none here."""
        return {}

    def regain(self, arrays: dict[str, np.ndarray]) -> None:
        """Take back what `extra` gave; nothing here."""

    def widths(self, x: Matrix) -> Vector:
        """Return the exploration bonus of each row: zero here."""
        return np.zeros(len(x))

    def _identity(self) -> dict[str, Any]:
        return {"network": asdict(self.settings), "features": asdict(self.features.settings)}

    def _scores(self, query: Vector, context: Context, seed: int) -> Scores:
        rows = self.features.choosable(context.query_id, context.allowed)
        x = self.inputs(np.broadcast_to(query, (len(rows), len(query))), rows)
        mean, width = self.network.predict(x), self.widths(x)
        score = mean + width
        chosen, probability = pick(score, seed, context.query_id)
        return Scores([self.features.ids[j] for j in rows], mean, width, score, chosen, probability)
