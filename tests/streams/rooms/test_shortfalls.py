"""A target that cannot be met is said once, with what can be had, and said once when it can be met again."""

import logging
from typing import Any

import pytest

from agents.decider.log.rows import aim_of
from agents.decider.policies.base import Aim
from agents.decider.policies.contextual.pacer import Pace
from agents.decider.policies.contextual.policy import Contextual
from schemas.objective import CostRange, ObjectiveInForce, Weights
from streams.rooms.decider.shortfalls import EVERY, Shortfalls
from tests.agents.decider.policies.contextual.test_contextual import Traffic, actions, contextual, live


@pytest.fixture(scope="module")
def policy() -> Contextual:
    made = contextual()
    made.add_actions(actions())
    live(made, 200, aim=Aim("t", mean_cost=1e10), traffic=Traffic(), warm_up=100)
    return made


def objective(**target: Any) -> ObjectiveInForce:
    return ObjectiveInForce(
        name="thrifty", weights=Weights(correct=1, score=0, cost=0), price=1.0,
        cost_range=CostRange(low_eflops=1e9, high_eflops=1e12), **target,
    )  # fmt: skip


def test_it_is_said_once_and_taken_back_once(policy: Contextual, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="streams.decider")
    said, aimed = Shortfalls(), objective(mean_cost=1e10)
    dearer = dict.fromkeys(("small", "middle", "large"), 1000.0)
    for factors in ({}, dearer, dearer, {}, {}):
        policy.reprice(factors)
        for _ in range(EVERY):
            said.decided(aimed, policy)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(
        "objective thrifty: a mean cost of 1e+10 eFLOPs cannot be met; recent queries cost "
    )
    assert float(first.partition("queries cost ")[2].partition(" ")[0]) > 1e10
    assert second == "objective thrifty: its target can be met again"


def test_weights_have_no_target_and_an_accuracy_is_said_as_one(
    policy: Contextual, caplog: pytest.LogCaptureFixture
) -> None:
    said, aimed = Shortfalls(), objective(accuracy=0.99)
    aim = aim_of(aimed)
    assert aim is not None
    policy.pacer.paces[aim.key] = Pace(rewarded=500, predicted=450.0, correct=150.0)
    said.decided(objective(), policy)
    said.decided(aimed, policy)
    (record,) = caplog.records
    assert "0.99 of the best configuration's accuracy cannot be met; " in record.getMessage()
