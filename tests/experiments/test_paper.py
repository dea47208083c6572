"""The whole command on a small table: the keys it promises, the same bytes twice, one page that needs nothing."""

import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from experiments.early_exit import replay, replay_tts_prm, replay_wide
from tests.support.lab import lab, outcome_table

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("paper")
    rng = np.random.default_rng(5)
    words, rows = ["apples", "trains", "prime numbers", "shapes", "coins"], []
    for q in range(40):
        for at, model in enumerate(("small", "middle", "large", "giant")):
            ok = int(rng.random() < 0.2 + 0.2 * at)
            row = {"question": str(q), "text": f"{q} {words[q % 5]}?", "arm": model, "correct": ok}
            judge = round(float(np.clip(0.3 + 0.4 * ok + 0.1 * rng.normal(), 0, 1)), 4)
            rows.append(row | {"score": judge, "cost": 3.0**at})
    table = outcome_table(folder, rows)
    for out in ("a", "b"):
        lab("paper", "--quick", "--seeds", "2", "--jobs", "1", *table, "--out", folder / out)
    return [folder / "a", folder / "b"]


def test_the_same_seed_gives_the_same_bytes(twice: list[Path]) -> None:
    for name in ("tables.json", "pareto.png", "regret-cost-sensitive.png", "report.html"):
        assert (twice[0] / name).read_bytes() == (twice[1] / name).read_bytes(), name


def test_tables_have_the_keys_that_readers_rely_on(twice: list[Path]) -> None:
    tables = json.loads((twice[0] / "tables.json").read_text())
    assert {"name", "questions", "actions", "samples", "seeds"} <= set(tables["outcomes"])
    for mode in ("cost_sensitive", "quality_priority"):
        policies = tables["main"]["all"][mode]
        assert set(policies) == {"random", "greedy", "knn", "ts", "uniscale", "oracle"}
        for figures in policies.values():
            assert {"accuracy", "eflops", "regret", "reward"} <= set(figures)
            assert all({"mean", "std", "low", "high"} == set(cell) for cell in figures.values())
        oracle = policies["oracle"]["reward"]["mean"]
        assert all(figures["reward"]["mean"] <= oracle for figures in policies.values())
    left_out = product(("cost_sensitive", "quality_priority"), ("mlp", "neural_ucb"))
    assert tables["outcomes"]["not_run"] == [f"all/{mode}/{policy}" for mode, policy in left_out]
    assert set(tables["drifts"]) == {"add", "remove", "q_to_c", "c_to_q"}


def test_cost_at_equal_accuracy_has_a_row_for_everyone(twice: list[Path]) -> None:
    tables = json.loads((twice[0] / "tables.json").read_text())
    rows, about = tables["frontier"], tables["frontier_of"]
    assert about["history"] + about["live"] == 40
    assert set(rows) >= {
        "fixed_mix_from_history",
        "random",
        "greedy",
        "knn",
        "ts",
        "uniscale",
        "ridge_in_hindsight",
    }
    for name, row in rows.items():
        assert (row["mean_cost_ratio"] is None) == bool(row["unreached"]), name
        assert tables["aiq"][name] == row["aiq"]
        for at in row["at"].values():
            assert {"cost_ratio", "accuracy"} <= set(at)
            assert at["cost_ratio"] is None or at["accuracy"] >= at["target"] - 1e-6
    assert rows["fixed_mix_from_history"]["mean_cost_ratio"]["mean"] >= 1
    assert rows["random"]["over_orders"]["orders"] == 2


def test_learning_by_terms_adds_no_regret_after_a_change(twice: list[Path]) -> None:
    tables = json.loads((twice[0] / "tables.json").read_text())
    for change in ("q_to_c", "c_to_q"):
        added = tables["shared_objective"][change]["terms"]["regret_added"]
        assert added["low"] <= 0 <= added["high"]


def test_the_report_needs_no_file_beside_it(twice: list[Path]) -> None:
    page = (twice[0] / "report.html").read_text()
    sources = re.findall(r'src="([^"]{0,30})', page)
    assert len(sources) == 9
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "<link" not in page
    assert "<script" not in page


def test_replayed_early_exit_follows_the_rule() -> None:
    # H_max is 3: (0.8 + 0.95 + 1) / 3 is above 0.9, so the second path goes on, and wins.
    assert replay([[0.9, 0.9], [0.8, 0.95, 0.99]]).chosen == 1
    assert replay([[0.9, 0.9], [0.8, 0.95, 0.99]]).taken == 5
    # (1.4 + 1) / 3 is below 0.9: stopped after two.
    assert replay([[0.9, 0.9], [0.7, 0.7, 1.0, 1.0]]).taken == 4
    # Early exit may change the answer: the second path would have won beyond H_max = 6.
    beyond = replay([[0.8] * 5, [0.758] * 5 + [0.9, 1.0]])
    assert (beyond.best, beyond.chosen) == (1, 0)
    alone = replay([[0.1, 0.2, 0.3]])
    assert alone.taken == alone.steps == 3


def test_a_search_is_over_with_its_last_living_path() -> None:
    found = replay([[0.9, 0.9], [0.7, 0.7, 1.0, 1.0], [0.1, 0.1, 0.1, 0.1, 0.1]])
    assert (found.ended, found.longest, found.taken, found.steps) == (2, 5, 6, 11)
    # Twice the same path ends when that path ends.
    assert replay([[0.5, 0.5]] * 2).ended == 2


@pytest.mark.data("tts_prm/samples.csv.gz")
def test_wider_searches_on_real_scores_end_earlier() -> None:
    found = replay_wide(DATA / "tts_prm")
    fewer = [each["steps_one_after_another_percent"]["mean"] for each in found.values()]
    assert fewer[0] == 0
    assert fewer == sorted(fewer, reverse=True)
    assert -80 < fewer[-1] < -60


@pytest.mark.data("tts_prm/samples.csv.gz")
def test_early_exit_on_real_scores_saves_steps() -> None:
    found = replay_tts_prm(DATA / "tts_prm")
    assert found
    assert all(0 <= each["steps_saved_percent"]["mean"] < 100 for each in found.values())
    assert any(each["steps_saved_percent"]["mean"] > 1 for each in found.values())
