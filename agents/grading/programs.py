"""List programs, the language for answering code questions: operations on lists or text, run on given inputs.

A program consists of operations joined by " | ", such as `keep even | add 3 | take 2`. It is safe by construction: no
text is evaluated, there are no loops, and every value is bounded in length and size. The services still run programs in
a separate process (`GradingPool`), because running many tests on long inputs takes seconds.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from schemas.errors import UniscaleError

Value: TypeAlias = list[int] | str
Tests: TypeAlias = Sequence[tuple[Value, Value] | Sequence[Value]]

MAX_OPERATIONS = 32
MAX_ITEMS = 10_000
# Numbers stay below this magnitude, so that `times 9 | times 9 | …` cannot grow without bound.
MAX_NUMBER = 10**15
MAX_TEXT = 2_000  # characters in a program

_NUMBER = re.compile(r"-?[0-9]{1,9}")
_COUNT = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"[A-Za-z]|[a-z]{2,40}")


class ProgramError(UniscaleError, ValueError):
    """A program is not in the language, cannot be applied to its input, or exceeds the bounds."""


_LISTS: dict[str, Callable[[list[int]], list[int]]] = {
    "reverse": lambda items: items[::-1],
    "sort": sorted,
    "sort down": lambda items: sorted(items, reverse=True),
    "keep even": lambda items: [item for item in items if item % 2 == 0],
    "keep odd": lambda items: [item for item in items if item % 2 == 1],
    "unique": lambda items: list(dict.fromkeys(items)),
}
_LISTS_BY_NUMBER: dict[str, Callable[[list[int], int], list[int]]] = {
    "add": lambda items, n: [item + n for item in items],
    "times": lambda items, n: [item * n for item in items],
    "keep above": lambda items, n: [item for item in items if item > n],
    "keep below": lambda items, n: [item for item in items if item < n],
}
_TEXTS: dict[str, Callable[[str], str]] = {
    "reverse": lambda text: text[::-1],
    "upper": str.upper,
    "lower": str.lower,
    "swapcase": str.swapcase,
    "sort": lambda text: "".join(sorted(text)),
    "unique": lambda text: "".join(dict.fromkeys(text)),
}
_TEXTS_BY_WORD: dict[str, Callable[[str, str], str]] = {
    "append": lambda text, word: text + word,
    "prepend": lambda text, word: word + text,
    "remove": lambda text, word: text.replace(word, ""),
}


def run(program: str, value: Value) -> Value:
    """Apply a program to a list of whole numbers or to text.

    Raises:
        ProgramError: An operation is unknown, cannot be applied to the value, or exceeds the bounds. The message names
            it.

    >>> run("keep even | add 3 | take 2", [4, 7, 8, 2])
    [7, 11]
    >>> run("reverse | append s | upper", "tac")
    'CATS'
    """
    if len(program) > MAX_TEXT:
        raise ProgramError(f"a program of {len(program)} characters is longer than {MAX_TEXT}")
    operations = [" ".join(part.split()) for part in program.split("|")]
    if len(operations) > MAX_OPERATIONS:
        raise ProgramError(f"a program of {len(operations)} operations is longer than {MAX_OPERATIONS}")
    result: Value = value if isinstance(value, str) else list(value)
    for operation in operations:
        result = _apply(operation, result)
        _check(operation, result)
    return result


def passes(program: str, tests: Tests) -> bool:
    """Return whether a program turns every input into its output. A program that fails on any input does not pass.

    >>> passes("sort | take 1", [([3, 1], [1]), ([5], [5])])
    True

    Raises:
        ValueError: There are no tests, so nothing would be graded.
    """
    if not tests:
        raise ValueError("a program cannot be graded without tests; give at least one [input, output] pair")
    try:
        return all(run(program, given) == expected for given, expected in tests)
    except ProgramError:
        return False


def _apply(operation: str, value: Value) -> Value:
    name, _, argument = operation.rpartition(" ")
    if isinstance(value, str):
        if text_op := _TEXTS.get(operation):
            return text_op(value)
        if word_op := _TEXTS_BY_WORD.get(name):
            if not _WORD.fullmatch(argument):
                raise ProgramError(f"{operation!r} needs one letter or one lower-case word")
            return word_op(value, argument)
    else:
        if list_op := _LISTS.get(operation):
            return list_op(value)
        if number_op := _LISTS_BY_NUMBER.get(name):
            return number_op(value, _number(operation, argument, _NUMBER))
    match name:
        case "take":
            return value[: _number(operation, argument, _COUNT)]
        case "drop":
            return value[_number(operation, argument, _COUNT) :]
        case "repeat":
            count = _number(operation, argument, _COUNT)
            if count * len(value) > MAX_ITEMS:
                raise ProgramError(f"{operation!r} makes more than {MAX_ITEMS} items")
            return value * count
    kind = "text" if isinstance(value, str) else "list"
    raise ProgramError(f"{operation!r} cannot be applied to a {kind}")


def _number(operation: str, argument: str, form: re.Pattern[str]) -> int:
    if not form.fullmatch(argument):
        raise ProgramError(f"{operation!r} needs a whole number of at most nine digits")
    return int(argument)


def _check(operation: str, value: Value) -> None:
    if len(value) > MAX_ITEMS:
        raise ProgramError(f"{operation!r} makes more than {MAX_ITEMS} items")
    if not isinstance(value, str) and any(abs(item) > MAX_NUMBER for item in value):
        raise ProgramError(f"{operation!r} makes a number larger than {MAX_NUMBER}")
