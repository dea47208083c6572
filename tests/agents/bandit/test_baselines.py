"""k-NN, the networks and the forgetting policies against their definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from agents.bandit.baselines import KNN, MLP, NetworkSettings, NeuralUCB
from agents.bandit.learner import choose
from agents.bandit.linucb import Discounted, LinUCBSettings, SlidingWindow
from agents.bandit.policy import Pending, Policy
from tests.support.worlds import QUALITY, World


def taught(policy: Policy, world: World, rounds: int) -> list[Any]:
    policy.offer(world.actions())
    return world.train(policy, rounds)


def test_knn_averages_the_rewards_of_the_nearest_pairs(world: World) -> None:
    policy = KNN(world.features())
    told = taught(policy, world, 30)
    context = world.context()
    scored = policy.predict([context], [QUALITY], seed=1)[0]
    for i, vector in enumerate(policy.features.vectors):
        x = np.concatenate([context.embedding, vector])
        past = [
            np.concatenate([o.embedding, policy.features.vectors[policy.features.index[o.action_id]]])
            for o in told
        ]
        cosine = [p @ x / np.linalg.norm(p) / np.linalg.norm(x) for p in past]
        nearest = np.argsort(cosine)[-5:]
        rewards = [QUALITY.reward(told[j].correct, told[j].score, told[j].log_cost) for j in nearest]
        assert scored.mean[i] == pytest.approx(np.mean(rewards))


@pytest.mark.torch
def test_training_follows_the_gradient_of_the_mean_squared_error() -> None:
    """Written-out gradients and Adam against autograd."""
    import torch

    from agents.bandit.network import Network

    rng = np.random.default_rng(0)
    x, targets = rng.normal(size=(9, 5)), rng.normal(size=9)
    network = Network(5, hidden=7, iterations=30)
    parts = [p.clone().requires_grad_() for p in network.parts]
    optimiser = torch.optim.Adam(parts, lr=1e-3)
    rows, wanted = torch.tensor(x, dtype=torch.float32), torch.tensor(targets, dtype=torch.float32)
    for _ in range(30):
        optimiser.zero_grad()
        predicted = torch.relu(rows @ parts[0].T + parts[1]) @ parts[2] + parts[3]
        torch.nn.functional.mse_loss(predicted, wanted).backward()
        optimiser.step()
    network.train(x, targets)
    for mine, theirs in zip(network.parts, parts, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.torch
def test_the_mlp_learns_what_it_is_shown(world: World) -> None:
    policy = MLP(world.features(), NetworkSettings(hidden=20, iterations=60))
    taught(policy, world, 15)
    x = policy.inputs(policy.history.queries, policy.history.places)
    for _ in range(30):
        policy.network.train(x, policy.history.rewards)
    assert np.abs(policy.network.predict(x) - policy.history.rewards).max() < 0.05


@pytest.mark.torch
@pytest.mark.parametrize("per_width", [False, True])
def test_neural_ucbs_dual_equals_its_matrix(world: World, per_width: bool) -> None:
    """√(gᵀZ⁻¹g) by the n×n dual against the full Z over all parameters, gradients by autograd."""
    import torch

    policy = NeuralUCB(
        world.features(), NetworkSettings(hidden=4, iterations=3), alpha=0.6, ridge=1.5, per_width=per_width
    )
    policy.offer(world.actions())
    z = 1.5 * np.eye(4 * 22 + 4 + 4 + 1)

    def gradient(row: np.ndarray) -> np.ndarray:
        parts = [p.clone().double().requires_grad_() for p in policy.network.parts]
        value = torch.relu(torch.tensor(row) @ parts[0].T + parts[1]) @ parts[2] + parts[3]
        value.sum().backward()
        g = np.concatenate([p.grad.numpy().ravel() for p in parts])
        return g / 2.0 if per_width else g

    for _ in range(9):
        context = world.context()
        outcome = world.outcome(context, policy.features.ids[int(world.rng.integers(7))])
        place = policy.features.index[outcome.action_id]
        g = gradient(policy.inputs(context.embedding[None], np.array([place]))[0])
        z += np.outer(g, g)
        policy.learn([outcome])
    x = policy.inputs(np.repeat(world.query()[None], 7, axis=0), np.arange(7))
    expected = [0.6 * np.sqrt(g @ np.linalg.solve(z, g)) for g in map(gradient, x)]
    assert np.allclose(policy.widths(x), expected, rtol=1e-4)


@pytest.mark.torch
def test_a_correction_replaces_the_target_of_its_row(world: World) -> None:
    policy = MLP(world.features(), NetworkSettings(hidden=4, iterations=1))
    policy.offer(world.actions())
    context = world.context()
    known = world.outcome(context, policy.features.ids[0], correct=1.0, imputed=0.2)
    policy.learn([replace(known, correct=None)])
    policy.learn([replace(known, kind="correction")])
    assert policy.history.rewards.tolist() == [QUALITY.reward(1.0, known.score, known.log_cost)]


@pytest.mark.torch
def test_one_hot_actions_beyond_the_room_are_refused(world: World) -> None:
    policy = MLP(world.features(action_features="one-hot"), NetworkSettings(hidden=4, iterations=1))
    policy.offer(world.actions(11))
    with pytest.raises(ValueError, match="raise action_dim"):
        choose(policy, [world.context()], [QUALITY], seed=1)


@pytest.mark.parametrize("widths", ["rewarded", "decided"])
def test_a_window_holds_exactly_its_last_rows(world: World, widths: Literal["rewarded", "decided"]) -> None:
    policy = SlidingWindow(world.features(), LinUCBSettings(widths=widths), window=13)
    told = taught(policy, world, 90)
    a, b = np.eye(policy.gram.dim), np.zeros((policy.gram.dim, 4))
    for o in told[-13:]:
        x = policy.rows([o])[0][0]
        a, b = a + np.outer(x, x), b + np.outer(x, o.terms())
    assert np.allclose(policy.gram.theta, np.linalg.solve(a, b), rtol=1e-9, atol=1e-9)
    gram = policy.decided_gram or policy.gram
    assert np.allclose(gram.solve(np.eye(gram.dim)), np.linalg.inv(a), atol=1e-10)


def test_a_correction_after_the_window_changes_nothing(world: World) -> None:
    policy = SlidingWindow(world.features(), window=3)
    told = taught(policy, world, 8)
    theta = policy.gram.theta.copy()
    policy.learn([replace(told[0], correct=1.0, imputed=0.0, kind="correction")])
    assert np.array_equal(policy.gram.theta, theta)
    assert policy.version == 9


def test_a_discount_weighs_rows_by_their_age_in_decisions(world: World) -> None:
    """A_t = Σ γ^(t-s) x xᵀ + λ-part, whatever the order and lateness of the rewards."""
    policy = Discounted(world.features(), gamma=0.9)
    policy.offer(world.actions())
    outcomes = []
    for clock in range(40):
        context = world.context()
        policy.decided([Pending(context.query_id, context.embedding, policy.features.ids[0])])
        outcomes.append(world.outcome(context, policy.features.ids[clock % 7], clock=clock))
        if clock == 20:
            policy.learn(outcomes[5:15])  # a late burst: it ages nothing
    policy.learn(outcomes[:5][::-1] + outcomes[15:])
    # Two decisions are an epoch at γ = 0.9: λ is whole at clock 40.
    a, b = np.eye(policy.gram.dim), np.zeros((policy.gram.dim, 4))
    for o in outcomes:
        x = policy.features.joint(o.embedding[None], [policy.features.index[o.action_id]])[0]
        weight = 0.9 ** (40 - o.clock)
        a, b = a + weight * np.outer(x, x), b + weight * np.outer(x, o.terms())
    context = world.context()
    scored = policy.predict([context], [QUALITY], seed=1)[0]
    x = policy.features.joint(np.repeat(context.embedding[None], 7, axis=0), range(7))
    assert np.allclose(scored.mean, x @ np.linalg.solve(a, b) @ QUALITY.coefficients, rtol=1e-9)
    assert np.allclose(scored.width, np.sqrt(np.einsum("nd,nd->n", x @ np.linalg.inv(a), x)), rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0])
def test_an_impossible_discount_is_refused(world: World, gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma"):
        Discounted(world.features(), gamma=gamma)
