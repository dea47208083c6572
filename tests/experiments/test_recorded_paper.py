"""The whole command on a recording of ours: every table that a recording can carry, on a made-up one."""

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agents.catalogue.action_space import uis_space
from agents.catalogue.file import load_catalogue
from experiments.loop import best_route_space
from experiments.page import write_results
from experiments.paper import read_beside
from experiments.record import table
from experiments.record.table import questions_of
from schemas.action import Action
from tests.support.lab import lab

ROOT = Path(__file__).parents[2]
CATALOGUE = ROOT / "infra" / "catalogue" / "mini-six.yaml"
MODELS = load_catalogue(CATALOGUE).model_names[:4]
IN_USE, OTHER = "the-one-in-use", "the-other"
SECONDS = dict(query_embedding=1.0, bandit=0.5, generation=6.0, verification=2.0, rest_of_search=0.5)
RUN = {
    "rounds": 160,
    "rounds_as_recorded": 210,
    "warm_up_and_rounds": 210,
    "load_before_and_after": [0.1, 1.0],
}
RECORDED = {"models": list(MODELS), "verifiers": [IN_USE, OTHER], "samples": 1, "eta": 1.2}
RUN_BOTH_WAYS = ("-0", "-1")
NUMBERS = ("prefill_eflops", "decoding_eflops", "verifier_eflops")


def rows_of(task: str, share: float) -> Iterator[dict[str, Any]]:
    """Rows as the recorder writes them, of a world where size and search help and early exit saves a third."""
    rng = np.random.default_rng(2)
    catalogue = load_catalogue(CATALOGUE)
    spaces = {*uis_space(catalogue), *(best_route_space(catalogue) if task == "math" else [])}
    uis = set(uis_space(catalogue))
    actions = sorted((a for a in spaces if a.model in MODELS), key=lambda a: (a.model, a.qp, a.cp))
    for question, action in product(questions_of(task, share=share), actions):
        variants = [(IN_USE, True)]
        if action in uis and task == "math":
            # As in a recording with --whole-share and --other-share: not every question is run in every variant.
            some = question.question_id.endswith(RUN_BOTH_WAYS)
            variants += [(OTHER, True), (IN_USE, False)] * some
        for verifier, early_exit in variants:
            yield row(rng, question.question_id, action, verifier, early_exit)


