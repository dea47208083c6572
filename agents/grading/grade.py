r"""Whether an answer is right: a grader compares it with the query's reference.

The grader is named by the query, the model's entry or the catalogue. The default, `boxed-only`, compares the last
`\boxed{…}` in an answer with the reference. A reference is a number, a mathematical answer as text (plain, LaTeX,
GSM8K's "… #### N", or a solution with the answer in a box), `{"tests": [[input, output], …]}` for a program, or a list
of accepted answers. Numbers and words are compared here. Other mathematics, programs, and clients' patterns and schemas
go to a grading process, whose time is limited.

A change of grader alone changes accuracy, so the grader's name and version are recorded with every result.
docs/grading.md describes the rules.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib import metadata
from typing import Any, Final, Literal, NoReturn, TypeAlias

from agents.grading.programs import Value
from agents.grading.quantities import as_number, compare_exactly
from schemas.errors import InvalidField, UniscaleError, shown
from schemas.grader import Grader
from schemas.query import MAX_TESTS

GRADER = "boxed"
# Increase this when a change could cause an answer to be graded differently.
GRADER_REVISION = 2
REVISION: Final = 1  # of the graders other than `boxed` and `boxed-only`
MAX_ANSWER = 4_000  # characters inside the box; anything longer is not an answer
MAX_PATTERNS: Final = 4_000  # characters of all patterns of a query together

_NAMED: Final = frozenset({"boxed-only", "boxed"})  # both compare alike, so a Reward has one name for both


Rule: TypeAlias = Literal["math-verify", "program", "regex", "schema"]
"""The rule that a grading process decides by."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison."""

    correct: bool
    how: Rule


AskGrader = Callable[[Rule, Mapping[str, object]], Verdict]
"""Function that asks a grading process, such as `agents.grading.pool.GradingPool.ask`."""

How: TypeAlias = (
    Rule
    | Literal["number", "text", "no-box", "too-long", "last-number", "exact", "contains", "json"]
    | Literal["no-answer", "no-number", "not-json"]
)

Read: TypeAlias = Literal["box", "last-line", "text", "fence"]
"""Where an answer was found: the last box, the last line, the whole text, or the last fenced block."""


class BadReference(UniscaleError, ValueError):
    """A reference cannot be used for grading. Use a number, text, or {"tests": [[input, output], …]}."""


class Undecided(UniscaleError):
    """No exact rule can grade this answer. Ask a grading process, which takes time."""


@dataclass(frozen=True)
class Grade:
    """One graded answer: the answer found and where it was found, the deciding rule, and the grader."""

    correct: bool
    answer: str | None
    how: How
    grader: str = GRADER
    version: str = ""
    read: Read = "box"

    @property
    def rule(self) -> str:
        """Return the deciding rule, preceded by where the answer was found, if there was one.

        >>> Grade(correct=True, answer="7", how="number").rule
        'box/number'
        """
        return self.how if self.answer is None else f"{self.read}/{self.how}"


@cache
def grader_version(name: str = GRADER) -> str:
    """Return the version recorded with a grader's results: its revision, and its library's version, if any."""
    if name in _NAMED:
        return f"{GRADER_REVISION}+math-verify-{metadata.version('math-verify')}"
    return f"{REVISION}+jsonschema-{metadata.version('jsonschema')}" if name == "json" else f"{REVISION}"


def ask_later(rule: Rule, request: Mapping[str, object]) -> NoReturn:
    """Stand in for a grading process where grading must not take time.

    Raises:
        Undecided: Always.
    """
    raise Undecided("no exact rule decides; ask a grading process")


def grade(text: str, reference: object, *, ask: AskGrader, grader: Grader | None = None) -> Grade:
    r"""Grade an answer's text.

    Args:
        text: Text of the whole path.
        reference: The content of `Query.reference`; None only if the grader needs no reference.
        ask: Function that asks a grading process if no exact rule decides; called at most once.
        grader: The grader; None for `boxed-only`, which treats an answer without a complete box as wrong.

    Raises:
        BadReference: `boxed-only` or `boxed` cannot grade against the reference.
        InvalidField: The grader and the reference do not match, or one of them is invalid.
        UniscaleError: Any error raised by `ask`.

    >>> grade(r"12 + 5 = 17, so \boxed{017}", 17, ask=ask_later).how
    'number'
    """
    name = "boxed-only" if grader is None else grader.name
    accepted = _accepted(name, reference)
    if grader is None or name in _NAMED:
        correct, answer, read, how = _boxed(name, text, accepted, ask)
    else:
        correct, answer, read, how = _GRADERS[name](grader, text, accepted, ask)
    recorded = GRADER if name in _NAMED else name
    shortened = None if answer is None else answer[:MAX_ANSWER]
    return Grade(correct, shortened, how, grader=recorded, version=grader_version(name), read=read)


