"""Caution: a query leaves the incumbent only for what is predicted to be clearly better."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agents.bandit.contextual import Contextual, ContextualSettings
from agents.bandit.design import Design
from agents.bandit.estimates import Doubts, lengths
from agents.bandit.features import FeatureSettings
from agents.bandit.pacing import WINDOW
from agents.bandit.policy import ActionVector, Context, Objective, Observation, Pending

DIM = 21  # 12 of an embedding and nine counts


def actions(**sizes: float) -> list[ActionVector]:
    return [
        ActionVector(f"{model}/{qp}/1/1", model, np.eye(1, 4)[0], size)
        for model, size in sizes.items()
        for qp in (1, 4, 16)
    ]


ACTIONS = actions(small=1e6, large=1e8)


def taught(outcomes: int, known: list[ActionVector] = ACTIONS, **changes: Any) -> Contextual:
    """Return a policy that has seen every action equally often; the large model is better by 0.4 on every query."""
    settings = ContextualSettings(lessons=(), **changes)
    policy, rng = (
        Contextual(Design(FeatureSettings(DIM, 4, query_rank=11)), settings),
        np.random.default_rng(7),
    )
    policy.add_actions(known)
    for at in range(outcomes):
        action, query = known[at % len(known)], rng.normal(size=DIM)
        correct = float(rng.random() < (0.8 if action.model == "large" else 0.4))
        log_cost = float(np.log(action.size))
        policy.expect([Pending(f"q{at}", query, action.action_id)])
        seen = Observation(f"q{at}", query, action.action_id, correct, correct, log_cost, correct, OBJECTIVE)
        policy.update([seen])
    return policy


OBJECTIVE = Objective(1, 0, 0, 0, 30)


def queries(count: int) -> list[Context]:
    rng = np.random.default_rng(11)
    return [Context(f"n{at}", rng.normal(size=DIM)) for at in range(count)]


def test_doubts_are_the_uncertainty_of_a_difference_for_many_queries_as_for_one() -> None:
    policy = taught(200)
    design, inverse = policy.design, policy.estimates.ridge.inverse
    z = np.array([design.short(each.embedding) for each in queries(5)])
    offered = np.array([1, 2, 4, 5])
    doubts = Doubts(design, inverse, z, offered)
    for incumbent in range(len(offered)):
        found = doubts.against(incumbent)
        assert (found[:, incumbent] == 0).all()
        for row, context in zip(found, z, strict=True):
            x = np.array([design.row(context, action) for action in offered])
            d = x - x[incumbent]
            assert row == pytest.approx(np.sqrt(np.einsum("nd,de,ne->n", d, inverse, d)))
            sides = design.sides[offered] - design.sides[offered[incumbent]]
            assert lengths(sides, design.compress(context, inverse)) == pytest.approx(row)


def test_equally_good_configurations_are_not_told_apart_by_chance() -> None:
    """The three of the large model are equally good: with much caution every query gets the same one."""
    contexts, chosen = queries(200), {}
    for caution in (0.0, 2.0):
        policy = taught(1200, caution=caution, alpha=0.0)
        made = policy.select(contexts, [OBJECTIVE] * 200, 1)
        chosen[caution] = {choice.action_id for choice in made}
    assert len(chosen[0.0]) > 1
    assert len(chosen[2.0]) == 1
    assert chosen[2.0] < {action.action_id for action in ACTIONS if action.model == "large"}


def test_what_is_clearly_better_for_a_query_is_chosen_all_the_same() -> None:
    policy = taught(1200, alpha=0.0)
    (context,) = queries(1)
    (before,) = policy.scores([context], [OBJECTIVE], 1)
    priced = Objective(1, 0, 0, 0, 30, price=0.42 / 1e8)
    (after,) = policy.scores([context], [priced], 1)
    assert before.action_ids[before.chosen].startswith("large")
    assert after.action_ids[after.chosen].startswith("small")
    assert (after.score <= after.mean + after.width).all()


def test_there_is_no_caution_before_a_thousand_outcomes() -> None:
    contexts = queries(50)
    for outcomes, cautious in ((999, False), (1000, True)):
        policy = taught(outcomes)
        scored = policy.scores(contexts, [OBJECTIVE] * 50, 1)
        charged = [bool((each.score < each.mean + each.width).any()) for each in scored]
        assert policy.outlook.cautious() is cautious
        assert all(charged) if cautious else not any(charged)


@pytest.mark.parametrize("price", [0.0, 2e-9, 1e-8])
def test_the_forecast_foresees_what_will_be_chosen(price: float) -> None:
    """λ is solved on what the policy would choose for its recent contexts: caution included."""
    policy, contexts = taught(1200, alpha=0.0), queries(WINDOW)
    policy.expect([Pending(each.query_id, each.embedding, ACTIONS[0].action_id) for each in contexts])
    forecast = policy.outlook.forecast()
    assert forecast is not None
    made = policy.select(contexts, [Objective(1, 0, 0, 0, 30, price=price)] * WINDOW, 1)
    foreseen = [ACTIONS[at].action_id for at in forecast.choices(price)]
    assert [choice.action_id for choice in made] == foreseen
    assert forecast.mean_cost(price) == pytest.approx(
        np.mean([forecast.cost[row, at] for row, at in enumerate(forecast.choices(price))])
    )


def test_a_model_that_was_just_added_is_charged_like_a_known_one_of_its_size() -> None:
    """How good it is overall is uncertain for every query alike: that must not keep it from being tried."""
    policy = taught(1200, actions(tiny=1e5, small=1e6, middle=1e7, large=1e8, huge=1e9), alpha=0.0)
    policy.add_actions(actions(new=1e9))
    for scores in policy.scores(queries(20), [OBJECTIVE] * 20, 1):
        charges = dict(zip(scores.action_ids, scores.mean + scores.width - scores.score, strict=True))
        for shape in ("1/1/1", "4/1/1", "16/1/1"):
            assert charges[f"new/{shape}"] == pytest.approx(charges[f"huge/{shape}"])
        assert max(charges.values()) > 0
