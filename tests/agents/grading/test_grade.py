"""Extraction of the boxed answer, the exact rules, the references, and what goes to a grading process."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.grading.grade import (
    BadReference,
    Grade,
    Rule,
    Verdict,
    check_reference,
    extract_boxed,
    gold_of,
    grade,
    grader_version,
)
from agents.grading.programs import passes
from agents.grading.quantities import as_number

QUESTIONS = Path(__file__).parents[4] / "shared" / "data" / "questions"
SHIFT = {"tests": [[[1, 2, 3], [4, 5, 6]], [[0], [3]]]}


def unasked(rule: Rule, request: Mapping[str, Any]) -> Verdict:
    raise AssertionError(f"a grading process was asked for {rule} of {request}")


def no_mathematics(rule: Rule, request: Mapping[str, Any]) -> Verdict:
    return Verdict(rule == "program" and passes(**request), rule)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed{ 5 } then \boxed{6}", "6"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {7}", "7"),
        (r"\boxed{3} and \boxed{4", "3"),
        (r"{ \boxed{3}", "3"),
        (r"} \boxed{3}", "3"),
        (r"\boxed{3 and { 4}", None),
        (r"\boxed", None),
        (r"x\\\boxed{3}", "3"),
        (r"\boxed{}", ""),
        ("", None),
        ("the answer is 5", None),
        (r"\boxed{reverse | add 3}", "reverse | add 3"),
    ],
)
def test_the_last_complete_box_is_the_answer(text: str, answer: str | None) -> None:
    assert extract_boxed(text) == answer


@given(st.text(alphabet=r"\{}boxed ", max_size=60))
def test_extraction_takes_any_text(text: str) -> None:
    answer = extract_boxed(text)
    assert answer is None or answer in text


def test_extraction_is_linear_in_hostile_text() -> None:
    assert extract_boxed("\\boxed{" * 200_000) is None


@pytest.mark.parametrize(
    ("reference", "gold"),
    [
        (18, "18"),
        (0.5, "0.5"),
        ("033", "033"),
        ("He pays <<9*2=18>>18.\n#### 1,018", "1,018"),
        (r"$\frac{1}{2}$", r"\frac{1}{2}"),
        (r"Then $x = \boxed{7}$.", "7"),
    ],
)
def test_gold_is_read_from_each_kind_of_reference(reference: object, gold: str) -> None:
    assert gold_of(reference) == gold


@pytest.mark.parametrize(
    ("reference", "answer", "correct", "how"),
    [
        ("033", "33", True, "number"),
        ("… #### 1018", "1,018", True, "number"),
        ("1018", "1{,}018", True, "number"),
        ("1000000", r"1\,000\,000", True, "number"),
        ("1000000", "1 000 000", True, "number"),
        (18, r"\$18", True, "number"),
        (-18, r"-\$18", True, "number"),
        ("18", "18.00", True, "number"),
        ("5", "-5", False, "number"),
        (-5, "\u22125", True, "number"),
        (-7, "\u20137", True, "number"),
        (34, "3 4", False, "math-verify"),
        ("12", "1 2", False, "math-verify"),
        ("1,234", "1, 234", False, "math-verify"),
        ("11/2", "1 1/2", False, "number"),
        ("3/2", "1 1/2", True, "number"),
        ("7/3", r"2\frac{1}{3}", True, "number"),
        ("5/2", "2½", True, "number"),
        ("1/2", "0.5", True, "number"),
        (1 / 3, "1/3", True, "number"),
        ("1/3", "0.333", False, "number"),
        ("0.33", "1/3", False, "number"),
        (0.1 + 0.2, "0.3", True, "number"),
        ("0.00000012", "0.00000015", False, "number"),
        ("1000000.4", "1000000.2", False, "number"),
        (0.00001, "0.00001", True, "number"),
        (1.5e-7, "0.00000015", True, "number"),
        (1e15, "1000000000000000", True, "number"),
        ("1180591620717411303424", "1180591620717411303424", True, "number"),
        ("1180591620717411303424", "1180591620717411303425", False, "number"),
        ("18", "18 dollars", True, "number"),
        ("18 dollars", "18", True, "number"),
        ("18 dollars", "19 euros", False, "number"),
        ("18 dollars", "18 euros", False, "math-verify"),
        (r"60 \text{ mph}", r"60 \text{ miles per hour}", False, "math-verify"),
        ("5", "5 less than ten", False, "math-verify"),
        ("3", "3 plus one", False, "math-verify"),
        ("18", r"18\text{ cookies}", True, "number"),
        ("18", "19 years old", False, "number"),
        ("3 minutes", "3 min", True, "number"),
        ("5", "5 million", False, "math-verify"),
        ("2", "2 thirds", False, "math-verify"),
        ("2", "2 pi", False, "math-verify"),
        ("5", "5abc", False, "math-verify"),
        (r"\text{Evelyn}", r"\text{Evelyn}", True, "text"),
        (r"\text{Evelyn}", "evelyn.", True, "text"),
        ("hello", "olleh", False, "text"),
        ("New  York", "new york", True, "text"),
        ("no", "No", True, "text"),
        (r"\text{Sunday}", r"\mathbf{Sunday}", False, "math-verify"),
        ("xyz", r"x \cdot y \cdot z", False, "math-verify"),
        ("K-G-V-R", "K-G-V-R", True, "text"),
        ("K-G-V-R", "K-V-G-R", False, "text"),
        ("Q-X", "X-Q", False, "text"),
        ("2024-01-02", "2024-02-01", False, "text"),
        (r"\frac{14}{3}", r"\dfrac{14}{3}", True, "number"),
        (r"\frac{x}{3}", r"\dfrac{x}{3}", True, "text"),
        ("(3,1)", r"\left( 3, 1 \right)", True, "text"),
        (5, "1" * 5000, False, "too-long"),
        (SHIFT, "add 3", True, "program"),
        (SHIFT, "add 4", False, "program"),
        (SHIFT, "import os", False, "program"),
        ("pi", r"\pi", False, "math-verify"),
        ("xy", "yx", False, "math-verify"),
    ],
)
def test_what_is_compared_and_how(reference: object, answer: str, correct: bool, how: str) -> None:
    got = grade(f"\\boxed{{{answer}}}", reference, ask=no_mathematics)
    assert (got.correct, got.how) == (correct, how)
    assert got.grader == "boxed"
    assert got.version == grader_version()
    assert "math-verify" in got.version


def test_without_a_box_there_is_no_answer() -> None:
    assert grade("the answer is 5", 5, ask=unasked).how == "no-box"


@given(st.text(alphabet="0123456789.,-+/eE \\{}$frac", max_size=40))
def test_any_text_is_a_number_or_none(text: str) -> None:
    number = as_number(text)
    assert number is None or as_number(str(number)) == number


def test_reading_is_linear_in_hostile_text() -> None:
    for text in (
        "1" * 999 + "x",
        "\\text{" * 600,
        "1,000" * 800,
        "a " * 2000,
        "a" * 4000,
        "1 " * 2000,
        "-" * 4000,
    ):
        assert not grade(f"\\boxed{{{text}}}", "hello", ask=unasked).correct


def test_mathematics_and_programs_go_to_a_grading_process() -> None:
    asked: list[object] = []

    def ask(rule: Rule, request: Mapping[str, Any]) -> Verdict:
        asked.append(request)
        return Verdict(correct=False, how=rule)

    assert grade(r"\boxed{x^2}", "$y^2$", ask=ask) == Grade(
        correct=False, answer="x^2", how="math-verify", version=grader_version()
    )
    assert asked.pop() == {"gold": ["y^2"], "answer": "x^2"}

    got = grade(r"\boxed{add 3}", SHIFT, ask=ask)
    assert (got.correct, got.how) == (False, "program")
    assert asked == [{"program": "add 3", "tests": SHIFT["tests"]}]


def test_deeply_nested_json_reference_is_refused() -> None:
    for levels in (900, 5_000, 100_000):
        with pytest.raises(BadReference, match=r"nested too deeply|must be"):
            grade(r"\boxed{1}", '{"tests": ' + "[" * levels + "]" * levels + "}", ask=unasked)


def test_numbers_past_the_digit_limit_are_left_alone() -> None:
    assert as_number("9" * 5000) is None


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        (None, "NoneType"),
        (True, "bool"),
        (["5"], "list"),
        ("", "empty"),
        ("####", "empty"),
        ("x" * 5_000, "of 5000 characters: give at most 4000"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ({}, r"reference\.tests"),
        ({"tests": []}, r"reference\.tests"),
        ({"tests": [[[1], [2]], [[1]]]}, r"reference\.tests\[1\]"),
        ({"tests": [[[1.5], [2]]]}, r"reference\.tests\[0\]"),
        ({"tests": [[{"a": 1}, "x"]]}, r"reference\.tests\[0\]"),
        ({"tests": [["a", "b"]] * 257}, "holds 257 tests: give at most 256"),
    ],
)
def test_a_reference_that_cannot_be_graded_is_refused_by_name(reference: object, named: str) -> None:
    with pytest.raises(BadReference, match=named):
        check_reference(reference)


def read(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (QUESTIONS / name).read_text().splitlines()]


@pytest.mark.data("questions/gsm8k_test.jsonl", "questions/math500.jsonl", "questions/aime24.jsonl")
def test_every_real_reference_grades_itself_right() -> None:
    rows = [*read("gsm8k_test.jsonl"), *read("math500.jsonl"), *read("aime24.jsonl")]
    assert len(rows) == 1_849
    for row in rows:
        gold = gold_of(row["answer"])
        assert grade(f"so \\boxed{{{gold}}}", row["answer"], ask=unasked).correct, row


@pytest.mark.data("questions/gsm8k_test.jsonl")
def test_wrong_integers_are_wrong_for_every_gsm8k_reference() -> None:
    rows = read("gsm8k_test.jsonl")
    integers = [as_number(gold_of(row["answer"])) for row in rows]
    assert None not in integers
    for row, value in zip(rows, integers, strict=True):
        assert value is not None
        assert not grade(f"\\boxed{{{value + 1}}}", row["answer"], ask=unasked).correct