def check(grader: Grader | None, reference: object) -> dict[str, object] | None:
    """Reject a reference that a grader can never grade against.

    Args:
        grader: The grader; None for `boxed-only`.
        reference: The content of `Query.reference`.

    Returns:
        The patterns or schema for a grading process to check (`GradingPool.refusal`); None if there are none.

    Raises:
        InvalidField: The reference is rejected; the message names the Query field and the fix.
    """
    name = "boxed-only" if grader is None else grader.name
    accepted = _accepted(name, reference)
    if grader is None or name in _NAMED:
        for item in accepted:
            try:
                check_reference(read_reference(item))
            except BadReference as error:
                field, _, why = str(error).partition(" ")  # the messages begin with the field's name
                raise InvalidField("Query", field, why) from None
    elif name == "regex":
        if (size := sum(map(len, accepted))) > MAX_PATTERNS:
            raise _refused(f"holds patterns of {size} characters in all; give at most {MAX_PATTERNS}")
        return {"patterns": accepted}
    elif name == "json":
        if missing := _missing_field(grader.fields, accepted):
            raise _refused(
                f"has no field {missing!r}, which grader.fields names; give it, or leave it out of fields"
            )
        return None if grader.schema is None else {"schema": grader.schema}
    return None


def read_reference(reference: object) -> object:
    """Parse a reference that is JSON text with `tests`, and return any other reference unchanged.

    Raises:
        BadReference: The JSON is nested too deeply to parse.

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
    r"""Return the answer in a reference: a number's digits, the text after GSM8K's ####, a box's content, or the text.

    >>> gold_of("He makes <<9*2=18>>18 dollars.\n#### 1,018"), gold_of(0.5), gold_of("$x+1$")
    ('1,018', '0.5', 'x+1')
    """
    # math-verify does not parse powers of ten such as 1e-05.
    text = reference if isinstance(reference, str) else format(Decimal(repr(reference)), "f")
    if "####" in text:
        text = text.rpartition("####")[2]
    elif (boxed := extract_boxed(text)) is not None:
        text = boxed
    return text.strip().strip("$").strip()


def check_reference(reference: object) -> None:
    """Reject a reference that no answer can be graded against.

    Raises:
        BadReference: The reference is rejected; the message states the reason and the fix.
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


def is_program(reference: object) -> bool:
    """Return whether a reference contains tests for a program, in which case no default grader applies to it."""
    if isinstance(reference, str):
        try:
            reference = read_reference(reference)
        except BadReference:
            return False
    return isinstance(reference, dict) and "tests" in reference


def _refused(why: str) -> InvalidField:
    return InvalidField("Query", "reference", why)


# A reference's accepted answers, in the form compared by its grader.


def _accepted(name: str, reference: object) -> list[Any]:
    """Return a reference's accepted answers: its items if it is a list, otherwise the reference itself.

    Raises:
        InvalidField: An item has a type that the grader cannot compare.
    """
    if reference is None and name not in _NAMED:
        return []
    several = isinstance(reference, list)
    items = reference if isinstance(reference, list) else [reference]
    if not items:
        raise _refused("is an empty list; give at least one accepted answer, or leave reference out")
    if name == "json":
        return [_json_of(item) for item in items]
    if name in _NAMED and not several:
        return items
    for at, item in enumerate(items):
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            where = f"[{at}] is" if several else "is"
            why = f"{where} {shown(item)}, and grader {name} compares texts and numbers; give one, or grader json"
            raise _refused(why)
    return [_READERS[name](item) for item in items]


def _text_of(item: Any) -> str:
    """Return text unchanged, and a number as digits."""
    text = item if isinstance(item, str) else format(Decimal(repr(item)), "f")
    if not text.strip():
        raise _refused("is an empty text; give the right answer, or leave reference out")
    if len(text) > MAX_ANSWER:
        raise _refused(f"is a text of {len(text)} characters; give at most {MAX_ANSWER}")
    return text


