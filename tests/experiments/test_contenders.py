"""The simplest competitors: what the static one predicts, and what the other learns from its own choices."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from agents.bandit.features import COUNTS
from experiments.contenders import REFIT, Fitted, OnlineRidge, best_arms, solved_prices
from experiments.outcomes import Arm, BanditWorld
from experiments.ridge import strength_left_out
from tests.support.lab import made_world

QUESTIONS, HISTORY = 500, 120


@pytest.fixture(scope="module")
def world() -> BanditWorld:
    """Two cheap arms, each good at its own half of the questions, and a dear one that is good at all."""
    rng = np.random.default_rng(5)
    side = rng.choice([-1.0, 1.0], size=QUESTIONS)
    told = side[:, None] + 0.3 * rng.normal(size=(QUESTIONS, 1))
    queries = np.concatenate([told, rng.normal(size=(QUESTIONS, 5))], axis=1) / 3
    queries = np.concatenate([queries, rng.normal(size=(QUESTIONS, len(COUNTS)))], axis=1)
    chance = np.stack([0.5 + 0.4 * side, 0.5 - 0.4 * side, np.full(QUESTIONS, 0.9)], axis=1)
    correct = (rng.random((1, QUESTIONS, 3)) < chance).astype(float)
    log_cost = np.log([1.0, 1.0, 20.0]) + 0.1 * rng.normal(size=(1, QUESTIONS, 3))
    arms = [Arm(name, name) for name in ("left", "right", "dear")]
    return made_world(arms, correct, log_cost, queries)


def test_static_router_is_one_ridge_per_arm(world: BanditWorld) -> None:
    fitted = Fitted.of(world, range(HISTORY))
    scaled = fitted.features[:HISTORY, -len(COUNTS) :]
    assert scaled.mean(axis=0) == pytest.approx(0, abs=1e-12)
    assert scaled.var(axis=0).sum() == pytest.approx(1)
    accuracy, _ = fitted.predicted(range(HISTORY, QUESTIONS))
    seen, values = fitted.features[:HISTORY], fitted.correct[:HISTORY]
    known = Ridge(alpha=strength_left_out(seen, values)).fit(seen, values)
    assert accuracy == pytest.approx(known.predict(fitted.features[HISTORY:]))


def test_static_router_finds_the_cheap_arm_for_each_question(world: BanditWorld) -> None:
    fitted = Fitted.of(world, range(HISTORY))
    live = list(range(HISTORY, QUESTIONS))
    (price,) = solved_prices(fitted, 2, [0.9])
    taken = best_arms(*fitted.predicted(live), price)
    o = world.outcomes
    accuracy = o.correct[0, live, taken].mean() / o.correct[0, live, 2].mean()
    assert accuracy == pytest.approx(0.9, abs=0.08)
    assert o.cost[0, live, taken].mean() < 0.5 * o.cost[0, live, 2].mean()
    assert solved_prices(fitted, 2, [2.0]) == [0.0]


def test_the_online_one_begins_as_the_static_one(world: BanditWorld) -> None:
    fitted = Fitted.of(world, range(HISTORY))
    order = list(range(HISTORY, HISTORY + REFIT))
    static = best_arms(*fitted.predicted(order), 0.02)
    assert OnlineRidge(fitted).play(order, 0.02, lambda *_: (1.0, 0.0)) == static


def test_the_online_one_leaves_an_arm_that_has_become_wrong(world: BanditWorld) -> None:
    fitted, correct = Fitted.of(world, range(HISTORY)), world.outcomes.correct[0]
    order = np.random.default_rng(0).integers(HISTORY, QUESTIONS, size=10 * REFIT).tolist()
    # The first arm is never right any more; the others are as they were.
    taken = OnlineRidge(fitted).play(order, 0.02, lambda q, arm: (float(arm and correct[q, arm]), 0.0))
    assert taken[:REFIT].count(0) > 0.3 * REFIT
    assert taken[-REFIT:].count(0) < 0.1 * REFIT
