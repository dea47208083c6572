"""The benchmark takes medians of runs in alternation, and can run another checkout in turn."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from streams.bench import turns
from streams.bench.run import BenchFailed, Plan
from streams.cli.bench import bench
from streams.settings import Settings

STUB = '''
import msgspec

class Plan(msgspec.Struct, kw_only=True):
    queries: int
    steps: int
    in_flight: int
    warm: int

def _run(settings, broker, plan, folder, encoder, rate):
    """A checkout of before the folders: its speed is its steps."""
    return {"queries_per_s": 10.0 * plan.steps, "steps_per_query": plan.steps, "bytes_per_query": 1,
            "cpu_s_by_room": {}, "latency_ms": {"query_to_answer": {"p50": rate, "p95": rate}}}
'''
BROKER = """
import contextlib

class Broker(contextlib.AbstractContextManager):
    version = "a broker"

    @classmethod
    def choose(cls, kind, environ):
        return cls()

    def __exit__(self, *about):
        pass
"""
SETTINGS = """
class Settings:
    @classmethod
    def from_env(cls, environ):
        return cls()
"""


@pytest.fixture
def old_checkout(tmp_path: Path) -> Path:
    """A checkout laid out as 0.1.0 was, whose runs take no time."""
    folder = tmp_path / "old" / "streams"
    folder.mkdir(parents=True)
    for name, text in (("__init__", ""), ("bench", STUB), ("broker", BROKER), ("settings", SETTINGS)):
        (folder / f"{name}.py").write_text(text)
    return folder.parent


def test_sides_take_turns_and_figures_are_medians(
    old_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(old_checkout)
    said: list[str] = []
    plan = Plan(queries=20, steps=5)
    found = turns.measure({"embedded": plan}, Settings(), 2, said.append, old_checkout)
    order = [line.split(", ")[2] for line in said if "one_step" in line]
    assert order == ["here", "against", "against", "here"]
    for side in ("here", "against"):
        kafka = found[side]["embedded"]
        assert (kafka["queries_per_s"], kafka["queries_per_s_one_step"]) == (50.0, 10.0)
        assert kafka["runs"] == {
            "without_encoder": [50.0] * 2,
            "with_encoder": [50.0] * 2,
            "one_step": [10.0] * 2,
        }
        assert kafka["open_loop_per_s"] == kafka["query_to_answer_ms"]["p50"] == 25.0
        assert kafka["version"] == "a broker"


def test_what_was_measured_is_kept_when_a_later_part_fails(
    old_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(old_checkout)  # where the engine's processes find nothing to run
    questions = old_checkout / "questions.jsonl"
    questions.write_text("")
    out = old_checkout / "stream.json"
    asked = ["--broker", "embedded", "--questions", str(questions), "--out", str(out)]
    ended = CliRunner().invoke(bench, asked, obj=Settings())
    assert isinstance(ended.exception, LookupError)
    found = orjson.loads(out.read_bytes())
    assert found["brokers"]["embedded"]["queries_per_s_one_step"] == 10.0
    assert "engine" not in found


def test_the_median_is_of_all_runs() -> None:
    def run(speed: float) -> dict[str, Any]:
        return {"queries_per_s": speed, "version": "v", "steps_per_query": 5, "bytes_per_query": 1,
                "cpu_s_by_room": {"decider": speed}, "latency_ms": {}}  # fmt: skip

    taken = {turn.name: [run(60.0), run(90.0), run(66.0)] for turn in turns.TURNS}
    found = turns.figures("kafka", Plan(), taken, run(0.0), 33.0)
    assert found["queries_per_s"] == found["queries_per_s_without_encoder"] == 66.0
    assert found["cpu_s_by_room"] == {"decider": 66.0}
    keys = {
        "name",
        "version",
        "queries",
        "in_flight",
        "steps_per_query",
        "bytes_per_query",
        "open_loop_per_s",
    }
    assert keys <= set(found)


def test_a_run_that_fails_says_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match=r"none of .*streams\.bench"):
        turns.run_in(tmp_path, "embedded", Settings(), Plan(), turns.TURNS[0])


def test_versions_name_the_commit_and_the_libraries() -> None:
    found = turns.versions(Path(__file__).parents[2])
    assert {"commit", "python", "faust-streaming", "kafka-python"} <= set(found)


@pytest.mark.broker
@pytest.mark.embedded
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_run_on_the_embedded_broker() -> None:
    plan = Plan(queries=20, warm=5, steps=2, in_flight=8)
    one = turns.run_in(Path.cwd(), "embedded", Settings(), plan, turns.TURNS[2])
    assert one["steps_per_query"] == 1
    assert one["queries_per_s"] > 0
    assert set(one["cpu_s_by_room"]) == {"aggregator", "decider", "verifier", "executor.mini", "embedder"}
