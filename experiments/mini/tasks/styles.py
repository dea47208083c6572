"""Three ways to write one derivation: terse, plain, and careful with restated facts, checks and repaired slips.

The way is drawn independently of the question. SHARES is set so that depths spread within a question as they do in
real samples (CRITERIA.md, Depths), and by nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from experiments.mini.tasks.problem import DELIMITER, Problem, boxed

TERSE, PLAIN, CAREFUL = "terse", "plain", "careful"
SHARES = {TERSE: 0.30, PLAIN: 0.35, CAREFUL: 0.35}
CHECKED, RESTATED, SLIPPED = 0.25, 0.6, 0.12


@dataclass(frozen=True)
class Calc:
    """One calculation a `sign` b = result and what it is of."""

    label: str
    a: int
    sign: str
    b: int
    result: int

    def __str__(self) -> str:
        return f"{self.a}{self.sign}{self.b}={self.result}"


def drawn_style(rng: Random) -> str:
    """Draw a style by its share."""
    return rng.choices(list(SHARES), list(SHARES.values()))[0]


def small_steps(calc: Calc) -> list[Calc]:
    """Split a product of two numbers above ten at the tens of the one; leave everything else whole.

    >>> [str(each) for each in small_steps(Calc("", 23, "*", 14, 322))]
    ['23*10=230', '23*4=92', '230+92=322']
    """
    a, b = calc.a, calc.b
    if calc.sign != "*" or min(a, b) <= 12:
        return [calc]
    a, b = max(a, b), min(a, b)
    tens, units = b // 10 * 10, b % 10
    if a % 10 == 0 or units == 0:
        return [calc]
    parts = [Calc(calc.label, a, "*", tens, a * tens), Calc(calc.label, a, "*", units, a * units)]
    return [*parts, Calc(calc.label, a * tens, "+", a * units, calc.result)]


def written(
    family: str,
    level: str,
    question: str,
    calcs: Sequence[Calc],
    facts: Sequence[str],
    answer: object,
    rng: Random,
    style: str | None = None,
) -> Problem:
    """Return the problem with its derivation written in a style, drawn when none is given."""
    style = style or drawn_style(rng)
    small = [each for calc in calcs for each in small_steps(calc)]
    texts: list[tuple[str, tuple[int, int] | None]] = []
    if style == TERSE:
        at = 0
        while at < len(small):
            taken = rng.choice((1, 2, 2, 3))
            texts.append((", ".join(map(str, small[at : at + taken])), None))
            at += taken
    elif style == PLAIN:
        texts = [(_labelled(calc), None) for calc in small]
    else:
        texts = [(fact, None) for fact in facts if rng.random() < RESTATED]
        for calc in small:
            texts += _careful(calc, rng)
    steps, skipped, length = [], [], 0
    for text, span in texts:
        if span is not None:
            skipped.append((length + span[0], length + span[1]))
        steps.append(text + DELIMITER)
        length += len(steps[-1])
    return Problem(family, level, question, (*steps, boxed(answer)), str(answer), tuple(skipped))


def _labelled(calc: Calc) -> str:
    return f"{calc.label}: {calc}" if calc.label.strip() else str(calc)


def _careful(calc: Calc, rng: Random) -> list[tuple[str, tuple[int, int] | None]]:
    texts: list[tuple[str, tuple[int, int] | None]] = []
    if rng.random() < SLIPPED:
        wrong = _slip(calc.result, rng)
        text = _labelled(calc)[: -len(str(calc.result))]
        texts += [
            (f"{text}{wrong}", (len(text), len(text) + len(str(wrong)))),
            (f"no, {calc}", None),
        ]
    else:
        texts.append((_labelled(calc), None))
    if rng.random() < CHECKED:
        back = {"+": f"{calc.result}-{calc.b}={calc.a}", "-": f"{calc.result}+{calc.b}={calc.a}"}
        back |= {"*": f"{calc.result}/{calc.b}={calc.a}", "/": f"{calc.result}*{calc.b}={calc.a}"}
        if calc.b:
            texts.append((f"check: {back[calc.sign]}", None))
    return texts


def _slip(result: int, rng: Random) -> int:
    """Return a near miss: one or ten off, or two digits exchanged."""
    digits = list(str(result))
    if len(digits) > 1 and digits[-1] != digits[-2] and digits[-2] != "0" and rng.random() < 0.3:
        digits[-1], digits[-2] = digits[-2], digits[-1]
        if digits[0] != "0":
            return int("".join(digits))
    wrong = result + rng.choice((-10, -1, 1, 1, 10))
    return wrong if wrong >= 0 else result + 1
