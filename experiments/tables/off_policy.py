"""Off-policy estimates held against the truth: on recorded outcomes every policy's worth is known.

A uniform policy's decisions are logged; of three other policies the estimators say, from that log alone, what they
would have earned. Repeated, this gives each estimator's bias, error and coverage of its 95 % interval.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from experiments.measures import ope
from experiments.outcomes.world import Array, World
from experiments.trials.oracle import best_contextual
from experiments.trials.runs import tidy
from experiments.trials.scenarios import COST_SENSITIVE
from experiments.trials.scope import Scope

LOGGED = ("routing", "uis", "all")
PER_ARM, LEAST = (
    120,
    1_000,
)  # decisions of a log: uniform logging agrees with a fixed arm once in so many arms
SHORT = 200  # decisions of a log that is too short for a policy of one arm in 168
PLAIN = 8  # principal directions of the question for the doubly robust model


def check(worlds: Mapping[str, World], scope: Scope) -> dict[str, Any]:
    """Return estimates against truth, for routing and for the joint space, and what a short log is told."""
    table: dict[str, Any] = {}
    for name in LOGGED:
        if name in worlds:
            n = max(LEAST, PER_ARM * len(worlds[name].vectors))
            scope.say(f"off-policy estimates: {name}")
            table[f"{name}, {n} decisions"] = _against_truth(worlds[name], n, scope.repetitions)
    if "uis" in worlds:
        world = worlds["uis"]
        rewards = world.rewards(world.objective(COST_SENSITIVE))
        chosen = [int(rewards.mean(axis=(0, 1)).argmax())] * rewards.shape[1]
        log, seen = _logged(rewards, SHORT, np.random.default_rng(0))
        policy = ope.greedy_probabilities(np.array(chosen)[seen].tolist(), rewards.shape[2])
        try:
            told = f"estimated {ope.snips(log, policy).value:.4f}"
        except ope.EvaluationError as error:
            told = f"refused: {error}"
        table["a short log"] = {f"uis, {SHORT} decisions": told}
    return table


def _against_truth(world: World, n: int, repetitions: int) -> dict[str, Any]:
    objective = world.objective(COST_SENSITIVE)
    rewards = world.rewards(objective)
    means, arms = rewards.mean(axis=0), rewards.shape[2]
    features = PCA(min(PLAIN, *world.queries.shape), random_state=0).fit_transform(world.queries)
    best = int(means.mean(axis=0).argmax())
    softened = np.exp((means.mean(axis=0) - means.mean(axis=0).max()) / 0.05)
    targets: dict[str, Array] = {
        "best_fixed": ope.greedy_probabilities([best] * len(means), arms),
        "contextual": ope.greedy_probabilities(best_contextual(world, objective, trees=False).choices, arms),
        "softened": np.tile(softened / softened.sum(), (len(means), 1)),
    }
    found: dict[str, dict[str, list[ope.Estimate]]] = {name: {} for name in targets}
    for repetition in range(repetitions):
        log, seen = _logged(rewards, n, np.random.default_rng([repetition, 1]))
        predicted = ope.cross_fitted(features[seen], log, arms)
        for name, target in targets.items():
            policy = target[seen]
            estimates = {
                "ips": ope.ips(log, policy),
                "snips": ope.snips(log, policy),
                "doubly_robust": ope.doubly_robust(log, policy, predicted),
            }
            if name != "softened":
                estimates["replay"] = ope.replay(log, policy.argmax(axis=1).tolist())
            for estimator, estimate in estimates.items():
                found[name].setdefault(estimator, []).append(estimate)
    return {
        name: {
            estimator: _judged(each, float((targets[name] * means).sum(axis=1).mean()))
            for estimator, each in estimators.items()
        }
        for name, estimators in found.items()
    }


def _logged(rewards: Array, n: int, rng: np.random.Generator) -> tuple[ope.Log, np.ndarray]:
    """Return n decisions of a uniform policy on questions drawn with replacement, and the questions."""
    samples, questions, arms = rewards.shape
    seen, taken = rng.integers(questions, size=n), rng.integers(arms, size=n)
    earned = rewards[rng.integers(samples, size=n), seen, taken]
    return ope.Log(taken, np.full(n, 1 / arms), earned), seen


def _judged(estimates: list[ope.Estimate], truth: float) -> dict[str, Any]:
    values = np.array([each.value for each in estimates])
    covered = [each.low <= truth <= each.high for each in estimates]
    found = {
        "truth": truth,
        "estimate": float(values.mean()),
        "bias": float(values.mean() - truth),
        "root_mean_square_error": float(np.sqrt(((values - truth) ** 2).mean())),
        "covered_percent": 100 * float(np.mean(covered)),
        "effective_decisions": float(np.mean([each.effective for each in estimates])),
    }
    return tidy(found)
