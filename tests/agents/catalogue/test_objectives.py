"""Objective modes (App. B.3), free weights, and what is in force for a query."""

import math

import pytest

from agents.catalogue.models import ObjectiveError
from agents.catalogue.objectives import CAREFUL, MODES, Accuracy, MeanCost, Objectives
from schemas.errors import InvalidField
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Query

RANGE = CostRange(low=1e12, high=1e16)
OBJECTIVES = Objectives(cost_range=RANGE)


def test_the_four_modes_are_those_of_the_paper() -> None:
    printed = {
        "cost-sensitive": (0.1, 0.1, 0.8),
        "cost-leaning": (0.2, 0.2, 0.6),
        "quality-leaning": (0.3, 0.3, 0.4),
        "quality-priority": (0.4, 0.4, 0.2),
    }
    assert {name: (w.correct, w.score, w.cost) for name, w in MODES.items()} == printed


def test_a_query_gets_its_weights_its_objective_or_the_default() -> None:
    own = OBJECTIVES.of(Query(query_id="a", text="?", weights=Weights(correct=1, score=1, cost=2)))
    named = OBJECTIVES.of(Query(query_id="a", text="?", objective="quality-priority"))
    neither = OBJECTIVES.of(Query(query_id="a", text="?"))
    assert (own.name, own.weights.cost) == (None, 0.5)
    assert (named.name, named.weights) == ("quality-priority", MODES["quality-priority"])
    assert (neither.name, neither.cost_range) == ("cost-sensitive", RANGE)


def test_the_reward_is_linear_in_log_cost_beyond_the_range() -> None:
    objective = OBJECTIVES.in_force("cost-sensitive")
    rewards = [objective.reward(1.0, 0.5, math.log(10.0**n)) for n in (11, 12, 14, 16, 17)]
    assert rewards == pytest.approx([0.15 + 0.8 * term for term in (1.25, 1.0, 0.5, 0.0, -0.25)])


def test_versions_tell_what_changed_last() -> None:
    later = OBJECTIVES.set("mine", Weights(score=1), 4).within(CostRange(low=1, high=2), 6)
    assert later.in_force("mine").version == 6
    assert later.set("mine", Weights(cost=1), 9).in_force("mine").version == 9
    assert OBJECTIVES.in_force("cost-leaning").version == -1
    assert OBJECTIVES.named.keys() == {*MODES, CAREFUL}


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ObjectiveError, match="objective 'fast' is unknown; choose one of cost-sensitive, "):
        OBJECTIVES.of(Query(query_id="a", text="?", objective="fast"))
    with pytest.raises(ObjectiveError, match="objective 'cost-leaning' is unknown"):
        OBJECTIVES.remove("cost-leaning", 1).in_force("cost-leaning")
    with pytest.raises(ObjectiveError, match="objective 'cost-sensitive' is the default"):
        OBJECTIVES.remove("cost-sensitive", 1)
    with pytest.raises(ObjectiveError, match="default objective 'none' is unknown"):
        Objectives(cost_range=RANGE, default="none")


def test_cost_and_accuracy_targets_weigh_correctness_alone() -> None:
    objectives = OBJECTIVES.set("cheap", MeanCost(2e10), 3).set("right", Accuracy(0.98), 4)
    cheap = objectives.of(Query(query_id="a", text="?", objective="cheap"))
    right = objectives.of(Query(query_id="a", text="?", objective="right"))
    own = objectives.of(Query(query_id="a", text="?", mean_cost=1e9))
    assert (cheap.kind, cheap.mean_cost, cheap.name, cheap.version) == ("mean_cost", 2e10, "cheap", 3)
    assert (right.kind, right.accuracy) == ("accuracy", 0.98)
    assert (own.kind, own.mean_cost, own.name) == ("mean_cost", 1e9, None)
    assert {o.weights.correct for o in (cheap, right, own)} == {1.0}
    assert {o.price for o in (cheap, right, own)} == {0.0}  # the decider fills it in


def test_a_price_takes_reward_away_for_each_eflop() -> None:
    priced = ObjectiveInForce(weights=Weights(correct=1), cost_range=RANGE, price=2e-13, mean_cost=1e12)
    assert priced.reward(1.0, 0.5, math.log(1e12)) == pytest.approx(0.8)
    with pytest.raises(InvalidField, match="price: is -1"):
        ObjectiveInForce(weights=Weights(correct=1), cost_range=RANGE, price=-1.0)
    with pytest.raises(InvalidField, match="accuracy: cannot be combined with mean_cost"):
        ObjectiveInForce(weights=Weights(correct=1), cost_range=RANGE, mean_cost=1.0, accuracy=0.5)
