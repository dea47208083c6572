"""What a policy without a prior learns its query transform from."""

import numpy as np

from agents.bandit.policy import Objective, Observation
from agents.bandit.prior import Lessons


def test_a_question_asked_again_is_one_question_with_several_outcomes() -> None:
    lessons, rng = Lessons((6, 100)), np.random.default_rng(0)
    asked = rng.normal(size=(3, 4))
    objective = Objective(1, 0, 0, 0, 1)
    history = None
    for n, question in enumerate([2, 0, 2, 1, 0, 2]):
        seen = Observation(f"q{n}", asked[question], "m/1/1/1", n % 2, 0.5, float(n), n % 2, objective)
        history = lessons.take(seen, asked[question], n % 3, float(n))
    assert history is not None
    assert np.array_equal(history.queries, asked[[2, 0, 1]])
    assert history.question.tolist() == [0, 1, 0, 2, 1, 0]
    assert history.action.tolist() == [0, 1, 2, 0, 1, 2]
    assert history.log_cost.tolist() == [0, 1, 2, 3, 4, 5]
