"""Benchmarks for the learner: decide, update, batches, recovery, memory, scaling, and public libraries for comparison.

Every row (a kind of measurement) runs in its own process, one after another. The learner's rows use one BLAS thread, as
in the decider, because the matrix products are small and on a busy machine a second thread only waits for the first.
The naive form and the peers may use all cores. Each peer runs its closest equivalent of LinUCB with one θ over
[s_q; s_a]; `could_not_express` lists the differences.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from agents.bandit.features import FeatureMap, FeatureSettings
from agents.bandit.learner import choose
from agents.bandit.linucb import LinUCB
from agents.bandit.policy import ActionVector, Context, Matrix, Objective, Observation
from agents.decider.decider import Decider
from agents.decider.rows import ActionRow, Row, encode_row
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Origin

OBJECTIVE = Objective(correct=0.1, score=0.1, cost=0.8, log_cost_min=26.0, log_cost_max=36.0)


@dataclass(frozen=True)
class Stream:
    """Random unit vectors. The action embeddings span min(|A|, d/2) dimensions, which is the worst case.

    Attributes:
        half: The length of s_q and of s_a; d is twice that.
        actions: |A|, the number of actions.
        seed: Seed for the vectors and the outcomes.
    """

    half: int
    actions: int = 168
    seed: int = 3

    def action_vectors(self) -> list[ActionVector]:
        """Return the actions, whose embeddings share a direction, as real descriptions' embeddings do."""
        rng = np.random.default_rng(self.seed)
        rows = rng.normal(size=(self.actions, self.half)) + 2.0 * rng.normal(size=self.half)
        rows = _unit(rows).astype(np.float32).astype(np.float64)
        return [ActionVector(f"m{i % 6}/{i}/1/1", f"m{i % 6}", row) for i, row in enumerate(rows)]

    def matrix(self) -> Matrix:
        """Return s_a of every action, shape (|A|, half)."""
        return np.array([a.embedding for a in self.action_vectors()])

    def contexts(self, count: int, start: int = 0) -> Iterator[Context]:
        """Yield queries. The i-th query is the same in every row."""
        for i in range(start, start + count):
            row = np.random.default_rng((self.seed, i)).normal(size=self.half)
            yield Context(f"q{i}", _unit(row).astype(np.float32).astype(np.float64))

    def outcome(self, context: Context, action_id: str) -> Observation:
        """Return the outcome of running an action for a query."""
        rng = np.random.default_rng((self.seed, int(context.query_id[1:]), int(action_id.split("/")[1])))
        score = float(rng.random())
        return Observation(
            observation_id=context.query_id,
            embedding=context.embedding,
            action_id=action_id,
            correct=float(rng.random() < score),
            score=score,
            log_cost=float(rng.uniform(26.0, 36.0)),
            imputed=score,
            objective=OBJECTIVE,
            clock=int(context.query_id[1:]),
        )


def _unit(rows: Matrix) -> Matrix:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


@contextmanager
def _clocked(taken: list[float]) -> Iterator[None]:
    """Append the duration of a block, in seconds, to a list."""
    begun = time.perf_counter()
    yield
    taken.append(time.perf_counter() - begun)


def timed(decide: Sequence[float], update: Sequence[float]) -> dict[str, float]:
    """Return the medians and 99th percentiles, in ms."""
    return {
        "decide_ms": float(np.median(decide)) * 1e3,
        "update_ms": float(np.median(update)) * 1e3,
        "decide_p99_ms": float(np.percentile(decide, 99)) * 1e3,
        "update_p99_ms": float(np.percentile(update, 99)) * 1e3,
    }


def mabwiser(stream: Stream, rounds: int) -> dict[str, Any]:
    """Time MABWiser, where a single arm's expectation on 168 joint vectors amounts to LinUCB with a shared θ."""
    warnings.simplefilter("ignore")
    lib = importlib.import_module("mabwiser.mab")
    mab = lib.MAB([0], lib.LearningPolicy.LinUCB(alpha=1.0, l2_lambda=1.0))
    actions, first = stream.matrix(), True
    decide, update = list[float](), list[float]()
    for context in stream.contexts(rounds):
        with _clocked(decide):
            x = np.hstack([np.repeat(context.embedding[None], len(actions), axis=0), actions])
            chosen = 0 if first else int(np.argmax([row[0] for row in mab.predict_expectations(x)]))
        o = stream.outcome(context, f"m{chosen % 6}/{chosen}/1/1")
        reward = np.array([OBJECTIVE.reward(o.entered, o.score, o.log_cost)])
        with _clocked(update):
            (mab.fit if first else mab.partial_fit)(np.array([0]), reward, x[chosen : chosen + 1])
        first = False
    return _peer("mabwiser", decide[1:], update[1:]) | {
        "could_not_express": "a shared θ but by the trick of one arm; incremental updates (it inverts A again); "
        "objectives per request; delayed or corrected rewards; propensities; a state that recovers"
    }


