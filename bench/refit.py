"""Processor time of the contextual policy's refits, with and without request categories.

A policy without a prior learns outcomes of hosted models, one row per question, until its last refit. Questions are
random, and every category shifts each model's accuracy. Each figure is one thread's processor time, as the minimum over
several runs, because other processes on the machine can only lengthen it.

    python -m bench refit --values 25
    python -m bench refit --values 25 --repeated 50     # every 50th question repeats one that a different model had
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from agents.bandit.contextual import Contextual, ContextualSettings
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.features import COUNTS, FeatureSettings
from agents.bandit.policy import ActionVector, Objective, Observation, Pending

_DIM = 384 + len(COUNTS)
_PLAIN = Objective(correct=1.0, score=0.0, cost=0.0, log_cost_min=0.0, log_cost_max=30.0)


def measure(models: int, values: int, repeated: int, outcomes: int, runs: int) -> dict[str, Any]:
    """Return how many seconds each refit took, by number of outcomes, and the final columns and categories.

    Args:
        models: Number of models, with one configuration each.
        values: Number of categories; each request has one of them. 0 for requests without categories.
        repeated: Every `repeated`-th question repeats an earlier one; 0 for no repetitions.
        outcomes: Total number of outcomes learned.
        runs: How many times to repeat everything.
    """
    with threadpool_limits(1):
        found = [_run(models, values, repeated, outcomes) for _ in range(runs)]
    policies, seconds = zip(*found, strict=True)
    features = policies[0].features
    return {
        "columns": features.dim,
        "categories": len(features.categories),
        "seconds": {at: round(min(each[at] for each in seconds), 3) for at in seconds[0]},
    }


def _run(models: int, values: int, repeated: int, outcomes: int) -> tuple[Contextual, dict[int, float]]:
    policy = Contextual(ContextualFeatures(FeatureSettings(_DIM, 8, query_rank=48)), ContextualSettings())
    rng = np.random.default_rng(0)
    names = [f"hosted-{at}" for at in range(models)]
    policy.offer([ActionVector(f"{name}/1/1/1", name, rng.normal(size=8)) for name in names])
    effect = 0.3 * rng.normal(size=(max(values, 1), models))
    seconds: dict[int, float] = {}
    for at, (query, category, model) in enumerate(_traffic(rng, models, values, repeated, outcomes)):
        shown = (f"route={category}",) if values else ()
        decided = (f"q{at}", query, f"hosted-{model}/1/1/1")
        policy.decided([Pending(*decided, categories=shown)])
        correct = float(rng.random() < 0.5 + effect[category, model])
        log_cost = 14.0 + model / 3.0 + 0.2 * rng.normal()
        outcome = Observation(*decided, correct, correct, log_cost, correct, _PLAIN, categories=shown)
        due, begun = policy.refits.due(1), time.process_time()
        policy.learn([outcome])
        if due:
            seconds[at + 1] = time.process_time() - begun
    return policy, seconds


def _traffic(
    rng: np.random.Generator, models: int, values: int, repeated: int, outcomes: int
) -> Iterator[tuple[np.ndarray, int, int]]:
    query, category = np.zeros(_DIM), 0
    for at in range(outcomes):
        if not repeated or (at + 1) % repeated:
            query = np.concatenate([0.05 * rng.normal(size=384), np.abs(rng.normal(size=len(COUNTS))) + 1.0])
            query, category = query.astype("<f4").astype(float), int(rng.integers(max(values, 1)))
        yield query, category, int(rng.integers(models))
