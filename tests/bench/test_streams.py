"""Figures are medians of rounds in alternation; another checkout measures its rounds by its own command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from click.testing import CliRunner

from bench import turns
from bench.commands import streams
from bench.streams import BenchFailed, StreamPlan
from streams.settings import Settings

# The command of another checkout: its speed is its steps.
STUB = """
import json, sys
words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
speed = 10.0 * int(words["--steps"])
runs = {name: [speed] for name in ("without_encoder", "with_encoder")} | {"one_step": [10.0]}
found = {"name": words["--broker"], "queries_per_s": speed, "runs": runs, "queries": int(words["--queries"])}
out = sys.argv[sys.argv.index("--out") + 1]
open(out, "w").write(json.dumps({"brokers": {words["--broker"]: found}}))
"""


@pytest.fixture(params=["streams", "bench"])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Another checkout, from before benchmarks had a folder of their own and from after, whose runs take no time."""
    folder = tmp_path / "other" / request.param
    folder.mkdir(parents=True)
    (folder / "__main__.py").write_text(STUB)
    return folder.parent


def test_another_checkout_measures_by_its_own_command(checkout: Path) -> None:
    found = turns.round_in(checkout, "kafka", Settings(), StreamPlan(queries=20, steps=5))
    assert (found["queries_per_s"], found["queries"]) == (50.0, 20)


def test_sides_take_turns(checkout: Path) -> None:
    said: list[str] = []

    def side(steps: int) -> dict[str, Any]:
        return turns.round_in(checkout, "embedded", Settings(), StreamPlan(queries=20, steps=steps))

    found = turns.alternate({"here": lambda: side(5), "against": lambda: side(4)}, 2, said.append)
    assert [line.split(", ")[1] for line in said] == ["here", "against", "against", "here"]
    assert found["against"]["runs"] == {
        "without_encoder": [40.0] * 2,
        "with_encoder": [40.0] * 2,
        "one_step": [10.0] * 2,
    }


def test_the_median_is_of_all_rounds() -> None:
    def one(speed: float) -> dict[str, Any]:
        return {"queries_per_s": speed, "runs": {turn.name: [speed] for turn in turns.TURNS}, "of": speed}

    found = turns.medians([one(60.0), one(90.0), one(66.0)])
    assert found["queries_per_s"] == found["queries_per_s_one_step"] == found["of"] == 66.0
    assert found["runs"]["with_encoder"] == [60.0, 90.0, 66.0]


def test_a_checkout_that_cannot_be_measured_says_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match=r"No module named streams"):
        turns.round_in(tmp_path, "embedded", Settings(), StreamPlan())


def test_versions_name_the_commit_and_the_libraries() -> None:
    found = turns.versions(Path(__file__).parents[2])
    assert {"commit", "python", "faust-streaming", "kafka-python"} <= set(found)


@pytest.mark.broker
@pytest.mark.embedded
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_was_measured_is_kept_when_a_later_part_fails(tmp_path: Path) -> None:
    """A real round; then the engine finds no questions."""
    questions, out = tmp_path / "questions.jsonl", tmp_path / "stream.json"
    questions.write_text("")
    words = ["--broker", "embedded", "--queries", "20", "--steps", "2", "--questions", str(questions)]
    ended = CliRunner().invoke(streams, [*words, "--out", str(out)], obj=Settings())
    assert isinstance(ended.exception, BenchFailed)
    found = orjson.loads(out.read_bytes())
    assert "engine" not in found
    one = found["brokers"]["embedded"]
    assert one["steps_per_query"] == 2
    assert min(one[name] for name in ("queries_per_s", "queries_per_s_one_step")) > 0
    assert set(one["cpu_s_by_service"]) == {"aggregator", "decider", "verifier", "executor.mini", "embedder"}


@pytest.mark.broker
@pytest.mark.embedded
@pytest.mark.parametrize("against", [False, True])
def test_what_was_started_ends_with_it(tmp_path: Path, against: bool) -> None:
    """Also what the command of another checkout has started, which here is this one's."""
    words = ["streams", "--broker", "embedded", "--no-engine", "--out", str(tmp_path / "stream.json")]
    if against:
        order = (
            "from pathlib import Path; from bench.commands import stopped_by_signals; from bench.turns import *\n"
            "with stopped_by_signals(): round_in(Path.cwd(), 'embedded', Settings(), StreamPlan(queries=20))"
        )
        argv = [sys.executable, "-c", order]
    else:
        argv = [sys.executable, "-m", "bench", *words]
    with subprocess.Popen(argv, cwd=Path(__file__).parents[2], env=os.environ) as measuring:
        whole = psutil.Process(measuring.pid)
        # Broker and services are there: the embedder is one of them.
        while not any("embedder" in each.cmdline() for each in _living(whole)):
            assert measuring.poll() is None
            time.sleep(0.1)
        started = _living(whole)
        measuring.send_signal(signal.SIGTERM)
        measuring.wait(120)
    psutil.wait_procs(started, timeout=20)
    assert [each for each in started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


def _living(process: psutil.Process) -> list[psutil.Process]:
    return [each for each in process.children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]
