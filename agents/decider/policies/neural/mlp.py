"""MLP router (App. B.3): greedy in a two-layer network retrained on the whole history after each observation.

Training continues from the previous weights and Adam moments. It takes 1,000 full-batch iterations per observation, or
two minutes for a run of 210 rounds on one core; fewer `iterations` are a different method. torch is imported only when
a network is created, so processes with a linear policy do not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from agents.decider.features import FeatureMap
from agents.decider.policies.base import Context, Matrix, Observation, Scores, Vector
from agents.decider.policies.choosing import pick
from agents.decider.policies.history import History
from agents.decider.policies.learner import Learner
from agents.decider.policies.policy import Policy
from agents.decider.policies.registry import Inputs, Options, policy


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Hyperparameters of App. B.3; `seed` draws the initial weights. Fewer iterations are a different method."""

    hidden: int = 100
    learning_rate: float = 1e-3
    iterations: int = 1000
    seed: int = 0


class MLP(Learner):
    """Predict the scalar reward from x = [s_q; s_a] and take the best action."""

    order_free = False  # training follows the history as it grows

    def __init__(
        self, features: FeatureMap, settings: NetworkSettings | None = None, *, name: str = "mlp"
    ) -> None:
        from agents.decider.policies.neural.network import Network

        super().__init__(features)
        self.name = name
        self.settings = settings or NetworkSettings()
        f = features.settings
        if f.interactions != "none":
            raise ValueError(f"interactions is {f.interactions!r}; a network learns its own, set 'none'")
        self.network = Network(f.query_dim + f.action_dim, self.settings)
        self.history = History(f.query_dim)

    def take(self, observations: Sequence[Observation]) -> None:
        """Append each observation, and train on the whole history after each."""
        for observation in observations:
            self.history.append(self.features, [observation])
            x = self.inputs(self.history.queries, self.history.places)
            self.entered(x[-1:])
            self.network.train(x, self.history.rewards)

    def amend(self, observations: Sequence[Observation]) -> None:
        """Replace the targets of known rows; the next observation trains on them."""
        self.history.correct(self.features, observations)

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return network and rows."""
        rows, arrays = self.history.snapshot()
        return {"rows": rows}, arrays | self.extra() | self.network.snapshot()

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Take network and rows back."""
        self.history.restore(meta["rows"], arrays)
        self.network.restore(arrays)
        self.regain(arrays)

    def inputs(self, queries: Matrix, places: np.ndarray) -> Matrix:
        """Return x = [s_q; s_a] in the embedding's own axes, shape (m, query_dim + action_dim).

        Adam is not invariant under rotation, so the shorter basis of the linear policies would be a different method.
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
        """Restore the arrays of `extra`; none here."""

    def widths(self, x: Matrix) -> Vector:
        """Return the exploration bonus of each row: zero here."""
        return np.zeros(len(x))

    def identity(self) -> dict[str, Any]:
        """Return the settings of network and features."""
        return {"network": asdict(self.settings), **super().identity()}

    def score(self, query: Vector, context: Context, seed: int) -> Scores:
        """Return the predicted reward of every allowed action."""
        rows = self.features.choosable(context.query_id, context.allowed)
        x = self.inputs(np.broadcast_to(query, (len(rows), len(query))), rows)
        mean, width = self.network.predict(x), self.widths(x)
        score = mean + width
        chosen, probability = pick(score, seed, context.query_id)
        return Scores([self.features.ids[j] for j in rows], mean, width, score, chosen, probability)


class NetworkOptions(Options, frozen=True, kw_only=True):
    """Options of the networks.

    Attributes:
        hidden, learning_rate, iterations, network_seed: see NetworkSettings.
    """

    hidden: int = 100
    learning_rate: float = 1e-3
    iterations: int = 1000
    network_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers they cannot run with."""
        super().__post_init__()
        self.positive("hidden", "learning_rate", "iterations")

    @property
    def network(self) -> NetworkSettings:
        """Return the network's settings."""
        return NetworkSettings(self.hidden, self.learning_rate, self.iterations, self.network_seed)


@policy("mlp", NetworkOptions)
def _mlp(options: NetworkOptions, on: Inputs) -> Policy:
    return MLP(on.features(options), options.network)
