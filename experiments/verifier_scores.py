"""How well the verifier's path scores tell right answers from wrong ones (App. D.2)."""

from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import roc_auc_score

from experiments.outcomes import Outcomes
from experiments.tables import tidy

BINS = 20


def verifier_scores(o: Outcomes) -> dict[str, Any]:
    """Return AUROC pooled and within questions, the point-biserial correlation, and both distributions.

    Within questions is the mean over those with right and wrong answers: pooled, a score that only knows how hard
    a question is does well.
    """
    right, score = o.correct.ravel() > 0.5, o.score.ravel()
    if right.all() or not right.any():
        return {}
    within = []
    for q in range(len(o.questions)):
        labels = o.correct[:, q].ravel() > 0.5
        if labels.any() and not labels.all():
            within.append(float(roc_auc_score(labels, o.score[:, q].ravel())))
    pooled = {
        "auroc_pooled": float(roc_auc_score(right, score)),
        "point_biserial": float(stats.pointbiserialr(right, score).statistic),
    }
    if within:
        pooled["auroc_within_question"] = float(np.mean(within))
    return {
        "measures": {**tidy(pooled), "questions_with_both": len(within)},
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
