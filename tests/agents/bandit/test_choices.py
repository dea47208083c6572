"""The paper's policies choose as at commit 93c1e06: the same actions, with the same scores.

`choices-93c1e06.jsonl.zst` was written once, names no class of ours, and is never written again. Line 1 says with which
numerics, policies and objectives. Then come events in their order, the same for every run: actions added or removed,
queries decided together, rewards learned, corrected or given up (late, out of order, some never). Then come the
decisions of every run in their order, each with the outcome of the action it chose; `provisional` says that Correct was
not known when the reward was learned, so `imputed` took its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from threadpoolctl import threadpool_limits

from agents.bandit.learner import choose
from agents.bandit.policy import ActionVector, Choice, Context, Objective, Observation, Pending
from agents.bandit.registry import build_policy

FILE = Path(__file__).parents[2] / "golden" / "choices-93c1e06.jsonl.zst"
RUNS = (
    "linucb-terms", "linucb-scalar", "linucb-paper", "linucb-decided", "greedy", "thompson", "knn", "random",
    "sliding-window", "discounted",
)  # fmt: skip
FLOATS = ("mean", "width", "score", "propensity", "predicted")

Event = Mapping[str, Any]


@cache
def golden() -> tuple[dict[str, Any], list[Event], dict[str, list[dict[str, Any]]]]:
    """Return what the file says of itself, its events, and the decisions by run."""
    plain = zstandard.ZstdDecompressor().decompress(FILE.read_bytes())
    about, *rest = map(json.loads, plain.splitlines())
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in rest:
        if "run" in line:
            runs.setdefault(line["run"], []).append(line)
    return about, [line for line in rest if "event" in line], runs


def replayed(run: str) -> Iterator[tuple[Choice, dict[str, Any]]]:
    """Yield each choice that the present policy makes, with the golden decision; the policy learns what is golden."""
    about, events, runs = golden()
    of = about["runs"][run]
    policy = build_policy(
        of["policy"], of["options"], query_dim=about["query_dim"], action_dim=about["action_dim"]
    )
    rows = {row["id"]: row for row in runs[run]}
    clock = {row["id"]: at for at, row in enumerate(runs[run])}
    objectives = {name: Objective(**weights) for name, weights in about["objectives"].items()}
    asked = {query["id"]: query for event in events for query in event.get("queries", ())}
    vectors = {name: np.array(query["vector"]) for name, query in asked.items()}

    def pending(name: str) -> Pending:
        return Pending(name, vectors[name], rows[name]["action"])

    def observed(name: str, corrected: bool) -> Observation:
        outcome = rows[name]["outcome"]
        correct = None if outcome["provisional"] and not corrected else outcome["correct"]
        terms = correct, outcome["score"], outcome["log_cost"], outcome["imputed"]
        objective = objectives[asked[name]["objective"]]
        return Observation(name, vectors[name], rows[name]["action"], *terms, objective, clock[name])

    on_offer: dict[str, ActionVector] = {}
    for event in events:
        match event:
            case {"event": "add", "actions": actions}:
                on_offer |= {
                    a["id"]: ActionVector(a["id"], a["model"], np.array(a["vector"])) for a in actions
                }
                policy.offer(list(on_offer.values()))
            case {"event": "remove", "ids": ids}:
                on_offer = {name: action for name, action in on_offer.items() if name not in ids}
                policy.offer(list(on_offer.values()))
            case {"event": "abandon", "ids": ids}:
                policy.decided([replace(pending(name), abandoned=True) for name in ids])
            case {"event": "learn", "ids": ids}:
                policy.learn([observed(name, corrected=False) for name in ids])
            case {"event": "correct", "ids": ids}:
                policy.learn([replace(observed(name, corrected=True), kind="correction") for name in ids])
            case {"event": "decide", "queries": queries}:
                # As the decider does: one at a time where a decision changes the next one.
                step = 1 if policy.traits.counts_decisions else len(queries)
                for at in range(0, len(queries), step):
                    part = queries[at : at + step]
                    contexts = [
                        Context(q["id"], vectors[q["id"]], q["allowed"] and frozenset(q["allowed"]))
                        for q in part
                    ]
                    choices = choose(
                        policy, contexts, [objectives[q["objective"]] for q in part], about["seed"]
                    )
                    policy.decided([pending(q["id"]) for q in part])
                    yield from ((choice, rows[choice.query_id]) for choice in choices)
            case _:
                raise AssertionError(event)
    assert policy.version == of["version"]


def test_the_file_has_every_run_with_two_thousand_decisions() -> None:
    about, events, runs = golden()
    assert {run: len(rows) for run, rows in runs.items()} == dict.fromkeys(RUNS, 2_000)
    assert tuple(about["runs"]) == RUNS
    assert {event["event"] for event in events} == {"add", "remove", "decide", "learn", "correct", "abandon"}


@pytest.mark.parametrize("run", RUNS)
def test_the_papers_policies_choose_as_they_did(run: str) -> None:
    with threadpool_limits(1):
        for choice, row in replayed(run):
            where = f"{run} {row['id']}"
            assert (choice.action_id, choice.reason, choice.version) == (
                row["action"], row["reason"], row["version"],
            ), where  # fmt: skip
            for name in FLOATS:
                mine, theirs = getattr(choice, name), row[name]
                assert (mine is None) == (theirs is None), (where, name)
                if theirs is None:
                    continue
                one, two = np.atleast_1d(mine), np.atleast_1d(theirs)
                # Each processor sums in an order of its own. No two unequal scores of the file are closer than 1e-7.
                close = np.abs(one - two) <= 1e-9 * np.maximum(1.0, np.abs(two))
                assert close.all(), (where, name, mine, theirs)
