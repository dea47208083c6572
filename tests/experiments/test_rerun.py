"""Recorded searches run again: the depth limit's two readings, and where the time goes."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.catalogue.action_space import uis_space
from agents.catalogue.file import load_catalogue
from agents.grading.grade import Rule, Verdict
from agents.minilm import MiniLM
from experiments import rerun
from experiments.journal import SearchJournal
from experiments.outcomes import OutcomeError, build_world, load_recording
from experiments.record import table
from experiments.record.plan import RecordingPlan, record
from experiments.record.searches import SearchMemory, Variant, open_bench, search, weights
from experiments.record.table import Question, questions_in, rows_of, settings_of, write
from experiments.rerun import DepthLimit, Reopened, action_of, reopen

QUESTIONS = [Question("a-0", "a", "12 ox", 3), Question("a-1", "a", "4 d 5", 9)]
PAIRS = ((1, 1), (1, 4), (2, 4), (8, 1))


def unsure(rule: Rule, request: object) -> Verdict:
    return Verdict(False, rule)


@pytest.fixture(scope="module")
def recording(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    catalogue = load_catalogue(tiny / "tiny.yaml")
    bench = asyncio.run(open_bench(catalogue, "torch", unsure, folder=tiny))
    actions = [a for a in uis_space(catalogue) if (a.qp, a.cp) in PAIRS]
    folder = tmp_path_factory.mktemp("rerun")
    journal = SearchJournal(folder / "j.jsonl", {})
    whole = {question.question_id for question in QUESTIONS}
    asyncio.run(record(RecordingPlan(QUESTIONS, actions, [], 1, "prm-a", whole=whole), bench, journal))
    settings = {
        "models": ["tiny"],
        "verifiers": ["prm-a"],
        "samples": 1,
        "engine": "torch",
        "seed": 0,
        "eta": 1.2,
    }
    sampling = {"tiny": msgspec.to_builtins(catalogue.model("tiny").sampling)}
    settings |= {"weights": weights(catalogue, tiny), "sampling": sampling}
    table.write(folder / "r.parquet", journal.rows(), QUESTIONS, settings)
    return folder / "r.parquet"


def reopened(recording: Path, tiny: Path) -> Reopened:
    return asyncio.run(reopen(recording, load_catalogue(tiny / "tiny.yaml"), unsure, tiny))


@pytest.mark.parametrize("early_exit", [True, False])
def test_literal_limit_changes_only_searches_that_met_it(
    early_exit: bool, recording: Path, tiny: Path
) -> None:
    """Every search of the recording under the literal reading, on a fresh engine, against what is known of it."""
    o, again = load_recording(recording, early_exit=early_exit), reopened(recording, tiny)
    at_limit = rerun.met(o, again.settings, early_exit)
    rows = asyncio.run(rerun.run_again(o, early_exit, again))
    assert 0 < len(rows) == at_limit.sum()
    assert all(row["reproduced"] for row in rows)
    literal = replace(again.bench, rules=replace(again.bench.rules, cut_completes=True))
    completed = {(row["question"], row["arm"]): row["completed"] for row in rows}
    differ = 0
    for q, asked in enumerate(o.questions):
        for a, arm in enumerate(o.arms):
            question = again.questions[asked.question_id]
            variant, name = Variant("prm-a", early_exit), again.search_id(question, arm, 0)
            found, _ = asyncio.run(search(question, action_of(arm), variant, name, literal, SearchMemory()))
            assert found.eflops == pytest.approx(o.cost[0, q, a], rel=1e-4)
            same = math.isclose(found.score, o.score[0, q, a], rel_tol=1e-4)
            differ += not same
            if at_limit[0, q, a]:
                told = completed[asked.question_id, arm.arm_id]
                assert told["correct"] == found.correct
                assert told["score"] == pytest.approx(found.score, abs=1e-5)
            else:
                assert same
    assert differ


def _met(row: dict[str, Any], met: set[tuple[str, str]]) -> bool:
    arm = f"{row['model']}/{row['qp']}/{row['cp']}/{row['bs']}"
    return row["early_exit"] is True and (row["question"], arm) in met


def is_among(rows: list[dict[str, Any]], row: dict[str, Any]) -> bool:
    """Return whether a search's row is there; the last digit of a score depends on what it shared a batch with."""
    where = ("question", "arm", "sample", "early_exit", "reproduced")
    ends = ("kept_out", "completed")
    return any(
        all(each[name] == row[name] for name in where)
        and all(each[end] == pytest.approx(row[end], rel=1e-6) for end in ends)
        for each in rows
    )


