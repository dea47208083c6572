r"""Is an answer right? The last `\boxed{…}` of its text against the query's reference.

Three kinds of reference: a number, a mathematical answer as text (plain, LaTeX, GSM8K's "… #### N", or a solution that
boxes it), and `{"tests": [[input, output], …]}` for a program. Numbers and words are decided here; other mathematics
and programs go to a `GradingPool`. The grader alone shifts accuracy, so its name and version go with every result.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib import metadata
from typing import Any, Literal, NoReturn, TypeAlias

from agents.grading.programs import Tests, Value, passes
from agents.grading.quantities import compare_exactly
from schemas.errors import UniscaleError
from schemas.query import MAX_TESTS

GRADER = "boxed"
# Raise when a change could grade an answer differently.
GRADER_REVISION = 2
MAX_ANSWER = 4_000  # characters inside the box; longer is no answer


Rule: TypeAlias = Literal["math-verify", "program", "regex", "schema"]
"""What a grading process decides by."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison."""

    correct: bool
    how: Rule


Judge = Callable[[str, str], Verdict]
"""Compares (gold, answer), both mathematics."""

Runner = Callable[[str, Tests], Verdict]
"""Runs a program on its tests."""

How: TypeAlias = (
    Rule
    | Literal["number", "text", "no-box", "too-long", "last-number", "exact", "contains", "json"]
    | Literal["no-answer", "no-number", "not-json"]
)

Read: TypeAlias = Literal["box", "last-line", "text", "fence"]
"""Where an answer was read: the last box, the last line, the whole text, or the last fenced block."""


class BadReference(UniscaleError, ValueError):
    """A reference cannot be graded against. Give a number, a text, or {"tests": [[input, output], …]}."""


class Undecided(UniscaleError):
    """No exact rule grades this answer: ask a grading process, which takes time."""


@dataclass(frozen=True)
class Grade:
    """One graded answer: what was read from it and where, how it was decided, and by which grader."""

    correct: bool
    answer: str | None
    how: How
    grader: str = GRADER
    version: str = ""
    read: Read = "box"

    @property
    def rule(self) -> str:
        """Return what decided, after where the answer was read if one was.

        >>> Grade(correct=True, answer="7", how="number").rule
        'box/number'
        """
        return self.how if self.answer is None else f"{self.read}/{self.how}"


@cache
def grader_version() -> str:
    """Return the version recorded with every result: ours and math-verify's."""
    return f"{GRADER_REVISION}+math-verify-{metadata.version('math-verify')}"


def run_here(program: str, tests: Tests) -> Verdict:
    """Run a program in this process: for tests of one's own; those of clients go to a `GradingPool`."""
    return Verdict(correct=passes(program, tests), how="program")


def ask_later(first: object, second: object) -> NoReturn:
    """Stand in for judge and runner where grading must not take time.

    Raises:
        Undecided: always.
    """
    raise Undecided("no exact rule decides; ask a grading process")


def grade(text: str, reference: object, *, judge: Judge, run: Runner = run_here) -> Grade:
    r"""Grade the text of an answer.

    Args:
        text: The whole path. Without a complete box there is no answer, and it is wrong.
        reference: What `Query.reference` holds.
        judge: Compares (gold, answer) where no exact rule decides; called at most once.
        run: Runs a program on its tests.

    Raises:
        BadReference: the reference is not one of the three kinds.
        UniscaleError: what `judge` or `run` raise.

    >>> no_need = lambda gold, answer: Verdict(False, "math-verify")
    >>> grade(r"12 + 5 = 17, so \boxed{017}", 17, judge=no_need).how
    'number'
    """
    reference = read_reference(reference)
    check_reference(reference)
    answer = extract_boxed(text)
    version = grader_version()
    if answer is None:
        return Grade(correct=False, answer=None, how="no-box", version=version)
    if len(answer) > MAX_ANSWER:
        return Grade(correct=False, answer=answer[:MAX_ANSWER], how="too-long", version=version)
    if isinstance(reference, Mapping):
        ran = run(answer, reference["tests"])
        return Grade(correct=ran.correct, answer=answer, how=ran.how, version=version)
    gold = gold_of(reference)
    if (known := compare_exactly(gold, answer)) is not None:
        return Grade(correct=known[0], answer=answer, how=known[1], version=version)
    verdict = judge(gold, answer)
    return Grade(correct=verdict.correct, answer=answer, how=verdict.how, version=version)


