"""A choice that pays on fleets unlike our own: three made worlds, judged by what a fixed mix and a static router pay.

Each is played with 300 questions of history by the same code and rows as the frontier tables. What the policy is held
to is general: it takes at least half of what a ridge regression per arm takes, and costs no more than 1.05 of the
cheapest fixed mix at any of the targets.
"""

from collections.abc import Callable

import numpy as np
import pytest

from agents.bandit.policy import ActionVector
from experiments.frontier import PLAYERS, STATIC, Terms, frontier
from experiments.outcomes import Arm, BanditWorld, Outcomes, QuestionInfo
from experiments.runs import Scope

QUESTIONS, DIM = 1300, 24
POLICY = "default_with_prior"


def world_of(
    arms: list[tuple[str, str, float]], logits: np.ndarray, costs: np.ndarray, seed: int
) -> BanditWorld:
    """Return a world of two samples.

    Args:
        arms: Id, model and size (0 where unknown) of each.
        logits: Of a right answer, shape (Q, A).
        costs: Mean cost of each arm, shape (A,).
        seed: Of everything drawn.
    """
    rng, shape = np.random.default_rng([seed, 1]), (2, *logits.shape)
    correct = (rng.random(shape) < 1 / (1 + np.exp(-logits))).astype(float)
    log_cost = np.log(costs) + 0.2 * rng.normal(size=shape)
    asked = tuple(QuestionInfo(f"q{i}", "Is it so? " * int(rng.integers(1, 9))) for i in range(len(logits)))
    vectors = tuple(
        ActionVector(name, model, row, size)
        for (name, model, size), row in zip(arms, np.eye(len(arms)), strict=True)
    )
    outcomes = Outcomes(
        f"made-{seed}", asked, tuple(Arm(name, model) for name, model, _ in arms), correct, correct, log_cost
    )
    return BanditWorld(outcomes, queries_of(seed), vectors, outcomes.bounds())


def queries_of(seed: int) -> np.ndarray:
    rows = np.random.default_rng([seed, 0]).normal(size=(QUESTIONS, DIM))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def ten_specialists() -> BanditWorld:
    """Ten hosted models of unknown sizes, each good at something else and at a price of its own."""
    seed = 11
    rng, topics = np.random.default_rng([seed, 2]), queries_of(seed) * np.sqrt(DIM)
    skills = rng.normal(size=(10, DIM)) * (rng.random((10, DIM)) < 0.25) * 0.8
    powers = np.linspace(0.0, 3.0, 10)  # the dearer the better on average, and not on every question
    logits = 0.4 * powers + rng.normal(0.0, 0.3, size=10) + topics @ skills.T
    arms = [(f"host{i}/1/1/1", f"host{i}", 0.0) for i in range(10)]
    return world_of(arms, logits, 3.0**powers, seed)


def two_nested() -> BanditWorld:
    """A small model, and a large one that can whatever the small one can: hard questions want it."""
    seed = 12
    hard = 2.0 * (queries_of(seed) * np.sqrt(DIM))[:, :2].sum(axis=1)
    logits = np.stack([1.0 - hard, np.maximum(1.0 - hard, 2.5 - 0.3 * hard)], axis=1)
    arms = [("small/1/1/1", "small", 1e9), ("large/1/1/1", "large", 1e10)]
    return world_of(arms, logits, np.array([1.0, 10.0]), seed)


def five_models_in_three_shapes() -> BanditWorld:
    """Five models of known sizes, each alone, sampled four times and sixteen times; hard questions want both."""
    seed = 13
    topics = queries_of(seed) * np.sqrt(DIM)
    hard, own = topics[:, :2].sum(axis=1), np.random.default_rng([seed, 2]).normal(size=(5, DIM)) * 0.3
    arms, logits, costs = [], [], []
    for i in range(5):
        for k, width in enumerate((1, 4, 16)):
            arms.append((f"m{i}/{width}/1/1", f"m{i}", 1e8 * 3.0**i))
            logits.append(-0.5 + 0.7 * i + 0.4 * k - (1.5 - 0.2 * i) * hard + topics @ own[i])
            costs.append(3.0**i * width)
    return world_of(arms, np.array(logits).T, np.array(costs), seed)


@pytest.mark.parametrize("made", [ten_specialists, two_nested, five_models_in_three_shapes])
def test_it_takes_half_of_what_a_static_router_takes_and_never_costs_more_than_a_fixed_mix(
    made: Callable[[], BanditWorld],
) -> None:
    rows = {name: PLAYERS[name] for name in (STATIC, POLICY)}
    terms = Terms(history=300, live=500, prices=6, batch=20, ceilings=False)
    table = frontier(made(), Scope(more_seeds=(0, 1), whole=False), rows, terms).tables["frontier"]
    static, policy = (table[name] for name in (STATIC, POLICY))
    assert policy["unreached"] == []
    assert static["mean_cost_ratio"] is None or (
        1 - policy["mean_cost_ratio"]["mean"] >= 0.5 * (1 - static["mean_cost_ratio"]["mean"])
    )
    assert policy["mean_cost_ratio"]["mean"] < 0.95, "a world in which there is nothing to take shows nothing"
    for share, at in policy["at"].items():
        assert share == "1" or at["cost_ratio"]["mean"] <= 1.05, share
