"""The page of claims: every figure is that of the tables, every verdict follows from the figures of its row."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.experiments.test_results import FIGURE, RESULTS, agrees, at, value_of

PAGE = RESULTS.parent / "claims.md"
CLAIMED = re.compile(r"<!-- claimed: (more|less)(?: than (\S+))? -->([\w ]+)")


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return {
        "math": json.loads((RESULTS / "tables.json").read_text()),
        "code": json.loads((RESULTS / "code" / "tables.json").read_text()),
    }


def verdict(claimed: str, left: Mapping[str, float | None], right: Mapping[str, float | None]) -> str:
    """Return what the page's rule says of two figures with intervals; an end that is None is infinite."""
    if claimed == "less":
        left, right = right, left
    means = left["mean"], right["mean"]
    low = -math.inf if left["low"] is None else left["low"]
    high = math.inf if right["high"] is None else right["high"]
    assert means[0] is not None
    assert means[1] is not None
    if means[0] <= means[1]:
        return "other sign"
    return "reproduced" if low > high else "not shown"


def test_every_figure_is_that_of_the_tables(tables: dict[str, Any]) -> None:
    figures = list(FIGURE.finditer(PAGE.read_text()))
    wrong = []
    for said, low, high, told in (each.groups() for each in figures):
        for written, end in ((said, "mean"), (low, "low"), (high, "high")):
            if written is not None and not agrees(written, value := value_of(tables, told, end)):
                wrong.append(f"{told}: {written} is written, {end} is {value:.9g}")
    assert not wrong, "\n".join(wrong)
    assert len(figures) > 50


def test_every_verdict_follows_from_its_row(tables: dict[str, Any]) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if CLAIMED.search(line)]
    assert len(rows) > 25
    for row in rows:
        claimed = CLAIMED.search(row)
        assert claimed is not None
        sign, bound, said = claimed.groups()
        left, *right = (at(tables, each[4]) for each in FIGURE.finditer(row))
        if bound is not None:
            assert not right
            right = [dict.fromkeys(("mean", "low", "high"), float(bound))]
        assert verdict(sign, left, *right) == said.strip(), row


def test_verdicts_of_disjoint_overlapping_and_reversed_intervals() -> None:
    low, middle, high = ({"mean": m, "low": m - 1.5, "high": m + 1.5} for m in (1.0, 2.0, 5.0))
    assert verdict("more", high, low) == verdict("less", low, high) == "reproduced"
    assert verdict("more", middle, low) == "not shown"
    assert verdict("more", low, high) == "other sign"
    assert verdict("less", {"mean": 1.0, "low": 0.5, "high": None}, high) == "not shown"


def test_the_page_has_the_paper_s_seven_claims() -> None:
    text = PAGE.read_text()
    assert [int(each) for each in re.findall(r"^\| (\d) \|", text, re.MULTILINE)] == list(range(1, 8))
    assert [int(each) for each in re.findall(r"^## (\d)\.", text, re.MULTILINE)] == list(range(1, 8))
