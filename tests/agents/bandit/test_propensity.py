"""Logged propensities are the frequencies with which actions are really drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from agents.bandit.baselines import KNN, Uniform
from agents.bandit.exploration import Explored
from agents.bandit.features import FeatureMap
from agents.bandit.learner import choose
from agents.bandit.linucb import LinUCB, LinUCBSettings, Thompson
from agents.bandit.policy import Objective, Policy
from tests.support.worlds import QUALITY, World

DRAWS = 2000
# A true propensity fails this once in a thousand seeds; these seeds are fixed.
SIGNIFICANCE = 1e-3


def drawn(policy: Policy, world: World, objective: Objective) -> tuple[Counter[str], Any]:
    """Return how often each action is chosen in one context, and the logged scores."""
    context = world.context()
    contexts = [replace(context, query_id=f"draw{i}") for i in range(DRAWS)]
    counts: Counter[str] = Counter()
    for start in range(0, DRAWS, 500):
        part = contexts[start : start + 500]
        counts.update(c.action_id for c in choose(policy, part, [objective] * len(part), seed=11))
    return counts, policy.predict([context], [objective], seed=11)[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda f: Uniform(f),
        lambda f: Explored(LinUCB(f), warm_up=10_000),
        lambda f: Explored(LinUCB(f), floor=0.4),
        lambda f: LinUCB(f),  # tied before any reward: uniform over the ties
    ],
    ids=["uniform", "warm-up", "floor", "ties"],
)
def test_exact_propensities_are_the_frequencies(make: Callable[[FeatureMap], Policy], world: World) -> None:
    policy = make(world.features())
    policy.offer(world.actions())
    if not isinstance(policy, LinUCB):
        world.train(policy, 20)
    counts, scored = drawn(policy, world, QUALITY)
    assert scored.draws == 0
    expected = scored.probability * DRAWS
    observed = np.array([counts[action_id] for action_id in scored.action_ids])
    assert stats.chisquare(observed, expected).pvalue > SIGNIFICANCE


def test_thompsons_estimate_states_draws_and_error(world: World) -> None:
    policy = Thompson(world.features(), LinUCBSettings(alpha=0.4), propensity_draws=400)
    policy.offer(world.actions())
    world.train(policy, 30)
    choice = choose(policy, [world.context()], [QUALITY], seed=11)[0]
    p = choice.propensity
    assert choice.propensity_draws == 400
    assert choice.propensity_error == pytest.approx(np.sqrt(p * (1 - p) / 400))


def test_thompsons_logged_propensity_meets_its_frequency(world: World) -> None:
    policy = Thompson(world.features(), LinUCBSettings(alpha=0.4), propensity_draws=DRAWS)
    policy.offer(world.actions())
    world.train(policy, 30)
    context = world.context()
    scored = policy.predict([context], [QUALITY], seed=11)[0]
    policy.propensity_draws = 0
    contexts = [replace(context, query_id=f"draw{i}") for i in range(DRAWS)]
    counts = Counter(c.action_id for c in choose(policy, contexts, [QUALITY] * DRAWS, seed=11))
    observed = np.array([counts[action_id] for action_id in scored.action_ids])
    table = np.array([observed, np.round(scored.probability * DRAWS)])
    table = table[:, table.sum(axis=0) > 0]
    assert table.shape[1] > 2  # the draw is not degenerate
    assert stats.chi2_contingency(table).pvalue > SIGNIFICANCE


def test_thompsons_scores_have_the_moments_of_the_posterior(world: World) -> None:
    """xᵀθ̃ over many draws: mean xᵀθ̂ and covariance α²·x A⁻¹ xᵀ, though θ̃ is never drawn whole."""
    policy = Thompson(world.features(), LinUCBSettings(alpha=0.7), propensity_draws=0)
    policy.offer(world.actions())
    world.train(policy, 25)
    context = world.context()
    contexts = [replace(context, query_id=f"d{i}") for i in range(2500)]
    draws = np.array([scored.score for scored in policy.predict(contexts, [QUALITY] * 2500, seed=1)])
    x = policy.features.joint(np.repeat(context.embedding[None], 7, axis=0), range(7))
    covariance = 0.49 * x @ policy.gram.solve(x).T
    mean = x @ policy.gram.theta @ QUALITY.coefficients
    spread = np.sqrt(np.diagonal(covariance))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 4.5 * spread / np.sqrt(2500))
    assert np.allclose(np.cov(draws.T), covariance, atol=0.08 * spread.max() ** 2)


def test_masked_actions_have_no_propensity(world: World) -> None:
    policy = Explored(LinUCB(world.features()), floor=1.0)
    policy.offer(world.actions())
    inner: Any = policy.inner
    allowed = frozenset(inner.features.ids[:2])
    choices = choose(policy, [world.context(allowed) for _ in range(50)], [QUALITY] * 50, seed=3)
    assert {c.action_id for c in choices} == allowed
    assert {c.propensity for c in choices} == {0.5}


def test_knn_says_when_it_does_not_know_its_propensity(world: World) -> None:
    policy = KNN(world.features(), k=2)
    policy.offer(world.actions())
    context = world.context()
    same = [replace(world.outcome(context, policy.features.ids[0]), observation_id=f"o{i}") for i in range(6)]
    policy.learn(same)
    choices = choose(policy, [replace(context, query_id=f"k{i}") for i in range(40)], [QUALITY] * 40, seed=1)
    assert {c.propensity for c in choices} == {None}
    assert len({c.mean for c in choices}) > 1  # tied neighbours are drawn by chance


@pytest.mark.parametrize("option", [{"floor": 1.5}, {"floor": -0.1}, {"warm_up": -1}])
def test_impossible_exploration_is_refused(option: dict[str, Any], world: World) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        Explored(Uniform(world.features()), **option)
