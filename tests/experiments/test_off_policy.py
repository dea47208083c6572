"""Off-policy evaluation against a truth that is known: the full table of rewards."""

from pathlib import Path

import numpy as np
import pytest

from experiments import off_policy as ope
from tests.support.lab import lab

N, A = 4_000, 5


@pytest.fixture
def made(rng: np.random.Generator):
    """Contexts, the whole table of rewards, and a logging policy that prefers some actions."""
    x = rng.normal(size=(N, 3))
    mean = 0.5 + 0.15 * x @ rng.normal(size=(3, A))
    rewards = mean + 0.2 * rng.normal(size=(N, A))
    logits = rng.normal(size=(N, A)) * 0.7 + 0.5 * mean
    logged = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    taken = np.array([rng.choice(A, p=p) for p in logged])
    rows = np.arange(N)
    log = ope.LoggedDecisions(taken, logged[rows, taken], rewards[rows, taken])
    chosen = mean.argmax(axis=1)
    return x, rewards, log, chosen, float(rewards[rows, chosen].mean())


def test_estimates_come_near_the_truth_and_plain_averages_do_not(made) -> None:
    x, _, log, chosen, truth = made
    policy = ope.greedy_probabilities(chosen, A)
    model = ope.cross_fitted(x, log, A)
    estimates = [ope.ips(log, policy), ope.snips(log, policy), ope.doubly_robust(log, policy, model)]
    for estimate in estimates:
        assert abs(estimate.value - truth) < 2 * (estimate.high - estimate.low)
        assert estimate.high - estimate.low < 0.15
        assert abs(estimate.value - truth) < abs(log.rewards.mean() - truth) / 3
    assert estimates[2].high - estimates[2].low < estimates[0].high - estimates[0].low


def test_intervals_cover_the_truth_as_often_as_they_say(rng: np.random.Generator) -> None:
    """95 % of 40 is 38; 33 or fewer comes by chance once in 300 times."""
    p, means = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.7])
    policy = np.tile([0.1, 0.6, 0.3], (300, 1))
    truth, covered = float(means @ policy[0]), {"ips": 0, "snips": 0, "dr": 0}
    for _ in range(40):
        taken = rng.choice(3, size=300, p=p)
        log = ope.LoggedDecisions(taken, p[taken], means[taken] + 0.3 * rng.normal(size=300))
        model = np.tile(means + 0.2, (300, 1))
        found = {
            "ips": ope.ips(log, policy),
            "snips": ope.snips(log, policy),
            "dr": ope.doubly_robust(log, policy, model),
        }
        for name, estimate in found.items():
            covered[name] += estimate.low < truth < estimate.high
    assert min(covered.values()) > 33, covered


def test_doubly_robust_survives_a_bad_model(made) -> None:
    _, _, log, chosen, truth = made
    policy = ope.greedy_probabilities(chosen, A)
    wrong = np.full((N, A), 3.0)
    assert abs(ope.doubly_robust(log, policy, wrong).value - truth) < 0.25
    assert abs((policy * wrong).sum(axis=1).mean() - truth) > 2


def test_replay_is_the_mean_where_both_agree(rng: np.random.Generator) -> None:
    rewards = rng.random((N, A))
    taken = rng.integers(A, size=N)
    log = ope.LoggedDecisions(taken, np.full(N, 1 / A), rewards[np.arange(N), taken])
    chosen = rng.integers(A, size=N)
    found = ope.replay(log, chosen.tolist())
    assert found.value == pytest.approx(rewards[np.arange(N), taken][taken == chosen].mean())
    assert found.effective == (taken == chosen).sum()
    assert found.low < rewards[np.arange(N), chosen].mean() < found.high


def test_too_few_effective_decisions_are_refused(made) -> None:
    _, _, log, _, _ = made
    few = ope.LoggedDecisions(log.actions[:40], log.propensities[:40], log.rewards[:40])
    policy = ope.greedy_probabilities([0] * 40, A)
    for estimate in (ope.ips, ope.snips):
        with pytest.raises(ope.EvaluationError, match="effective decisions, fewer than 50"):
            estimate(few, policy)


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.2, np.nan])
def test_a_propensity_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ope.EvaluationError, match="decision 1: propensity"):
        ope.LoggedDecisions(np.array([0, 1]), np.array([0.5, bad]), np.array([1.0, 0.0]))


def test_replay_refuses_logging_that_was_not_uniform(made) -> None:
    _, _, log, chosen, _ = made
    with pytest.raises(ope.EvaluationError, match="uniform logging"):
        ope.replay(log, chosen)


def log_of(folder: Path, decisions: int, rng: np.random.Generator) -> Path:
    lines = ["action,propensity,reward"]
    for _ in range(decisions):
        action = rng.choice(["a", "b", "c"], p=[0.6, 0.35, 0.05])
        chance, mean = {"a": (0.6, 0.2), "b": (0.35, 0.7), "c": (0.05, 0.5)}[action]
        lines.append(f"{action},{chance},{mean + 0.05 * rng.normal():.4f}")
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return folder / "log.csv"


def test_the_command_estimates_and_refuses_below_the_floor(tmp_path: Path, rng: np.random.Generator) -> None:
    told = lab("ope", log_of(tmp_path, 400, rng))
    estimates = {
        (line.split(":")[0], line.split()[1]): float(line.split()[2])
        for line in told.splitlines()
        if "effective" in line and "not estimated" not in line
    }
    for kind in ("IPS", "SNIPS", "DR"):
        assert estimates["b", kind] == pytest.approx(0.7, abs=0.12)
    assert "c: not estimated: only" in told


def test_the_command_names_what_a_log_lacks(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("action,reward\na,1\n")
    assert "each row needs action, propensity and reward" in lab("ope", tmp_path / "log.csv", status=1)
