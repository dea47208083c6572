"""The usual variances of categories are chosen on halves of history, by the rule in CRITERIA.md."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from agents.bandit.variances import USUAL
from experiments import category_variances
from experiments.category_variances import AT_MOST, CONTEXTS, chosen, scaled
from tests.support.lab import lab, outcome_table


def rows(costs: dict[float, tuple[float | None, float | None]]) -> list[dict[str, Any]]:
    """Return rows of one half of a table: for each factor the costs with helpful and with random categories."""
    return [
        {"table": "t", "context": context, "half": 0, "factor": factor, "cost_ratio": cost}
        for factor, both in costs.items()
        for context, cost in zip(CONTEXTS, both, strict=True)
    ]


def test_only_categories_are_scaled() -> None:
    found = scaled(0.25)
    for name, (right, paid) in USUAL.items():
        factor = 0.25 if "category" in name else 1.0
        assert found[name] == (factor * right, factor * paid)
    assert any("category" in name for name in USUAL)


@pytest.mark.parametrize(("costs", "factor"), [
    ({0.25: (0.95, 1.0), 1.0: (0.90, 1.005), 4.0: (0.80, 1.02)}, 1.0),  # the most useful of those that noise allows
    ({0.25: (0.95, 1.02), 1.0: (0.90, 1.03), 4.0: (0.80, 1.04)}, 0.25),  # none is: the least
])  # fmt: skip
def test_the_best_with_a_tolerable_cost_of_noise_is_chosen(
    costs: dict[float, tuple[float | None, float | None]], factor: float
) -> None:
    found, means = chosen(rows(costs))
    assert found == factor
    assert means[0.25] == pytest.approx(dict(zip(CONTEXTS, costs[0.25], strict=True)))
    assert AT_MOST == 1.01


def test_a_half_where_a_factor_has_no_ratio_does_not_count() -> None:
    other = [{**row, "half": 1} for row in rows({0.25: (None, 1.0), 1.0: (0.1, 1.0)})]
    _, means = chosen([*rows({0.25: (0.9, 1.0), 1.0: (0.95, 1.0)}), *other])
    assert means[1.0]["family"] == pytest.approx(0.95)


@pytest.mark.seconds
def test_a_run_is_resumed_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(category_variances, "FACTORS", (0.25, 1.0))
    rng = np.random.default_rng(3)
    made = [
        {"question": f"q{i}", "text": f"What is {i} + {i}?", "family": "ab"[i % 2], "arm": arm, "cost": cost}
        | {"correct": float(rng.random() < (0.9 if arm == ("small", "large")[i % 2] else 0.3))}
        for i in range(150)
        for arm, cost in (("small", 1.0), ("large", 9.0))
    ]
    asked = [
        *outcome_table(tmp_path, made),
        "--orders",
        "1",
        "--prices",
        "2",
        "--out",
        tmp_path / "rows.jsonl",
    ]
    said = lab("category-variances", *asked)
    assert "chosen: " in said
    found = (tmp_path / "rows.jsonl").read_bytes()
    assert len(found.splitlines()) == 2 * 2 * 2
    assert {orjson.loads(line)["factor"] for line in found.splitlines()} == {0.25, 1.0}
    assert lab("category-variances", *asked).splitlines()[-1] == said.splitlines()[-1]
    assert (tmp_path / "rows.jsonl").read_bytes() == found
