"""Which steps of a sampled solution are right, decided by exact arithmetic and by running programs.

Used to make training data for the process reward models and to grade the evaluation. It never scores anything at run
time: what serves a query is the learned verifier.
"""

import re

from agents.aggregator.program import ProgramError, passes, run
from experiments.mini.problems import DELIMITER, Problem
from experiments.mini.programs import inputs_for

EQUATION = re.compile(r"^[a-z]+: (\d+)([-+*/])(\d+)=(\d+)$")
BOXED = re.compile(r"\\boxed\{([^{}]*)\}$")


def split_steps(solution: str) -> list[str]:
    """Split a solution at blank lines; a step keeps its text without the blank line.

    >>> split_steps("a: 1+2=3" + DELIMITER + "b")
    ['a: 1+2=3', 'b']
    """
    return [step for step in solution.split(DELIMITER) if step]


def answer_of(solution: str) -> str | None:
    """Return what the last step boxes, or None."""
    steps = split_steps(solution)
    found = BOXED.search(steps[-1]) if steps else None
    return found.group(1) if found else None


def is_right(problem: Problem, solution: str) -> bool:
    """Say whether the boxed answer is right: the same number, or a program that passes the reference's outputs."""
    answer = answer_of(solution)
    if answer is None:
        return False
    if problem.task == "math":
        return answer.isdigit() and int(answer) == int(problem.answer)
    return passes(answer, [(value, run(problem.answer, value)) for value in inputs_for(problem)])


def step_labels(problem: Problem, solution: str) -> list[bool]:
    """Label each step: True while this step and all before it are right.

    A step of mini-math is right when its equation is one of the reference's that is not used yet (either order of the
    operands of + and ×); a step of mini-code when the program so far does what the reference's does; the last step
    when its answer is right.
    """
    labels: list[bool] = []
    steps = split_steps(solution)
    open_equations = [_equation(step.strip()) for step in problem.steps[:-1]]
    for index, step in enumerate(steps):
        if labels and not labels[-1]:
            labels.append(False)
        elif BOXED.search(step):
            labels.append(is_right(problem, step))
        elif problem.task == "code":
            labels.append(_same_prefix(problem, steps[: index + 1]))
        else:
            equation = _equation(step)
            right = equation is not None and equation in open_equations
            if right:
                open_equations.remove(equation)
            labels.append(right)
    return labels


def first_wrong_character(step: str) -> int | None:
    """Return where the result of an equation first differs from what its operands give; None when it does not.

    >>> first_wrong_character("sold: 31-7=25"), first_wrong_character("sold: 31-7=24")
    (12, None)
    """
    found = EQUATION.match(step)
    if found is None:
        return None
    a, sign, b, written = int(found[1]), found[2], int(found[3]), found[4]
    if sign == "/" and (b == 0 or a % b):
        return found.start(4)
    true = str({"+": a + b, "-": a - b, "*": a * b, "/": a // max(b, 1)}[sign])
    if written == true:
        return None
    same = next(
        (i for i, (x, y) in enumerate(zip(written, true, strict=False)) if x != y),
        min(len(written), len(true)),
    )
    return found.start(4) + min(same, len(written) - 1)


def _equation(step: str) -> tuple[str, tuple[int, ...], int] | None:
    found = EQUATION.match(step)
    if found is None:
        return None
    a, sign, b, c = int(found[1]), found[2], int(found[3]), int(found[4])
    operands = tuple(sorted((a, b))) if sign in "+*" else (a, b)
    return sign, operands, c


def _same_prefix(problem: Problem, steps: list[str]) -> bool:
    reference = problem.answer.split(" | ")
    if len(steps) > len(reference):
        return False
    try:
        return all(
            run(" | ".join(steps), value) == run(" | ".join(reference[: len(steps)]), value)
            for value in inputs_for(problem)
        )
    except ProgramError:
        return False
