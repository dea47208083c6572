"""Objective modes (App. B.3), free weights, and what is in force for a query."""

import math

import pytest

from agents.space.errors import ObjectiveError
from agents.space.objectives import MODES, Objectives
from schemas.objective import CostRange
from schemas.query import Query, Weights

RANGE = CostRange(low_eflops=1e12, high_eflops=1e16)
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
    later = OBJECTIVES.set("mine", Weights(score=1), 4).within(CostRange(low_eflops=1, high_eflops=2), 6)
    assert later.in_force("mine").version == 6
    assert later.set("mine", Weights(cost=1), 9).in_force("mine").version == 9
    assert OBJECTIVES.in_force("cost-leaning").version == -1
    assert OBJECTIVES.named.keys() == MODES.keys()


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ObjectiveError, match="objective 'fast' is unknown; choose of cost-sensitive, "):
        OBJECTIVES.of(Query(query_id="a", text="?", objective="fast"))
    with pytest.raises(ObjectiveError, match="objective 'cost-leaning' is unknown"):
        OBJECTIVES.remove("cost-leaning", 1).in_force("cost-leaning")
    with pytest.raises(ObjectiveError, match="objective 'cost-sensitive' is the default"):
        OBJECTIVES.remove("cost-sensitive", 1)
    with pytest.raises(ObjectiveError, match="default objective 'none' is unknown"):
        Objectives(cost_range=RANGE, default="none")