def read_reference(reference: object) -> object:
    """Return the object in a reference that is JSON text with `tests`; any other as it is.

    Raises:
        BadReference: JSON that is nested too deeply to be read.

    >>> read_reference('{"tests": [["a", "b"]]}'), read_reference("{1, 2}")
    ({'tests': [['a', 'b']]}, '{1, 2}')
    """
    if not isinstance(reference, str) or not reference.lstrip().startswith("{"):
        return reference
    try:
        found = json.loads(reference)
    except RecursionError:
        raise BadReference("reference is JSON that is nested too deeply: send it flatter") from None
    except ValueError:
        return reference
    return found if isinstance(found, dict) and "tests" in found else reference


def gold_of(reference: object) -> str:
    r"""Return the answer in a reference: a number's digits, what follows GSM8K's ####, a box, or the text.

    >>> gold_of("He makes <<9*2=18>>18 dollars.\n#### 1,018"), gold_of(0.5), gold_of("$x+1$")
    ('1,018', '0.5', 'x+1')
    """
    # math-verify reads no powers of ten such as 1e-05.
    text = reference if isinstance(reference, str) else format(Decimal(repr(reference)), "f")
    if "####" in text:
        text = text.rpartition("####")[2]
    elif (boxed := extract_boxed(text)) is not None:
        text = boxed
    return text.strip().strip("$").strip()


def check_reference(reference: object) -> None:
    """Refuse a reference that could never be graded against.

    Raises:
        BadReference: naming what is wrong and what to give.
    """
    if isinstance(reference, Mapping):
        _check_tests(reference.get("tests"))
    elif isinstance(reference, bool) or not isinstance(reference, str | int | float):
        kind = type(reference).__name__
        raise BadReference(
            f'reference is a {kind}: give a number, a text, or {{"tests": [[input, output], …]}}'
        )
    elif not (gold := gold_of(reference)):
        raise BadReference("reference is an empty text: give the answer, or leave reference out")
    elif len(gold) > MAX_ANSWER:
        raise BadReference(f"reference is an answer of {len(gold)} characters: give at most {MAX_ANSWER}")
    elif reference != reference or reference in (float("inf"), float("-inf")):
        raise BadReference(f"reference is {reference}: give a finite number")


def _check_tests(tests: Any) -> None:
    if not isinstance(tests, list | tuple) or not tests:
        raise BadReference("reference.tests must be a list of at least one [input, output] pair")
    if len(tests) > MAX_TESTS:
        raise BadReference(f"reference.tests holds {len(tests)} tests: give at most {MAX_TESTS}")
    for index, pair in enumerate(tests):
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_value, pair))):
            raise BadReference(
                f"reference.tests[{index}] must be an [input, output] pair of texts or lists of whole numbers"
            )


def _is_value(value: Value | object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    return isinstance(value, str)


# The answer in a text: its last complete `\boxed{…}`.

# A box opens, an escaped character (whose brace is printed, not grouping), or a brace.
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def extract_boxed(text: str) -> str | None:
    r"""Return what the last complete `\boxed{…}` holds, braces inside balanced, or None.

    >>> extract_boxed(r"so \boxed{\frac{1}{2}} and \boxed{3")
    '\\frac{1}{2}'
    """
    if "\\boxed" not in text:
        return None
    opened: list[int | None] = []  # where the content of each open box starts; None for a plain brace
    last: tuple[int, int] | None = None
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "}":
            start = opened.pop() if opened else None
            if start is not None and (last is None or start > last[0]):
                last = (start, match.start())
        elif token.endswith("{") and not token.endswith("\\{"):
            opened.append(match.end() if len(token) > 1 else None)
    return None if last is None else text[last[0] : last[1]].strip()
