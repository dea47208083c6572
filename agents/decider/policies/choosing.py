"""From scores to a choice: seeded ties, exact propensities, runners-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from agents.decider.policies.base import Candidate, Choice, Context, Scores, Vector, generator

TIE: Final = 1e-12
"""Scores closer than this, relative to the largest, count as equal: two equal float64 sums of a few thousand terms
differ by no more. A larger value would randomise real preferences; with a smaller one, the order of summation would
decide."""

RUNNERS_UP: Final = 3


def tied(score: Vector) -> np.ndarray:
    """Return the indices whose score equals the maximum.

    >>> tied(np.array([1.0, 3.0, 3.0])).tolist()
    [1, 2]
    """
    top = score.max()
    return np.flatnonzero(score >= top - TIE * max(1.0, abs(float(top))))


def pick(score: Vector, seed: int, query_id: str, purpose: str = "tie") -> tuple[int, Vector]:
    """Return the index of the maximum, with ties broken at random by the seed, and the probability of each index."""
    best = tied(score)
    probability = np.zeros(len(score))
    probability[best] = 1.0 / len(best)
    if len(best) == 1:
        return int(best[0]), probability
    return int(generator(seed, query_id, purpose).choice(best)), probability


def estimate(hits: np.ndarray, chosen: int, draws: int) -> Vector:
    """Return Monte Carlo probabilities from counts per action, counting the choice itself as one more draw.

    This keeps the propensity of the chosen action above zero; the bias is below 1 / (draws + 1).
    """
    counts = hits.astype(np.float64)
    counts[chosen] += 1.0
    return counts / (draws + 1)


def standard_error(probability: float, draws: int) -> float:
    """Return the standard error of a frequency over draws; 0.0 for an exact probability."""
    return math.sqrt(probability * (1.0 - probability) / draws) if draws else 0.0


def choice(context: Context, scores: Scores, version: int) -> Choice:
    """Return the choice of one context with every term that explains it."""
    i = scores.chosen
    order = np.argsort(scores.score)[::-1] if len(scores.score) <= RUNNERS_UP + 1 else _leaders(scores.score)
    others = [
        Candidate(scores.action_ids[j], float(scores.mean[j]), float(scores.width[j]), float(scores.score[j]))
        for j in order
        if j != i
    ]
    return Choice(
        query_id=context.query_id,
        action_id=scores.action_ids[i],
        mean=float(scores.mean[i]),
        width=float(scores.width[i]),
        score=float(scores.score[i]),
        runners_up=tuple(others[:RUNNERS_UP]),
        propensity=None if scores.probability is None else float(scores.probability[i]),
        candidates=len(scores.action_ids),
        propensity_draws=scores.draws,
        propensity_error=scores.error,
        predicted=scores.predicted,
        version=version,
        reason=scores.reason,
        cohort=scores.cohort,
        randomised=scores.randomised,
    )


def choices(contexts: Sequence[Context], scores: Sequence[Scores], version: int) -> list[Choice]:
    """Return one choice per context."""
    return [choice(context, s, version) for context, s in zip(contexts, scores, strict=True)]


def _leaders(score: Vector) -> np.ndarray:
    top = np.argpartition(score, -(RUNNERS_UP + 1))[-(RUNNERS_UP + 1) :]
    return top[np.argsort(score[top])[::-1]]
