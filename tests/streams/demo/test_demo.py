"""What the demo sends and says, without running it."""

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from agents.catalogue.models import ObjectiveError
from schemas.query import Query
from streams.client.questions import read_questions
from streams.demo.paired import Outcome
from streams.demo.recorded import FILE, outcomes_of
from streams.demo.run import CONTROLS, QUESTIONS, RECORDED, Demo, DemoCannotRun, FirstAct, check_machine, run
from streams.demo.summary import thirds
from streams.settings import Settings


def level_of(query: Query) -> str:
    return str(query.metadata["level"])


@pytest.mark.parametrize("count", [210, 60, 21])
def test_levels_keep_their_shares_in_each_third(count: int) -> None:
    queries = list(read_questions(QUESTIONS))
    assert len(queries) >= 210
    ordered = thirds(queries, count, 3)
    assert len(ordered) == count
    assert len({q.query_id for q in ordered}) == count
    shares = {level: number / len(queries) for level, number in Counter(map(level_of, queries)).items()}
    for part in range(3):
        third = ordered[part * count // 3 : (part + 1) * count // 3]
        levels = Counter(map(level_of, third))
        for level, share in shares.items():
            assert levels[level] == pytest.approx(share * len(third), abs=2), level
    assert [q.query_id for q in thirds(queries, count, 3)] == [q.query_id for q in ordered]
    assert [q.query_id for q in thirds(queries, count, 4)] != [q.query_id for q in ordered]


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DemoCannotRun, match="no such file"):
        check_machine(Demo(out=tmp_path, questions=tmp_path / "none"), Settings())
    with pytest.raises(DemoCannotRun, match="no such recording"):
        check_machine(Demo(out=tmp_path, recording=str(tmp_path / "none")), Settings())
    questions = QUESTIONS.resolve()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DemoCannotRun, match=r"models/family\.json is missing"):
        check_machine(Demo(out=tmp_path, questions=questions), Settings())


def test_memory_that_the_page_cache_takes_counts_as_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: 1000 if name == "SC_AVPHYS_PAGES" else real(name))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * 2**30))
    check_machine(Demo(out=tmp_path), Settings())
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**30))
    with pytest.raises(DemoCannotRun, match=r"1\.0 GB of memory are available"):
        check_machine(Demo(out=tmp_path), Settings())


def test_unknown_objective_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ObjectiveError, match="'cheapest' is unknown; choose one of cost-sensitive"):
        run(Demo(out=tmp_path), Settings().replace(objective="cheapest"), print, lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_a_level_of_which_there_are_more_is_asked_more_often() -> None:
    levels = "aab" * 30
    queries = [Query(query_id=f"q{n}", text="x", metadata={"level": each}) for n, each in enumerate(levels)]
    ordered = thirds(queries, 45, 3)
    found = [Counter(map(level_of, ordered[begin : begin + 15])) for begin in (0, 15, 30)]
    assert found == [{"a": 10, "b": 5}] * 3


def test_queries_without_a_level_are_dealt_too() -> None:
    assert len(thirds([Query(query_id=f"q{n}", text="x") for n in range(9)], 9, 1)) == 9


def test_recorded_baselines_are_not_asked() -> None:
    questions = list(read_questions(QUESTIONS))
    known = {query.text or "": dict.fromkeys(RECORDED, Outcome(1.0, 2e10)) for query in questions}
    first = FirstAct.of(Demo(out=Path("out"), count=30), questions, known)
    assert {query.pin_action for query in first.sent} == {None, *CONTROLS}
    assert len(first.sent) == 60
    assert [(each.name, each.closed, each.right) for each in first.standings({})] == [
        ("UniScale-Streams", 0, None),
        ("one sample of mini-4m", 0, None),
        ("a recorded search with mini-4m (1/4/2)", 30, 1.0),
        ("a recorded sample of smollm2-135m", 30, 1.0),
    ]
    assert first.unknown == []


def test_a_baseline_without_all_records_is_left_out() -> None:
    questions = [Query(query_id=f"q{n}", text=f"x {n}") for n in range(3)]
    known = {query.text or "": {RECORDED[0]: Outcome(1.0, 2e10)} for query in questions}
    known["x 2"] |= {RECORDED[1]: Outcome(0.0, 3e10)}
    first = FirstAct.of(Demo(out=Path("out")), questions, known)
    assert (list(first.recorded), first.unknown) == ([RECORDED[0]], [RECORDED[1]])


def test_every_question_of_the_demo_is_recorded() -> None:
    known = outcomes_of(FILE, "mini")
    assert known.keys() == {query.text for query in read_questions(QUESTIONS)}
    assert {tuple(sorted(of)) for of in known.values()} == {RECORDED}
