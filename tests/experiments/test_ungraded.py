"""Answers without a grade, on a world where scores mislead: they must not teach a mixed fleet anything but costs."""

import numpy as np
import pytest

from experiments import ungraded as module
from experiments.outcomes import Arm, BanditWorld, OutcomeError, QuestionInfo
from experiments.runs import Scope
from experiments.ungraded import ungraded
from tests.support.lab import made_world

SCOPE = Scope(more_seeds=(0, 1), whole=False)


@pytest.fixture(scope="module")
def world() -> BanditWorld:
    """The large model is right more often, but the verifier likes none of its answers."""
    rng = np.random.default_rng(3)
    asked = [QuestionInfo(f"q{i}", f"{i} + 1?") for i in range(400)]
    arms = [Arm("small/1/1/1", "small"), Arm("large/1/1/1", "large"), Arm("own/1/1/1", "own")]
    correct = (rng.random((1, 400, 3)) < [0.5, 0.8, 0.2]).astype(float)
    score = np.broadcast_to([1.0, 0.0, 0.0], correct.shape)
    log_cost = np.log([1.0, 4.0, 2.0]) + 0.1 * rng.normal(size=correct.shape)
    queries = rng.normal(size=(400, 6))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return made_world(
        arms, correct, log_cost, queries, score=np.array(score), asked=asked, sizes=[1.0, 4.0, 2.0]
    )


def test_scores_teach_only_where_one_verifier_scores_all_models(
    world: BanditWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNGRADED", 200)
    monkeypatch.setattr(module, "GRADED", 60)
    found = ungraded(world, SCOPE, "own")
    assert found == ungraded(world, SCOPE, "own")
    assert found["scored"]["points"]["mean"] < -10, (
        "misleading scores have made the small model the favourite"
    )
    assert abs(found["mixed"]["points"]["mean"]) < 5
    assert found["mixed"]["without"]["accuracy"]["mean"] > 70


def test_too_few_questions_are_refused(world: BanditWorld) -> None:
    with pytest.raises(OutcomeError, match="needs 1330"):
        ungraded(world, SCOPE, "own")
    with pytest.raises(OutcomeError, match="no arm is of model 'huge'"):
        ungraded(world, SCOPE, "huge")