def _number_text(item: Any) -> str:
    text = gold_of(item)
    if as_number(text) is None:
        raise _refused(
            f"is {shown(item)}, which is not a number; give one, or use another grader than last-number"
        )
    return text


def _pattern(item: Any) -> str:
    if not isinstance(item, str) or not item:
        raise _refused(f"is {shown(item)}, and grader regex takes a regular expression as text; give one")
    return item


def _json_of(item: Any) -> Any:
    """Return an item's JSON value. Text is parsed as JSON."""
    if not isinstance(item, str):
        return item
    try:
        return _loads(item)
    except ValueError:
        why = f"is {shown(item)}, which is not JSON; give the value itself, or quote a text: " + '"\\"…\\""'
        raise _refused(why) from None


def _missing_field(fields: Sequence[str], accepted: Sequence[Any]) -> str | None:
    for value in accepted:
        for field in fields:
            if not isinstance(value, dict) or field not in value:
                return field
    return None


_READERS: dict[str, Callable[[Any], str]] = {
    "boxed-only": _text_of,
    "boxed": _text_of,
    "last-number": _number_text,
    "exact": _text_of,
    "contains": _text_of,
    "regex": _pattern,
}


# Where an answer is found: the last complete `\boxed{…}`, or else the last line or the whole text.