def row(
    rng: np.random.Generator, question: str, action: Action, verifier: str, early_exit: bool
) -> dict[str, Any]:
    wide, size = action.qp * action.cp, MODELS.index(action.model)
    ok = bool(rng.random() < 0.2 + 0.12 * size + 0.04 * np.log2(wide))
    saved = 0.67 if early_exit and wide > 1 else 1.0
    cost = 1e9 * 2.0**size * wide * saved * float(np.exp(0.1 * rng.normal()))
    return {
        "question": question,
        **msgspec.structs.asdict(action),
        "sample": 0,
        "verifier": verifier,
        "early_exit": early_exit,
        "derived": False,
        "correct": ok,
        "complete": True,
        "score": float(np.clip(0.4 + 0.3 * ok + 0.1 * rng.normal(), 0, 1)),
        "eflops": cost,
        **dict.fromkeys(NUMBERS, cost / 3),
        "compute_flops": cost / 5,
        "memory_bytes": cost / 200,
        "depth": int(rng.integers(2, 5)),
        "steps": 4,
        "completed": wide,
        "drafts": 4 * wide,
        "tokens": 40 * wide,
        "verifier_tokens": 160 * wide,
        "prompt_tokens": 80,
        "seconds": 0.1,
        "answer": "1",
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    for task in ("math", "code"):
        share = 0.07
        sampling = {m: {"temperature": 0.8, "step_tokens": 32, "depth_limit": 10} for m in MODELS}
        settings, asked = RECORDED | {"sampling": sampling}, questions_of(task, share=share)
        table.write(folder / f"{task}.parquet", rows_of(task, share), asked, settings)
    (folder / "math.latency.json").write_text(json.dumps({"seconds": SECONDS, "run": RUN}))
    told = ["paper", "--quick", "--jobs", "1", "--seeds", "1", "--outcomes", folder / "math.parquet"]
    told += ["--catalogue", CATALOGUE, "--cache", folder / "vectors"]
    lab(*told, "--out", folder / "out", "--results", folder / "results")
    return folder / "out"


def test_every_table_that_a_recording_carries_is_there(written: Path) -> None:
    tables = json.loads((written / "tables.json").read_text())
    promised = """main best_route semantics alpha dense_feedback drifts pareto early_exit verifiers second_task
        verifier_scores readings versus_best own_policies shared_objective feedback cold_start latency latency_run
        behaviour"""
    assert set(tables) >= set(promised.split())
    assert set(tables["main"]) == {"tts", "routing", "uis"}
    assert tables["outcomes"]["actions"] == 28 * len(MODELS)
    assert set(tables["verifiers"]) == {IN_USE, OTHER}
    assert (tables["outcomes"]["verifiers_compared_on"], tables["outcomes"]["questions"]) == (12, 14)
    assert len(tables["outcomes"]["not_run"]) == 12
    assert "is not there" in tables["outcomes"]["not_run_because"]


def test_early_exit_is_measured_on_the_same_searches(written: Path) -> None:
    table = json.loads((written / "tables.json").read_text())["early_exit"]
    change = table["change"]["all searches"]
    # A third is saved wherever there is more than one path, and those are nearly all of the cost.
    assert change["eflops_percent"]["low"] < -33 * 0.99 < change["eflops_percent"]["high"] + 2
    assert table["by_width"]["1"]["eflops_percent"]["high"] > -10
    assert set(table["by_depth"]) == {"2", "3", "4"}
    total = sum(each["searches"] for each in table["by_depth"].values())
    assert set(table["stragglers"]) == {"all models", *MODELS}
    # Answers are finished in steps 2, 3 and 4 of four, a third of the searches each.
    assert table["stragglers"]["all models"]["went_on_percent"]["mean"] == pytest.approx(200 / 3, abs=3)
    assert table["stragglers"]["all models"]["steps_beyond"]["mean"] == pytest.approx(1, abs=0.05)
    wide = sum(each["searches"] for name, each in table["stragglers"].items() if name != "all models")
    assert wide == table["stragglers"]["all models"]["searches"] == change["searches"] * 27 / 28
    assert total == 12 * 28 * len(MODELS), "two questions of each level and of the contest"
    assert total == change["searches"] == table["by_width"]["1"]["searches"] * 28


def test_the_report_shows_every_section_and_figure(written: Path) -> None:
    page = (written / "report.html").read_text()
    assert len(re.findall(r'src="data:image/png', page)) == len(list(written.glob("*.png"))) == 10
    for heading in ("Main table", "Early exit", "Our own policies", "Second task", "The verifier"):
        assert re.search(rf"<h2 id=\"\w+\">{heading}", page), heading
    assert "not run" in page
    assert "1941.84, 88.82" in page  # the paper's seconds of generation, and their percent
    met = json.loads((written / "tables.json").read_text())["readings"]["depth_limit"]["with_early_exit"]
    assert met["met"]["all models"]["met_limit"] > 0
    assert "0.7079 (0.011), 46.88 (1.72), 49.4 (11.6)" in page  # the paper's UniScale, UIS, Cost-Sensitive


def test_results_page_keeps_its_prose_and_current_figures(written: Path) -> None:
    folder = written.parent / "results"
    page = folder / "README.md"
    text, tables = page.read_text(), json.loads((folder / "tables.json").read_text())
    named = set(re.findall(r"\]\(([\w-]+\.png)\)", text))
    assert named == {path.name for path in folder.glob("*.png")}
    assert len(named) >= 9
    assert "| mean reward | random |" in text
    mine = text.replace("# Results on math", "# Mine\n\nA sentence.")
    page.write_text(mine.replace("| mean reward |", "| stale |"))
    (folder / "gone.png").touch()
    write_results(folder, written / "tables.json", tables, {"pareto": written / "pareto.png"})
    assert page.read_text() == mine
    assert {path.name for path in folder.glob("*.png")} == {"pareto.png"}


@pytest.mark.parametrize(("task", "second"), [("math", True), ("code", False)])
def test_code_is_the_second_task_of_others_and_not_of_itself(written: Path, task: str, second: bool) -> None:
    folder = written.parent
    beside = read_beside(folder / f"{task}.parquet", load_catalogue(CATALOGUE), folder / "vectors", None)
    assert (beside.coding is not None) is second


def test_the_card_counts_what_a_recording_holds(tmp_path: Path) -> None:
    made_by = {"engine": "torch", "seed": 0, "grader": "g", "catalogue": "c", "weights": {}, "sampling": {}}
    rows = list(rows_of("code", 0.01))
    table.write(tmp_path / "r.parquet", rows, questions_of("code", share=0.01), RECORDED | made_by)
    told = lab("card", tmp_path / "r.parquet")
    assert f"rows: {len(rows):,}, 0 of them derived" in told
    right = 100 * sum(row["correct"] for row in rows) / len(rows)
    assert f"right, with early exit: {right:.2f} %" in told
    assert "is not one of our recordings" in lab("card", tmp_path / "none.parquet", status=1)
