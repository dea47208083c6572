"""What a policy without a prior keeps of its own outcomes, and when it learns anew from them."""

from dataclasses import replace

import numpy as np

from agents.bandit.history import RefitSchedule
from agents.bandit.policy import Objective, Observation


def test_repeated_question_is_kept_once_with_all_outcomes() -> None:
    schedule, rng = RefitSchedule((6, 100)), np.random.default_rng(0)
    asked = rng.normal(size=(3, 4))
    objective = Objective(1, 0, 0, 0, 1)
    history = None
    for n, question in enumerate([2, 0, 2, 1, 0, 2]):
        seen = Observation(f"q{n}", asked[question], "m/1/1/1", n % 2, 0.5, float(n), n % 2, objective)
        history = schedule.take(seen, asked[question], n % 3, (float(n),))
    assert history is not None
    assert np.array_equal(history.queries, asked[[2, 0, 1]])
    assert history.question.tolist() == [0, 1, 0, 2, 1, 0]
    assert history.action.tolist() == [0, 1, 2, 0, 1, 2]
    assert history.log_cost.tolist() == [0, 1, 2, 3, 4, 5]


def test_correction_updates_kept_outcome_until_the_last_refit() -> None:
    schedule, asked = RefitSchedule((2, 3)), np.zeros(4)
    objective = Objective(1, 0, 0, 0, 1)
    seen = [Observation(f"q{n}", asked, "m/1/1/1", 0.0, 0.5, 1.0, 0.0, objective) for n in range(4)]
    assert schedule.take(seen[0], asked, 0, (1.0,)) is None
    schedule.correct(replace(seen[0], correct=1.0))
    schedule.correct(replace(seen[3], correct=1.0))  # not kept: nothing happens
    history = schedule.take(seen[1], asked, 0, (1.0,))
    assert history is not None
    assert history.correct.tolist() == [1.0, 0.0]
    meta, arrays = schedule.snapshot()
    other = RefitSchedule(())
    other.restore(meta, arrays)
    assert other.at == (3,)
    for each in (schedule, other):
        history = each.take(seen[2], asked, 0, (1.0,))
        assert history is not None
        assert history.correct.tolist() == [1.0, 0.0, 0.0]
        assert each.take(seen[3], asked, 0, (1.0,)) is None
        assert (each.at, each.snapshot()[0]["memory"]) == ((), {})
