"""What the documents name beside a figure runs to its end: each command in a short form, under the default policy.

A figure whose command no longer runs is a claim that nobody can check. The demo has a test of its own
(`test_demo_command.py`); LiteLLM's side and the learner's peers need environments of their own and are left out.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from agents.catalogue.file import load_catalogue
from agents.serving.recorded import write_paths
from bench.gateway import GatewayPlan, measure
from bench.hostile import ALONE, BUSY, KINDS, UNTAUGHT
from bench.soak import read
from bench.streams import recording
from streams.client.questions import read_questions
from streams.demo.run import QUESTIONS
from streams.local.broker import LocalBroker
from streams.settings import Settings

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
EMBEDDED = ("--broker", "embedded")

COVERED = {
    "make bench-gateway": "test_bench_gateway",
    "make bench-latency": "test_bench_latency",
    "make bench-learner": "test_bench_learner",
    "make bench-stream": "test_bench_stream",
    "make demo": "test_demo_command.py",
    "python -m experiments frontier": "test_frontier",
    "python -m bench audit": "test_bench_audit",
    "python -m bench closed": "test_bench_closed",
    "python -m bench gateway": "test_bench_gateway_one_by_one",
    "python -m bench gpu": "test_bench_gpu_without_a_gpu",
    "python -m bench hostile": "test_bench_hostile",
    "python -m bench kills": "test_bench_kills",
    "python -m bench latency": "test_bench_latency",
    "python -m bench memory": "test_bench_memory",
    "python -m bench refit": "test_bench_refit",
    "python -m bench soak": "test_bench_soak",
    "python -m bench traces": "test_bench_traces",
    "python -m bench ttft": "test_bench_ttft",
    "python -m streams.demo.pooled": "test_demo_command.py",
}
"""Where each command runs: here or in another file. `tests/test_docs.py` compares them with what the documents name."""


def ran(*words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run `python -m …` as a user with the default settings does."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith("UNISCALE_")}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env={**plain, "OMP_NUM_THREADS": "1", **environ},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def printed(*words: str, status: int = 0, **environ: str) -> str:
    """Return the standard output of `python -m …`."""
    done = ran(*words, **environ)
    assert done.returncode == status, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def refused(*words: str, **environ: str) -> str:
    """Return what `python -m …` says on standard error when it exits with 1."""
    done = ran(*words, **environ)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr[-3000:]
    return done.stderr


def figures(*words: str) -> dict[str, Any]:
    """Return the JSON object on the last line of what a command prints."""
    found: dict[str, Any] = json.loads(printed(*words).splitlines()[-1])
    return found


@pytest.mark.thorough
def test_frontier(tmp_path: Path) -> None:
    whole = pq.read_table(ROOT / "experiments" / "data" / "mixed.parquet")
    metadata = dict(whole.schema.metadata)
    questions = json.loads(metadata[b"uniscale.questions"])
    metadata[b"uniscale.questions"] = json.dumps(some := questions[:: len(questions) // 90]).encode()
    asked = pa.array([question["question_id"] for question in some])
    few = whole.filter(pc.is_in(whole["question"].cast("string"), asked))
    pq.write_table(few.replace_schema_metadata(metadata), tmp_path / "few.parquet")
    words = ["--outcomes", str(tmp_path / "few.parquet"), "--cache", str(tmp_path / "cache"), "--jobs", "1"]
    said = printed(
        "experiments", "frontier", *words, "--orders", "1", "--policy", "default", "--policy", "default_with_prior"
    )  # fmt: skip
    assert {line.partition(":")[0] for line in said.splitlines()} >= {"default", "default_with_prior"}


@pytest.mark.thorough
def test_bench_learner(tmp_path: Path) -> None:
    printed("bench", "learner", "--smoke", "--out", str(tmp_path / "learner.json"), KAFKA_HOME="")
    found = json.loads((tmp_path / "learner.json").read_text())
    assert found["decide_ms"] > 0
    assert found["decisions_per_s_batch64"] > 0
    assert found["recover_50_s"] > 0
    assert found["recovery"]["duplicates_refused"] == 50


def test_bench_refit() -> None:
    words = ("--models", "3", "--values", "2", "--repeated", "5", "--outcomes", "20", "--runs", "1")
    found = json.loads(printed("bench", "refit", *words))
    assert found["categories"] == 2
    assert found["columns"] > 100
    assert list(found["seconds"]) == ["10", "20"]


def test_bench_gpu_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    said = refused("bench", "gpu", "--out", str(out), CUDA_VISIBLE_DEVICES="")
    assert "no GPU: torch" in said
    assert not out.exists()


@pytest.mark.thorough
def test_bench_audit() -> None:
    found = figures("bench", "audit", "--queries", "100")
    assert found["wrong"] == 0
    assert found["learner"]["updates"] > 0


@pytest.mark.thorough
def test_bench_closed() -> None:
    found = figures("bench", "closed", "200", "--lived", "50", "--half", "8", *EMBEDDED)
    assert (found["duplicates_sent"], found["duplicates_refused"], found["duplicates_decided"]) == (
        100,
        50,
        0,
    )


def test_bench_memory_of_open_rows() -> None:
    found = json.loads(printed("bench", "memory", "--open", "3000", UNISCALE_SNAPSHOT_EVERY="1000"))
    assert found["snapshots"] >= 2
    assert 0 < found["newest_snapshot_bytes_of_open_rows"] < 1.5 * 1000 * found["row_bytes"] + (1 << 20)
    assert found["row_bytes"] <= found["file_bytes_a_row"] < found["row_bytes"] + 300


@pytest.mark.thorough
def test_bench_memory(tmp_path: Path) -> None:
    """From a recording: the engines' own share takes minutes to load."""
    asked = [query.text or "" for query in list(read_questions(QUESTIONS))[:3]]
    catalogue = load_catalogue(ROOT / Settings().catalogue)
    write_paths(tmp_path / "recording.jsonl", recording(catalogue, asked, 1))
    found = json.loads(
        printed(
            "bench",
            "memory",
            "--queries",
            "3",
            "--large",
            "3",
            UNISCALE_RECORDED=str(tmp_path / "recording.jsonl"),
        )
    )
    assert found["without_answer"] == 0
    services = {"aggregator", "decider", "embedder", "executor.mini", "gateway", "verifier"}
    assert {"broker", *services} == set(found["mb"])
    assert found["large"] == {"400": 3}
    assert found["mb_together"] >= max(found["mb"].values()) > 0


