"""The README's `make demo`, with fewer questions, recorded engines and the page: everything else of it is as it is."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agents.catalogue.file import load_catalogue
from streams.demo.paired import named
from streams.demo.run import CONTROLS, RECORDED
from streams.local.broker import free_port, listening

pytestmark = [pytest.mark.broker]

QUESTIONS = 15


def test_make_demo_leaves_a_summary_and_a_report(
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
    words = f"--questions {QUESTIONS} --questions-file {questions} --recording {recording} --out {out}"
    port = free_port()
    with subprocess.Popen(
        ["make", "demo", f"ARGS={words} --gateway"], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, env={**os.environ, "UNISCALE_GATEWAY_PORT": str(port)},
    ) as running:  # fmt: skip
        assert running.stdout is not None
        said = ""
        served: dict[str, Any] = {"models": [], "services": []}
        for line in running.stdout:
            said += line
            if f"the page: http://127.0.0.1:{port}/" in line:
                served = looked_at(f"http://127.0.0.1:{port}")
        assert running.wait() == 0, said[-3000:]
    assert {model["name"] for model in served["models"]} == set(models)
    assert {service["service"] for service in served["services"]} > {
        "embedder",
        "decider",
        "verifier",
        "aggregator",
    }
    assert not listening(port)
    assert "services stopped" in said
    summary = json.loads((out / "summary.json").read_text())
    counted = {name: summary[name] for name in ("queries", "answers", "rewards", "unanswered")}
    assert counted == {"queries": QUESTIONS, "answers": QUESTIONS, "rewards": QUESTIONS, "unanswered": 0}
    audit = summary["audit"]
    assert audit["discrepancies"] == audit["pending"] == []
    # Every question has a baseline, which is answered and not learned from.
    assert audit["queries"] == sum(audit["states"].values()) == 2 * QUESTIONS
    assert audit["states"]["answered, not learnable (learn: false)"] == QUESTIONS
    assert audit["learner"]["updates"] == audit["learner"]["applied"] == QUESTIONS
    assert f"audit: {2 * QUESTIONS} queries, 0 discrepancies" in said
    assert [each["control"]["action"] for each in summary["comparisons"]] == list(CONTROLS)
    for each in summary["comparisons"]:
        assert each["control"]["queries"] == each["policy"]["queries"] == QUESTIONS
    words_said = " ".join(said.split())
    others = " and ".join(named(action, recorded=True) for action in RECORDED)
    assert f"left out: {others}, because not all of these questions were recorded" in words_said
    assert words_said.index(f" of {named(CONTROLS[0])}.") < words_said.index("mean_reward_first_third"), (
        "figures come after"
    )
    assert {"broker", "engine", "mean_reward_first_third", "mean_reward_last_third", "latency_ms"} <= set(
        summary
    )
    assert "of the cost</h1>" in (out / "report.html").read_text()
    pooled = [sys.executable, "-m", "streams.demo.pooled", str(out / "summary.json")]
    ran = subprocess.run(pooled, cwd=root, capture_output=True, text=True, check=True)
    assert [f" of {named(action)}." in line for action, line in
            zip(CONTROLS, ran.stdout.splitlines(), strict=True)] == [True]  # fmt: skip


def looked_at(url: str) -> dict[str, Any]:
    """Look at the page while the demo runs, and return what it shows of now."""
    page = httpx.get(url)
    assert page.status_code == 200
    assert "<!doctype html>" in page.text.lower()
    now = httpx.get(f"{url}/v1/now")
    assert now.status_code == 200
    found: dict[str, Any] = now.json()
    return found
