"""The README's `make demo`, with fewer questions and recorded engines: everything else of it is as it is."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.space.catalogue import load_catalogue
from streams.demo.run import CONTROL

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

QUESTIONS = 15


def test_make_demo_streams_its_questions_and_leaves_a_summary_and_a_report(
    root: Path, recorded: Callable[..., Any], tmp_path: Path
) -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    if subprocess.run(["make", "-q", "env"], cwd=root, capture_output=True, check=False).returncode:
        pytest.skip("the environment of `make env` is not up to date: the demo would install it first")
    recording = Path(recorded(tmp_path).engine.recorded)
    lines = [json.loads(line) for line in recording.read_text().splitlines()]
    models = load_catalogue(root / "infra" / "catalogue" / "mini.yaml").model_names
    paths = [line | {"model": model} for line in lines if line["model"] == "large" for model in models]
    recording.write_text("".join(json.dumps(path) + "\n" for path in paths))
    asked = dict.fromkeys(line["question"] for line in lines)
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        "".join(
            json.dumps({"question": q, "answer": "1", "level": n % 5}) + "\n" for n, q in enumerate(asked)
        )
    )
    out = tmp_path / "out"
    words = f"--questions {QUESTIONS} --warm-up 5 --questions-file {questions} --recording {recording} --out {out}"
    done = subprocess.run(
        ["make", "demo", f"ARGS={words}"], cwd=root, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "rooms stopped" in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    counted = {name: summary[name] for name in ("queries", "answers", "rewards", "unanswered")}
    assert counted == {"queries": QUESTIONS, "answers": QUESTIONS, "rewards": QUESTIONS, "unanswered": 0}
    audit = summary["audit"]
    assert audit["discrepancies"] == audit["pending"] == []
    # Every question has a twin, which is answered and not learned from.
    assert audit["queries"] == sum(audit["states"].values()) == 2 * QUESTIONS
    assert audit["states"]["answered, not learnable (learn: false)"] == QUESTIONS
    assert audit["learner"]["updates"] == audit["learner"]["applied"] == QUESTIONS
    assert f"audit: {2 * QUESTIONS} queries, 0 discrepancies" in done.stdout
    assert summary["control"]["queries"] == summary["policy"]["queries"] == QUESTIONS
    assert f"of always asking {CONTROL}" in " ".join(done.stdout.split())
    assert {"broker", "engine", "mean_reward_warmup", "mean_reward_last_third", "latency_ms"} <= set(summary)
    assert "Choices by level" in (out / "report.html").read_text()