def vowpal_wabbit(stream: Stream, rounds: int) -> dict[str, Any]:
    """Time VowpalWabbit, with cb_explore_adf and SquareCB over dense features of the query and the action."""
    vw = importlib.import_module("vowpalwabbit")
    workspace = vw.Workspace("--cb_explore_adf --squarecb --cb_type mtr --quiet -b 18")
    blocks = ["|a " + _dense(row) for row in stream.matrix()]
    rng = np.random.default_rng(0)
    decide, update = list[float](), list[float]()
    for context in stream.contexts(rounds):
        with _clocked(decide):
            shared = "shared |q " + _dense(context.embedding)
            parsed = workspace.parse([shared, *blocks])
            probabilities = np.asarray(workspace.predict(parsed))
            chosen = int(rng.choice(len(probabilities), p=probabilities / probabilities.sum()))
        workspace.finish_example(parsed)
        o = stream.outcome(context, f"m{chosen % 6}/{chosen}/1/1")
        cost = -OBJECTIVE.reward(o.entered, o.score, o.log_cost)
        with _clocked(update):
            lines = [shared, *blocks]
            lines[chosen + 1] = f"0:{cost}:{probabilities[chosen]} " + blocks[chosen]
            parsed = workspace.parse(lines)
            workspace.learn(parsed)
        workspace.finish_example(parsed)
    return _peer("vowpalwabbit", decide, update) | {
        "could_not_express": "the ridge posterior and its width (it descends a gradient and explores by SquareCB); "
        "a reward without its whole list of actions; exact change of objective; corrections that replace"
    }


