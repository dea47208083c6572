"""How well the verifier's path scores tell right answers from wrong ones (App. D.2)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import roc_auc_score

from experiments.outcomes.table import Outcomes
from experiments.trials.runs import tidy

BINS = 20


def verifier_scores(o: Outcomes) -> dict[str, Any]:
    """Return AUROC pooled and within questions, the point-biserial correlation, and both distributions.

    Within questions is the mean over those with right and wrong answers: pooled, a score that only knows how hard
    a question is does well. A wide search returns the best scored of its paths, which lifts its score whether it is
    right or not; so the same is given over single paths alone.
    """
    right, score = o.correct.ravel() > 0.5, o.score.ravel()
    if right.all() or not right.any():
        return {}
    within = _within(o, range(len(o.arms)))
    single = _within(o, [i for i, arm in enumerate(o.arms) if arm.qp * arm.cp == 1])
    pooled = {
        "auroc_pooled": float(roc_auc_score(right, score)),
        "point_biserial": float(stats.pointbiserialr(right, score).statistic),
    }
    for name, values in (("", within), ("_one_path", single)):
        if values:
            pooled[f"auroc_within_question{name}"] = float(np.mean(values))
            pooled[f"questions_with_both{name}"] = len(values)
    return {
        "measures": tidy(pooled),
        "answers": {
            name: {
                "count": int(chosen.sum()),
                **tidy({"mean_score": score[chosen].mean(), "std_of_score": score[chosen].std()}),
            }
            for name, chosen in (("right", right), ("wrong", ~right))
        },
        "histogram": {
            name: np.histogram(score[chosen], BINS, (0.0, 1.0))[0].tolist()
            for name, chosen in (("right", right), ("wrong", ~right))
        },
    }


def _within(o: Outcomes, arms: Sequence[int]) -> list[float]:
    """Return the AUROC of each question that some of the arms answered right and some wrong."""
    found = []
    for q in range(len(o.questions)):
        labels, scores = o.correct[:, q][:, list(arms)].ravel() > 0.5, o.score[:, q][:, list(arms)].ravel()
        if labels.any() and not labels.all():
            found.append(float(roc_auc_score(labels, scores)))
    return found
