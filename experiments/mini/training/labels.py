"""Which steps of a sampled solution are right, decided by exact arithmetic, the house's doors, and running programs.

Used to make training data for the process reward models. It never scores anything at run time: what serves a query
is the learned verifier.
"""

import re

from agents.answers import ProgramError, run
from experiments.mini.grading import BOXED, is_right, split_steps
from experiments.mini.tasks.problem import Problem
from experiments.mini.tasks.programs import inputs_for
from experiments.mini.tasks.words import digits
from experiments.mini.tasks.world import Impossible, apply

EQUATION = re.compile(r"(?<![\d)*/+-])(\d+)([-+*/])(\d+)=(\d+)")
REPAIR, CHECK = "no, ", "check: "
GO = re.compile(r"^go ([A-Z])-([A-Z])$")
BACK = re.compile(r"^([A-Z]) is a dead end, back to ([A-Z])$")
Equation = tuple[int, str, int, int]


def step_labels(problem: Problem, solution: str) -> list[bool]:
    """Label each step: True while it and all before it are right, where a slip that the next step repairs is forgiven.

    A step of a derivation is right when every equation in it holds and is one of the reference's (either order of the
    operands of + and ×), a check of one, or when it restates the question; a step of a procedure when it is a valid
    move; a step of mini-code when the program so far does what the reference's does; the last step when its answer is.
    """
    steps = split_steps(solution)
    if problem.family == "procedures":
        own = _moves(problem, steps)
    elif problem.family == "code":
        own = [_boxed(problem, step, _same_prefix(problem, steps[: i + 1])) for i, step in enumerate(steps)]
    else:
        own = _derived(problem, steps)
    labels: list[bool] = []
    good = True
    for index, right in enumerate(own):
        labels.append(good and right)
        repaired = index + 1 < len(steps) and steps[index + 1].startswith(REPAIR) and own[index + 1]
        good = good and (right or repaired)
    return labels


def equations(text: str) -> list[Equation]:
    """Return the equations of a text, the operands of + and × in rising order.

    >>> equations("left: 9-4=5, 5*2=10")
    [(9, '-', 4, 5), (2, '*', 5, 10)]
    """
    found = [(int(a), sign, int(b), int(c)) for a, sign, b, c in EQUATION.findall(text)]
    return [(min(a, b), s, max(a, b), c) if s in "+*" else (a, s, b, c) for a, s, b, c in found]


def first_wrong_character(step: str) -> int | None:
    """Return where the result of an equation first differs from what its operands give; None when none does.

    >>> first_wrong_character("left: 31-7=25"), first_wrong_character("left: 31-7=24")
    (12, None)
    """
    for found in EQUATION.finditer(step):
        try:
            true = str(apply(int(found[1]), found[2], int(found[3])))
        except Impossible:
            return found.start(4)
        if found[4] != true:
            pairs = enumerate(zip(found[4], true, strict=False))
            same = next((i for i, (x, y) in pairs if x != y), min(len(found[4]), len(true)))
            return found.start(4) + min(same, len(found[4]) - 1)
    return None


def _boxed(problem: Problem, step: str, otherwise: bool) -> bool:
    return is_right(problem, step) if BOXED.search(step) else otherwise


def _derived(problem: Problem, steps: list[str]) -> list[bool]:
    reference = set(equations(_without_slips(problem)))
    asked = _plain(problem.question)
    return [_boxed(problem, step, _derivation_step(step, reference, asked)) for step in steps]


def _derivation_step(step: str, reference: set[Equation], asked: list[str]) -> bool:
    found = equations(step)
    if not found:
        words = iter(asked)
        return all(word in words for word in _plain(step))
    if step.startswith(CHECK):
        return all(_holds(each) for each in found)
    return all(each in reference for each in found)


def _holds(equation: Equation) -> bool:
    a, sign, b, c = equation
    try:
        return apply(a, sign, b) == c
    except Impossible:
        return False


def _without_slips(problem: Problem) -> str:
    text = problem.solution
    for start, end in reversed(problem.skipped):
        text = text[:start] + text[end:]
    return text


def _plain(text: str) -> list[str]:
    """Return the words and numbers of a text, all numbers as digits: a fact restates them in their order."""
    return re.findall(r"[^\W\d_]+|\d+", digits(text.lower()))


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


def _moves(problem: Problem, steps: list[str]) -> list[bool]:
    """Label the steps of a procedure: a walk by the doors, an expression by its value, a division by arithmetic."""
    doors = set(re.findall(r"\b([A-Z])-([A-Z])\b", problem.question))
    doors |= {(b, a) for a, b in doors}
    here = next((GO.match(step) for step in steps if GO.match(step)), None)
    at = here[1] if here else ""
    labels = []
    for step in steps:
        if BOXED.search(step):
            labels.append(is_right(problem, step))
        elif doors:
            go, back = GO.match(step), BACK.match(step)
            move = (go[1], go[2]) if go else (back[1], back[2]) if back else None
            labels.append(move is not None and move in doors and move[0] == at)
            at = move[1] if move else at
        elif re.fullmatch(r"[\d()+*-]+", step):
            labels.append(_value(step) == int(problem.answer))
        else:
            labels.append(all(_holds(each) for each in equations(step)))
    return labels


def _value(expression: str) -> int | None:
    """Return the value of digits, signs and brackets; None when it is no expression."""
    tokens = re.findall(r"\d+|[()+*-]", expression)
    at = 0

    def factor() -> int:
        nonlocal at
        if at >= len(tokens):
            raise ValueError
        token = tokens[at]
        at += 1
        if token == "(":
            inner = total()
            if at >= len(tokens) or tokens[at] != ")":
                raise ValueError
            at += 1
            return inner
        return int(token)

    def product() -> int:
        nonlocal at
        result = factor()
        while at < len(tokens) and tokens[at] == "*":
            at += 1
            result *= factor()
        return result

    def total() -> int:
        nonlocal at
        result = product()
        while at < len(tokens) and tokens[at] in "+-":
            sign = 1 if tokens[at] == "+" else -1
            at += 1
            result += sign * product()
        return result

    try:
        value = total()
    except ValueError:
        return None
    return value if at == len(tokens) else None
