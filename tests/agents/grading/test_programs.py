"""The pipeline language: every operation, its refusals, and its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.grading.programs import MAX_ITEMS, ProgramError, Value, passes, run

NUMBERS = [5, -2, 8, 5, 0]


@pytest.mark.parametrize(
    ("program", "given_value", "expected"),
    [
        ("reverse", NUMBERS, [0, 5, 8, -2, 5]),
        ("sort", NUMBERS, [-2, 0, 5, 5, 8]),
        ("sort down", NUMBERS, [8, 5, 5, 0, -2]),
        ("add 3", NUMBERS, [8, 1, 11, 8, 3]),
        ("add -3", NUMBERS, [2, -5, 5, 2, -3]),
        ("times 2", NUMBERS, [10, -4, 16, 10, 0]),
        ("take 2", NUMBERS, [5, -2]),
        ("take 99", NUMBERS, NUMBERS),
        ("drop 2", NUMBERS, [8, 5, 0]),
        ("drop 99", NUMBERS, []),
        ("keep even", NUMBERS, [-2, 8, 0]),
        ("keep odd", [-3, 2, 7], [-3, 7]),
        ("keep above 4", NUMBERS, [5, 8, 5]),
        ("keep below 5", NUMBERS, [-2, 0]),
        ("unique", NUMBERS, [5, -2, 8, 0]),
        ("repeat 2", [1, 2], [1, 2, 1, 2]),
        ("repeat 0", [1, 2], []),
        ("reverse", "abc", "cba"),
        ("upper", "aBc", "ABC"),
        ("lower", "aBc", "abc"),
        ("swapcase", "aBc", "AbC"),
        ("take 2", "abc", "ab"),
        ("drop 2", "abc", "c"),
        ("repeat 3", "ab", "ababab"),
        ("append x", "ab", "abx"),
        ("append S", "ab", "abS"),
        ("prepend hello", "ab", "helloab"),
        ("sort", "banana", "aaabnn"),
        ("unique", "banana", "ban"),
        ("remove a", "banana", "bnn"),
        ("remove an", "banana", "ba"),
        (" reverse |  take  2 ", [1, 2, 3], [3, 2]),
        ("sort | unique | sort down", [2, 3, 2], [3, 2]),
    ],
)
def test_operation(program: str, given_value: Value, expected: Value) -> None:
    assert run(program, given_value) == expected


@pytest.mark.parametrize(
    ("program", "given_value"),
    [
        ("", [1]),
        ("|", [1]),
        ("reverse |", [1]),
        ("fly", [1]),
        ("take", [1]),
        ("take -1", [1]),
        ("take 1.5", [1]),
        ("take two", [1]),
        ("add", [1]),
        ("add 1 2", [1]),
        ("upper", [1]),
        ("append x", [1]),
        ("keep even", "abc"),
        ("add 1", "abc"),
        ("append", "abc"),
        ("append Hello", "abc"),
        ("remove 7", "abc"),
        ("__import__('os')", "abc"),
        ("take 1234567890", [1]),
        ("add ٣", [1]),
    ],
)
def test_what_is_not_in_the_language_is_refused(program: str, given_value: Value) -> None:
    with pytest.raises(ProgramError):
        run(program, given_value)


@pytest.mark.parametrize(
    ("program", "given_value"),
    [
        ("repeat 999999999", [1]),
        ("repeat 9999 | repeat 9999", "ab"),
        (" | ".join(["times 999999999"] * 3), [1]),
        (" | ".join(["reverse"] * 33), [1]),
        ("reverse | " * 1000, [1]),
        ("add 0", [10**16]),
        ("reverse", "a" * (MAX_ITEMS + 1)),
    ],
)
def test_bounds_hold(program: str, given_value: Value) -> None:
    with pytest.raises(ProgramError):
        run(program, given_value)


def test_the_given_list_is_left_alone() -> None:
    value = [3, 1, 2]
    run("sort | add 1", value)
    assert value == [3, 1, 2]


def test_passing_means_every_pair() -> None:
    assert passes("sort", [([2, 1], [1, 2]), ([3], [3])])
    assert not passes("sort", [([2, 1], [1, 2]), ([3], [4])])
    assert not passes("nonsense", [([2, 1], [1, 2])])
    assert not passes("upper", [([2, 1], [1, 2])])


def test_grading_without_tests_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        passes("sort", [])


@given(st.text(max_size=200), st.one_of(st.lists(st.integers(), max_size=20), st.text(max_size=40)))
def test_any_text_runs_or_is_refused(program: str, value: Value) -> None:
    try:
        result = run(program, value)
    except ProgramError:
        return
    assert type(result) is type(value)
    assert len(result) <= MAX_ITEMS
