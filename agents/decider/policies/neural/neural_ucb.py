"""NeuralUCB (App. B.3): the MLP's prediction plus α√(gᵀZ⁻¹g), where g is the gradient over all parameters.

Z = λI + Σ g gᵀ has 205,001 rows at d = 2,048: 336 GB. Its dual is exact and small: with K the n×n Gram matrix
of past gradients and k the products with g, gᵀZ⁻¹g = (gᵀg - kᵀ(λI + K)⁻¹k)/λ. Gradients of a two-layer
network have closed-form inner products (`network.factors`), so no gradient is ever stored. As in Alg. 1 of NeuralUCB,
the gradient of a row is taken with the parameters before that row is trained on.

UniScale's paper has no factor 1/m; `per_width` uses g/√m as the original NeuralUCB does, and is reported separately.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from agents.decider.features import FeatureMap
from agents.decider.policies.base import Matrix, Vector
from agents.decider.policies.neural.mlp import MLP, NetworkOptions, NetworkSettings
from agents.decider.policies.policy import Policy
from agents.decider.policies.registry import Inputs, policy


class NeuralUCB(MLP):
    """The MLP with a gradient-feature bonus.

    Args:
        features: The feature map.
        settings: Settings of the network.
        alpha: Factor of the bonus.
        ridge: λ of Z.
        per_width: Divide gradients by √hidden.
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
        """Append the gradient of one row to Z."""
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
        """Return the past gradients' factors and the Cholesky factor."""
        return {"grad.x": self._x, "grad.u": self._u, "grad.z": self._z, "grad.low": self._low}

    def regain(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the arrays of `extra`."""
        self._x, self._u, self._z = arrays["grad.x"], arrays["grad.u"], arrays["grad.z"]
        self._low = arrays["grad.low"]

    def identity(self) -> dict[str, Any]:
        """Return the settings of network, features and bonus."""
        bonus = {"alpha": self.alpha, "ridge": self.ridge, "per_width": self.per_width}
        return {**super().identity(), "bonus": bonus}

    def _products(self, x: Matrix, u: Matrix, z: Matrix) -> Matrix:
        """Return the inner products of past gradients with those of the rows, shape (past, rows)."""
        return np.asarray(self._scale((self._u @ u.T) * (self._x @ x.T + 1.0) + self._z @ z.T + 1.0))

    def _scale(self, products: Any) -> Any:
        return products / self.settings.hidden if self.per_width else products


class NeuralUCBOptions(NetworkOptions, frozen=True, kw_only=True):
    """Options of NeuralUCB.

    Attributes:
        alpha, ridge: Factor of the bonus, and λ of Z.
        per_width: Whether gradients are divided by √hidden, which the paper does not do.
    """

    alpha: float = 1.0
    ridge: float = 1.0
    per_width: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers it cannot run with."""
        super().__post_init__()
        self.not_negative("alpha")
        self.positive("ridge")


@policy("neural-ucb", NeuralUCBOptions)
def _neural_ucb(options: NeuralUCBOptions, on: Inputs) -> Policy:
    return NeuralUCB(
        on.features(options),
        options.network,
        alpha=options.alpha,
        ridge=options.ridge,
        per_width=options.per_width,
    )
