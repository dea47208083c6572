"""The demo's second act on real processes: the commands, the roll-out, the model that joins.

The engines are recorded: what models answer is not tested here. `make demo` in `.ci/run` runs it on real ones.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.catalogue.file import load_catalogue
from streams.demo.changes import Counts
from streams.demo.following import Change
from streams.demo.run import Demo, run
from streams.settings import Settings

pytestmark = [pytest.mark.broker]


def test_three_changes_are_made_and_followed(
    root: Path, recorded: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Path(recorded(tmp_path).engine.recorded)
    lines = [json.loads(line) for line in recording.read_text().splitlines()]
    mini = root / "infra" / "catalogue" / "mini-six.yaml"
    names = [*load_catalogue(mini).model_names, "mini-4m-2"]
    paths = [line | {"model": name} for line in lines if line["model"] == "large" for name in names]
    recording.write_text("".join(json.dumps(path) + "\n" for path in paths))
    asked = dict.fromkeys(line["question"] for line in lines)
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": each, "answer": "1"}) + "\n" for each in asked))
    monkeypatch.setattr("streams.demo.run.why_not", lambda *_: "")  # a recording answers as before
    said: list[str] = []
    shown: list[Change] = []
    out = tmp_path / "out"
    summary = run(
        Demo(
            out=out,
            questions=questions,
            count=12,
            controls=("mini-4m/1/1/1",),
            recording=str(recording),
            changes=Counts(objective=20, worse=21, joined=22),
        ),
        Settings().replace(catalogue=str(mini)),
        said.append,
        lambda standings, changes: shown.extend(changes),
    )
    assert summary["unanswered"] == 0
    assert (summary["changes_left_out"], summary["changes_failed"]) == ("", "")
    assert summary["audit"]["wrong"] == 0
    assert summary["audit"]["queries"] == 2 * 12 + 20 + 2 * 21 + 22
    found = {each["name"]: each for each in summary["changes"]}
    assert {name: (each["asked"], each["closed"]) for name, each in found.items()} == {
        "objective": (20, 20),
        "worse": (21, 21),
        "joined": (22, 22),
    }
    assert {name: len(each["windows"]) for name, each in found.items()} == {
        "objective": 1,
        "worse": 2,
        "joined": 3,
    }
    assert [each["comparison"] is None for each in found.values()] == [True, False, True]
    commands = [line for line in said if line.startswith("$ ")]
    assert [line.split()[4:7] for line in commands] == [
        ["objective", "set", "demo"],
        ["objective", "set", "demo"],
        ["catalogue", "add", commands[2].split()[-1]],
    ]
    log = (out / "services.log").read_text()
    assert "executor.mini exited with code 0" in log, "it was stopped as in a roll-out"
    served = out / "served" / "mini-4m"
    assert served.resolve() == root / "models" / "mini-100k"
    assert max(each["windows"][-1] for each in found.values() if each["name"] == "joined") > 0, (
        "a new model is tried"
    )
    assert {change.name for change in shown} == set(found)
    page = (out / "report.html").read_text()
    assert page.count("<figure>") == 3 + 1 + 3
