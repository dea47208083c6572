"""The learner's rows: each is timed in a process of its own, `python -m experiments.bench.rows ROW JSON`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from agents.decider.agent import Decider
from agents.decider.features import FeatureMap, FeatureSettings
from agents.decider.log.offers import ActionRow
from agents.decider.log.rows import Row, encode_row
from agents.decider.policies.linear.linucb import LinUCB
from experiments.bench import peers
from experiments.bench.stream import OBJECTIVE, Stream
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Origin

WARM = 200
"""Rows learned before timing: enough for every code path and cache to have been through a flush."""


def policy(stream: Stream) -> LinUCB:
    """Return UniScale's LinUCB over the stream's actions, as the decider runs it."""
    made = LinUCB(FeatureMap(FeatureSettings(stream.half, stream.half)))
    made.add_actions(stream.action_vectors())
    return made


def single(stream: Stream, rounds: int) -> dict[str, float]:
    """Time `select` and `update` one query at a time."""
    learner = policy(stream)
    learner.update([stream.outcome(c, "m0/0/1/1") for c in stream.contexts(WARM)])
    decide, update = [], []
    for context in stream.contexts(rounds, WARM):
        begun = time.perf_counter()
        choice = learner.select([context], [OBJECTIVE], 0)[0]
        decide.append(time.perf_counter() - begun)
        outcome = stream.outcome(context, choice.action_id)
        begun = time.perf_counter()
        learner.update([outcome])
        update.append(time.perf_counter() - begun)
    return peers.timed(decide, update)


def naive(stream: Stream, rounds: int) -> dict[str, float]:
    """Time the paper's form as numpy writes it: ((X @ Ainv) * X).sum(1) and np.outer."""
    actions, half = stream.matrix(), stream.half
    d = 2 * half
    inverse, b = np.eye(d), np.zeros(d)
    decide, update = [], []
    for context in stream.contexts(rounds, WARM):
        begun = time.perf_counter()
        x = np.hstack([np.repeat(context.embedding[None], len(actions), axis=0), actions])
        theta = inverse @ b
        scores = x @ theta + np.sqrt(((x @ inverse) * x).sum(1))
        chosen = int(np.argmax(scores))
        decide.append(time.perf_counter() - begun)
        outcome = stream.outcome(context, f"m{chosen % 6}/{chosen}/1/1")
        begun = time.perf_counter()
        row = x[chosen]
        u = inverse @ row
        inverse -= np.outer(u, u) / (1.0 + row @ u)
        b += OBJECTIVE.reward(outcome.entered, outcome.score, outcome.log_cost) * row
        update.append(time.perf_counter() - begun)
    return {f"naive_{key}": value for key, value in peers.timed(decide, update).items()}


def batch(stream: Stream, rounds: int) -> dict[str, float]:
    """Count decisions and updates a second in batches of 64."""
    learner = policy(stream)
    learner.update([stream.outcome(c, "m0/0/1/1") for c in stream.contexts(WARM)])
    decide, update = [], []
    for start in range(0, max(rounds, 128), 64):
        contexts = list(stream.contexts(64, WARM + start))
        begun = time.perf_counter()
        choices = learner.select(contexts, [OBJECTIVE] * 64, 0)
        decide.append(time.perf_counter() - begun)
        outcomes = [stream.outcome(c, k.action_id) for c, k in zip(contexts, choices, strict=True)]
        begun = time.perf_counter()
        learner.update(outcomes)
        update.append(time.perf_counter() - begun)
    return {
        "decisions_per_s_batch64": 64 / float(np.median(decide)),
        "updates_per_s_batch64": 64 / float(np.median(update)),
    }


def fold(stream: Stream, rows: int) -> dict[str, float]:
    """Recover a decider from rows as bytes, and weigh the process that holds them all."""
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
    """Return a decider's table of rewarded rows, with Decisions of the size real ones have."""
    made: list[tuple[bytes, bytes]] = []
    for position, a in enumerate(stream.action_vectors()):
        vector = a.embedding.astype("<f4").tobytes()
        action = ActionRow(
            action=a.action_id, model=a.model, position=position, anchor=True, embedding=vector
        )
        made.append((action.key, encode_row(action)))
    objective = ObjectiveInForce(
        weights=Weights(correct=0.1, score=0.1, cost=0.8),
        cost_range=CostRange(low_eflops=float(np.exp(26.0)), high_eflops=float(np.exp(36.0))),
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
    **peers.PEERS,
}


def main(argv: list[str]) -> None:
    """Run one row and print its JSON on the last line."""
    asked = json.loads(argv[1])
    stream = Stream(asked["half"], asked["actions"])
    print(json.dumps(ROWS[argv[0]](stream, asked["rounds"])))


if __name__ == "__main__":
    main(sys.argv[1:])
