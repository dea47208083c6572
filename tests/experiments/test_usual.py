"""The generic prior estimated from tables, and put in place of the shipped one to see what a stranger's fleet gets."""

import json
from pathlib import Path

import numpy as np
import pytest

from agents.bandit import variances
from agents.bandit.contextual import Contextual
from experiments.contenders import SERVICE, combined, estimated, in_place
from tests.experiments.test_worth import two_nested
from tests.support.lab import lab, outcome_table


def variance(block: str) -> float:
    world = two_nested().with_counts()
    policy = SERVICE["default"](world, 0)
    assert isinstance(policy, Contextual)
    policy.offer(world.vectors)
    return policy.estimates.right.variances[block]


def test_models_that_differ_in_level_alone_vary_by_question() -> None:
    found = estimated(two_nested())
    assert set(found) <= set(variances.USUAL)
    assert found["one × kernel"][0] > 3 * found["model × counts"][0]


def test_what_tables_say_is_averaged_and_the_rest_is_as_shipped() -> None:
    tables = [{"one × counts": (0.1, 0.2)}, {"one × counts": (0.4, 0.8)}]
    found = combined(tables)
    assert found["one × counts"] == pytest.approx((0.2, 0.4))
    assert found["shape × counts"] == variances.USUAL["shape × counts"]


def test_it_holds_within_and_not_after() -> None:
    shipped = variance("one × counts")
    with in_place(combined([{"one × counts": (0.77, 0.2)}])):
        assert variance("one × counts") == 0.77
    assert variance("one × counts") == shipped != 0.77


def test_a_table_is_judged_with_what_others_are_usually_like(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    table = outcome_table(
        tmp_path,
        [
            {"question": f"q{i}", "text": f"What is {i} + {i}?", "arm": arm, "cost": cost}
            | {"correct": float(rng.random() < chance)}
            for i in range(150)
            for arm, cost, chance in (("small", 1.0, 0.5), ("large", 9.0, 0.8))
        ],
    )
    made = lab("usual", *table, "-o", tmp_path / "u.json")
    assert "one × constant: " in made
    assert "(usually 0.1)" in made
    asked = [*table, "--orders", "1", "--prices", "2", "--half", "0", "--jobs", "1", "--policy", "default"]
    for more in ([], ["--usual", tmp_path / "u.json"]):
        journal = ["--journal", tmp_path / "j", "--out", tmp_path / "f.json", "--no-hindsight"]
        lab("frontier", *asked, *more, *journal)
    games = [json.loads(line) for line in (tmp_path / "j").read_text().splitlines() if "arms" in line]
    assert len({game["code"] for game in games}) == 2, "each has games of its own"
