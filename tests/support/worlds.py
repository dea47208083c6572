"""A small world of actions and queries, and LinUCB written as Algorithm 1 reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agents.bandit.features import FeatureMap, FeatureSettings
from agents.bandit.learner import choose
from agents.bandit.policy import ActionVector, Context, Objective, Observation, Pending, Policy

Array = np.ndarray

QUALITY = Objective(correct=0.4, score=0.4, cost=0.2, log_cost_min=20.0, log_cost_max=30.0)
THRIFT = Objective(correct=0.1, score=0.1, cost=0.8, log_cost_min=20.0, log_cost_max=30.0)


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@dataclass
class World:
    """Seeded actions, contexts and outcomes; actions share a direction, as real descriptions do."""

    seed: int = 0
    query_dim: int = 12
    action_dim: int = 10
    size: int = 7
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self._made = 0

    def features(self, **settings: Any) -> FeatureMap:
        return FeatureMap(FeatureSettings(self.query_dim, self.action_dim, query_rank=3, **settings))

    def actions(self, count: int | None = None, prefix: str = "m") -> list[ActionVector]:
        n = self.size if count is None else count
        shared = np.random.default_rng(99).normal(size=self.action_dim)
        rows = unit(self.rng.normal(size=(n, self.action_dim)) + 2.0 * shared)
        return [
            ActionVector(f"{prefix}{i % 3}/{i}/1/1", f"{prefix}{i % 3}", row) for i, row in enumerate(rows)
        ]

    def query(self) -> Array:
        return unit(self.rng.normal(size=self.query_dim))

    def context(self, allowed: frozenset[str] | None = None) -> Context:
        self._made += 1
        return Context(f"q{self._made}", self.query(), allowed)

    def outcome(self, context: Context, action_id: str, **changes: Any) -> Observation:
        score = float(self.rng.random())
        terms: dict[str, Any] = {
            "correct": float(self.rng.random() < 0.5),
            "score": score,
            "log_cost": float(self.rng.uniform(18.0, 33.0)),
            "imputed": score,
            "objective": QUALITY,
            "clock": self._made,
        }
        return Observation(context.query_id, context.embedding, action_id, **(terms | changes))

    def train(self, policy: Policy, rounds: int, seed: int = 3) -> list[Observation]:
        """Let a policy choose and learn, round by round."""
        told = []
        for _ in range(rounds):
            context = self.context()
            chosen = choose(policy, [context], [QUALITY], seed)[0]
            policy.decided([Pending(context.query_id, context.embedding, chosen.action_id)])
            told.append(self.outcome(context, chosen.action_id))
            policy.learn(told[-1:])
        return told


class PlainLinUCB:
    """Algorithm 1, line by line: A = λI + Σ x xᵀ, b = Σ r x, θ̂ = A⁻¹b. No trick of any kind."""

    def __init__(self, dim: int, alpha: float = 1.0, ridge: float = 1.0) -> None:
        self.alpha = alpha
        self.a = ridge * np.eye(dim)
        self.b = np.zeros(dim)

    def scores(self, x: Array) -> tuple[Array, Array]:
        inverse = np.linalg.inv(self.a)
        return x @ inverse @ self.b, self.alpha * np.sqrt(np.array([row @ inverse @ row for row in x]))

    def update(self, x: Array, reward: float) -> None:
        self.a = self.a + np.outer(x, x)
        self.b = self.b + reward * x
