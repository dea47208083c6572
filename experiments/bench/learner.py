"""Measure the learner: decide, update, batches, recovery, memory, scaling, and public libraries beside it.

Every row runs in a process of its own, one after the other. The learner's rows give BLAS one thread, as the decider
runs: its products are short, and on a busy machine a second thread waits for the first. The naive form and the
peers get all cores.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ACTIONS: Final = 168
HALVES: Final = {"d2048": 1024, "d768": 384}
ACTION_COUNTS: Final = (42, 84, 168, 336, 672, 1344)
DIMENSIONS: Final = (256, 512, 1024, 2048, 4096)
RECOVERED: Final = 10_000
INSTALL: Final = "install it: .venv/bin/pip install --no-deps -r requirements/learner-peers.txt"
PEER_ROUNDS: Final = {"mabwiser": 12, "vowpalwabbit": 40, "river": 200}


def run(out: Path, *, rounds: int = 400, smoke: bool = False) -> int:
    """Measure everything and write the JSON; return the process's exit status.

    Args:
        out: The file.
        rounds: Timed rounds of each row.
        smoke: Tiny sizes, and one of them where many are compared: to show that every row runs.
    """
    shrink = 16 if smoke else 1
    rounds = 4 if smoke else rounds
    result: dict[str, Any] = {"machine": machine(), "rounds": rounds, "actions": ACTIONS, "smoke": smoke}
    for name, half in list(HALVES.items())[: 1 if smoke else None]:
        found = everything(half // shrink, rounds, 50 if smoke else RECOVERED)
        result |= found if name == "d2048" else {name: found}
    sizes = [*((n, 2048) for n in ACTION_COUNTS), *((ACTIONS, d) for d in DIMENSIONS if d != 2048)]
    result["scaling"] = [
        {"actions": actions, "d": d // shrink, **_row("single", d // 2 // shrink, actions, rounds, threads=1)}
        for actions, d in (sizes[:1] if smoke else sizes)
    ]
    result["peers"] = [
        _row(name, HALVES["d2048"] // shrink, ACTIONS, count if not smoke else 3)
        for name, count in PEER_ROUNDS.items()
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{out}: decide {result['decide_ms']:.3f} ms, update {result['update_ms']:.3f} ms, "
          f"{result['times_faster']:.0f} times faster than naive")  # fmt: skip
    return 0


def everything(half: int, rounds: int, recovered: int) -> dict[str, Any]:
    """Return every figure of one dimension."""
    found = _row("single", half, ACTIONS, rounds, threads=1)
    found |= _row("naive", half, ACTIONS, max(4, rounds // 10))
    found |= _row("batch", half, ACTIONS, 640 if rounds > 100 else 128, threads=1)
    found |= _row("fold", half, ACTIONS, recovered, threads=1)
    found |= recovery(half, recovered)
    ours, paper = (found[p + "decide_ms"] + found[p + "update_ms"] for p in ("", "naive_"))
    return {"d": 2 * half, **found, "times_faster": paper / ours}


def recovery(half: int, rows: int) -> dict[str, Any]:
    """Return the time of a recovery from a broker, which the wiring measures in its own process."""
    command = [sys.executable, "-m", "streams", "bench-recovery", "--rows", str(rows), "--half", str(half)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    key = f"recover_{rows}_s"
    try:
        found = json.loads(done.stdout.splitlines()[-1])
        return {key: float(found[key]), "recovery": found}
    except (IndexError, KeyError, ValueError):
        return {key: None, "recover_missing": (done.stderr or done.stdout).strip()[-300:]}


def machine() -> dict[str, Any]:
    """Return what it ran on."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    load, *_ = os.getloadavg()
    return {
        "cpu": cpu[0].split(":", 1)[1].strip() if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": load,
    }


def _row(name: str, half: int, actions: int, rounds: int, threads: int | None = None) -> dict[str, Any]:
    """Run one row in a process of its own; a row that fails says why instead of its figures."""
    wanted = str(threads or os.cpu_count() or 1)
    environment = {**os.environ, "OMP_NUM_THREADS": wanted, "OPENBLAS_NUM_THREADS": wanted}
    asked = json.dumps({"half": half, "actions": actions, "rounds": rounds})
    command = [sys.executable, "-m", "experiments.bench.rows", name, asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        if name in PEER_ROUNDS:
            print(f"{name} was not measured: {why[0]}; {INSTALL}", file=sys.stderr)
            return {"name": name, "missing": why[0], "mend": INSTALL}
        raise RuntimeError(f"row {name}: {why[0]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
