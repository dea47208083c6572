"""LinUCB against Algorithm 1 written plainly: equal to 1e-9 over long random sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.bandit.features import FeatureMap
from agents.bandit.learner import choose
from agents.bandit.linucb import LinUCB, LinUCBSettings, greedy
from agents.bandit.policy import Objective, Pending
from tests.support.worlds import QUALITY, THRIFT, PlainLinUCB, World

FEATURES: list[dict[str, Any]] = [
    {},
    {"action_features": "centred"},
    {"interactions": "bilinear"},
    {"interactions": "model", "action_features": "centred"},
]
weights = st.tuples(*[st.floats(0.0, 1.0)] * 3).filter(lambda w: sum(w) > 0.01)
bounds = st.tuples(st.floats(5.0, 25.0), st.floats(0.5, 20.0))


def rows_in_own_axes(world: World, features: FeatureMap, query: np.ndarray) -> np.ndarray:
    """Return x of every action as Algorithm 1 sees it: [s_q; s_a] unrotated, interactions behind."""
    n = len(features.ids)
    joint = [np.repeat(query[None], n, axis=0), features.vectors]
    if not features.static:
        basis = features.query_basis
        z = basis.directions @ (query - basis.offset) * features.settings.interaction_scale
        joint.append(np.array([np.outer(side, z).ravel() for side in features.sides]))
    return np.concatenate(joint, axis=1)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), options=st.sampled_from(FEATURES), data=st.data())
def test_equals_algorithm_1_over_long_sequences(
    seed: int, options: dict[str, Any], data: st.DataObject
) -> None:
    """Batches, repeated queries, actions added and removed: means and widths agree to 1e-9."""
    world = World(seed=seed)
    policy = LinUCB(world.features(**options))
    on_offer = {action.action_id: action for action in world.actions()}
    policy.offer(list(on_offer.values()))
    learned: list[Any] = []
    objective = Objective(0.3, 0.3, 0.4, 20.0, 30.0)
    for step in range(12):
        move = data.draw(st.sampled_from(["learn", "learn", "learn", "batch", "repeat", "add", "remove"]))
        if move in ("learn", "batch", "repeat"):
            contexts = [world.context() for _ in range({"learn": 5, "batch": 40, "repeat": 1}[move])]
            chosen = choose(policy, contexts, [objective] * len(contexts), seed=step)
            told = [world.outcome(c, k.action_id) for c, k in zip(contexts, chosen, strict=True)]
            if move == "repeat":
                told = told * 6
            for part in [told] if move == "batch" else [[o] for o in told]:
                policy.learn(part)
            learned += told
        elif move == "add":
            on_offer |= {action.action_id: action for action in world.actions(2, prefix=f"n{step}")}
        elif len(on_offer) > 3:
            del on_offer[[i for i in policy.features.ids if i in on_offer][step % len(on_offer)]]
        policy.offer(list(on_offer.values()))
        # Algorithm 1 knows the final dimensions from the start: unseen ones only ever add λ.
        query = world.query()
        x = rows_in_own_axes(world, policy.features, query)
        by_rule = PlainLinUCB(x.shape[1])
        for o in learned:
            row = rows_in_own_axes(world, policy.features, o.embedding)[policy.features.index[o.action_id]]
            by_rule.update(row, objective.reward(o.entered, o.score, o.log_cost))
        mean, width = by_rule.scores(x)
        got = policy.predict([replace(world.context(), embedding=query)], [objective], seed=1)[0]
        keep = [policy.features.index[i] for i in got.action_ids]
        scale = max(1.0, float(np.abs(mean).max()))
        assert np.abs(got.mean - mean[keep]).max() <= 1e-9 * scale
        assert np.allclose(got.width, width[keep], rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), w=weights, limits=bounds)
def test_any_objective_scores_as_if_always_in_force(
    seed: int, w: tuple[float, float, float], limits: tuple[float, float]
) -> None:
    """θ(w) = A⁻¹Bw against LinUCB trained from scratch on rewards scalarised with w and the bounds."""
    world = World(seed=seed)
    policy = LinUCB(world.features())
    policy.offer(world.actions())
    objective = Objective(*w, limits[0], limits[0] + limits[1])
    scratch = PlainLinUCB(world.query_dim + world.action_dim)
    for o in world.train(policy, 40):  # learned under another objective
        row = np.concatenate([o.embedding, policy.features.vectors[policy.features.index[o.action_id]]])
        c = (o.log_cost - objective.log_cost_min) / (objective.log_cost_max - objective.log_cost_min)
        scratch.update(
            row, objective.correct * o.correct + objective.score * o.score + objective.cost * (1 - c)
        )
    contexts = [world.context() for _ in range(5)]
    choices = choose(policy, contexts, [objective] * 5, seed=9)
    for context, choice in zip(contexts, choices, strict=True):
        x = rows_in_own_axes(world, policy.features, context.embedding)
        score = np.add(*scratch.scores(x))
        mine = policy.features.index[choice.action_id]
        assert score[mine] >= score.max() - 1e-9 * max(1.0, abs(score.max()))


def test_scalar_reward_keeps_the_weights_of_its_time(world: World) -> None:
    policy = LinUCB(world.features(), LinUCBSettings(reward="scalar"))
    policy.offer(world.actions())
    by_rule = PlainLinUCB(world.query_dim + world.action_dim)
    for i in range(60):
        context = world.context()
        objective = THRIFT if i < 30 else QUALITY  # the C → Q drift
        chosen = choose(policy, [context], [objective], seed=1)[0]
        x = rows_in_own_axes(world, policy.features, context.embedding)
        row = x[policy.features.index[chosen.action_id]]
        o = world.outcome(context, chosen.action_id, objective=objective)
        assert np.add(*by_rule.scores(x)).max() == pytest.approx(chosen.score, abs=1e-9)
        policy.learn([o])
        by_rule.update(row, objective.reward(o.correct, o.score, o.log_cost))


def test_greedy_is_linucb_without_width(world: World) -> None:
    policy = greedy(world.features())
    policy.offer(world.actions())
    world.train(policy, 10)
    scored = policy.predict([world.context()], [QUALITY], seed=1)[0]
    assert not scored.width.any()
    assert scored.chosen == int(np.argmax(scored.mean))


def test_pending_decisions_narrow_width_and_leave_mean(world: World) -> None:
    policy = LinUCB(world.features(), LinUCBSettings(widths="decided"))
    policy.offer(world.actions())
    world.train(policy, 10)
    context = world.context()
    before = policy.predict([context], [QUALITY], seed=1)[0]
    waiting = [Pending(f"w{i}", context.embedding, before.action_ids[0]) for i in range(4)]
    policy.decided(waiting)
    policy.decided(waiting)  # told twice, counted once
    after = policy.predict([context], [QUALITY], seed=1)[0]
    assert np.array_equal(after.mean, before.mean)
    assert np.all(after.width < before.width)
    policy.decided([replace(each, abandoned=True) for each in waiting])
    policy.decided([replace(each, abandoned=True) for each in waiting])
    back = policy.predict([context], [QUALITY], seed=1)[0]
    assert np.allclose(back.width, before.width, rtol=1e-12)


def test_a_reward_that_was_awaited_enters_the_width_once(world: World) -> None:
    waited = LinUCB(world.features(), LinUCBSettings(widths="decided"))
    direct = LinUCB(world.features())
    for policy in (waited, direct):
        policy.offer(World().actions())
    for _ in range(50):
        context = world.context()
        outcome = world.outcome(context, waited.features.ids[0])
        waited.decided([Pending(context.query_id, context.embedding, outcome.action_id)])
        waited.learn([outcome])
        direct.learn([outcome])
    context = world.context()
    one, two = (p.predict([context], [QUALITY], seed=1)[0] for p in (waited, direct))
    assert np.allclose(one.width, two.width, rtol=1e-10)
    assert np.allclose(one.mean, two.mean, rtol=1e-10)


def test_ties_are_broken_by_seed_and_logged(world: World) -> None:
    """Before any reward all actions have equal width; float noise must not decide."""
    policy = LinUCB(world.features())
    policy.offer(world.actions())
    context = world.context()
    choices = [choose(policy, [context], [QUALITY], seed=s)[0] for s in range(60)]
    assert len({c.action_id for c in choices}) == 7
    assert {c.propensity for c in choices} == {1 / 7}
