"""Is an answer right: the same number, the same way, or a program that does what the reference's does."""

import re

from agents.answers import passes, run
from experiments.mini.tasks.problem import DELIMITER, Problem
from experiments.mini.tasks.programs import inputs_for

BOXED = re.compile(r"\\boxed\{([^{}]*)\}$")


def split_steps(solution: str) -> list[str]:
    """Split a solution at blank lines; a step keeps its text without the blank line.

    >>> split_steps("1+2=3" + DELIMITER + "x")
    ['1+2=3', 'x']
    """
    return [step for step in solution.split(DELIMITER) if step]


def answer_of(solution: str) -> str | None:
    """Return what the last step boxes, or None."""
    steps = split_steps(solution)
    found = BOXED.search(steps[-1]) if steps else None
    return found.group(1) if found else None


def same_answer(answer: str | None, reference: str) -> bool:
    """Say whether two answers are the same number or the same text.

    >>> same_answer("042", "42"), same_answer(None, "1"), same_answer("A-B", "A-B")
    (True, False, True)
    """
    if answer is None:
        return False
    if reference.isdigit():
        return answer.isdigit() and int(answer) == int(reference)
    return answer == reference


def is_right(problem: Problem, solution: str) -> bool:
    """Say whether the boxed answer of a solution is right."""
    answer = answer_of(solution)
    if problem.family != "code" or answer is None:
        return same_answer(answer, problem.answer)
    return passes(answer, [(value, run(problem.answer, value)) for value in inputs_for(problem)])
