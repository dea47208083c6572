"""Step labels: references are right everywhere but in their slips, and a wrong digit makes a step wrong."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.mini.corpus import FAMILIES, draw
from experiments.mini.grading import split_steps
from experiments.mini.training.labels import _value, equations, first_wrong_character, step_labels

LEVELS = [level for levels in FAMILIES.values() for level in levels]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(LEVELS))
def test_a_reference_is_right_but_for_its_slips(seed: int, level: str) -> None:
    problem = draw(level, "train", seed)
    labels = step_labels(problem, problem.solution)
    starts, at = [], 0
    for step in problem.steps:
        starts.append((at, at + len(step)))
        at += len(step)
    slipped = [any(a <= p < b for p, _ in problem.skipped) for a, b in starts]
    assert labels == [not wrong for wrong in slipped], problem


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(FAMILIES["stories"]))
def test_a_wrong_result_makes_its_step_and_all_after_it_wrong(seed: int, level: str) -> None:
    problem = draw(level, "train", seed)
    steps = split_steps(problem.solution)
    index = next(
        (i for i, step in enumerate(steps) if equations(step) and not step.startswith("check")), None
    )
    if index is None or problem.skipped:
        return
    changed = re.sub(r"=(\d+)", lambda m: f"={int(m[1]) + 1}", steps[index], count=1)
    labels = step_labels(problem, "\n\n".join([*steps[:index], changed, *steps[index + 1 :]]))
    assert all(labels[:index])
    assert not any(labels[index:])
    assert first_wrong_character(changed) is not None


def test_an_expression_has_a_value_or_none() -> None:
    assert _value("(3+4)*2-5*1") == 9
    assert _value("3+") is None
    assert _value("(3") is None