def river(stream: Stream, rounds: int) -> dict[str, Any]:
    """Time river, with one BayesianLinearRegression over the joint vector, whose predictive deviation is the width."""
    linear = importlib.import_module("river.linear_model")
    model = linear.BayesianLinearRegression(alpha=1.0, beta=1.0)
    actions = stream.matrix()
    decide, update = list[float](), list[float]()
    for context in stream.contexts(max(1, rounds // 200)):
        joint = [dict(enumerate(np.concatenate([context.embedding, a]).tolist())) for a in actions]
        with _clocked(decide):
            model.predict_one(joint[0], with_dist=True)
        o = stream.outcome(context, "m0/0/1/1")
        with _clocked(update):
            model.learn_one(joint[0], OBJECTIVE.reward(o.entered, o.score, o.log_cost))
    # A whole decision takes minutes, so only one action is timed and its time multiplied by |A|.
    return _peer("river", [each * len(actions) for each in decide], update) | {
        "extrapolated": "decide_ms is one action's prediction times |A|",
        "could_not_express": "a shared θ in its LinUCB (its arms are disjoint); delayed or corrected rewards; "
        "objectives per request; propensities",
    }


PEERS: dict[str, Callable[[Stream, int], dict[str, Any]]] = {
    "mabwiser": mabwiser,
    "vowpalwabbit": vowpal_wabbit,
    "river": river,
}


def _peer(name: str, decide: Sequence[float], update: Sequence[float]) -> dict[str, Any]:
    found = importlib.metadata.metadata(name)
    said = next((found[key] for key in ("License-Expression", "License") if key in found), "")
    kinds = [c.rsplit(" :: ", 1)[-1] for c in found.get_all("Classifier") or [] if c.startswith("License")]
    figures = timed(decide, update)
    licence = said or ", ".join(kinds)
    return {"name": name, "version": found["Version"], "licence": licence, "rounds": len(decide)} | figures


def _dense(row: Any) -> str:
    return " ".join(f"{i}:{value:.8g}" for i, value in enumerate(row.tolist()))


WARM = 200
"""Number of outcomes learned before timing, enough to warm every code path and cache, including a flush."""


def policy(stream: Stream) -> LinUCB:
    """Return UniScale's LinUCB over the stream's actions, as the decider runs it."""
    made = LinUCB(FeatureMap(FeatureSettings(stream.half, stream.half)))
    made.offer(stream.action_vectors())
    return made


def single(stream: Stream, rounds: int) -> dict[str, float]:
    """Time `choose` and `learn` one query at a time."""
    learner = policy(stream)
    learner.learn([stream.outcome(c, "m0/0/1/1") for c in stream.contexts(WARM)])
    decide, update = list[float](), list[float]()
    for context in stream.contexts(rounds, WARM):
        with _clocked(decide):
            choice = choose(learner, [context], [OBJECTIVE], 0)[0]
        outcome = stream.outcome(context, choice.action_id)
        with _clocked(update):
            learner.learn([outcome])
    return timed(decide, update)


def naive(stream: Stream, rounds: int) -> dict[str, float]:
    """Time the paper's formulas in plain NumPy: ((X @ Ainv) * X).sum(1) and np.outer."""
    actions, half = stream.matrix(), stream.half
    d = 2 * half
    inverse, b = np.eye(d), np.zeros(d)
    decide, update = list[float](), list[float]()
    for context in stream.contexts(rounds, WARM):
        with _clocked(decide):
            x = np.hstack([np.repeat(context.embedding[None], len(actions), axis=0), actions])
            theta = inverse @ b
            scores = x @ theta + np.sqrt(((x @ inverse) * x).sum(1))
            chosen = int(np.argmax(scores))
        outcome = stream.outcome(context, f"m{chosen % 6}/{chosen}/1/1")
        with _clocked(update):
            row = x[chosen]
            u = inverse @ row
            inverse -= np.outer(u, u) / (1.0 + row @ u)
            b += OBJECTIVE.reward(outcome.entered, outcome.score, outcome.log_cost) * row
    return {f"naive_{key}": value for key, value in timed(decide, update).items()}


def batch(stream: Stream, rounds: int) -> dict[str, float]:
    """Measure decisions and updates per second in batches of 64."""
    learner = policy(stream)
    learner.learn([stream.outcome(c, "m0/0/1/1") for c in stream.contexts(WARM)])
    decide, update = list[float](), list[float]()
    for start in range(0, max(rounds, 128), 64):
        contexts = list(stream.contexts(64, WARM + start))
        with _clocked(decide):
            choices = choose(learner, contexts, [OBJECTIVE] * 64, 0)
        outcomes = [stream.outcome(c, k.action_id) for c, k in zip(contexts, choices, strict=True)]
        with _clocked(update):
            learner.learn(outcomes)
    return {
        "decisions_per_s_batch64": 64 / float(np.median(decide)),
        "updates_per_s_batch64": 64 / float(np.median(update)),
    }


def fold(stream: Stream, rows: int) -> dict[str, float]:
    """Recover a decider from encoded rows, and measure the time, and the memory of the process that has the rows."""
    table = dict(log(stream, rows))
    decider = Decider(LinUCB(FeatureMap(FeatureSettings(stream.half, stream.half))))
    begun = time.perf_counter()
    found = decider.recover(table.items())
    took = time.perf_counter() - begun
    if found.folded.updates != rows:
        raise RuntimeError(f"{found.folded.updates} of {rows} rows were folded")
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        f"fold_{rows}_s": took,
        "resident_mb": int(status["VmRSS"].split()[0]) / 1024,
        "peak_mb": int(status["VmHWM"].split()[0]) / 1024,
    }


def log(stream: Stream, rows: int) -> list[tuple[bytes, bytes]]:
    """Return a decider's table, with rewarded rows and Decisions of realistic size."""
    made: list[tuple[bytes, bytes]] = []
    for position, a in enumerate(stream.action_vectors()):
        vector = a.embedding.astype("<f4").tobytes()
        action = ActionRow(
            action=a.action_id, model=a.model, position=position, anchor=True, embedding=vector
        )
        made.append((action.key, encode_row(action)))
    objective = ObjectiveInForce(
        weights=Weights(correct=0.1, score=0.1, cost=0.8),
        cost_range=CostRange(low=float(np.exp(26.0)), high=float(np.exp(36.0))),
    )
    decision = msgspec.Raw(json.dumps({"group": "default", "rest": "x" * 1200}).encode())
    for i, context in enumerate(stream.contexts(rows)):
        outcome = stream.outcome(context, f"m{i % stream.actions % 6}/{i % stream.actions}/1/1")
        row = Row(
            query_id=context.query_id,
            seq=2 * i,
            clock=i,
            action=outcome.action_id,
            embedding=context.embedding.astype("<f4").tobytes(),
            objective=objective,
            query_origin=Origin(topic="query", partition=0, offset=i),
            context_origin=Origin(topic="context", partition=0, offset=i),
            decision=decision,
            batch=2 * i,
            stage="closed",
            learned_seq=2 * i + 1,
            kinds=("final",),
            reward_offset=i,
            entered=outcome.correct,
            correct=outcome.correct,
            score=outcome.score,
            log_cost=outcome.log_cost,
            imputed=outcome.imputed,
        )
        made.append((context.query_id.encode(), encode_row(row)))
    return made


ROWS: dict[str, Callable[[Stream, int], dict[str, Any]]] = {
    "single": single,
    "naive": naive,
    "batch": batch,
    "fold": fold,
    **PEERS,
}


ACTIONS: Final = 168
HALVES: Final = {"d2048": 1024, "d768": 384}
ACTION_COUNTS: Final = (42, 84, 168, 336, 672, 1344)
DIMENSIONS: Final = (256, 512, 1024, 2048, 4096)
RECOVERED: Final = 10_000
INSTALL: Final = "install it: .venv/bin/pip install --no-deps -r requirements/learner-peers.txt"
PEER_ROUNDS: Final = {"mabwiser": 12, "vowpalwabbit": 40, "river": 200}


def run(out: Path, *, rounds: int = 400, smoke: bool = False) -> int:
    """Measure everything and write JSON; return the process's exit status.

    Args:
        out: The file to write.
        rounds: Number of timed rounds for each row.
        smoke: Whether to use tiny sizes (and one size instead of several) just to check that every row runs.
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
    print(
        f"{out}: decide {result['decide_ms']:.3f} ms, update {result['update_ms']:.3f} ms, "
        f"{result['times_faster']:.0f} times faster than naive"
    )
    return 0


def everything(half: int, rounds: int, recovered: int) -> dict[str, Any]:
    """Return all figures for one embedding dimension."""
    found = _row("single", half, ACTIONS, rounds, threads=1)
    found |= _row("naive", half, ACTIONS, max(4, rounds // 10))
    found |= _row("batch", half, ACTIONS, 640 if rounds > 100 else 128, threads=1)
    found |= _row("fold", half, ACTIONS, recovered, threads=1)
    found |= recovery(half, recovered)
    ours, paper = (found[p + "decide_ms"] + found[p + "update_ms"] for p in ("", "naive_"))
    return {"d": 2 * half, **found, "times_faster": paper / ours}


def recovery(half: int, rows: int) -> dict[str, Any]:
    """Return the time for a recovery from a broker without a snapshot, as measured by `bench closed`."""
    command = f"{sys.executable} -m bench closed {rows} --lived {rows} --half {half}".split()
    environ = {**os.environ, "UNISCALE_SNAPSHOT_EVERY": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    key = f"recover_{rows}_s"
    try:
        found = json.loads(done.stdout.splitlines()[-1])
        return {key: found["read_s"] + found["fold_s"], "recovery": found}
    except (IndexError, KeyError, ValueError):
        return {key: None, "recover_missing": (done.stderr or done.stdout).strip()[-300:]}


def machine() -> dict[str, Any]:
    """Describe the machine."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    load, *_ = os.getloadavg()
    return {
        "cpu": cpu[0].split(":", 1)[1].strip() if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": load,
    }


def _row(name: str, half: int, actions: int, rounds: int, threads: int | None = None) -> dict[str, Any]:
    """Run one row in its own process. If a peer's row fails, return the reason instead of figures.

    Raises:
        RuntimeError: one of the learner's rows failed.
    """
    wanted = str(threads or os.cpu_count() or 1)
    environment = {**os.environ, "OMP_NUM_THREADS": wanted, "OPENBLAS_NUM_THREADS": wanted}
    asked = json.dumps({"half": half, "actions": actions, "rounds": rounds})
    command = [sys.executable, "-m", "bench", "learner", "--row", name, asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        if name in PEER_ROUNDS:
            print(f"{name} was not measured: {why[0]}; {INSTALL}", file=sys.stderr)
            return {"name": name, "missing": why[0], "mend": INSTALL}
        raise RuntimeError(f"row {name}: {why[0]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str, asked: str) -> dict[str, Any]:
    """Run one row in this process and return its figures.

    Args:
        name: One of `ROWS`.
        asked: The sizes `half`, `actions` and `rounds`, as JSON.
    """
    sizes = json.loads(asked)
    return ROWS[name](Stream(sizes["half"], sizes["actions"]), sizes["rounds"])
