"""One tenant never pays for another: what a tenant asks changes neither the prices of others nor their accounts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from agents.bandit import pacing
from agents.bandit.contextual import Contextual
from agents.bandit.learner import choose
from agents.bandit.pacing import FEW, RecentContexts
from agents.bandit.policy import Context, Objective, Observation, Pending, Target
from tests.support.traffic import Traffic, actions, contextual

TARGET = 0.9


def of_kind(traffic: Traffic, hard: bool) -> tuple[str, np.ndarray]:
    """Return a question whose answer the small model knows, or one of those that take the large one."""
    while True:
        query_id, query, found = traffic.question()
        if found == hard:
            return query_id, query


def experienced() -> Contextual:
    """Return a policy that knows what each action is worth, as one with a prior does, and no tenant yet."""
    policy, traffic = contextual(refits=()), Traffic(3)
    policy.offer(actions())
    for at in range(600):
        query_id, query, hard = traffic.question()
        action = policy.features.ids[at % 9]
        correct, log_cost = traffic.outcome(action, hard)
        policy.learn(
            [
                Observation(
                    query_id, query, action, correct, correct, log_cost, correct, Objective(1, 0, 0, 0, 30)
                )
            ]
        )
    return policy


def served(policy: Contextual, query_id: str, query: np.ndarray, target: Target) -> str:
    objective = Objective(1, 0, 0, 0, 30, policy.pacer.shadow_price(target))
    (choice,) = choose(policy, [Context(query_id, query)], [objective], 1)
    policy.decided([Pending(query_id, query, choice.action_id, target, target.tenant)])
    return choice.action_id


def cost(action: str) -> float:
    model, qp, *_ = action.split("/")
    return {"small": 1.0, "middle": 10.0, "large": 100.0}[model] * int(qp)


def bill(rounds: int, *, hostile: bool, settled: int = 0) -> list[tuple[str, float]]:
    """Return the choices and prices of five tenants, beside a sixth that asks hard questions if it is `hostile`.

    One question in five is hard otherwise. Nothing is learned, so that prices and accounts alone can carry anything
    from one tenant to another.

    Args:
        rounds: Questions of the five.
        hostile: Whether the sixth asks as often as all of them together, and for targets of its own half of the time.
        settled: Questions of each of the five before it begins.
    """
    policy, asked, hard, found = experienced(), Traffic(5), Traffic(7), []
    for at in range(rounds):
        target = Target("careful", accuracy=TARGET, tenant=f"shop{at % 5}")
        query_id, query = of_kind(asked, hard=at % 25 < 5)
        action = served(policy, query_id, query, target)
        policy.decided([Pending(query_id, query, action, target, target.tenant, abandoned=True)])
        found.append((action, policy.pacer.shadow_price(target)))
        if hostile and at >= 5 * settled:
            own = Target(f"/mean_cost={at}", mean_cost=1e9 * (at + 1), tenant="evil")
            query_id, query = of_kind(hard, hard=True)
            same = Target("careful", accuracy=TARGET, tenant="evil")
            served(policy, f"evil-{query_id}", query, own if at % 2 else same)
    return found


def mean_cost(found: list[tuple[str, float]]) -> float:
    return float(np.mean([cost(action) for action, _ in found]))


def test_who_has_asked_enough_is_served_to_the_bit_as_if_alone() -> None:
    alone, beside = (bill(5 * FEW + 150, hostile=h, settled=FEW) for h in (False, True))
    assert beside == alone


def test_hostile_tenant_barely_changes_newcomers_costs() -> None:
    alone, beside = (mean_cost(bill(300, hostile=h)) for h in (False, True))
    assert beside == pytest.approx(alone, rel=0.05)


def test_with_one_window_for_everybody_they_would_pay_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same world without what isolates: the tests above can fail."""
    add = RecentContexts.add
    monkeypatch.setattr(RecentContexts, "add", lambda self, tenant, context: add(self, "", context))
    monkeypatch.setattr(pacing, "FEW", pacing.WINDOW)
    alone, beside = (mean_cost(bill(300, hostile=h)) for h in (False, True))
    assert beside > 1.1 * alone


def recent(**of: int) -> RecentContexts:
    """Return contexts, each with the place of its tenant in it, newest last."""
    made = RecentContexts()
    for name, count in of.items():
        for at in range(count):
            made.add(name, np.array([ord(name), at]))
    return made


def test_newcomer_borrows_recent_contexts_of_others_equally() -> None:
    window = recent(a=300, b=200, c=3, n=2).window("n")
    assert Counter(chr(int(z[0])) for z in window) == {"a": 2, "b": 2, "c": 2, "n": 2}
    assert [int(z[1]) for z in window if chr(int(z[0])) == "a"] == [298, 299]
    assert Counter(chr(int(z[0])) for z in recent(a=300, n=FEW).window("n")) == {"n": FEW}
    assert len(recent(a=300, b=300).window("x")) == FEW
    assert len(recent(**{name: 2 for name in "abcdefghijklmno"}).window("x")) == FEW


def test_a_prior_is_nobodys_and_leaves_nothing_to_borrow() -> None:
    made = recent(a=30)
    prior = [(None, np.array([0.0, at])) for at in range(600)]
    made.replace([*prior, ("a", np.array([97.0, 0.0]))])
    spread = [at * 600 // 500 for at in range(500)]  # a table may be sorted
    assert [z[1] for z in made.window("new")] == spread
    assert [z[1] for z in made.window("a")] == [*spread[1:], 0]


def test_contexts_are_bounded_and_who_has_the_most_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "KEPT", 100)
    made = recent(a=20, b=20, e=300)
    assert {name: len(own) for name, own in made.of.items()} == {"a": 20, "b": 20, "e": 60}
    counts, arrays = made.snapshot()
    other = recent()
    other.restore(counts, arrays)
    for name in ("a", "b", "e", "x"):
        assert np.array_equal(other.window(name), made.window(name))
    other.add("e", np.zeros(2))
    assert sum(len(own) for own in other.of.values()) == 100


def test_tenant_without_contexts_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "KEPT", 5)
    made = recent(**{name: 1 for name in "abcdefgh"})
    assert list(made.of) == list("defgh")
    counts, arrays = made.snapshot()
    other = recent()
    other.restore(counts, arrays)
    assert np.array_equal(other.window("x"), made.window("x"))


def test_tenants_and_their_contexts_come_back_after_a_refit() -> None:
    """A policy without a prior learns anew from its own outcomes: each tenant has its own questions again."""
    policy, traffic = contextual(refits=(40,)), Traffic()
    policy.offer(actions())
    for at in range(40):
        query_id, query, hard = traffic.question()
        action, tenant = policy.features.ids[at % 9], "abb"[at % 3]
        policy.decided([Pending(query_id, query, action, tenant=tenant)])
        correct, log_cost = traffic.outcome(action, hard)
        objective = Objective(1, 0, 0, 0, 30)
        if at == 38:
            other = contextual(refits=())
            other.load(policy.state())
            assert other.state() == policy.state()
        policy.learn(
            [Observation(query_id, query, action, correct, 0.5, log_cost, 0.5, objective, tenant=tenant)]
        )
    assert {name: len(own) for name, own in policy.pacer.recent.of.items()} == {"a": 14, "b": 26}
    assert not policy.pacer.recent.prior
