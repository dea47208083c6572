"""The paper's baselines (App. B.3): Random, k-NN, the MLP router and NeuralUCB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from scipy.linalg import solve_triangular

from agents.bandit.exploration import uniform
from agents.bandit.features import FeatureMap
from agents.bandit.learner import Learner, ReplayBuffer, ranked
from agents.bandit.policy import (
    Context,
    Matrix,
    Observation,
    Policy,
    Prediction,
    Traits,
    Vector,
    check_outcome,
    generator,
)
from agents.bandit.registry import Inputs, Options, register_policy

# Random (§4): every allowed action is equally likely, and the exact probability is logged.


class Uniform(Learner):
    """Policy that draws actions at random. It validates and counts observations but learns nothing from them."""

    name = "random"

    def predict_one(self, query: Vector, context: Context, seed: int) -> Prediction:
        """Assign every allowed action the same score and probability. For a given seed, all policies draw alike."""
        rows = self.features.choosable(context.query_id, context.allowed)
        ids, zero = [self.features.ids[j] for j in rows], np.zeros(len(rows))
        return uniform(Prediction(context.query_id, ids, zero, zero, zero, 0, None), seed)

    def take(self, observations: Sequence[Observation]) -> None:
        """Validate the observations."""
        self.features.queries([(o.observation_id, o.embedding) for o in observations])
        for o in observations:
            self.features.position(o.observation_id, o.action_id)
            check_outcome(o.observation_id, o.correct, o.score, o.log_cost, o.imputed)

    amend = take


@register_policy("random", Options)
def _random(options: Options, on: Inputs) -> Policy:
    return Uniform(on.features(options))


# k-NN router (App. B.3, Eq. 8): the mean reward of the k most similar past (query, action) pairs.
#
# Similarity is the cosine of the joint vectors. Ties are frequent, because pairs repeat and there are few rows. They
# are broken by a seeded random draw, never by the lowest index, both among equally near rows and among equally good
# actions. If neighbours are drawn at random, the propensity has no simple closed form and is logged as unknown.

EQUAL_DIGITS: Final = 12
"""Number of decimal places for comparing cosines, coarser than the rounding error of 2,048 products."""


class KNN(Learner):
    """k-NN router: chooses the action with the highest mean reward among its nearest neighbours in the joint space."""

    name = "knn"
    traits = Traits(order_free=False)  # the draw between tied rows depends on their order

    def __init__(self, features: FeatureMap, k: int = 5) -> None:
        super().__init__(features)
        self.k = k
        self.history = ReplayBuffer(features.settings.query_dim)

    def take(self, observations: Sequence[Observation]) -> None:
        """Store the rows."""
        self.history.append(self.features, observations)

    def amend(self, observations: Sequence[Observation]) -> None:
        """Replace the rewards of stored rows."""
        self.history.correct(self.features, observations)

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the stored rows."""
        rows, arrays = self.history.snapshot()
        return {"rows": rows}, arrays

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore the stored rows."""
        self.history.restore(meta["rows"], arrays)

    def identity(self) -> dict[str, Any]:
        """Return k and the feature settings."""
        return {"k": self.k, **super().identity()}

    def predict_one(self, query: Vector, context: Context, seed: int) -> Prediction:
        """Predict each allowed action's reward as the mean over its nearest neighbours."""
        rows = self.features.choosable(context.query_id, context.allowed)
        mean, ambiguous = self._means(query, rows, context, seed)
        ids = [self.features.ids[j] for j in rows]
        made = ranked(context.query_id, ids, mean, np.zeros(len(rows)), seed)
        return replace(made, probability=None) if ambiguous else made

    def _means(self, query: Vector, rows: np.ndarray, context: Context, seed: int) -> tuple[Vector, bool]:
        """Return each action's mean reward over its neighbours, and whether ties among them were broken at random."""
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
    """Options for k-NN.

    Attributes:
        k: Number of neighbours.
    """

    k: int = 5

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        self.positive("k")


@register_policy("knn", KNNOptions)
def _knn(options: KNNOptions, on: Inputs) -> Policy:
    return KNN(on.features(options), options.k)


