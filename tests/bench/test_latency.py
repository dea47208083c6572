"""The table of latency by component: components and what none holds add up, and the lab's stands beside it."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.latency import TABLES, beside_lab, in_words, table
from bench.streams import BenchFailed
from experiments import rerun
from schemas.answer import Answer
from schemas.spent import Spent
from streams.timeline import Timeline


def timeline(query_id: str, total_ms: int, **spent: float) -> Timeline:
    answer = Answer(query_id=query_id, status="ok", by="executor", text="7", spent=Spent(**spent))
    return Timeline(query_id, answers=[answer], at_ms={"query": 5000, "answer": 5000 + total_ms})


LIVE = [
    timeline("a", 1000, embed_s=0.1, decide_s=0.05, generate_s=0.5, verify_s=0.2, control_s=0.05),
    timeline("b", 3000, admission_s=1.0, queue_s=0.5, generate_s=1.0, transit_s=0.2),
]


def test_components_and_the_way_between_services_add_up_to_all() -> None:
    found = table(LIVE)
    assert found["total"] == {"seconds": 4.0, "percent": 100.0}
    parts = {name: row for name, row in found.items() if name != "total"}
    assert sum(row["seconds"] for row in parts.values()) == pytest.approx(4.0)
    assert sum(row["percent"] for row in parts.values()) == pytest.approx(100.0, abs=0.01)
    assert found["generation"] == {"seconds": 1.5, "percent": 37.5}
    assert found["between_services"]["seconds"] == pytest.approx(0.4)
    assert set(rerun.COMPONENTS) <= set(found), "the lab's names"


def test_a_table_of_nothing_is_refused() -> None:
    with pytest.raises(BenchFailed, match="no query was answered"):
        table([])


def test_the_lab_stands_beside_it(tmp_path: Path) -> None:
    lab: dict[str, Any] = {
        "latency_run": {"rounds": 10},
        "latency": {
            "generation": {"seconds": 2.0, "percent": 80.0},
            "total": {"seconds": 2.5, "percent": 100.0},
        },
    }
    (file := tmp_path / "tables.json").write_text(json.dumps(lab))
    lines = in_words(beside_lab(LIVE, file)).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:-1]}
    assert rows["generation"] == ["750.00", "37.50", "200.00", "80.00"]
    assert rows["admission"] == ["500.00", "25.00", "–", "–"]
    assert rows["total"] == ["2000.00", "100.00", "250.00", "100.00"]
    assert lines[-1] == "2 queries live, 10 in the lab"


def test_the_lab_s_results_have_every_row_that_it_measures() -> None:
    found = beside_lab(LIVE, TABLES)
    assert set(rerun.COMPONENTS) <= set(found["lab"]["table"])
