"""Efforts of one model: what they have in common is learned from each of them, and each differs as it does."""

import numpy as np
import pytest

from agents.bandit.contextual import CORRECT, COST, Contextual
from agents.bandit.policy import ActionVector, Context
from agents.decider.rows import ActionRow, decode_row, encode_row
from tests.support.traffic import Traffic, contextual, learn

MODELS = ("plain", "x.low", "x.high")


def offered(base: str = "x") -> Contextual:
    """Return a policy with a plain model and two efforts, which have nothing in common without a base."""
    policy = contextual(refits=())
    policy.offer(
        [
            ActionVector(f"{name}/1/1/1", name, np.eye(1, 4)[0], 0.0, base if name != "plain" else "")
            for name in MODELS
        ]
    )
    return policy


def taught(policy: Contextual, model: str, correct: float, rounds: int, cost: float = 1.0) -> None:
    traffic = Traffic(rounds)
    for at in range(rounds):
        query_id, query, _ = traffic.question()
        learn(policy, Context(f"{model}{at}{query_id}", query), f"{model}/1/1/1", (correct, np.log(cost)))


def predicted(policy: Contextual, term: int) -> dict[str, float]:
    _, query, _ = Traffic(1).question()
    return dict(
        zip(
            policy.features.models,
            policy.estimates.predicted(policy.features.short(query))[:, term],
            strict=True,
        )
    )


def test_efforts_share_an_indicator_and_have_their_own() -> None:
    usual = ["one", "size", "model plain"]
    assert offered().features.names == [*usual, "model x", "effort x.low", "effort x.high"]
    assert offered("").features.names == [*usual, "model x.low", "model x.high"]


def test_an_effort_learns_from_the_other() -> None:
    shared, apart = offered(), offered("")
    for policy in (shared, apart):
        taught(policy, "plain", 1.0, 60)
        taught(policy, "x.low", 0.0, 60)
    of_shared, of_apart = predicted(shared, CORRECT), predicted(apart, CORRECT)
    assert of_shared["x.low"] == pytest.approx(of_apart["x.low"], abs=0.05)
    assert of_shared["x.low"] < of_shared["x.high"] < of_apart["x.high"] - 0.1


def test_efforts_come_apart_by_their_own_outcomes() -> None:
    policy = offered()
    taught(policy, "plain", 0.0, 60, cost=2.0)
    taught(policy, "x.low", 0.0, 60)
    taught(policy, "x.high", 1.0, 60, cost=4.0)
    right, cost = predicted(policy, CORRECT), predicted(policy, COST)
    assert right["x.high"] > 0.8 > 0.2 > right["x.low"]
    assert cost["x.high"] > 2 * cost["x.low"]


def test_efforts_survive_a_restart_and_the_log() -> None:
    policy, other = offered(), contextual(refits=())
    taught(policy, "x.low", 1.0, 20)
    other.load(policy.state())
    assert other.features.names == policy.features.names
    for each in (policy, other):
        taught(each, "x.high", 0.0, 20)
        each.estimates.accuracy.sums = {}
        each.estimates._loosen("x.high")
    assert other.state() == policy.state()
    action = ActionVector("x.low/1/1/1", "x.low", np.eye(1, 4)[0], 0.0, "x")
    row = ActionRow.of(action, 0, anchor=True)
    read = decode_row(row.key, encode_row(row))
    assert isinstance(read, ActionRow)
    assert read.vector().base == "x"


def test_effort_that_comes_later_joins_its_model() -> None:
    policy, known = contextual(refits=()), offered()
    vectors = [
        ActionVector(action_id, model, np.eye(1, 4)[0], 0.0, base)
        for action_id, model, base in zip(
            known.features.ids, known.features.models, known.features.bases, strict=True
        )
    ]
    policy.offer(vectors[:2])
    taught(policy, "plain", 1.0, 60)
    taught(policy, "x.low", 0.0, 60)
    policy.offer(vectors)
    for each, rounds in (("plain", 1.0), ("x.low", 0.0)):
        taught(known, each, rounds, 60)
    assert policy.features.names == known.features.names
    assert predicted(policy, CORRECT) == pytest.approx(predicted(known, CORRECT))
