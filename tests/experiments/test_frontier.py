"""Cost at equal accuracy and the pacer on a world where context pays: half the questions want the large model."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from agents.bandit.policy import ActionVector
from experiments.__main__ import cli
from experiments.frontier import PLAYERS, PRICES, frontier
from experiments.outcomes import Arm, BanditWorld, Outcomes, QuestionInfo
from experiments.pacer import PHASES, pacer
from experiments.runs import Scope

MODELS = ("small", "middle", "large", "huge")


@pytest.fixture(scope="module")
def world() -> BanditWorld:
    """Short questions everyone solves; long ones only the larger, dearer models do."""
    rng = np.random.default_rng(3)
    hard = np.arange(150) % 2 == 1
    asked = tuple(
        QuestionInfo(f"q{i}", "What is 17 + 25? " + "And then 3 more, and 4 less? " * (6 * h), str(int(h)))
        for i, h in enumerate(hard.tolist())
    )
    arms = tuple(Arm(f"{m}/1/1/1", m) for m in MODELS)
    chance = np.where(hard[:, None], np.array([0.05, 0.4, 0.75, 0.8]), np.array([0.9, 0.92, 0.93, 0.94]))
    correct = (rng.random((2, 150, 4)) < chance).astype(float)
    log_cost = np.log(10.0 ** np.arange(4)) + 0.1 * rng.normal(size=(2, 150, 4))
    queries = rng.normal(size=(150, 12))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    vectors = tuple(
        ActionVector(a.arm_id, a.model, row, 10.0**i)
        for i, (a, row) in enumerate(zip(arms, np.eye(4), strict=True))
    )
    outcomes = Outcomes("made", asked, arms, correct, correct, log_cost)
    return BanditWorld(outcomes, queries, vectors, outcomes.bounds())


def test_who_reads_the_question_pays_less_for_the_same(world: BanditWorld) -> None:
    rows = {name: PLAYERS[name] for name in ("random", "default_with_prior")}
    tables = frontier(world, Scope(more_seeds=(0, 1), whole=False), rows).tables
    ratio = {name: row["mean_cost_ratio"] for name, row in tables["frontier"].items()}
    assert ratio["random"] is None
    assert ratio["fixed_mix_from_history"]["mean"] == pytest.approx(1, abs=0.05)
    assert ratio["ceiling"]["high"] < 0.8
    assert ratio["default_with_prior"]["high"] < 1
    assert ratio["ceiling_knowing_level"]["mean"] <= ratio["ceiling"]["mean"]
    assert len(PRICES) >= 15


def test_spend_is_kept_through_every_change_and_a_restored_learner_goes_on_alike(world: BanditWorld) -> None:
    table = pacer(world, Scope(more_seeds=(0,)))
    assert set(table) == {"target", *PHASES}
    assert table["target"]["recovered_alike"] is True
    for phase in PHASES[:-1]:
        assert table[phase]["cumulative_spend"]["mean"] == pytest.approx(1, abs=0.1), phase


def test_the_command_says_what_each_pays(tmp_path: Path) -> None:
    rng, lines = np.random.default_rng(1), ["q,text,m,ok,usd"]
    for q in range(60):
        for at, model in enumerate(("small", "large")):
            ok = int(rng.random() < 0.5 + 0.4 * at)
            lines.append(f"{q},question {q} of {q % 7}?,{model},{ok},{10.0**at}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "m.yaml").write_text("question: q\ntext: text\narm: m\ncorrect: ok\ncost: usd\n")
    given = [
        "frontier",
        "--outcomes",
        str(tmp_path / "t.csv"),
        "--mapping",
        str(tmp_path / "m.yaml"),
        "--jobs",
        "1",
    ]
    given += ["--cache", str(tmp_path / "vectors"), "--orders", "1", "--out", str(tmp_path / "f.json")]
    ran = CliRunner().invoke(cli, [*given, "--policy", "random", "--policy", "default_with_prior"])
    assert ran.exit_code == 0, ran.output
    assert "fixed_mix_from_history: 1.000" in ran.output
    rows = json.loads((tmp_path / "f.json").read_text())["frontier"]
    assert set(rows) == {"fixed_mix_from_history", "random", "default_with_prior", "ceiling"}
    wrong = CliRunner().invoke(cli, [*given, "--policy", "best"])
    assert wrong.exit_code == 2
    assert "choose from random, greedy" in wrong.output
