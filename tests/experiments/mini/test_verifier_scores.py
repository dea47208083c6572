"""The measures of a verifier equal their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from experiments.mini.measures.verifier_scores import Judged, auroc, measure

SCORED = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans()), min_size=4, max_size=40
).filter(lambda rows: len({right for _, right in rows}) == 2)


@given(SCORED)
def test_auroc_equals_the_library_s(rows: list[tuple[float, bool]]) -> None:
    scores, right = np.array([s for s, _ in rows]), np.array([r for _, r in rows])
    assert auroc(scores, right) == pytest.approx(roc_auc_score(right, scores))


def test_within_a_question_ignores_that_questions_differ() -> None:
    judged = [
        Judged("easy", 0.9, True),
        Judged("easy", 0.8, True),
        Judged("hard", 0.2, False),
        Judged("hard", 0.3, True),
    ]
    judged += [Judged("even", 0.6, False), Judged("even", 0.5, True)]
    found = measure(judged)
    assert found["groups_within"] == 2
    assert found["auroc_within"] == pytest.approx((1 + 0) / 2)
    assert found["auroc_pooled"] == pytest.approx(
        auroc(np.array([j.score for j in judged]), np.array([j.right for j in judged]))
    )