# MLP router (App. B.3): greedy on a two-layer network that is retrained on the whole history after each observation.
#
# Training continues from the previous weights and Adam moments, with 1,000 full-batch iterations per observation. A run
# of 210 rounds takes two minutes on one core. Fewer `iterations` would be faster, but no longer the paper's method.
# torch is imported only when a network is created, so processes running a linear policy do not need it.


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Hyperparameters from App. B.3. `seed` determines the initial weights. The paper uses 1,000 iterations."""

    hidden: int = 100
    learning_rate: float = 1e-3
    iterations: int = 1000
    seed: int = 0


class MLP(Learner):
    """Policy that uses a network to predict the scalar reward from x = [s_q; s_a], and chooses the best action."""

    traits = Traits(order_free=False)  # it retrains on the growing history after each observation

    def __init__(
        self, features: FeatureMap, settings: NetworkSettings | None = None, *, name: str = "mlp"
    ) -> None:
        from agents.bandit.network import Network

        super().__init__(features)
        self.name = name
        self.settings = settings or NetworkSettings()
        f = features.settings
        if f.interactions != "none":
            raise ValueError(f"interactions is {f.interactions!r}; a network learns its own, set 'none'")
        self.network = Network(f.query_dim + f.action_dim, **asdict(self.settings))
        self.history = ReplayBuffer(f.query_dim)

    def take(self, observations: Sequence[Observation]) -> None:
        """Append the observations one at a time, training on the whole history after each."""
        for observation in observations:
            self.history.append(self.features, [observation])
            x = self.inputs(self.history.queries, self.history.places)
            self.entered(x[-1:])
            self.network.train(x, self.history.rewards)

    def amend(self, observations: Sequence[Observation]) -> None:
        """Replace the targets of stored rows. The next training uses the new targets."""
        self.history.correct(self.features, observations)

    def saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the network and the stored rows."""
        rows, arrays = self.history.snapshot()
        return {"rows": rows}, arrays | self.extra() | self.network.snapshot()

    def restored(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restore the network and the stored rows."""
        self.history.restore(meta["rows"], arrays)
        self.network.restore(arrays)
        self.regain(arrays)

    def inputs(self, queries: Matrix, places: np.ndarray) -> Matrix:
        """Return x = [s_q; s_a] in the embeddings' original axes, shape (m, query_dim + action_dim).

        Adam is not invariant under rotation, so using the linear policies' shorter basis would change the method.
        """
        vectors = self.features.vectors[places]
        width = self.features.settings.action_dim
        if vectors.shape[1] > width:
            raise ValueError(
                f"action_dim is {width} but {vectors.shape[1]} one-hot actions are known; raise action_dim"
            )
        padding = np.zeros((len(vectors), width - vectors.shape[1]))
        return np.concatenate([queries, vectors, padding], axis=1)

    def entered(self, x: Matrix) -> None:
        """Do nothing. NeuralUCB overrides this to compute the row's gradient before the network is trained on it."""

    def extra(self) -> dict[str, np.ndarray]:
        """Return additional arrays for the state. The MLP router has none."""
        return {}

    def regain(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the arrays returned by `extra`. The MLP router has none."""

    def widths(self, x: Matrix) -> Vector:
        """Return the exploration bonus of each row, which is zero for the MLP router."""
        return np.zeros(len(x))

    def identity(self) -> dict[str, Any]:
        """Return the network and feature settings."""
        return {"network": asdict(self.settings), **super().identity()}

    def predict_one(self, query: Vector, context: Context, seed: int) -> Prediction:
        """Return the predicted reward of every allowed action."""
        rows = self.features.choosable(context.query_id, context.allowed)
        x = self.inputs(np.broadcast_to(query, (len(rows), len(query))), rows)
        ids = [self.features.ids[j] for j in rows]
        return ranked(context.query_id, ids, self.network.predict(x), self.widths(x), seed)


class NetworkOptions(Options, frozen=True, kw_only=True):
    """Options for the network policies.

    Attributes:
        hidden, learning_rate, iterations, network_seed: See NetworkSettings.
    """

    hidden: int = 100
    learning_rate: float = 1e-3
    iterations: int = 1000
    network_seed: int = 0

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        self.positive("hidden", "learning_rate", "iterations")

    @property
    def network(self) -> NetworkSettings:
        """Return the network's settings."""
        return NetworkSettings(self.hidden, self.learning_rate, self.iterations, self.network_seed)


@register_policy("mlp", NetworkOptions)
def _mlp(options: NetworkOptions, on: Inputs) -> Policy:
    return MLP(on.features(options), options.network)


# NeuralUCB (App. B.3): the MLP's prediction plus α√(gᵀZ⁻¹g), where g is the gradient over all parameters.
#
# Z = λI + Σ g gᵀ has 205,001 rows at d = 2,048, which is 336 GB. Its dual is exact and small: with K the n×n Gram
# matrix of past gradients and k their products with g, gᵀZ⁻¹g = (gᵀg - kᵀ(λI + K)⁻¹k)/λ. The gradients of a two-layer
# network have closed-form inner products (`network.factors`), so no gradient is ever stored. As in NeuralUCB's Alg. 1,
# a row's gradient is taken before the network is trained on that row.
#
# UniScale's paper has no factor of 1/m. `per_width` uses g/√m, as the original NeuralUCB does; its results are reported
# separately.


class NeuralUCB(MLP):
    """The MLP router with an exploration bonus from gradient features.

    Args:
        features: The feature map.
        settings: The network settings.
        alpha: Factor applied to the bonus.
        ridge: λ in Z.
        per_width: Whether to divide gradients by √hidden.
    """

    def __init__(
        self,
        features: FeatureMap,
        settings: NetworkSettings | None = None,
        *,
        alpha: float = 1.0,
        ridge: float = 1.0,
        per_width: bool = False,
    ) -> None:
        super().__init__(features, settings, name="neural-ucb")
        self.alpha, self.ridge, self.per_width = alpha, ridge, per_width
        h, d = self.settings.hidden, features.settings.query_dim + features.settings.action_dim
        self._x, self._u, self._z = np.zeros((0, d)), np.zeros((0, h)), np.zeros((0, h))
        self._low: Matrix = np.zeros((0, 0))  # Cholesky factor of λI + K

    def widths(self, x: Matrix) -> Vector:
        """Return α√(gᵀZ⁻¹g) for each row."""
        u, z = self.network.factors(x)
        own = self._scale(np.sum(u**2, axis=1) * (np.sum(x**2, axis=1) + 1.0) + np.sum(z**2, axis=1) + 1.0)
        if len(self._x):
            across = self._products(x, u, z)
            half = solve_triangular(self._low, across, lower=True, check_finite=False)
            own = own - np.sum(half**2, axis=0)
        return np.asarray(self.alpha * np.sqrt(np.maximum(own / self.ridge, 0.0)))

    def entered(self, x: Matrix) -> None:
        """Add one row's gradient to Z."""
        u, z = self.network.factors(x)
        own = float(self._scale(np.sum(u**2) * (np.sum(x**2) + 1.0) + np.sum(z**2) + 1.0))
        n = len(self._x)
        low = np.zeros((n + 1, n + 1))
        low[:n, :n] = self._low
        if n:
            low[n, :n] = solve_triangular(
                self._low, self._products(x, u, z)[:, 0], lower=True, check_finite=False
            )
        # λ > 0 keeps the last pivot at or above √λ in exact arithmetic.
        low[n, n] = np.sqrt(max(self.ridge + own - float(low[n, :n] @ low[n, :n]), self.ridge))
        self._low = low
        self._x, self._u, self._z = (np.concatenate(p) for p in ((self._x, x), (self._u, u), (self._z, z)))

    def extra(self) -> dict[str, np.ndarray]:
        """Return the past gradients' factors and the Cholesky factor of λI + K."""
        return {"grad.x": self._x, "grad.u": self._u, "grad.z": self._z, "grad.low": self._low}

    def regain(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the arrays returned by `extra`."""
        self._x, self._u, self._z = arrays["grad.x"], arrays["grad.u"], arrays["grad.z"]
        self._low = arrays["grad.low"]

    def identity(self) -> dict[str, Any]:
        """Return the network, feature and bonus settings."""
        bonus = {"alpha": self.alpha, "ridge": self.ridge, "per_width": self.per_width}
        return {**super().identity(), "bonus": bonus}

    def _products(self, x: Matrix, u: Matrix, z: Matrix) -> Matrix:
        """Return the inner products of the past gradients with the rows' gradients, shape (past, rows)."""
        return np.asarray(self._scale((self._u @ u.T) * (self._x @ x.T + 1.0) + self._z @ z.T + 1.0))

    def _scale(self, products: Any) -> Any:
        return products / self.settings.hidden if self.per_width else products


class NeuralUCBOptions(NetworkOptions, frozen=True, kw_only=True):
    """Options for NeuralUCB.

    Attributes:
        alpha, ridge: Factor applied to the bonus, and λ in Z.
        per_width: Whether to divide gradients by √hidden, which the paper does not do.
    """

    alpha: float = 1.0
    ridge: float = 1.0
    per_width: bool = False

    def __post_init__(self) -> None:
        """Reject invalid values."""
        super().__post_init__()
        self.not_negative("alpha")
        self.positive("ridge")


@register_policy("neural-ucb", NeuralUCBOptions)
def _neural_ucb(options: NeuralUCBOptions, on: Inputs) -> Policy:
    return NeuralUCB(
        on.features(options),
        options.network,
        alpha=options.alpha,
        ridge=options.ridge,
        per_width=options.per_width,
    )
