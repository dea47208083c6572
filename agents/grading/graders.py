"""Graders: is an answer right, by the rule that a query, a model's entry or the catalogue names?

`grade` is the default, `boxed-only`. The others are here: where each reads the answer, and how it compares it with what
is accepted. A reference that is a list accepts any of its items; their order changes nothing. Patterns and schemas come
from clients: they are compiled and run in grading processes alone, whose time is limited.

docs/grading.md says the rules.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from importlib import metadata
from typing import Any, Final, NoReturn

from agents.grading.grade import (
    MAX_ANSWER,
    BadReference,
    Grade,
    How,
    Judge,
    Read,
    Rule,
    Runner,
    Verdict,
    check_reference,
    extract_boxed,
    gold_of,
    grade,
    grader_version,
    read_reference,
    run_here,
)
from agents.grading.quantities import as_number, compare_exactly
from schemas.errors import InvalidField, shown
from schemas.grader import Grader

Ask = Callable[[Rule, Mapping[str, object]], Verdict]
"""Asks a grading process: `agents.grading.pool.GradingPool.ask`."""

# Raise where a change could grade an answer differently.
REVISION: Final = 1
MAX_PATTERNS: Final = 4_000  # characters of all patterns of a query together

_NAMED: Final = frozenset({"boxed-only", "boxed"})  # they compare alike, so a Reward has one name for both


def ask_nobody(kind: Rule, request: Mapping[str, object]) -> NoReturn:
    """Stand in for a grading process where none is to be needed.

    Raises:
        AssertionError: always.
    """
    raise AssertionError(f"{kind} needs a grading process; give GradingPool.ask")


def grade_by(
    grader: Grader | None,
    text: str,
    reference: object,
    *,
    judge: Judge,
    run: Runner = run_here,
    ask: Ask = ask_nobody,
) -> Grade:
    """Grade the text of an answer by a grader.

    Args:
        grader: Which; None is `boxed-only`.
        text: The whole path.
        reference: What `Query.reference` holds; None only where the grader needs none.
        judge: Compares mathematics for `boxed-only`, as does
        run: programs.
        ask: Asks a grading process for the others; at most once.

    Raises:
        InvalidField: grader and reference do not belong together, or one cannot be used.
        BadReference: `boxed-only` cannot grade against the reference.
        UniscaleError: what `judge`, `run` or `ask` raise.
    """
    if (grader is None or grader.name == "boxed-only") and not isinstance(reference, list):
        return grade(text, reference, judge=judge, run=run)
    name = "boxed-only" if grader is None else grader.name
    accepted = _accepted(grader, reference)
    if name in _NAMED:
        return _boxed(name, text, accepted, ask)
    assert grader is not None
    correct, answer, read, how = _GRADERS[name](grader, text, accepted, ask)
    return Grade(correct=correct, answer=answer, read=read, how=how, grader=name, version=_version(name))


def check(grader: Grader | None, reference: object) -> dict[str, object] | None:
    """Refuse a reference that a grader could never grade against.

    Args:
        grader: Which; None is `boxed-only`.
        reference: What `Query.reference` holds.

    Returns:
        The patterns or the schema that a grading process is to try (`GradingPool.refusal`); None where there are none.

    Raises:
        InvalidField: naming the field of the Query and the fix.
    """
    accepted = _accepted(grader, reference)
    if grader is None or grader.name in _NAMED:
        for item in accepted:
            try:
                check_reference(read_reference(item))
            except BadReference as error:
                field, _, why = str(error).partition(" ")  # its messages begin with the field
                raise InvalidField("Query", field, why) from None
    elif grader.name == "regex":
        if (size := sum(map(len, accepted))) > MAX_PATTERNS:
            raise _refused(f"holds patterns of {size} characters in all; give at most {MAX_PATTERNS}")
        return {"patterns": accepted}
    elif grader.name == "json":
        if missing := _missing_field(grader.fields, accepted):
            raise _refused(
                f"has no field {missing!r}, which grader.fields names; give it, or leave it out of fields"
            )
        return None if grader.schema is None else {"schema": grader.schema}
    return None


def is_program(reference: object) -> bool:
    """Return whether a reference holds the tests of a program, so that no default grader applies to it."""
    if isinstance(reference, str):
        try:
            reference = read_reference(reference)
        except BadReference:
            return False
    return isinstance(reference, dict) and "tests" in reference


def _refused(why: str) -> InvalidField:
    return InvalidField("Query", "reference", why)


# What a reference accepts, in the form that its grader compares.


def _accepted(grader: Grader | None, reference: object) -> list[Any]:
    """Return what a reference accepts: its items if it is a list.

    Raises:
        InvalidField: an item is of a kind that the grader cannot compare.
    """
    if reference is None:
        return []
    name = "boxed-only" if grader is None else grader.name
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
    """Return a text as it is, and a number in digits."""
    text = item if isinstance(item, str) else format(Decimal(repr(item)), "f")
    if not text.strip():
        raise _refused("is an empty text; give the right answer, or leave reference out")
    if len(text) > MAX_ANSWER:
        raise _refused(f"is a text of {len(text)} characters; give at most {MAX_ANSWER}")
    return text


def _number_text(item: Any) -> str:
    text = gold_of(item)
    if as_number(text) is None:
        raise _refused(f"is {shown(item)}, which is no number; give one, or another grader than last-number")
    return text


def _pattern(item: Any) -> str:
    if not isinstance(item, str) or not item:
        raise _refused(f"is {shown(item)}, and grader regex takes a regular expression as text; give one")
    return item


def _json_of(item: Any) -> Any:
    """Return the JSON value that an item is; a text holds it as JSON."""
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


# Where an answer is read.


def _answer(text: str) -> tuple[str | None, Read]:
    """Return the last complete box of a text, or its last line that is not blank; None where it has neither."""
    if (boxed := extract_boxed(text)) is not None:
        return boxed, "box"
    lines = text.rstrip().rpartition("\n")
    return lines[2].strip() or None, "last-line"


# How each grader compares. What each returns: whether it is right, what it read, where, and what decided.

Decided = tuple[bool, str | None, Read, How]


def _boxed(name: str, text: str, accepted: Sequence[Any], ask: Ask) -> Grade:
    """Compare as `grade` does, with each of several answers; `boxed` reads the last line without a box."""
    answer, read = _answer(text)
    if name == "boxed-only" and read != "box":
        answer = None
    correct, how = _as_mathematics(answer, accepted, ask)
    if answer is None and name == "boxed-only":
        how = "no-box"
    shortened = None if answer is None else answer[:MAX_ANSWER]
    return Grade(correct=correct, answer=shortened, read=read, how=how, version=grader_version())


def _as_mathematics(answer: str | None, accepted: Sequence[Any], ask: Ask) -> tuple[bool, How]:
    if answer is None:
        return False, "no-answer"
    if len(answer) > MAX_ANSWER:
        return False, "too-long"
    if len(accepted) == 1 and isinstance(reference := read_reference(accepted[0]), Mapping):
        check_reference(reference)
        verdict = ask("program", {"program": answer, "tests": reference["tests"]})
        return verdict.correct, verdict.how
    known: set[How] = set()
    undecided: list[str] = []
    for item in accepted:
        check_reference(item)
        gold = gold_of(item)
        found = compare_exactly(gold, answer)
        if found is None:
            undecided.append(gold)
        elif found[0]:
            return True, found[1]
        else:
            known.add(found[1])
    if undecided:  # one request for all: a list takes a grading process no longer than one answer does
        verdict = ask("math-verify", {"gold": sorted(undecided), "answer": answer})
        return verdict.correct, verdict.how
    return False, min(known)


# A run of digits with what may be in a number, not the end of a word or of another number (`x2`, `2024-01`).
_NUMBERS = re.compile(
    r"(?<![\w.])(?:(?<![\w.)])[-+−])?\\?\$?"
    r"(?:\\[dt]?frac\{[0-9]+\}\{[0-9]+\}|[0-9]+ [0-9]+/[0-9]+|[0-9]+/[0-9]+"
    r"|[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9])|[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?|\.[0-9]+)"
)


def _last_number(grader: Grader, text: str, accepted: Sequence[str], ask: Ask) -> Decided:
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


def _exact(grader: Grader, text: str, accepted: Sequence[str], ask: Ask) -> Decided:
    answer, read = _answer(text)
    if answer is None:
        return False, None, read, "no-answer"
    said = _spaced(answer)
    return any(said == _spaced(item) for item in accepted), answer[:MAX_ANSWER], read, "exact"


def _contains(grader: Grader, text: str, accepted: Sequence[str], ask: Ask) -> Decided:
    boxed = extract_boxed(text)
    read: Read = "text" if boxed is None else "box"
    where = text if boxed is None else boxed
    said = _folded(where)
    for item in accepted:
        if _holds(said, _folded(item)):
            return True, item, read, "contains"
    return False, where[:MAX_ANSWER], read, "contains"


def _regex(grader: Grader, text: str, accepted: Sequence[str], ask: Ask) -> Decided:
    verdict = ask("regex", {"patterns": list(accepted), "text": text})
    return verdict.correct, text[:MAX_ANSWER], "text", verdict.how


def _json(grader: Grader, text: str, accepted: Sequence[Any], ask: Ask) -> Decided:
    for part, read in _json_parts(text):
        try:
            value = _loads(part)
        except ValueError:
            continue
        answer = part[:MAX_ANSWER]
        if grader.schema is not None and not ask("schema", {"schema": grader.schema, "value": value}).correct:
            return False, answer, read, "schema"
        if not accepted:
            return True, answer, read, "schema"
        if grader.fields:
            return any(_same_fields(value, item, grader.fields) for item in accepted), answer, read, "json"
        return any(_same(value, item) for item in accepted), answer, read, "json"
    return False, None, "text", "not-json"


_GRADERS: dict[str, Callable[[Grader, str, Sequence[Any], Ask], Decided]] = {
    "last-number": _last_number,
    "exact": _exact,
    "contains": _contains,
    "regex": _regex,
    "json": _json,
}


@cache
def _version(name: str) -> str:
    return f"{REVISION}+jsonschema-{metadata.version('jsonschema')}" if name == "json" else f"{REVISION}"


def _spaced(text: str) -> str:
    """Return a text in Unicode's composed form, with one space for each run of white space and none at its ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _folded(text: str) -> str:
    return _spaced(_spaced(text).casefold())


def _holds(text: str, wanted: str) -> bool:
    """Return whether a text holds another as words of its own: no letter or digit goes on at its ends.

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
    """Return whether the two characters beyond an edge belong to its word, or to its number."""
    if not beyond or not edge.isalnum():
        return False
    return beyond[0].isalnum() or (edge.isdigit() and beyond[0] in ".," and beyond[1:].isdigit())


_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


def _json_parts(text: str) -> Iterator[tuple[str, Read]]:
    """Yield where the JSON of an answer may be: the whole text, its last fenced block, its last line."""
    yield text.strip(), "text"
    if fences := _FENCE.findall(text):
        yield fences[-1].strip(), "fence"
    yield text.rstrip().rpartition("\n")[2].strip(), "last-line"


def _loads(text: str) -> Any:
    """Return a JSON value. Raises ValueError, also for what Python alone takes for JSON, and for what is too deep."""
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
    """Return whether two JSON values are equal: 1 is 1.0, and neither is true.

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