@pytest.mark.thorough
def test_bench_latency(tmp_path: Path) -> None:
    out = tmp_path / "latency.json"
    assert "between_services" in printed("bench", "latency", "--queries", "2", "--out", str(out), *EMBEDDED)
    live = json.loads(out.read_text())["live"]
    assert live["queries"] == 2
    measured = (
        "query_embedding",
        "bandit",
        "generation",
        "verification",
        "rest_of_search",
        "between_services",
    )
    assert all(live["table"][name]["seconds"] > 0 for name in measured)


@pytest.mark.thorough
def test_bench_hostile(tmp_path: Path) -> None:
    """Every kind, a few dozen outcomes each. Of one seed nothing is known, so no bound counts as met."""
    words = ["hostile", "--outcomes", "30", "--seeds", "1", "--prior", "shipped", "--out", str(tmp_path)]
    assert "not met" in printed("bench", *words, status=1)
    table = json.loads((tmp_path / "report.json").read_text())
    assert {row["setting"] for row in table} == {*ALONE, *BUSY, *KINDS, UNTAUGHT}
    assert {row["seeds"] for row in table} == {1}


@pytest.mark.thorough
def test_bench_soak(tmp_path: Path) -> None:
    found = figures("bench", "soak", str(file := tmp_path / "soak.jsonl"), "--minutes", "0.4", *EMBEDDED)
    assert found["ended"] == {"200": 240}
    assert (found["wrong"], found["pending"], found["restarts"]) == (0, 0, {})
    samples, said = read([file])
    assert len(said) == 2
    assert {each.service for each in samples} == {
        "aggregator",
        "broker",
        "decider",
        "embedder",
        "executor.mini",
        "gateway",
        "verifier",
    }
    assert all(each.memory_mb > 0 and each.descriptors > 0 for each in samples)
    assert all(
        each.loop_lag_ms is not None for each in samples if each.at_s > 15 and each.service != "broker"
    )


@pytest.mark.thorough
def test_bench_kills() -> None:
    found = figures("bench", "kills", "--rounds", "1", "--service", "decider", "--lived", "1", *EMBEDDED)
    assert found["kills"] == 1
    assert found["services"]["decider"]["worst_s"] > 0


@pytest.mark.thorough
def test_bench_stream(tmp_path: Path) -> None:
    out = tmp_path / "stream.json"
    words = ["--queries", "20", "--runs", "1", "--no-engine", "--out", str(out), *EMBEDDED]
    assert f"wrote {out}" in printed("bench", "streams", *words)
    found = json.loads(out.read_text())["brokers"]["embedded"]
    assert found["steps_per_query"] == 5
    assert min(found[f"queries_per_s{each}"] for each in ("", "_without_encoder", "_one_step")) > 0
    assert found["query_to_answer_ms"]["p50"] > 0


@pytest.mark.thorough
def test_bench_gateway() -> None:
    plan = GatewayPlan(seconds=0.5, rounds=1, connections=(1, 4), sides=("ours",))
    with LocalBroker.choose("embedded", os.environ) as broker:
        found = measure(Settings(), broker, plan, None, lambda line: None)
    # That every request was answered and is on the broker, `measure` checks; how many were is the machine's affair.
    assert set(found["ours"]) == {"1", "4"}
    assert found["cpu_ms_per_request"]["ours"]["gateway"] > 0


@pytest.mark.thorough
def test_bench_gateway_one_by_one() -> None:
    found = json.loads(printed("bench", "gateway", "--one-by-one", "2", *EMBEDDED))
    assert found["queries"] == 2
    assert 0 < found["first"]["models_s"] < found["first"]["client_s"]


@pytest.mark.thorough
def test_bench_ttft() -> None:
    found = figures("bench", "ttft", "--rounds", "1", "--streams", "2", "--each", "1", *EMBEDDED)
    two = found["open_streams"]["2"]
    # That every stream had text, `measure` checks; how soon it came is the machine's affair.
    assert two["server"]["p50_ms"] >= 200
    assert two["gateway"]["p50_ms"] > 200


@pytest.mark.thorough
def test_bench_traces() -> None:
    found = figures("bench", "traces", "--queries", "20", "--rounds", "1", *EMBEDDED)
    # That every query was answered and traced, `measure` checks.
    assert [len(found["queries_per_s"][side]) for side in ("off", "on")] == [1, 1]
    assert found["tracer_ms"][0] > 0
    assert found["processor_time"]["interval"] is None
