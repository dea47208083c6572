"""A preview says what the decision would be, and leaves the learner as it was, to the bit."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents.bandit.baselines import KNN, Uniform
from agents.bandit.contextual import Contextual
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.errors import UnservedObjective
from agents.bandit.exploration import ControlGroup, Explored
from agents.bandit.features import FeatureSettings
from agents.bandit.linucb import Discounted, LinUCB, LinUCBSettings, Thompson
from agents.catalogue.action_space import uis_space
from agents.catalogue.models import ActionError
from agents.decider.preview import PREVIEW, offering, preview
from schemas.decision import Decision
from schemas.record import decode
from tests.support.shard import Shard

MAKERS: dict[str, Callable[[Any], Any]] = {
    "linucb": LinUCB,
    "linucb-decided": lambda f: LinUCB(f, LinUCBSettings(widths="decided")),
    "linucb-scalar": lambda f: LinUCB(f, LinUCBSettings(reward="scalar")),
    "thompson": lambda f: Thompson(f, propensity_draws=16),
    "random": Uniform,
    "knn": KNN,
    "discounted": lambda f: Discounted(f, gamma=0.98),
    "explored": lambda f: Explored(LinUCB(f), floor=0.2, warm_up=5),
    "contextual": lambda _: Contextual(ContextualFeatures(FeatureSettings(21, 10, query_rank=11))),
}
MODELLED = {"linucb", "linucb-decided", "thompson", "discounted", "explored", "contextual"}


def life(shard: Shard, rounds: int = 6) -> None:
    for _ in range(rounds):
        made = shard.ask(*(shard.context() for _ in range(3)))
        shard.tell(*(shard.reward(each) for each in made))


@pytest.mark.parametrize("name", MAKERS)
def test_a_preview_changes_nothing_to_the_bit(name: str) -> None:
    shard = Shard(MAKERS[name])
    life(shard)
    aims: list[dict[str, Any]] = [{}, {"weights": None}, {"n": 4}]
    aims += [{"accuracy": 0.9}] if name == "contextual" else []
    for fields in aims:
        shard.decider.policy.predict([], [], 0)
        context, _ = shard.context(PREVIEW, **{k: v for k, v in fields.items() if v is not None})
        preview(shard.decider, context, shard.environment)  # which actions may be chosen is memorised once
        before = pickle.dumps(shard.decider)
        first = preview(shard.decider, context, shard.environment)
        assert preview(shard.decider, context, shard.environment) == first
        assert pickle.dumps(shard.decider) == before


@pytest.mark.parametrize("name", sorted(MODELLED - {"explored", "thompson"}))
def test_a_preview_is_what_the_next_decision_says(name: str) -> None:
    shard = Shard(MAKERS[name])
    life(shard)
    context = shard.context(PREVIEW)
    found = preview(shard.decider, context[0], shard.environment)
    (decided,) = shard.ask(context)
    decision = decode(decided.value, Decision)
    assert found.action == decision.action.id
    assert (found.seq, found.policy, found.objective) == (decision.seq, decision.policy, decision.objective)
    best, *others = found.configurations
    assert (best.action, best.mean, best.width, best.propensity) == (
        decision.action.id, decision.mean, decision.width, decision.propensity
    )  # fmt: skip
    assert best.predicted is not None
    assert decision.predicted is not None
    for term in ("correct", "score", "log_cost"):
        assert getattr(best.predicted, term) == pytest.approx(getattr(decision.predicted, term), rel=1e-9)
    assert [each.action for each in others[:3]] == [each.action for each in decision.runners_up]
    assert len(found.configurations) == decision.candidates == len(shard.space)


@pytest.mark.parametrize("name", MAKERS)
def test_terms_are_predicted_where_the_policy_models_them(name: str) -> None:
    shard = Shard(MAKERS[name])
    life(shard)
    found = preview(shard.decider, shard.context(PREVIEW)[0], shard.environment)
    assert {each.predicted is not None for each in found.configurations} == {name in MODELLED}
    if name == "contextual":  # the mean is the predicted reward: the terms, weighed
        for each in found.configurations:
            terms = each.predicted
            weighed = found.objective.reward(terms.correct, terms.score, terms.log_cost)
            assert each.mean == pytest.approx(weighed, abs=1e-9)


@pytest.mark.parametrize("name", ["linucb", "contextual"])
def test_what_a_prediction_rests_on_adds_up_to_it(name: str) -> None:
    shard = Shard(MAKERS[name])
    life(shard)
    found = preview(shard.decider, shard.context(PREVIEW)[0], shard.environment)
    if name == "linucb":
        assert found.contributions == ()
        return
    best = found.configurations[0]
    assert {"centre", "one × constant", "model × constant", "model × counts"} <= {
        g.part for g in found.contributions
    }
    assert sum(g.mean for g in found.contributions) == pytest.approx(best.predicted.correct)
    # The objective has no price here, so the width is 0.25 standard deviations.
    assert 0.25 * np.sqrt(sum(g.variance for g in found.contributions)) == pytest.approx(best.width)


def test_propensities_include_floor_warm_up_and_control_group() -> None:
    action = Shard(LinUCB).space[0].id
    shard = Shard(
        lambda f: Explored(LinUCB(f), floor=0.2, warm_up=5, control=ControlGroup(0.3, action, "salt"))
    )
    context = shard.context(PREVIEW)[0]
    warming = preview(shard.decider, context, shard.environment)
    n = len(shard.space)
    assert warming.reason == "warm-up"
    assert {each.propensity for each in warming.configurations} == {1 / n}
    life(shard)
    found = preview(shard.decider, context, shard.environment)
    assert found.reason == "policy"
    by_action = {each.action: each.propensity for each in found.configurations}
    assert found.action == found.configurations[0].action
    assert sum(by_action.values()) == pytest.approx(1.0)
    assert by_action[action] == pytest.approx(0.3 + 0.7 * 0.2 / n + 0.7 * 0.8 * (found.action == action))


def test_what_would_refuse_the_query_refuses_its_preview() -> None:
    shard = Shard(LinUCB)
    for fields, error in (
        ({"allowed_models": ("none such",)}, ActionError),
        ({"accuracy": 0.9}, UnservedObjective),
        ({"n": 64, "pin_action": shard.space[0].id}, ActionError),
    ):
        with pytest.raises(error):
            preview(shard.decider, shard.context(PREVIEW, **fields)[0], shard.environment)


def test_a_pin_is_said_to_be_one() -> None:
    shard = Shard(LinUCB)
    pinned = shard.space[5].id
    found = preview(shard.decider, shard.context(PREVIEW, pin_action=pinned)[0], shard.environment)
    assert (found.action, found.reason, len(found.configurations)) == (pinned, "pinned", 1)


def test_a_copy_offers_what_the_learner_does_not_yet() -> None:
    shard = Shard(LinUCB)
    life(shard)
    before = pickle.dumps(shard.decider)
    more = uis_space(shard.catalogue).restrict(set(shard.catalogue.model_names[:2]))
    other = Shard(LinUCB)
    other.use(more)
    copied = offering(shard.decider, [other.vectors[action.id] for action in more], {})
    assert pickle.dumps(shard.decider) == before
    assert copied.ended is shard.decider.ended, "up to 160 MB are not copied"
    assert copied.policy.version == shard.decider.policy.version
    found = preview(copied, shard.context(PREVIEW)[0], other.environment)
    assert {each.action for each in found.configurations} == {action.id for action in more}
    assert np.isfinite([each.score for each in found.configurations]).all()
