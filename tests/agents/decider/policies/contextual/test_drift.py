"""Searches that come to cost something else: noticed from outcomes alone, kept across a restart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agents.bandit.contextual import Contextual
from agents.bandit.design import COST
from agents.bandit.estimates import LEAST, CostDrift
from agents.bandit.policy import ActionVector, Aim, Objective, Observation, Pending
from tests.support.traffic import Traffic, actions, contextual

AIM = Aim("a", accuracy=0.9)
PLAIN = Objective(1, 0, 0, 0, 30)


def learn(policy: Contextual, traffic: Traffic, rounds: int, longer: float = 1.0) -> None:
    """Learn from actions drawn at random; searches of the middle model cost `longer` times as much."""
    for _ in range(rounds):
        query_id, query, hard = traffic.question()
        chosen = policy.design.ids[int(traffic.rng.integers(len(policy.design.ids)))]
        correct, log_cost = traffic.outcome(chosen, hard)
        log_cost += math.log(longer) if chosen.startswith("middle") else 0.0
        policy.expect([Pending(query_id, query, chosen, AIM)])
        policy.update([Observation(query_id, query, chosen, correct, correct, log_cost, correct, PLAIN)])


def test_longer_searches_of_a_model_are_noticed_and_those_of_others_are_not() -> None:
    policy, traffic = contextual(), Traffic(7)
    policy.add_actions(actions())
    learn(policy, traffic, 1_000)
    assert (policy.estimates.factors == 1.0).all()
    z = policy.design.short(traffic.question()[1])
    before = policy.estimates.predicted(z)[:, COST]
    learn(policy, traffic, 120, longer=4.0)
    middle = np.array([action.startswith("middle") for action in policy.design.ids])
    ratio = policy.estimates.predicted(z)[:, COST] / before
    assert np.median(ratio[middle]) > 2.5
    assert (policy.estimates.factors[~middle] == 1.0).all()
    # A price is told, not noticed: it multiplies on top.
    drifted = policy.estimates.factors.copy()
    policy.reprice({"middle": 3.0})
    assert np.allclose(policy.estimates.factors, np.where(middle, 3.0 * drifted, drifted))


def test_what_was_noticed_survives_a_restart() -> None:
    policy, other, traffic = contextual(), contextual(), Traffic(8)
    policy.add_actions(actions())
    learn(policy, traffic, 1_000)
    learn(policy, traffic, 60, longer=4.0)
    other.load(policy.state())
    assert (other.estimates.factors != 1.0).any()
    assert np.array_equal(other.estimates.factors, policy.estimates.factors)
    later = Traffic(9)
    learn(policy, later, 60)
    later = Traffic(9)
    learn(other, later, 60)
    assert other.state() == policy.state()


def test_a_regression_that_knows_little_is_not_corrected() -> None:
    policy, traffic = contextual(), Traffic(10)
    policy.add_actions(actions())
    learn(policy, traffic, 100)
    learn(policy, traffic, 100, longer=4.0)
    assert (policy.estimates.factors == 1.0).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_few_surprises_or_small_ones_change_nothing(sign: float) -> None:
    few, small = CostDrift(), CostDrift()
    assert not few.learn("m", sign * math.log(3))
    assert few.factor("m") == 1.0
    assert not any([small.learn("m", sign * 0.9 * LEAST) for _ in range(500)])
    assert small.factor("m") == 1.0


def test_a_model_that_is_itself_again_has_no_factor() -> None:
    drift = CostDrift()
    for _ in range(50):
        drift.learn("m", -math.log(3))
    assert drift.factor("m") == pytest.approx(1 / 2.4, rel=0.05)
    assert any([drift.learn("m", 0.0) for _ in range(50)])
    assert drift.factor("m") == 1.0


def cut_short(policy: Contextual, traffic: Traffic, rounds: int) -> None:
    """Learn the cost alone of searches that their clients cut after a tenth."""
    for _ in range(rounds):
        query_id, query, hard = traffic.question()
        chosen = policy.design.ids[int(traffic.rng.integers(len(policy.design.ids)))]
        log_cost = traffic.outcome(chosen, hard)[1] + math.log(0.1)
        policy.expect([Pending(query_id, query, chosen, AIM)])
        policy.price_only([Observation(query_id, query, chosen, None, 0.5, log_cost, 0.5, PLAIN)])


def test_a_cost_alone_moves_the_costs_and_neither_correctness_nor_its_width() -> None:
    policy, traffic = contextual(), Traffic(7)
    policy.add_actions(actions())
    learn(policy, traffic, 300)
    z = policy.design.short(traffic.question()[1])
    before, width, version = policy.estimates.predicted(z), policy.estimates.curvature(z), policy.version
    account = policy.account(AIM)
    cut_short(policy, traffic, 300)
    after = policy.estimates.predicted(z)
    assert np.array_equal(after[:, [0, 1, 3]], before[:, [0, 1, 3]])
    assert np.array_equal(policy.estimates.curvature(z), width)
    # Half of the outcomes cost a tenth: the mean cost is 0.55 of what it was.
    assert np.median(after[:, COST] / before[:, COST]) == pytest.approx(0.55, abs=0.1)
    assert policy.version == version
    paid = policy.account(AIM)
    assert account is not None
    assert paid is not None
    assert (paid.correct, paid.predicted) == (account.correct, account.predicted)
    assert paid.mean_cost < 0.8 * account.mean_cost


def test_costs_learned_alone_survive_a_restart_and_new_actions() -> None:
    policy, other = contextual(), contextual()
    policy.add_actions(actions())
    learn(policy, Traffic(8), 100)
    cut_short(policy, Traffic(9), 20)
    other.load(policy.state())
    for each in (policy, other):
        learn(each, Traffic(10), 30)
        each.add_actions([ActionVector("large/8/4/2", "large", np.ones(4), 1e8)])
        cut_short(each, Traffic(11), 10)
        learn(each, Traffic(12), 30)
    assert policy.state() == other.state()


def test_ordinary_outcomes_alone_leave_one_regression() -> None:
    policy = contextual()
    policy.add_actions(actions())
    learn(policy, Traffic(8), 50)
    assert policy.estimates.costs is None
