"""The stream every row of the learner's benchmark sees: seeded actions, queries and outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agents.decider.policies.base import ActionVector, Context, Matrix, Objective, Observation

OBJECTIVE = Objective(correct=0.1, score=0.1, cost=0.8, log_cost_min=26.0, log_cost_max=36.0)


@dataclass(frozen=True)
class Stream:
    """Unit vectors without structure: the action embeddings span min(|A|, d/2) dimensions, the worst case.

    Attributes:
        half: Length of s_q and of s_a; d is twice that.
        actions: |A|.
    """

    half: int
    actions: int = 168
    seed: int = 3

    def action_vectors(self) -> list[ActionVector]:
        """Return the actions; they share a direction, as real descriptions do."""
        rng = np.random.default_rng(self.seed)
        rows = rng.normal(size=(self.actions, self.half)) + 2.0 * rng.normal(size=self.half)
        rows = _unit(rows).astype(np.float32).astype(np.float64)
        return [ActionVector(f"m{i % 6}/{i}/1/1", f"m{i % 6}", row) for i, row in enumerate(rows)]

    def matrix(self) -> Matrix:
        """Return s_a of every action, shape (|A|, half)."""
        return np.array([a.embedding for a in self.action_vectors()])

    def contexts(self, count: int, start: int = 0) -> Iterator[Context]:
        """Yield queries; the i-th is the same for every row."""
        for i in range(start, start + count):
            row = np.random.default_rng((self.seed, i)).normal(size=self.half)
            yield Context(f"q{i}", _unit(row).astype(np.float32).astype(np.float64))

    def outcome(self, context: Context, action_id: str) -> Observation:
        """Return what running an action for a query gave."""
        rng = np.random.default_rng((self.seed, int(context.query_id[1:]), int(action_id.split("/")[1])))
        score = float(rng.random())
        return Observation(
            observation_id=context.query_id,
            embedding=context.embedding,
            action_id=action_id,
            correct=float(rng.random() < score),
            score=score,
            log_cost=float(rng.uniform(26.0, 36.0)),
            imputed=score,
            objective=OBJECTIVE,
            clock=int(context.query_id[1:]),
        )


def _unit(rows: Matrix) -> Matrix:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))
