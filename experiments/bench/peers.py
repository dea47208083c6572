"""Public libraries on the same stream.

Only the benchmark needs them: `make bench-learner` installs requirements/learner-peers.txt.

Each does the nearest thing it can to LinUCB with one θ over [s_q; s_a]; `could_not_express` says where it differs.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.bench.stream import OBJECTIVE, Stream


def timed(decide: Sequence[float], update: Sequence[float]) -> dict[str, float]:
    """Return medians and 99th percentiles in ms."""
    return {
        "decide_ms": float(np.median(decide)) * 1e3,
        "update_ms": float(np.median(update)) * 1e3,
        "decide_p99_ms": float(np.percentile(decide, 99)) * 1e3,
        "update_p99_ms": float(np.percentile(update, 99)) * 1e3,
    }


def mabwiser(stream: Stream, rounds: int) -> dict[str, Any]:
    """Time MABWiser: one arm, asked for its expectation on 168 joint rows, is LinUCB with a shared θ."""
    warnings.simplefilter("ignore")
    lib = importlib.import_module("mabwiser.mab")
    mab = lib.MAB([0], lib.LearningPolicy.LinUCB(alpha=1.0, l2_lambda=1.0))
    actions, first = stream.matrix(), True
    decide, update = [], []
    for context in stream.contexts(rounds):
        begun = time.perf_counter()
        x = np.hstack([np.repeat(context.embedding[None], len(actions), axis=0), actions])
        chosen = 0 if first else int(np.argmax([row[0] for row in mab.predict_expectations(x)]))
        decide.append(time.perf_counter() - begun)
        o = stream.outcome(context, f"m{chosen % 6}/{chosen}/1/1")
        reward = np.array([OBJECTIVE.reward(o.entered, o.score, o.log_cost)])
        begun = time.perf_counter()
        (mab.fit if first else mab.partial_fit)(np.array([0]), reward, x[chosen : chosen + 1])
        update.append(time.perf_counter() - begun)
        first = False
    return _peer("mabwiser", decide[1:], update[1:]) | {
        "could_not_express": "a shared θ but by the trick of one arm; incremental updates (it inverts A again); "
        "objectives per request; delayed or corrected rewards; propensities; a state that recovers"
    }


def vowpal_wabbit(stream: Stream, rounds: int) -> dict[str, Any]:
    """Time VowpalWabbit: cb_explore_adf with SquareCB over dense features of query and action."""
    vw = importlib.import_module("vowpalwabbit")
    workspace = vw.Workspace("--cb_explore_adf --squarecb --cb_type mtr --quiet -b 18")
    blocks = ["|a " + _dense(row) for row in stream.matrix()]
    rng = np.random.default_rng(0)
    decide, update = [], []
    for context in stream.contexts(rounds):
        begun = time.perf_counter()
        shared = "shared |q " + _dense(context.embedding)
        parsed = workspace.parse([shared, *blocks])
        probabilities = np.asarray(workspace.predict(parsed))
        chosen = int(rng.choice(len(probabilities), p=probabilities / probabilities.sum()))
        decide.append(time.perf_counter() - begun)
        workspace.finish_example(parsed)
        o = stream.outcome(context, f"m{chosen % 6}/{chosen}/1/1")
        cost = -OBJECTIVE.reward(o.entered, o.score, o.log_cost)
        begun = time.perf_counter()
        lines = [shared, *blocks]
        lines[chosen + 1] = f"0:{cost}:{probabilities[chosen]} " + blocks[chosen]
        parsed = workspace.parse(lines)
        workspace.learn(parsed)
        update.append(time.perf_counter() - begun)
        workspace.finish_example(parsed)
    return _peer("vowpalwabbit", decide, update) | {
        "could_not_express": "the ridge posterior and its width (it descends a gradient and explores by SquareCB); "
        "a reward without its whole list of actions; exact change of objective; corrections that replace"
    }


def river(stream: Stream, rounds: int) -> dict[str, Any]:
    """Time river: one BayesianLinearRegression over the joint vector, its predictive deviation as width."""
    linear = importlib.import_module("river.linear_model")
    model = linear.BayesianLinearRegression(alpha=1.0, beta=1.0)
    actions = stream.matrix()
    decide, update = [], []
    for context in stream.contexts(max(1, rounds // 200)):
        joint = [dict(enumerate(np.concatenate([context.embedding, a]).tolist())) for a in actions]
        begun = time.perf_counter()
        # One action is timed and counted |A| times: a whole decision takes minutes.
        model.predict_one(joint[0], with_dist=True)
        decide.append((time.perf_counter() - begun) * len(actions))
        o = stream.outcome(context, "m0/0/1/1")
        begun = time.perf_counter()
        model.learn_one(joint[0], OBJECTIVE.reward(o.entered, o.score, o.log_cost))
        update.append(time.perf_counter() - begun)
    return _peer("river", decide, update) | {
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
