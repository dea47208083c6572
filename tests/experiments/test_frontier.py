"""Cost at equal accuracy and the pacer on a world where context pays: half the questions want the large model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.changes import AFTER, WINDOW, changes
from experiments.contenders import ALL
from experiments.frontier import PLAYERS, PRICES, Terms, frontier
from experiments.journal import LIVE_RUNS, Journal
from experiments.loop import Stage, make_trial, play, stream
from experiments.outcomes import Arm, BanditWorld, OutcomeError, QuestionInfo
from experiments.pacer import PHASES, pacer
from experiments.runs import Scope
from tests.support.lab import lab, made_world, outcome_table

MODELS = ("small", "middle", "large", "huge")


@pytest.fixture(scope="module")
def world() -> BanditWorld:
    """Short questions everyone solves; long ones only the larger, dearer models do."""
    rng = np.random.default_rng(3)
    hard = np.arange(150) % 2 == 1
    asked = [
        QuestionInfo(f"q{i}", "What is 17 + 25? " + "And then 3 more, and 4 less? " * (6 * h), str(int(h)))
        for i, h in enumerate(hard.tolist())
    ]
    arms = [Arm(f"{m}/1/1/1", m) for m in MODELS]
    chance = np.where(hard[:, None], np.array([0.05, 0.4, 0.75, 0.8]), np.array([0.9, 0.92, 0.93, 0.94]))
    correct = (rng.random((2, 150, 4)) < chance).astype(float)
    log_cost = np.log(10.0 ** np.arange(4)) + 0.1 * rng.normal(size=(2, 150, 4))
    queries = rng.normal(size=(150, 12))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    sizes = (10.0 ** np.arange(4)).tolist()
    return made_world(arms, correct, log_cost, queries, asked=asked, sizes=sizes)


def test_who_reads_the_question_pays_less_for_the_same(world: BanditWorld) -> None:
    rows = {name: PLAYERS[name] for name in ("random", "default_with_prior")}
    tables = frontier(world, Scope(more_seeds=(0, 1), whole=False), rows).tables
    ratio = {name: row["mean_cost_ratio"] for name, row in tables["frontier"].items()}
    assert ratio["random"] is None
    assert ratio["fixed_mix_from_history"]["mean"] == pytest.approx(1, abs=0.05)
    assert ratio["ridge_in_hindsight"]["high"] < 0.8
    assert ratio["default_with_prior"]["high"] < 1
    assert ratio["ridge_in_hindsight_knowing_level"]["mean"] <= ratio["ridge_in_hindsight"]["mean"]
    assert len(PRICES) >= 15


def test_rows_that_see_categories_are_held_against_the_text(world: BanditWorld) -> None:
    rows = {name: PLAYERS[name] for name in ("ridge_from_history", "default_with_prior")}
    scope = Scope(more_seeds=(0,), whole=False)
    for column in ("level", "random:3"):
        tables = frontier(world, scope, rows, Terms(prices=6, hindsight=False, context=column)).tables
        assert {f"{name}_with_context" for name in rows} <= tables["frontier"].keys()
        against = tables["against_text_alone"]
        assert set(against) == {f"{name}_with_context" for name in rows}
        assert against["default_with_prior_with_context"]["p_worse"] > 0.05
    with pytest.raises(OutcomeError, match="--context kind: is unknown"):
        world.with_context("kind", [0])
    with pytest.raises(OutcomeError, match="--context family: no question has one"):
        world.with_context("family", [0])


def test_more_history_than_there_is_is_refused(world: BanditWorld) -> None:
    scope = Scope(more_seeds=(0,), whole=False)
    rows = {"default_with_prior": PLAYERS["default_with_prior"]}
    with pytest.raises(OutcomeError, match="--history 140: asks for more than the"):
        frontier(world, scope, rows, Terms(history=140, prices=3, hindsight=False))


def test_an_interrupted_run_goes_on_where_it_was(world: BanditWorld, tmp_path: Path) -> None:
    rows = {name: PLAYERS[name] for name in ("ridge_from_history", "ridge_online", "default_with_prior")}
    path, scope = tmp_path / "journal.jsonl", Scope(more_seeds=(0, 1), whole=False)

    def run() -> dict[str, Any]:
        terms = Terms(history=30, prices=4, batch=8, hindsight=False, journal=Journal.open(path))
        return frontier(world, scope, rows, terms).tables

    whole = run()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(rows) * 2 * 4  # rows, orders, prices
    path.write_bytes(b"".join(lines[:-3]))
    assert run() == whole
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines)
    assert set(whole["against_ridge_from_history"]) == {"ridge_online", "default_with_prior"}
    assert "ridge_in_hindsight" not in whole["frontier"]


def test_while_a_policy_is_made_no_live_question_is_judged(world: BanditWorld) -> None:
    ids = [each.question_id for each in world.outcomes.questions]
    history, live = Terms().split(ids)
    one, other = Terms(half=0).split(ids), Terms(half=1).split(ids)
    assert one == other[::-1]
    assert sorted(one[0] + one[1]) == history
    first = Terms(live=40).split(ids)[1]
    assert set(first) < set(live)
    assert len(first) == pytest.approx(40, abs=15)
    drawn = Terms(history=20).drawn(history, 0)
    assert len(drawn) == 20
    assert set(drawn) < set(history)
    assert drawn != Terms(history=20).drawn(history, 1)


def test_a_batch_of_one_is_the_loop_round_for_round(world: BanditWorld) -> None:
    counted = world.with_counts()
    trial = make_trial(counted, 4, {1: Stage((0, 1, 2, 3), counted.objective("cost-sensitive"))}, rounds=90)
    rounds = [step.arm for step in play(ALL["default"](counted, 4), trial)]
    assert stream(ALL["default"](counted, 4), trial) == rounds
    eight = stream(ALL["default"](counted, 4), trial, 8)
    assert len(eight) == 90
    assert eight[: trial.warm_up] == rounds[: trial.warm_up]


def test_silent_changes_leave_earlier_choices_alone(world: BanditWorld) -> None:
    counted = world.with_counts()
    trial = make_trial(counted, 4, {1: Stage((0, 1, 2, 3), counted.objective("cost-sensitive"))}, rounds=150)
    steady, misled = ALL["default"](counted, 4), ALL["default"](counted, 4)
    usual = stream(steady, trial, 8)
    assert stream(misled, trial, 8, (101, np.zeros((150, 4))))[:100] == usual[:100]
    assert misled.state() != steady.state()
    late = {1: Stage((1, 2, 3), trial.stage(1).objective), 61: trial.stage(1)}
    joined = stream(ALL["default"](counted, 4), make_trial(counted, 4, late, rounds=150), 8)
    assert 0 not in joined[:60]
    assert 0 in joined[60:]


def test_changes_are_counted_from_the_query_they_come_at(world: BanditWorld) -> None:
    found = changes(world, (0,), batch=32)
    assert found["model"] in MODELS
    assert found["its_share"] >= 1 / len(MODELS)
    assert found["share_at_the_end"] <= 1
    for name in ("queries_until_halved", "queries_until_half_the_saving"):
        assert found[name] is None or WINDOW <= found[name] <= AFTER
    assert np.isfinite(found["loss_without_a_change"])


def test_spend_is_kept_through_changes_and_a_restore(world: BanditWorld) -> None:
    table = pacer(world, Scope(more_seeds=(0,)))
    assert set(table) == {"target", *PHASES}
    assert table["target"]["recovered_alike"] is True
    for phase in PHASES[:-1]:
        assert table[phase]["cumulative_spend"]["mean"] == pytest.approx(1, abs=0.1), phase


def test_the_command_says_what_each_pays(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [
        {"question": str(q), "text": f"question {q} of {q % 7}?", "arm": model, "cost": 10.0**at}
        | {"correct": int(rng.random() < 0.5 + 0.4 * at)}
        for q in range(60)
        for at, model in enumerate(("small", "large"))
    ]
    given: list[object] = ["frontier", *outcome_table(tmp_path, rows), "--jobs", "1", "--orders", "1"]
    given += ["--out", tmp_path / "f.json"]
    told = lab(*given, "--policy", "random", "--policy", "default_with_prior")
    assert "fixed_mix_from_history: 1.000" in told
    assert "paretobandit: not run; give --paretobandit" in told
    found = json.loads((tmp_path / "f.json").read_text())["frontier"]
    assert set(found) == {"fixed_mix_from_history", "random", "default_with_prior", "ridge_in_hindsight"}
    looked = LIVE_RUNS.read_bytes() if LIVE_RUNS.exists() else b""
    journal = tmp_path / "journal.jsonl"
    few = ("--prices", "3", "--history", "10", "--context", "random:2", "--no-hindsight")
    told = lab(*given, "--half", "0", *few, "--journal", journal)
    assert "default_with_prior_with_context against the text alone: " in told
    assert journal.is_file()
    assert (LIVE_RUNS.read_bytes() if LIVE_RUNS.exists() else b"") == looked
    wrong = lab(*given, "--policy", "best", status=2)
    assert "'best' is not one of 'ridge_from_history', 'ridge_online'" in wrong


def test_a_comparison_is_corrected_for_the_number_of_tables(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j.jsonl")
    for table, worse in (("a", 0.02), ("b", 0.5), ("c", 0.001)):
        ratio = {"mean": 1.2, "low": 1.1, "high": None}
        found = {"cost_ratio": ratio, "p_worse": worse, "p_better": 1 - worse}
        about = {"table": table, "history": "200", "live": None, "half": None}
        journal.conclude({**about, "ratios": {"default": None}, "against": {"default": found}})
    a, b, c = lab("compare", tmp_path / "j.jsonl", "--row", "default").splitlines()
    told = "a, history 200: 1.200 [1.100, ∞] of ridge_from_history, out of reach of the fixed mix"
    assert a.startswith(told)
    assert a.endswith("worse p = 0.040, better p = 1.000: worse")
    assert b.endswith("neither shown")
    assert c.endswith("worse p = 0.003, better p = 1.000: worse")
    assert "no journal holds default_with_prior" in lab("compare", tmp_path / "j.jsonl", status=1)
