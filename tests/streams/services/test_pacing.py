"""A target that cannot be met is said once, with what can be had, and once when it can be; accounts are metrics."""

import logging
from typing import Any

import msgspec
import pytest

from agents.bandit.contextual import Contextual
from agents.bandit.pacing import BudgetAccount
from agents.bandit.policy import Target
from schemas.objective import CostRange, ObjectiveInForce, Weights
from streams.metrics import Metrics
from streams.services.decider import EVERY, Pacing
from tests.support.traffic import Traffic, actions, contextual, live


@pytest.fixture(scope="module")
def policy() -> Contextual:
    made = contextual()
    made.offer(actions())
    live(made, 200, target=Target("t", mean_cost=1e10), traffic=Traffic(), warm_up=100)
    return made


def objective(**target: Any) -> ObjectiveInForce:
    return ObjectiveInForce(
        name="thrifty", weights=Weights(correct=1, score=0, cost=0), price=1.0,
        cost_range=CostRange(low=1e9, high=1e12), **target,
    )  # fmt: skip


def test_it_is_said_once_and_taken_back_once(policy: Contextual, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="streams.decider")
    said, aimed = Pacing(Metrics("decider")), objective(mean_cost=1e10)
    dearer = dict.fromkeys(("small", "middle", "large"), 1000.0)
    for factors in ({}, dearer, dearer, {}, {}):
        policy.offer(actions(), factors)
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
    said, aimed = Pacing(Metrics("decider")), objective(accuracy=0.99)
    target = Target.of(aimed, "")
    assert target is not None
    policy.refits.at = ()  # until the last refit, predictions that are too high leave as much within reach
    policy.pacer.accounts["", target.key] = BudgetAccount(known=500, predicted=450.0, correct=150.0)
    said.decided(objective(), policy)
    said.decided(aimed, policy)
    (record,) = caplog.records
    assert "0.99 of the accuracy within reach cannot be met; " in record.getMessage()


def test_the_account_of_a_named_objective_is_shown(policy: Contextual) -> None:
    metrics, aimed = Metrics("decider"), objective(mean_cost=1e10)
    target = Target.of(aimed, "")
    assert target is not None
    policy.pacer.accounts["", target.key] = BudgetAccount(
        price=2e-12, decisions=4, spent=3e10, known=2, predicted=1.5, correct=1
    )
    pacing = Pacing(metrics)
    pacing.decided(aimed, policy)
    pacing.decided(msgspec.structs.replace(aimed, name=None), policy)
    shown = [line for line in metrics.text().decode().splitlines() if line.startswith("uniscale_objective")]
    assert shown == [
        'uniscale_objective_price{objective="thrifty"} 2e-12',
        'uniscale_objective_mean_eflops{objective="thrifty",of="target"} 1e+10',
        'uniscale_objective_mean_eflops{objective="thrifty",of="spent"} 7.5e+09',
        'uniscale_objective_accuracy{objective="thrifty",of="predicted"} 0.75',
        'uniscale_objective_accuracy{objective="thrifty",of="true"} 0.5',
    ]
    for changed in (objective(mean_cost=2e10), objective(accuracy=0.9), objective()):
        pacing.decided(aimed, policy)
        assert b'{objective="thrifty"' in metrics.text()
        pacing.decided(changed, policy)
        assert b'{objective="thrifty"' not in metrics.text()
    del policy.pacer.accounts["", target.key]
