"""The neural baselines' two-layer network: d → hidden → 1, ReLU, MSE, Adam (App. B.3).

The paper states the hidden width (100), the loss, the learning rate and the 1,000 iterations per observation, but not
the activation or the optimiser. Gradients are written out by hand, which takes two products instead of an autograd
graph; NeuralUCB needs their closed form anyway.

A hidden unit that no row activates gets no gradient, and its Adam moments shrink to subnormal numbers, which processors
handle many times more slowly. After a few thousand iterations, most moments are subnormal. Flushing them to zero cuts
training time to a third.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from agents.bandit.policy import Matrix, Vector

PARTS: Final = ("w1", "b1", "w2", "b2")


class Network:
    """f(x) = w₂ᵀ relu(W₁x + b₁) + b₂, with its Adam state; training continues from the current state."""

    def __init__(
        self, dim: int, *, hidden: int, learning_rate: float = 1e-3, iterations: int = 1000, seed: int = 0
    ) -> None:
        self._learning_rate, self._iterations = learning_rate, iterations
        random = torch.Generator().manual_seed(seed)

        def uniform(*shape: int, fan_in: int) -> torch.Tensor:
            bound = fan_in**-0.5  # the usual initialisation of a linear layer
            drawn: torch.Tensor = torch.rand(*shape, generator=random)
            return drawn.mul(2.0 * bound).sub(bound)

        self.parts = [
            uniform(hidden, dim, fan_in=dim),
            uniform(hidden, fan_in=dim),
            uniform(hidden, fan_in=hidden),
            uniform(1, fan_in=hidden),
        ]
        self._optimiser = torch.optim.Adam(self.parts, lr=learning_rate, fused=True)

    def predict(self, x: Matrix) -> Vector:
        """Return f(x) for each row, shape (n,)."""
        w1, b1, w2, b2 = self.parts
        hidden = torch.relu(torch.from_numpy(x.astype(np.float32)) @ w1.T + b1)
        return np.asarray((hidden @ w2 + b2).numpy(), dtype=np.float64)

    def train(self, x: Matrix, targets: Vector) -> None:
        """Minimise the mean squared error over all rows for the configured number of full-batch iterations."""
        rows = torch.from_numpy(x.astype(np.float32))
        wanted = torch.from_numpy(targets.astype(np.float32))
        torch.set_flush_denormal(True)
        try:
            for _ in range(self._iterations):
                self._step(rows, wanted)
        finally:
            torch.set_flush_denormal(False)

    def _step(self, rows: torch.Tensor, wanted: torch.Tensor) -> None:
        w1, b1, w2, b2 = self.parts
        hidden = torch.relu(torch.addmm(b1, rows, w1.T))
        slope = (hidden @ w2 + b2 - wanted) * (2.0 / len(rows))  # ∂loss/∂f
        back = torch.outer(slope, w2) * (hidden > 0)
        gradients = (back.T @ rows, back.sum(0), hidden.T @ slope, slope.sum().reshape(1))
        for part, gradient in zip(self.parts, gradients, strict=True):
            part.grad = gradient
        self._optimiser.step()

    def factors(self, x: Matrix) -> tuple[Matrix, Matrix]:
        """Return (∂f/∂b₁, ∂f/∂w₂), each of shape (n, hidden).

        If these are u and z, the gradients of two rows over all parameters have the inner product
        (u·u')(x·x' + 1) + z·z' + 1, because ∂f/∂W₁ is u xᵀ and ∂f/∂b₂ is 1.
        """
        w1, b1, w2, _ = self.parts
        z = torch.relu(torch.from_numpy(x.astype(np.float32)) @ w1.T + b1)
        u = w2 * (z > 0)
        return np.asarray(u.numpy(), dtype=np.float64), np.asarray(z.numpy(), dtype=np.float64)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the weights and the Adam state as arrays."""
        arrays = {name: part.numpy().copy() for name, part in zip(PARTS, self.parts, strict=True)}
        for name, part in zip(PARTS, self.parts, strict=True):
            for key, value in self._optimiser.state.get(part, {}).items():
                arrays[f"{name}.{key}"] = value.numpy().copy()
        return arrays

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the network saved by `snapshot`."""
        self.parts = [torch.from_numpy(arrays[name].copy()) for name in PARTS]
        self._optimiser = torch.optim.Adam(self.parts, lr=self._learning_rate, fused=True)
        for name, part in zip(PARTS, self.parts, strict=True):
            moments = {
                key.removeprefix(f"{name}."): torch.from_numpy(value.copy())
                for key, value in arrays.items()
                if key.startswith(f"{name}.")
            }
            if moments:
                self._optimiser.state[part] = moments
