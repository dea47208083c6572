"""Cost at equal accuracy by family, on a world where one model alone knows the facts."""

from pathlib import Path

import numpy as np
import pytest

from experiments.families import families
from experiments.frontier import PLAYERS, Terms
from experiments.journal import Journal
from experiments.outcomes import Arm, BanditWorld, OutcomeError, QuestionInfo
from experiments.runs import Scope
from tests.support.lab import made_world


@pytest.fixture(scope="module")
def world() -> BanditWorld:
    """Three in four questions are facts, which cost ten times a sum and which only one model answers."""
    rng = np.random.default_rng(3)
    fact = np.arange(240) % 4 > 0
    asked = [
        QuestionInfo(f"q{i}", "Which city?" if f else f"{i} + 1?", "", "facts" if f else "sums")
        for i, f in enumerate(fact.tolist())
    ]
    arms = [Arm("small/1/1/1", "small"), Arm("large/1/1/1", "large"), Arm("learned/1/1/1", "learned")]
    chance = np.where(fact[:, None], np.array([0.0, 0.02, 0.9]), np.array([0.8, 0.95, 0.1]))
    correct = (rng.random((1, 240, 3)) < chance).astype(float)
    log_cost = np.log([1.0, 2.0, 20.0]) + 0.1 * rng.normal(size=(1, 240, 3))
    queries = rng.normal(size=(240, 6)) * 0.1
    queries[:, 0] = np.where(fact, 1.0, -1.0)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return made_world(arms, correct, log_cost, queries, asked=asked, sizes=[1.0, 2.0, 20.0])


def test_facts_go_to_the_model_that_knows_them(world: BanditWorld, tmp_path: Path) -> None:
    scope, player = Scope(more_seeds=(0,), whole=False), PLAYERS["default_with_prior"]
    terms = Terms(prices=6, journal=Journal.open(tmp_path / "games.jsonl"))
    found = families(world, scope, "default_with_prior", player, terms, "learned")
    assert set(found["cost"]) == {"all", "facts", "sums"}
    assert found["cost"]["all"]["questions"] == sum(found["cost"][f]["questions"] for f in ("facts", "sums"))
    for target, shares in found["share"].items():
        if shares is not None and target != "0.9":
            assert shares["facts"]["mean"] > 0.5
            assert shares["sums"]["mean"] < 0.2
    facts = found["cost"]["facts"]
    assert facts["best_on_history"] == "learned/1/1/1"
    assert {each["without"] for each in facts["at"].values()} == {None}, "no other model reaches it"
    assert found["arms"]["sums"]["learned/1/1/1"]["accuracy"] < 0.3
    again = Terms(prices=6, journal=Journal.open(tmp_path / "games.jsonl"))
    assert families(world, scope, "default_with_prior", player, again, "learned") == found


def test_a_model_that_is_not_there_is_refused(world: BanditWorld) -> None:
    with pytest.raises(OutcomeError, match="no arm is of model 'huge'; name one of"):
        families(world, Scope(more_seeds=(0,), whole=False), "x", PLAYERS["default"], Terms(), "huge")
