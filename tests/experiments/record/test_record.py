"""Recording: derived runs are the real ones, a kill loses nothing, the file is one and the same."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agents.catalogue.action_space import uis_space
from agents.catalogue.file import load_catalogue
from agents.grading.grade import Verdict
from experiments.journal import JournalError, SearchJournal, journals
from experiments.loop import best_route_space
from experiments.record import table
from experiments.record.plan import RecordingPlan, record, search_id, take_over
from experiments.record.searches import Bench, SearchMemory, Variant, open_bench, search
from experiments.record.table import (
    FILE,
    HISTORY,
    LIVE,
    PROPORTIONS,
    Question,
    facts,
    fingerprint,
    mixed_traffic,
    question_set,
    questions_of,
)
from experiments.yardstick import is_history
from schemas.action import Action
from tests.support.lab import lab

QUESTIONS = [Question("a-0", "a", "12 ox", 3), Question("a-1", "a", "4 d 5", 9)]


def bench_of(tiny: Path) -> Bench:
    catalogue = load_catalogue(tiny / "tiny.yaml")
    return asyncio.run(
        open_bench(catalogue, "torch", lambda gold, answer: Verdict(False, "math-verify"), folder=tiny)
    )


def test_best_route_has_120_configurations_30_of_them_shared() -> None:
    catalogue = load_catalogue(Path("infra/catalogue/qwen3.yaml"))
    uis, best_route = set(uis_space(catalogue)), set(best_route_space(catalogue))
    assert (len(best_route), len(best_route - uis)) == (120, 90)
    assert {(a.qp, a.cp, a.bs) for a in best_route} == {(n, 1, 1) for n in range(1, 21)}


WIDE = ((1, 1), (2, 4), (4, 16), (64, 1))
NARROW = ((1, 1), (2, 4))


def small_plan(bench: Bench, pairs: tuple[tuple[int, int], ...] = WIDE, whole: int = 2) -> RecordingPlan:
    actions = [a for a in uis_space(bench.catalogue) if (a.qp, a.cp) in pairs]
    derived = [a for a in best_route_space(bench.catalogue) if a.qp in (3, 7) and (64, 1) in pairs]
    ids = {question.question_id for question in QUESTIONS[:whole]}
    return RecordingPlan(QUESTIONS, actions, derived, 1, "prm-a", ["prm-b"], whole=ids, compared=ids)


@pytest.mark.parametrize("whole", [2, 1, None])
def test_derived_runs_equal_real_ones(whole: int | None, tiny: Path, tmp_path: Path) -> None:
    """Early exit, the other verifier and best of N, taken from memory, against engines that know nothing."""
    bench = bench_of(tiny)
    plan = RecordingPlan.of_mixed(bench, QUESTIONS, 1) if whole is None else small_plan(bench, whole=whole)
    journal = SearchJournal(tmp_path / "j.jsonl", {})
    asyncio.run(record(plan, bench, journal, in_flight=2))
    rows = list(journal.rows())
    assert len(rows) == plan.searches()
    assert any(row["derived"] for row in rows)
    exits = 0
    compared = {row["question"] for row in rows if row["verifier"] == "prm-b"}
    assert compared == {question.question_id for question in QUESTIONS[: whole or 0]}
    for row in rows:
        question = next(q for q in QUESTIONS if q.question_id == row["question"])
        action = Action(model="tiny", qp=row["qp"], cp=row["cp"], bs=row["bs"])
        source = action if action in plan.actions else Action(model="tiny", qp=64, cp=1, bs=1)
        variant = Variant(row["verifier"], row["early_exit"])
        name = search_id(question, source, 0, 0)
        fresh = asyncio.run(search(question, action, variant, name, bench_of(tiny), SearchMemory()))
        real = {name: value for name, value in vars(fresh[0]).items() if name != "seconds"}
        assert not fresh[1]
        for name, value in real.items():
            expected = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            assert row[name] == expected, (row["question"], action, variant, name)
        exits += row["early_exit"]
    assert exits


def test_early_exit_saves_on_some_searches(tiny: Path, tmp_path: Path) -> None:
    bench, journal = bench_of(tiny), SearchJournal(tmp_path / "j.jsonl", {})
    asyncio.run(record(small_plan(bench), bench, journal))
    rows = [row for row in journal.rows() if row["verifier"] == "prm-a" and (row["qp"], row["cp"]) == (64, 1)]
    runs = {(row["question"], row["early_exit"]): row for row in rows}
    for question in QUESTIONS:
        on, off = (runs[question.question_id, early_exit] for early_exit in (True, False))
        assert on["tokens"] < off["tokens"]
        assert on["eflops"] < off["eflops"]


def test_a_kill_at_any_moment_loses_only_what_was_in_flight(tiny: Path, tmp_path: Path) -> None:
    bench = bench_of(tiny)
    whole = SearchJournal(tmp_path / "whole.jsonl", {"seed": 0})
    asyncio.run(record(small_plan(bench, NARROW), bench, whole))
    content = whole.path.read_bytes()
    ends = [at for at, byte in enumerate(content) if byte == 10]
    for cut in (1, ends[0] + 1, ends[1] - 5, ends[1] + 1, ends[2] - 1):
        (tmp_path / f"cut-{cut}.jsonl").write_bytes(content[:cut])
        journal = SearchJournal(tmp_path / f"cut-{cut}.jsonl", {"seed": 0})
        asyncio.run(record(small_plan(bench, NARROW), bench, journal))
        table.write(tmp_path / "cut.parquet", map(timed, journal.rows()), QUESTIONS, {})
        table.write(tmp_path / "whole.parquet", map(timed, whole.rows()), QUESTIONS, {})
        assert (tmp_path / "cut.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_parts_record_what_one_process_records(tiny: Path, tmp_path: Path) -> None:
    plan = small_plan(bench_of(tiny), NARROW)
    whole = SearchJournal(tmp_path / "whole.jsonl", {"seed": 0})
    asyncio.run(record(plan, bench_of(tiny), whole))
    folder = tmp_path / "parts"
    for number in (1, 2):
        journal = SearchJournal(folder / f"math-{number}-of-2.jsonl", {"seed": 0}, journals(folder, "math"))
        part = replace(plan, part=(number, 2))
        assert sum(1 for _ in part.shards()) == 1
        asyncio.run(record(part, bench_of(tiny), journal))
    assert journal.done == whole.done
    one, two = ({key_of(row): row for row in each.rows()} for each in (whole, journal))
    assert len(one) == sum(1 for _ in whole.rows()) == sum(1 for _ in journal.rows())
    alike(one, two)


def test_a_recording_is_made_longer_from_its_file_alone(tiny: Path, tmp_path: Path) -> None:
    bench, settings = bench_of(tiny), {"seed": 0, "questions": "some", "verifiers": ["prm-a"]}
    plan = replace(small_plan(bench, NARROW, whole=1), questions=QUESTIONS[:1], others=())
    short, file = SearchJournal(tmp_path / "short.jsonl", settings), tmp_path / "short.parquet"
    asyncio.run(record(plan, bench, short))
    table.write(file, short.rows(), QUESTIONS[:1], {**settings, "samples": 1})
    # Further questions, and a further verifier.
    wider = {**settings, "questions": "all", "verifiers": ["prm-a", "prm-b"]}
    longer = SearchJournal(tmp_path / "longer.jsonl", wider)
    take_over(longer, file, QUESTIONS)
    assert longer.done == short.done
    table.write(tmp_path / "again.parquet", longer.rows(), table.questions_in(file), table.settings_of(file))
    assert (tmp_path / "again.parquet").read_bytes() == file.read_bytes()
    further = replace(small_plan(bench, NARROW, whole=1), questions=QUESTIONS)
    asyncio.run(record(further, bench, longer))
    assert sum(1 for _ in longer.rows()) == further.searches()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, r"short\.parquet, setting seed: begun with 0, now 1"),
        (
            {"verifiers": ["prm-b", "prm-a"]},
            r"setting verifiers: begun with \['prm-a'\], now \['prm-b', 'prm-a'\]",
        ),
    ],
)
def test_a_recording_of_other_settings_is_not_continued(
    changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    settings = {"seed": 0, "questions": "some", "verifiers": ["prm-a"]}
    table.write(tmp_path / "short.parquet", [], QUESTIONS[:1], {**settings, "samples": 1})
    journal = SearchJournal(tmp_path / "longer.jsonl", {**settings, **changed})
    with pytest.raises(JournalError, match=message):
        take_over(journal, tmp_path / "short.parquet", QUESTIONS)
    with pytest.raises(JournalError, match="a-0 is a different question now; record again"):
        take_over(SearchJournal(tmp_path / "same.jsonl", settings), tmp_path / "short.parquet", QUESTIONS[1:])


def test_a_recording_is_given_further_variants_later(tiny: Path, tmp_path: Path) -> None:
    whole = replace(small_plan(bench_of(tiny)), samples=2)
    few = replace(whole, whole=(), compared={QUESTIONS[1].question_id}, samples=1)
    later, at_once = (SearchJournal(tmp_path / f"{name}.jsonl", {}) for name in ("later", "at-once"))
    asyncio.run(record(few, bench_of(tiny), later))
    assert later.done == few.runs() < whole.runs()
    first = {key_of(row): row for row in later.rows()}
    assert len(first) == few.searches()
    # Another process takes it up, and has only what is missing to make.
    later = SearchJournal(later.path, {})
    made: list[int] = []
    asyncio.run(record(whole, bench_of(tiny), later, progress=made.append))
    assert sum(made) == whole.searches() - few.searches()
    asyncio.run(record(whole, bench_of(tiny), at_once))
    assert later.done == at_once.done == whole.runs()
    rows, wanted = ({key_of(row): row for row in each.rows()} for each in (later, at_once))
    assert len(rows) == sum(1 for _ in later.rows()) == whole.searches()
    assert {key: rows[key] for key in first} == first
    alike(rows, wanted, but=("seconds", "derived"))


def key_of(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in table.KEY)


def alike(
    rows: dict[tuple[object, ...], dict[str, Any]],
    others: dict[tuple[object, ...], dict[str, Any]],
    but: tuple[str, ...] = ("seconds",),
) -> None:
    """Hold rows to those of other batches, which have other last bits of a sum."""
    assert rows.keys() == others.keys()
    for key, row in rows.items():
        for name, value in row.items():
            expected = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            assert name in but or others[key][name] == expected, (key, name)


def timed(row: dict[str, object]) -> dict[str, object]:
    return {**row, "seconds": None}


def test_a_journal_of_other_settings_is_refused(tmp_path: Path) -> None:
    SearchJournal(tmp_path / "j.jsonl", {"seed": 0, "task": "math"})
    with pytest.raises(JournalError, match=r"setting seed: begun with 0, now 1; choose another folder"):
        SearchJournal(tmp_path / "j.jsonl", {"seed": 1, "task": "math"})


def test_the_file_holds_questions_and_settings(tmp_path: Path, tiny: Path) -> None:
    bench, journal = bench_of(tiny), SearchJournal(tmp_path / "j.jsonl", {})
    asyncio.run(record(small_plan(bench, NARROW), bench, journal))
    table.write(tmp_path / "o.parquet", journal.rows(), QUESTIONS, {"seed": 0})
    read = pq.read_table(tmp_path / "o.parquet")
    assert json.loads(read.schema.metadata[b"uniscale.questions"])[1]["text"] == "4 d 5"
    assert read.num_rows == small_plan(bench, NARROW).searches()


@pytest.mark.parametrize(("name", "task"), [("math", "math"), ("code", "code"), ("mixed-2", "mixed")])
def test_the_recordings_asked_the_questions_of_the_file(name: str, task: str) -> None:
    recording = FILE.with_name(f"{name}.parquet")
    questions = mixed_traffic() if task == "mixed" else questions_of(task)
    assert questions == table.questions_in(recording) == question_set(task)
    assert fingerprint(questions) == table.settings_of(recording)["questions"]


def test_mixed_asked_the_facts_besides() -> None:
    asked = table.questions_in(FILE.with_name("mixed.parquet"))
    assert {q.question_id: q.text for q in asked} == {
        q.question_id: q.text for q in (*mixed_traffic(), *facts())
    }


def test_no_recorded_question_is_in_validation_or_test_sets() -> None:
    asked = ("validation", "test-11", "test-2029", "test-23", "everyday-development", "everyday-sealed")
    recorded = {q.text for name in ("math", "code", "mixed") for q in question_set(name)}
    assert [len(question_set(name)) for name in asked] == [3_630, 1_500, 1_500, 60, 200, 200]
    assert all(q.text not in recorded for name in asked for q in question_set(name))


def test_questions_stand_in_the_papers_proportions() -> None:
    questions = questions_of("math", share=0.1)
    levels = [question.level for question in questions]
    assert len(questions) == len({q.text for q in questions}) == 21
    assert [levels.count(f"level_{n}") for n in range(1, 6)] == [3] * 5
    assert levels.count("contest") == 6
    assert sum(PROPORTIONS["math"].values()) == len(questions_of("code")) == 210


def test_mixed_traffic_has_all_families_on_both_sides() -> None:
    questions = mixed_traffic(share=0.08)
    for side, least in ((True, 40), (False, 80)):
        count = Counter(q.family for q in questions if is_history(q.question_id) is side)
        assert sum(count.values()) == pytest.approx(least, abs=2)
        assert count == {
            "quick": 0.3 * least,
            "stories": pytest.approx(0.45 * least, abs=2),
            "procedures": 0.15 * least,
            "code": pytest.approx(0.1 * least),
        }
    assert len({q.text for q in questions}) == len(questions)
    assert (sum(HISTORY.values()), sum(LIVE.values())) == (500, 1_000)


def test_mixed_traffic_is_asked_of_42_configurations(tiny: Path) -> None:
    qwen3 = replace(bench_of(tiny), catalogue=load_catalogue(Path("infra/catalogue/qwen3.yaml")))
    plan = RecordingPlan.of_mixed(qwen3, QUESTIONS, 2)
    assert len({*plan.actions, *plan.derived}) == 42
    assert plan.searches() == len(QUESTIONS) * 2 * 42
    pairs = {(1, 1), (4, 1), (16, 1), (64, 1), (1, 4), (4, 4), (4, 16)}
    assert {(a.qp, a.cp) for a in (*plan.actions, *plan.derived)} == pairs
    assert {(a.qp, a.cp) for a in plan.derived} == {(1, 1), (4, 1), (16, 1)}


@pytest.mark.parametrize("task", ["math", "code", "mixed"])
def test_what_is_no_recording_cannot_be_continued(
    task: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said once the plan of the task stands, and before anything is run."""
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"question": ["a"]}), foreign)
    monkeypatch.chdir(tiny)
    told = ["--catalogue", "tiny.yaml", "--share", "0.001", "--task", task, "--work", tmp_path / "work"]
    refused = lab("record", *told, "--continue", foreign, status=1)
    assert (
        f"Error: {foreign}: is not one of our recordings; `python -m experiments record` makes one" in refused
    )