# The start of a box, an escaped character (an escaped brace is printed and does not group), or a plain brace.
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{…}` with balanced braces, or None.

    >>> extract_boxed(r"so \boxed{\frac{1}{2}} and \boxed{3")
    '\\frac{1}{2}'
    """
    if "\\boxed" not in text:
        return None
    opened: list[int | None] = []  # where each open box's content starts; None for a plain brace
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


def _answer(text: str) -> tuple[str | None, Read]:
    """Return the content of a text's last complete box, or else its last non-blank line; None if it has neither."""
    if (boxed := extract_boxed(text)) is not None:
        return boxed, "box"
    lines = text.rstrip().rpartition("\n")
    return lines[2].strip() or None, "last-line"


# The graders' comparisons. Each returns whether the answer is right, the answer found and where it was found, and the
# deciding rule.

Decided = tuple[bool, str | None, Read, How]


def _boxed(name: str, text: str, accepted: Sequence[Any], ask: AskGrader) -> Decided:
    """Compare numbers, words, mathematics or a program. If text has no box, `boxed` reads its last line."""
    if len(accepted) == 1:
        accepted = [read_reference(accepted[0])]
    for item in accepted:
        check_reference(item)
    answer, read = _answer(text)
    if name == "boxed-only" and read != "box":
        return False, None, "box", "no-box"
    if answer is None:
        return False, None, read, "no-answer"
    if len(answer) > MAX_ANSWER:
        return False, answer, read, "too-long"
    if isinstance(accepted[0], Mapping):
        verdict = ask("program", {"program": answer, "tests": accepted[0]["tests"]})
        return verdict.correct, answer, read, verdict.how
    known: set[How] = set()
    undecided: list[str] = []
    for gold in map(gold_of, accepted):
        found = compare_exactly(gold, answer)
        if found is None:
            undecided.append(gold)
        elif found[0]:
            return True, answer, read, found[1]
        else:
            known.add(found[1])
    if undecided:  # one request for all items, within the time of one answer
        verdict = ask("math-verify", {"gold": sorted(undecided), "answer": answer})
        return verdict.correct, answer, read, verdict.how
    return False, answer, read, min(known)


# A run of digits and other number characters, not the end of a word or of another number (`x2`, `2024-01`).
_NUMBERS = re.compile(
    r"(?<![\w.])(?:(?<![\w.)])[-+−])?\\?\$?"
    r"(?:\\[dt]?frac\{[0-9]+\}\{[0-9]+\}|[0-9]+ [0-9]+/[0-9]+|[0-9]+/[0-9]+"
    r"|[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9])|[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?|\.[0-9]+)"
)


def _last_number(grader: Grader, text: str, accepted: Sequence[str], ask: AskGrader) -> Decided:
    boxed = extract_boxed(text)
    read: Read = "text" if boxed is None else "box"
    last = None
    for found in _NUMBERS.finditer(text if boxed is None else boxed):
        if as_number(found.group()) is not None:
            last = found.group()
    if last is None:
        return False, None, read, "no-number"
    equal = any(
        known is not None and known[0] for known in (compare_exactly(gold, last) for gold in accepted)
    )
    return equal, last, read, "last-number"


def _exact(grader: Grader, text: str, accepted: Sequence[str], ask: AskGrader) -> Decided:
    answer, read = _answer(text)
    if answer is None:
        return False, None, read, "no-answer"
    said = _spaced(answer)
    return any(said == _spaced(item) for item in accepted), answer, read, "exact"


def _contains(grader: Grader, text: str, accepted: Sequence[str], ask: AskGrader) -> Decided:
    boxed = extract_boxed(text)
    read: Read = "text" if boxed is None else "box"
    where = text if boxed is None else boxed
    said = _folded(where)
    for item in accepted:
        if _holds(said, _folded(item)):
            return True, item, read, "contains"
    return False, where, read, "contains"


def _regex(grader: Grader, text: str, accepted: Sequence[str], ask: AskGrader) -> Decided:
    verdict = ask("regex", {"patterns": list(accepted), "text": text})
    return verdict.correct, text, "text", verdict.how


def _json(grader: Grader, text: str, accepted: Sequence[Any], ask: AskGrader) -> Decided:
    for part, read in _json_parts(text):
        try:
            value = _loads(part)
        except ValueError:
            continue
        if grader.schema is not None and not ask("schema", {"schema": grader.schema, "value": value}).correct:
            return False, part, read, "schema"
        if not accepted:
            return True, part, read, "schema"
        if grader.fields:
            return any(_same_fields(value, item, grader.fields) for item in accepted), part, read, "json"
        return any(_same(value, item) for item in accepted), part, read, "json"
    return False, None, "text", "not-json"


_GRADERS: dict[str, Callable[[Grader, str, Sequence[Any], AskGrader], Decided]] = {
    "last-number": _last_number,
    "exact": _exact,
    "contains": _contains,
    "regex": _regex,
    "json": _json,
}


def _spaced(text: str) -> str:
    """Return text in NFC, with runs of white space collapsed and the ends trimmed."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _folded(text: str) -> str:
    return _spaced(_spaced(text).casefold())


def _holds(text: str, wanted: str) -> bool:
    """Return whether text contains other text as whole words, with no letter or digit directly before or after.

    >>> _holds("it is no. 5", "no"), _holds("i know", "no"), _holds("1.5 or 15", "5")
    (True, False, False)
    """
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        if not (
            _goes_on(text[max(0, at - 2) : at][::-1], wanted[0]) or _goes_on(text[end : end + 2], wanted[-1])
        ):
            return True
        at = text.find(wanted, at + 1)
    return False


def _goes_on(beyond: str, edge: str) -> bool:
    """Return whether the two characters beyond an edge continue its word or its number."""
    if not beyond or not edge.isalnum():
        return False
    return beyond[0].isalnum() or (edge.isdigit() and beyond[0] in ".," and beyond[1:].isdigit())


_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


def _json_parts(text: str) -> Iterator[tuple[str, Read]]:
    """Yield candidates for an answer's JSON: the whole text, its last fenced block and its last line."""
    yield text.strip(), "text"
    if fences := _FENCE.findall(text):
        yield fences[-1].strip(), "fence"
    yield text.rstrip().rpartition("\n")[2].strip(), "last-line"


def _loads(text: str) -> Any:
    """Parse a JSON value. Raises ValueError, including for Python's JSON extensions and excessive nesting."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _same_fields(value: Any, wanted: Any, fields: Sequence[str]) -> bool:
    return isinstance(value, dict) and all(
        field in value and _same(value[field], wanted[field]) for field in fields
    )


def _same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, where 1 equals 1.0 and neither equals true.

    >>> _same({"a": [1, "x"]}, {"a": [1.0, "x"]}), _same(1, True)
    (True, False)
    """
    left = [(one, other)]
    while left:
        a, b = left.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            left += [(a[name], b[name]) for name in a]
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            left += zip(a, b, strict=True)
        elif isinstance(a, bool) or isinstance(b, bool):
            if a is not b:
                return False
        elif a != b:
            return False
    return True
