"""Uplift over the control group: the intervals hold although somebody looks after every outcome."""

from __future__ import annotations

import numpy as np
import pytest

from agents.reward.comparison import Uplift, radius
from schemas.answer import Status


def missed(
    rng: np.random.Generator, rounds: int, accuracy: tuple[float, float], costs: tuple[float, float]
) -> list[bool]:
    """Watch one experiment at every step; return whether accuracy's, and cost's, interval ever missed the truth."""
    watched, ever = Uplift(), [False, False]
    truths = accuracy[0] - accuracy[1], costs[0] / costs[1]
    for at in range(rounds):
        control = rng.random() < 0.3
        right = float(rng.random() < accuracy[control])
        cost = costs[control] * float(rng.lognormal(-0.5 * 0.64, 0.8))
        watched.add("control" if control else "policy", "ok", correct=right, cost=cost)
        for k, found in enumerate((watched.accuracy_difference(), watched.cost_ratio())):
            # The cost's sequence is asymptotic: it is held to its promise once it has something to rest on.
            if found is not None and (k == 0 or at > 200):
                ever[k] |= not found.low <= truths[k] <= found.high
    return ever


def test_continuous_looks_keep_the_promised_coverage() -> None:
    rng = np.random.default_rng(0)
    runs = np.array([missed(rng, 1000, (0.8, 0.85), (3.0, 10.0)) for _ in range(60)])
    assert runs.mean(axis=0).max() <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 60)


def test_fixed_sample_interval_misses_under_continuous_looks() -> None:
    """The reason for all this: the same looking with 1.96 standard errors."""
    rng = np.random.default_rng(1)
    runs = 60
    wrong = 0
    for _ in range(runs):
        seen = (rng.random(1000) < 0.5).cumsum()
        n = np.arange(1, 1001)
        off = np.abs(seen / n - 0.5)
        wrong += bool((off[20:] > 1.96 * 0.5 / np.sqrt(n[20:])).any())
        assert not (off > [radius(int(k), 0.5, 0.001) for k in n]).any()
    assert wrong / runs > 0.2


def test_a_real_difference_is_found_and_said_in_one_sentence() -> None:
    rng = np.random.default_rng(2)
    watched = Uplift()
    assert watched.sentence() == "Too few outcomes to compare the policy with the control group."
    for _ in range(6000):
        control = rng.random() < 0.1
        cost = float(rng.lognormal(0.0, 0.3)) * (10.0 if control else 3.0)
        watched.add("control" if control else "policy", "ok", correct=float(rng.random() < 0.9), cost=cost)
    ratio, difference = watched.cost_ratio(), watched.accuracy_difference()
    assert ratio is not None
    assert difference is not None
    assert ratio.low < ratio.mean < ratio.high < 0.4
    assert difference.low < 0 < difference.high
    assert "% of the cost" in watched.sentence()


def test_failures_are_wrong_answers_and_silence_is_neither() -> None:
    watched = Uplift()
    ended: list[tuple[float | None, Status]] = [
        (1.0, "ok"), (None, "failed"), (None, "ok"), (1.0, "rejected"), (None, "cancelled"),
    ]  # fmt: skip
    for correct, status in ended:
        watched.add("policy", status, correct=correct, cost=2.0)
    group = watched.groups["policy"]
    assert (group.queries, group.failed, group.told, group.accuracy.mean) == (3, 1, 2, 0.5)
    assert group.feedback_rate == pytest.approx(2 / 3)
    said = watched.report()
    assert said["queries"]["policy"] == group.queries
    assert said["failed"]["policy"] == group.failed == 1
    assert said["feedback_rate"] == {"policy": pytest.approx(2 / 3), "control": 0.0}
    assert (watched.accuracy_difference(), watched.cost_ratio()) == (None, None)
    with pytest.raises(ValueError, match=r"error is 1\.5; give a probability"):
        Uplift(1.5)
