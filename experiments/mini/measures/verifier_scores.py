"""Measures of a verifier's scores against correctness: AUROC pooled and within a question, point-biserial, spread."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import pointbiserialr, rankdata


@dataclass(frozen=True)
class Judged:
    """One scored solution: the group it competes in (a generator's samples of one question), its score, its fate."""

    group: str
    score: float
    right: bool


def auroc(scores: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> float:
    """Return the probability that a right answer scores above a wrong one, ties counted half.

    >>> auroc(np.array([0.9, 0.4, 0.4]), np.array([True, True, False]))
    0.75
    """
    good, bad = int(right.sum()), int((~right).sum())
    if good == 0 or bad == 0:
        return float("nan")
    ranks = rankdata(scores)
    return float((ranks[right].sum() - good * (good + 1) / 2) / (good * bad))


def measure(judged: Sequence[Judged]) -> dict[str, object]:
    """Return the measures that the paper reports in App. D.2, and the AUROC within groups of one question."""
    scores = np.array([j.score for j in judged])
    right = np.array([j.right for j in judged])
    groups = np.unique([j.group for j in judged], return_inverse=True)[1]
    within = []
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        value = auroc(scores[rows], right[rows])
        if not np.isnan(value):
            within.append(value)
    return {
        "auroc_pooled": auroc(scores, right),
        "auroc_within": float(np.mean(within)),
        "groups_within": len(within),
        "point_biserial": float(pointbiserialr(right, scores).statistic),
        "score_right": {"mean": float(scores[right].mean()), "std": float(scores[right].std())},
        "score_wrong": {"mean": float(scores[~right].mean()), "std": float(scores[~right].std())},
    }
