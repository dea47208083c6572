"""Recordings of models behind chat endpoints, which have no verifier, and recordings joined from several."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from agents.catalogue.file import load_catalogue
from agents.grading.grade import Verdict
from experiments.journal import SearchJournal
from experiments.outcomes import OutcomeError, load_recording
from experiments.record import table
from experiments.record.plan import RecordingPlan, record
from experiments.record.searches import Bench, open_bench
from experiments.record.table import Question
from tests.support.upstream import Body, Upstream

QUESTIONS = [
    Question("fact-0", "capital", "Which city is the capital of France?", ["Paris"], "facts", "contains"),
    Question("sum-0", "quick", "How much is 4 plus 5?", "9", "quick"),
    Question("code-0", "code_2", "Double it.", {"tests": [["a", "aa"]]}, "code"),
]
SAMPLE: dict[str, Any] = {
    **{field.name: 1 for field in table.SCHEMA if str(field.type) in ("float", "int16", "int32")},
    **{"bs": 1, "sample": 0, "derived": False, "complete": True, "answer": "", "early_exit": True},
}


def says(body: Body) -> str:
    asked = body["messages"][-1]["content"]
    return "It is Paris, of course." if "France" in asked else "Let us see.\nIt makes 9"


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    """Connects to a scripted upstream whose model has the grader that is given."""

    def connect(upstream: Upstream, **entry: Any) -> Bench:
        shape = {"parameters": 1000, "layers": 2, "query_heads": 2, "kv_heads": 1, "head_dim": 4}
        endpoint = {"kind": "chat", "url": upstream.url, "model": "hosted", "seed": True}
        model = {"name": "small", "architecture": shape, "endpoint": endpoint, **entry}
        catalogue: dict[str, Any] = {"name": "chats", "verifier": "none", "models": [model]}
        catalogue["hardware"] = {"name": "any", "intensity": 156}
        (path := tmp_path / "chats.yaml").write_text(yaml.safe_dump(catalogue))
        ask = lambda rule, request: Verdict(False, rule)  # noqa: E731
        return asyncio.run(open_bench(load_catalogue(path), "torch", ask))

    return connect


def recorded(bench: Bench, folder: Path) -> Path:
    plan = RecordingPlan.of_mixed(bench, QUESTIONS, 1)
    journal = SearchJournal(folder / "chats.jsonl", {})
    asyncio.run(record(plan, bench, journal))
    assert plan.searches() == len(list(journal.rows())) == len(QUESTIONS)
    settings = {"models": list(bench.catalogue.model_names), "verifiers": list(bench.verifiers), "samples": 1}
    table.write(folder / "chats.parquet", journal.rows(), QUESTIONS, settings)
    return folder / "chats.parquet"


def test_whole_answers_are_graded_and_cost_their_tokens(bench: Callable[..., Bench], tmp_path: Path) -> None:
    upstream = Upstream(says=says)
    file = recorded(bench(upstream), tmp_path)
    rows = {row["question"]: row for row in pq.read_table(file).to_pylist()}
    assert {row["verifier"] for row in rows.values()} == {"none"}
    assert not any(row["early_exit"] or row["derived"] for row in rows.values())
    assert {name: row["correct"] for name, row in rows.items()} == {
        "fact-0": True, "sum-0": False, "code-0": False,
    }, "the sum has no box"  # fmt: skip
    assert all(row["score"] == row["correct"] and not row["verifier_eflops"] for row in rows.values())
    usages = {body["messages"][-1]["content"]: usage for body, usage in upstream.log}
    for question in QUESTIONS:
        usage, row = usages[question.text], rows[question.question_id]
        assert (row["prompt_tokens"], row["tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
        assert row["eflops"] > 0
    assert len({body["seed"] for body in upstream.requests}) == len(QUESTIONS)
    upstream.close()


def test_an_entrys_grader_counts_where_the_question_names_none(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    upstream = Upstream(says=says)
    rows = pq.read_table(recorded(bench(upstream, grader="last-number"), tmp_path)).to_pylist()
    assert {row["question"]: row["correct"] for row in rows} == {
        "fact-0": True, "sum-0": True, "code-0": False,
    }  # fmt: skip
    upstream.close()


def written(path: Path, model: str, verifier: str, **settings: Any) -> Path:
    """Write a recording of one model, whose score is half."""
    rows = [
        {
            **SAMPLE,
            **{"question": question.question_id, "model": model, "qp": 1, "cp": 1, "verifier": verifier},
            **{"correct": True, "score": 0.5, "early_exit": verifier != "none"},
        }
        for question in QUESTIONS
    ]
    scored = [] if verifier == "none" else [verifier]
    table.write(path, rows, QUESTIONS, {"models": [model], "verifiers": scored, "samples": 1, **settings})
    return path


def test_joined_recordings_are_one(tmp_path: Path) -> None:
    one = written(tmp_path / "one.parquet", "a", "prm", grader="1", weights={"a": "x"})
    two = written(tmp_path / "two.parquet", "b", "none", grader="2", weights={"b": "y"})
    rows, questions, settings = table.joined([one, two])
    assert questions == QUESTIONS
    assert (settings["models"], settings["verifiers"], settings["samples"]) == (["a", "b"], ["prm"], 1)
    assert (settings["grader"], settings["weights"]) == (["1", "2"], {"a": "x", "b": "y"})
    table.write(tmp_path / "both.parquet", rows, questions, settings)
    both = load_recording(tmp_path / "both.parquet")
    assert [arm.model for arm in both.arms] == ["a", "b"]
    assert load_recording(one).score.max() == 0.5
    assert both.score.min() == 1.0, "where a model has no verifier, Score is Correct's value"
    assert (load_recording(one).dense, both.dense) == (True, False)
    with pytest.raises(OutcomeError, match="is in two of the recordings"):
        table.joined([one, one])