def test_what_was_run_again_belongs_to_its_recording(recording: Path, tiny: Path, tmp_path: Path) -> None:
    o, settings = load_recording(recording), settings_of(recording)
    rows = asyncio.run(rerun.run_again(o, True, reopened(recording, tiny)))
    rerun.save_limit(tmp_path / "d.json", recording, rows)
    found = rerun.load_limit(tmp_path / "d.json", recording, settings).table(o, early_exit=True)
    assert found["run_again"]["searches"] == found["met"]["all models"]["met_limit"] == len(rows)
    kept = found["over_all_searches"]["kept_out"]
    assert kept["score"]["mean"] == pytest.approx(float(o.score.mean()), rel=1e-6)
    assert found["over_all_searches"]["completed"]["score"]["mean"] != kept["score"]["mean"]

    some = asyncio.run(rerun.run_again(o, True, reopened(recording, tiny), most=len(rows) - 1))
    assert len(some) == len(rows) - 1
    assert all(is_among(rows, row) for row in some)
    rerun.save_limit(tmp_path / "some.json", recording, some)
    part = rerun.load_limit(tmp_path / "some.json", recording, settings).table(o, early_exit=True)
    change = part["estimated_change"]["points"]
    gains = [row["completed"]["correct"] - row["kept_out"]["correct"] for row in some]
    assert change["mean"] == pytest.approx(100 * len(rows) / o.correct.size * sum(gains) / len(gains))
    assert change["low"] <= change["mean"] <= change["high"]
    assert "over_all_searches" not in part

    # What is known is not run again; here it would show, for it is another outcome.
    known = {(row["question"], row["arm"], row["sample"]): {**row, "reproduced": "known"} for row in some}
    resumed = asyncio.run(rerun.run_again(o, True, reopened(recording, tiny), known=known))
    assert len(resumed) == len(rows)
    assert [row for row in resumed if row["reproduced"] == "known"] == list(known.values())
    assert all(is_among(rows, row) for row in resumed if row["reproduced"] != "known")

    # Searches that come later leave it as it is, other outcomes of its own do not.
    told, asked = {**settings, "verifiers": ["prm-a", "prm-b"]}, questions_in(recording)
    kept_rows, longer = rows_of(recording), tmp_path / "longer.parquet"
    second = [{**row, "verifier": "prm-b", "score": 0.5} for row in kept_rows]
    write(longer, [*kept_rows, *second], asked, told)
    assert not rerun.load_limit(tmp_path / "d.json", longer, told).refused
    without = tmp_path / "without.parquet"
    write(without, [row for row in kept_rows if row["early_exit"]], asked, settings)
    assert not rerun.load_limit(tmp_path / "d.json", without, settings).refused
    other = tmp_path / "other.parquet"
    met = {(row["question"], row["arm"]) for row in rows}
    write(other, [{**row, "score": 0.5} if _met(row, met) else row for row in kept_rows], asked, settings)
    refused = rerun.load_limit(tmp_path / "d.json", other, settings)
    assert "another recording" in refused.refused
    bound = refused.table(o, early_exit=True)["most_that_accuracy_could_differ"]["points"]
    assert bound == pytest.approx(100 * len(rows) / o.correct.size)
    assert "run_again" not in DepthLimit(settings).table(o, early_exit=True)


def test_a_recording_of_other_weights_is_not_run_again(recording: Path, tiny: Path, tmp_path: Path) -> None:
    import orjson
    import pyarrow.parquet as pq

    read = pq.read_table(recording)
    settings = settings_of(recording) | {"weights": {"tiny": "0" * 16}}
    told = {**read.schema.metadata, b"uniscale.settings": orjson.dumps(settings)}
    pq.write_table(read.replace_schema_metadata(told), tmp_path / "r.parquet")
    with pytest.raises(OutcomeError, match=r"weights 0000000000000000 of tiny, here are .*; record it again"):
        reopened(tmp_path / "r.parquet", tiny)
    with pytest.raises(OutcomeError, match="is not one of our recordings"):
        settings_of(tmp_path / "none.parquet")


def test_time_is_measured_on_the_rounds_that_were_recorded(recording: Path, tiny: Path) -> None:
    encoder = MiniLM()
    world = build_world(load_recording(recording), encoder)
    found = asyncio.run(rerun.breakdown(world, encoder, reopened(recording, tiny), rounds=53))
    assert found["run"]["rounds"] == 3
    assert found["run"]["rounds_as_recorded"] == found["run"]["warm_up_and_rounds"] == 53
    assert all(found["seconds"][name] > 0 for name in rerun.COMPONENTS)
    shown = rerun.latency_table(found)
    assert shown["total"]["seconds"] == pytest.approx(sum(found["seconds"].values()))
    assert shown["total"]["percent"] == 100
