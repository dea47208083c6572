"""Each grader by a table of what it takes for right, and what holds of every list of accepted answers."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from agents.grading.compiled import conforms, matches, refusal
from agents.grading.grade import (
    MAX_PATTERNS,
    Rule,
    Verdict,
    ask_later,
    check,
    grade,
    grader_version,
    is_program,
)
from agents.grading.pool import GraderFailed, GradingPool
from agents.grading.programs import passes
from schemas.errors import InvalidField
from schemas.grader import Grader

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
LOOP = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


def here(rule: Rule, request: Mapping[str, Any]) -> Verdict:
    """Do in this process what a grading process does; of mathematics, only what is the same text."""
    if rule == "math-verify":
        return Verdict(correct=request["answer"] in request["gold"], how=rule)
    does: dict[str, Any] = {"program": passes, "regex": matches, "schema": conforms}
    return Verdict(correct=does[rule](**request), how=rule)


def graded(grader: str | Grader, text: str, reference: object) -> tuple[bool, str]:
    named = Grader(name=grader) if isinstance(grader, str) else grader
    found = grade(text, reference, ask=here, grader=named)
    return found.correct, found.rule


BOXED = [
    (r"so \boxed{63}", "63", (True, "box/number")),
    (r"so \boxed{64}", "63", (False, "box/number")),
    ("Nine sevens:\n63\n\n", 63, (True, "last-line/number")),
    ("63\nas I said", "63", (False, "last-line/math-verify")),
    ("It is\nParis.", "paris", (True, "last-line/text")),
    (r"\boxed{5} or not\n6", "6", (False, "box/number")),
    (" \n", "63", (False, "no-answer")),
    ("x" * 4001, "63", (False, "last-line/too-long")),
    ("add 3", {"tests": [[[1], [4]]]}, (True, "last-line/program")),
    ("add 4", '{"tests": [[[1], [4]]]}', (False, "last-line/program")),
    ("Lyon", ["Paris", "Lyon"], (True, "last-line/text")),
    ("Nice", ["Paris", "Lyon"], (False, "last-line/text")),
    ("x+1", ["1+x", "x+1"], (True, "last-line/text")),
    ("2x", ["x+x", "y"], (False, "last-line/math-verify")),
]
LAST_NUMBER = [
    ("It costs 3 for 2, so 6 dollars.", 6, (True, "text/last-number")),
    ("from 6 to 5", 6, (False, "text/last-number")),
    (r"\boxed{42}, which I checked 3 times", "42", (True, "box/last-number")),
    ("about 1,234.50!", "1234.5", (True, "text/last-number")),
    ("a date: 2024-01-31", 31, (True, "text/last-number")),
    ("falls to -4", -4, (True, "text/last-number")),
    ("5-4", 4, (True, "text/last-number")),
    ("x2 and H2O", 2, (False, "no-number")),
    ("half, 1/2", 0.5, (True, "text/last-number")),
    (r"so \frac{3}{4} of it", "0.75", (True, "text/last-number")),
    ("2 1/3 cups", "7/3", (True, "text/last-number")),
    ("version 3.14.15", "3.14", (True, "text/last-number")),
    ("1e-5 m", "0.00001", (True, "text/last-number")),
    ("none", 6, (False, "no-number")),
    ("12", [11, "12"], (True, "text/last-number")),
]
EXACT = [
    ("Think.\n  New \t York ", "New York", (True, "last-line/exact")),
    (r"\boxed{New York}", "New York", (True, "box/exact")),
    ("new york", "New York", (False, "last-line/exact")),
    ("New York.", "New York", (False, "last-line/exact")),
    ("Cafe\u0301", "Caf\u00e9", (True, "last-line/exact")),
    ("7.0", 7, (False, "last-line/exact")),
    ("7", 7, (True, "last-line/exact")),
    ("0.00001", 1e-5, (True, "last-line/exact")),
    ("", "New York", (False, "no-answer")),
    ("b", ["a", "b"], (True, "last-line/exact")),
]
CONTAINS = [
    ("The capital is PARIS, of course.\nAnything else?", "Paris", (True, "text/contains")),
    ("Parisian", "Paris", (False, "text/contains")),
    ("I know", "no", (False, "text/contains")),
    ("new\n  york", "New York", (True, "text/contains")),
    ("15 or 1.5 or 1,500", "5", (False, "text/contains")),
    ("it is 5.", "5", (True, "text/contains")),
    ("it is C++!", "C++", (True, "text/contains")),
    ("Straße", "STRASSE", (True, "text/contains")),
    (r"Paris? No: \boxed{Lyon}", "Paris", (False, "box/contains")),
    ("Lyon", ["Paris", "Lyon"], (True, "text/contains")),
]
REGEX = [
    ("It is 42.", r"\b4\d\b", (True, "text/regex")),
    ("It is 42.", r"^4\d$", (False, "text/regex")),
    (r"\boxed{42}", r"\\boxed\{4\d\}", (True, "text/regex")),
    ("YES", "(?i)^yes$", (True, "text/regex")),
    ("no", ["^yes$", "^no$"], (True, "text/regex")),
]
JSON = [
    ('{"b": [1, 2], "a": 1.0}', {"a": 1, "b": [1, 2]}, (True, "text/json")),
    ('{"a": true}', {"a": 1}, (False, "text/json")),
    ('{"a": 1, "b": 2}', {"a": 1}, (False, "text/json")),
    ('{"a": 1}', '{"a": 1}', (True, "text/json")),
    ("[1, 2]", [[1, 2]], (True, "text/json")),
    ("[2, 1]", [[1, 2]], (False, "text/json")),
    ("[1, 2]", "[1, 2]", (True, "text/json")),
    ('Here:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}, (True, "fence/json")),
    ('```\n{"a": 2}\n```\nor\n```\n{"a": 1}\n```', {"a": 1}, (True, "fence/json")),
    ('Here:\n{"a": 1}\n', {"a": 1}, (True, "last-line/json")),
    ("a is 1", {"a": 1}, (False, "not-json")),
    ("NaN", 1, (False, "not-json")),
    ("[" * 5000, 1, (False, "not-json")),
    ('{"a": 2}', [{"a": 1}, {"a": 2}], (True, "text/json")),
]
TABLES: dict[str, list[Any]] = {
    "boxed": BOXED, "last-number": LAST_NUMBER, "exact": EXACT, "contains": CONTAINS, "regex": REGEX, "json": JSON,
}  # fmt: skip


@pytest.mark.parametrize(
    ("grader", "text", "reference", "expected"),
    [(name, *row) for name, table in TABLES.items() for row in table],
)
def test_a_grader_takes_this_for_right_and_says_why(
    grader: str, text: str, reference: object, expected: tuple[bool, str]
) -> None:
    assert graded(grader, text, reference) == expected


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ('{"name": "Ann", "age": 3}', None, (True, "text/schema")),
        ('{"name": "Ann", "age": "3"}', None, (False, "text/schema")),
        ('{"name": "Ann", "age": 3}', {"name": "Ann", "age": 4}, (False, "text/json")),
        ('{"age": 3}', {"age": 3}, (False, "text/schema")),
    ],
)
def test_a_schema_is_met_before_anything_is_compared(
    text: str, reference: object, expected: tuple[bool, str]
) -> None:
    assert graded(Grader(name="json", schema=PERSON), text, reference) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [('{"total": 7, "note": "!"}', True), ('{"total": 8}', False), ('{"sum": 7}', False), ("[7]", False)],
)
def test_of_named_fields_alone_the_values_are_compared(text: str, expected: bool) -> None:
    grader = Grader(name="json", fields=("total",))
    assert graded(grader, text, {"total": 7, "note": "?"}) == (expected, "text/json")


@pytest.mark.parametrize("text", [r"so \boxed{63}", r"\boxed{64}", "63", "", r"\boxed{x+1}"])
@pytest.mark.parametrize("reference", ["63", 63, "x+1", "so\n#### 63"])
def test_the_default_grades_a_plain_reference_as_ever(text: str, reference: object) -> None:
    as_ever = grade(text, reference, ask=here)
    assert grade(text, reference, ask=here, grader=Grader(name="boxed-only")) == as_ever
    assert grade(text, [reference], ask=here) == as_ever
    assert (as_ever.grader, as_ever.version) == ("boxed", grader_version())
    assert as_ever.rule == ("no-box" if "boxed" not in text else f"box/{as_ever.how}")


def test_the_default_wants_a_box_of_a_list_as_well() -> None:
    assert graded("boxed-only", r"\boxed{4}", [3, "4"]) == (True, "box/number")
    assert graded("boxed-only", "4", [3, "4"]) == (False, "no-box")


def test_name_and_version_of_a_grader_go_with_the_grade() -> None:
    found = grade("7", "7", ask=ask_later, grader=Grader(name="exact"))
    assert (found.grader, found.version) == ("exact", "1")
    assert grade("7", 7, ask=ask_later, grader=Grader(name="json")).version.startswith("1+jsonschema-")
    assert grade("7", 7, ask=ask_later, grader=Grader(name="boxed")).version == grader_version()


# Lists of accepted answers.

ITEMS = {
    "boxed-only": st.one_of(
        st.integers(-9, 9), st.sampled_from(["Paris", "odd", "x+1", "1+x", "5 cm", "1/2"])
    ),
    "last-number": st.one_of(st.integers(-9, 9), st.sampled_from(["1/2", "0.5", "1,000"])),
    "exact": st.text("ab .", min_size=1).filter(str.strip),
    "contains": st.text("ab 1.", min_size=1).filter(str.strip),
    "regex": st.sampled_from(["a", "^b", "[0-9]$", "a|b", "(?i)A"]),
    "json": st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.lists(st.integers(0, 1), max_size=2)),
}
TEXTS = {
    "boxed-only": ITEMS["boxed-only"].map(lambda item: rf"\boxed{{{item}}}"),
    "last-number": ITEMS["last-number"].map("it is {}".format),
    "json": ITEMS["json"].map(json.dumps),
}


@st.composite
def lists(draw: st.DrawFn) -> tuple[str, str, list[Any], list[Any]]:
    """A grader, a text, a list of accepted answers, and the same with more of them in any order."""
    name = draw(st.sampled_from(sorted(ITEMS)))
    text = draw(TEXTS.get(name, st.text("abA .1\n", max_size=12)))
    some = draw(st.lists(ITEMS[name], min_size=1, max_size=4))
    more = draw(st.permutations([*some, *draw(st.lists(ITEMS[name], max_size=3))]))
    return name, text, some, more


@given(lists())
@examples(max_examples=300)
def test_a_longer_list_accepts_whatever_a_shorter_one_does(
    drawn: tuple[str, str, list[Any], list[Any]],
) -> None:
    name, text, some, more = drawn
    assert graded(name, text, more)[0] >= graded(name, text, some)[0]


@given(lists(), st.randoms(use_true_random=False))
@examples(max_examples=300)
def test_the_order_of_a_list_changes_no_grade(
    drawn: tuple[str, str, list[Any], list[Any]], rng: random.Random
) -> None:
    name, text, _, items = drawn
    mixed = list(items)
    rng.shuffle(mixed)
    assert graded(name, text, mixed)[0] == graded(name, text, items)[0]


@given(lists())
def test_a_list_accepts_what_one_of_its_items_does(drawn: tuple[str, str, list[Any], list[Any]]) -> None:
    name, text, some, _ = drawn
    assert graded(name, text, some)[0] == any(graded(name, text, [item])[0] for item in some)


@given(st.sampled_from(sorted(ITEMS)), st.text(max_size=60))
def test_any_text_gets_a_grade(name: str, text: str) -> None:
    reference = {"regex": "a", "json": 1}.get(name, 7)
    assert graded(name, text, [reference])[0] in (True, False)


# Bad input.

BAD = [
    ("exact", [], "reference: is an empty list; give at least one"),
    ("exact", "  ", "reference: is an empty text"),
    ("exact", ["a", {"b": 1}], "reference: [1] is a dict, and grader exact compares texts and numbers"),
    ("exact", True, "reference: is True, and grader exact compares texts and numbers"),
    ("exact", "x" * 4001, "reference: is a text of 4001 characters; give at most 4000"),
    ("boxed-only", [{"tests": []}], "reference: [0] is a dict"),
    ("boxed", {"a": 1}, "reference.tests: must be a list"),
    ("boxed", "####", "reference: is an empty text"),
    ("last-number", "many", "reference: is 'many', which is not a number; give one, or use another grader"),
    ("contains", [["a"]], "reference: [0] is a list"),
    ("regex", 7, "reference: is 7, and grader regex takes a regular expression as text; give one"),
    (
        "regex",
        ["a" * 2001, "b" * 2000],
        f"reference: holds patterns of 4001 characters in all; give at most {MAX_PATTERNS}",
    ),
    ("json", "{a: 1}", "reference: is '{a: 1}', which is not JSON; give the value itself"),
    (Grader(name="json", fields=("b",)), {"a": 1}, "reference: has no field 'b', which grader.fields names"),
    (Grader(name="json", fields=("b",)), [{"b": 1}, [2]], "reference: has no field 'b'"),
]


@pytest.mark.parametrize(("grader", "reference", "why"), BAD)
def test_ungradable_reference_is_refused_with_the_reason(
    grader: str | Grader, reference: object, why: str
) -> None:
    with pytest.raises(InvalidField) as refused:
        check(Grader(name=grader) if isinstance(grader, str) else grader, reference)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (
            {"patterns": ["a", "("]},
            "is '(', which is not a valid regular expression (missing ), unterminated subpattern",
        ),
        ({"patterns": ["(" * 1500 + ")" * 1500]}, "which is not a valid regular expression"),
        ({"patterns": ["(?<=a+)b"]}, "look-behind requires fixed-width pattern"),
        ({"schema": {"type": "strin"}}, "is not a JSON Schema ($.type: 'strin' is not valid"),
        ({"schema": {"properties": {"a": {"pattern": "["}}}}, "is not a JSON Schema ($.properties.a.pattern"),
        ({"schema": {"$ref": "#/$defs/a"}}, "refers to '#/$defs/a', which is not in it"),
        (
            {"schema": {"items": {"$ref": "http://127.0.0.1:9/a"}}},
            "refers to 'http://127.0.0.1:9/a', and nothing is fetched",
        ),
        ({"schema": LOOP}, "refers to itself without end"),
        ({"schema": {"$schema": "urn:mine"}}, "has $schema 'urn:mine', a dialect not known here"),
        ({"schema": PERSON, "patterns": ["[[a]"]}, ""),
        ({"schema": {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {}}}, ""),
        ({"schema": {"$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}}, ""),
    ],
)
def test_patterns_and_schemas_are_refused_with_the_reason(request_: dict[str, Any], why: str) -> None:
    found = refusal(**request_)
    assert why in found
    assert bool(found) == bool(why)


def test_reference_with_tests_is_graded_as_a_program() -> None:
    tests = {"tests": [["a", "b"]]}
    assert is_program(tests)
    assert is_program(json.dumps(tests))
    assert not any(map(is_program, ({"a": 1}, '{"a": 1}', "{", '{"tests"' + "[" * 9999, 7, None, ["a"])))


@pytest.fixture(scope="module")
def pool() -> Iterator[GradingPool]:
    with GradingPool(workers=1, timeout_s=2.0) as made:
        yield made


@pytest.mark.seconds
def test_mathematics_is_compared_with_each_of_a_list() -> None:
    with GradingPool(workers=1, timeout_s=60.0) as pool:
        found = grade("2x", ["y", "x+x"], ask=pool.ask, grader=Grader(name="boxed"))
    assert (found.correct, found.rule) == (True, "last-line/math-verify")


def test_a_grading_process_runs_patterns_and_schemas(pool: GradingPool) -> None:
    assert pool.ask("regex", {"patterns": ["b", "a$"], "text": "ba"}).correct
    assert not pool.ask("schema", {"schema": PERSON, "value": {}}).correct
    assert pool.refusal({"schema": PERSON}) == ""
    assert "not a valid regular expression" in pool.refusal({"patterns": ["("]})


HOSTILE, TEXT = "(a+)+$", "a" * 40 + "b"


@pytest.mark.seconds
@pytest.mark.parametrize(
    "slow",
    [
        lambda pool: pool.ask("regex", {"patterns": [HOSTILE], "text": TEXT}),
        lambda pool: pool.ask("schema", {"schema": {"pattern": HOSTILE}, "value": TEXT}),
        lambda pool: pool.refusal({"patterns": ["(?i)" + "[a-\uffff]" * 3000]}),
    ],
    ids=["pattern", "schema", "compile"],
)
def test_what_takes_too_long_is_ended_and_the_next_one_is_graded(
    pool: GradingPool, slow: Callable[[GradingPool], object]
) -> None:
    with pytest.raises(GraderFailed, match="no result in 2 s"):
        slow(pool)
    assert pool.ask("regex", {"patterns": ["a"], "text": "a"}).correct
