"""LinUCB is the fold of its log: A and B are summed in plain numpy from the rows, and Decisions say what they give."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from agents.bandit.features import FeatureMap
from agents.bandit.linucb import LinUCB, LinUCBSettings
from agents.decider.rows import Row, decode_row
from schemas.decision import Decision
from schemas.objective import ObjectiveInForce
from schemas.record import decode, encode
from tests.support.shard import Shard

ROUNDS, EACH = 12, 4


class PlainSums:
    """A = λI + Σ x xᵀ and B = Σ x yᵀ with x = [s_q; s_a], y the raw terms, or the scalar reward alone."""

    def __init__(self, actions: dict[str, np.ndarray], scalar: bool, settings: LinUCBSettings) -> None:
        self.actions, self.scalar, self.settings = actions, scalar, settings
        self.a: np.ndarray | None = None
        self.b: np.ndarray | None = None

    def differing(self, rows: list[Row]) -> set[str]:
        """Replay the rows, and return the queries whose Decisions say another mean or width than the sums give."""
        changes = [(row.seq, "decide", row) for row in rows]
        changes += [(row.learned_seq, "learn", row) for row in rows if row.learned_seq >= 0]
        changes += [(row.corrected_seq, "correct", row) for row in rows if row.corrected_seq >= 0]
        found = set()
        for _, what, row in sorted(changes, key=lambda change: change[0]):
            x = np.concatenate([np.frombuffer(row.embedding, "<f4").astype(float), self.actions[row.action]])
            if self.a is None:
                self.a = self.settings.ridge * np.eye(len(x))
                self.b = np.zeros((len(x), 1 if self.scalar else 4))
            if what == "decide":
                if not self._agrees(x, decode(bytes(row.decision), Decision)):
                    found.add(row.query_id)
                continue
            if what == "learn":
                self.a += np.outer(x, x)
            self.b += np.outer(x, self._target(row, what))
        return found

    def _agrees(self, x: np.ndarray, decision: Decision) -> bool:
        solved = np.linalg.solve(self.a, x)
        w = np.ones(1) if self.scalar else weights(decision.objective)
        stated = decision.mean, decision.width
        return np.allclose(
            stated, (solved @ self.b @ w, self.settings.alpha * (x @ solved) ** 0.5), rtol=1e-6
        )

    def _target(self, row: Row, what: str) -> np.ndarray:
        """Return what a reward adds to B. Its correctness may have been imputed at first, and is then corrected."""
        w = weights(row.objective)
        first = row.imputed if row.entered is None else row.entered
        y = np.array([first, row.score, row.log_cost, 1.0])
        if what == "correct":
            assert row.correct is not None
            y = np.array([row.correct - row.imputed, 0.0, 0.0, 0.0])
        return np.array([w @ y]) if self.scalar else y


def weights(objective: ObjectiveInForce) -> np.ndarray:
    """Return the coefficients of Correct, Score, log C and 1 in w₁·Correct + w₂·Score + w₃·(1 − C̃) (Eq. 4)."""
    w, bounds = objective.weights, objective.cost_range
    low, high = np.log(bounds.low), np.log(bounds.high)
    slope = w.cost / (high - low)
    return np.array([w.correct, w.score, -slope, slope * high])


def lived(settings: LinUCBSettings) -> tuple[list[Row], PlainSums]:
    """Let a decider decide and learn in batches, a third of it by corrections; return its rows."""

    def policy(features: FeatureMap) -> LinUCB:
        return LinUCB(features, settings)

    shard = Shard(policy)
    late: list[Any] = []
    for _ in range(ROUNDS):
        made = shard.ask(*(shard.context() for _ in range(EACH)))
        terms = {"score": float(shard.rng.random()), "log_cost": float(shard.rng.uniform(28, 35))}
        shard.tell(*(shard.reward(each, "correction", **said) for each, said in late))
        late = [(made[0], terms)]
        shard.tell(shard.reward(made[0], "provisional", **terms), *map(shard.reward, made[1:]))
    found = (decode_row(key, value) for key, value in shard.table.items())
    actions = {name: vector.embedding for name, vector in shard.vectors.items()}
    return [row for row in found if isinstance(row, Row)], PlainSums(
        actions, settings.reward == "scalar", settings
    )


@pytest.mark.parametrize("reward", ["terms", "scalar"])
def test_decisions_say_what_the_sums_of_the_log_give(reward: Any) -> None:
    rows, sums = lived(LinUCBSettings(alpha=0.7, ridge=2.0, reward=reward))
    assert len(rows) == ROUNDS * EACH
    assert sum(row.corrected_seq >= 0 for row in rows) == ROUNDS - 1
    assert sums.differing(rows) == set()


def test_a_mean_that_the_log_does_not_call_for_is_named() -> None:
    """Decision and row agree with each other: no check of the audit sees this, `verify-decisions` and the sums do."""
    rows, sums = lived(LinUCBSettings())
    at = max(range(len(rows)), key=lambda at: rows[at].seq)
    decision = decode(bytes(rows[at].decision), Decision)
    assert decision.mean is not None
    forged = msgspec.structs.replace(decision, mean=decision.mean + 1e-3)
    rows[at] = msgspec.structs.replace(rows[at], decision=msgspec.Raw(encode(forged)))
    assert sums.differing(rows) == {rows[at].query_id}
