"""Who teaches how much: of several tenants, one with more than half teaches less; and a recovery finds the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.bandit.contextual import Contextual
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.features import FeatureMap, FeatureSettings
from agents.bandit.linucb import LinUCB
from agents.bandit.policy import Context, Target
from agents.decider import shares
from agents.decider.shares import TeachingShares
from tests.support.shard import MakePolicy, Shard
from tests.support.worlds import QUALITY


def test_one_tenant_alone_is_not_held_back() -> None:
    alone = TeachingShares(prior=3)
    for _ in range(2 * shares.WINDOW):
        assert alone.weight("a") == 1
        alone.add("a", 1)


@given(st.integers(0, 30), st.text("abc", max_size=200), st.integers(2, 60))
def test_a_tenant_with_more_than_half_of_the_window_is_thinned(prior: int, taught: str, window: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "WINDOW", window)
        watched = TeachingShares(prior)
        last = [("", 1)] * min(prior, window)
        for tenant in taught:
            weight = watched.weight(tenant)
            alone = {each for each, _ in last} <= {"", tenant}
            watched.add(tenant, weight)
            last = [*last, (tenant, weight)][-window:]
            held = Counter({each: sum(w for of, w in last if of == each) for each, _ in last})
            of_tenant = [w for of, w in last if of == tenant][-shares.THINNED :]
            if alone:
                assert weight == 1
            elif weight and sum(of_tenant) > 1:
                # Half, this outcome, and one of another's that has left the window.
                assert 2 * held[tenant] <= held.total() + 2
            else:
                assert any(of_tenant) or len(of_tenant) < shares.THINNED, "no tenant is silenced"
        assert TeachingShares.of(watched.window()).window() == watched.window()


def teaching(watched: TeachingShares, tenants: str) -> str:
    """Add an outcome for each tenant; return the weights."""
    weights = []
    for tenant in tenants:
        weights.append(watched.weight(tenant.strip()))
        watched.add(tenant.strip(), weights[-1])
    return "".join(map(str, weights))


def test_a_stray_outcome_of_another_does_not_end_learning() -> None:
    watched = TeachingShares()
    teaching(watched, "a" * 3000 + "b")
    assert teaching(watched, "a" * 12) == "000100010001"
    resumed = TeachingShares.of(watched.window())
    assert teaching(resumed, "a" * 6) == teaching(watched, "a" * 6) == "000100"


def test_outcomes_without_a_tenant_hold_nobody_back() -> None:
    watched = TeachingShares()
    assert teaching(watched, " " * 20 + "a" * 300 + " " * 40) == "1" * 360, "tried out first, then with a key"
    assert teaching(watched, "b" + "a" * 8) == "1" + "0001" * 2, "now there are two"


OUTCOMES: list[tuple[Any, dict[str, Any], float | None]] = [
    ("final", {"correct": 1.0}, 1.0),
    ("default", {}, None),
    ("default", {"bounded": True}, None),
    ("default", {"score": None, "status": "cancelled"}, None),
]
"""Rewards, and what its own tenant's account takes for correctness: nothing where nobody graded it."""


def taught(shard: Shard, tenants: str, **reward: Any) -> list[str]:
    """Ask and answer once for each tenant; return what the learner made of the rewards."""
    verdicts: list[str] = []
    for tenant in tenants:
        [decided] = shard.ask(shard.context(tenant=tenant))
        verdicts.append(shard.tell(shard.reward(decided, **reward))[0].verdict)
    return verdicts


def known(shard: Shard) -> Any:
    """Return what is predicted of every action, terms and widths."""
    policy = shard.decider.policy
    dim = 21 if policy.traits.surface else 12
    scores = policy.predict([Context("probe", np.full(dim, dim**-0.5))], [QUALITY], 1)[0]
    return np.array([scores.mean, scores.width]).tolist()


def contextual(_: FeatureMap) -> Contextual:
    return Contextual(ContextualFeatures(FeatureSettings(21, 10, query_rank=11)))


@pytest.mark.parametrize("policy", [contextual, LinUCB])
def test_a_tenant_that_taught_as_much_as_others_is_thinned(policy: MakePolicy) -> None:
    shard = Shard(policy)
    assert taught(shard, "h" * 20) == ["learned"] * 20
    hostile = taught(shard, "e" * 49, correct=0.0)
    assert Counter(hostile) == {"learned": 21 + 7, "abandoned": 21}
    assert hostile[-1] == "learned"
    before = known(shard)
    taught(shard, "e" * (shares.THINNED - 1), correct=0.0, log_cost=20.0)
    assert known(shard) == before, "of the others nothing is learned, not even what they cost"
    assert taught(shard, "h") == ["learned"]


@pytest.mark.parametrize("policy", [contextual, LinUCB])
def test_unlearned_reward_changes_only_its_tenants_account(policy: MakePolicy) -> None:
    shard = Shard(policy, seed=2)
    taught(shard, "h" * 20)
    before, targets = known(shard), {"accuracy": 0.9} if policy is contextual else {}
    for at, (kind, told, entered) in enumerate(OUTCOMES):
        [decided] = shard.ask(shard.context(f"e{at}", tenant="e", learn=False, **targets))
        reward = shard.reward(decided, kind, learn=False, **{"score": 0.25, "log_cost": 20.0, **told})
        [one] = shard.tell(reward)
        assert one.verdict == "abandoned"
        [again] = shard.tell(reward)
        assert again.verdict == "duplicate", "what is not kept contradicts nothing"
        assert known(shard) == before
        row = shard.entry(f"e{at}")
        assert (row.paid, row.entered) == (pytest.approx(np.exp(20.0)), entered)
    assert taught(shard, "e") == ["learned"], "none of it counts in the shares"
    live = shard.decider
    if policy is contextual:
        target = Target.of(row.objective, "e")
        assert target is not None
        account = live.policy.pacer.status(target)
        assert account is not None
        assert account.mean_cost == pytest.approx(np.exp(20.0))
        assert account.correct == 1.0, "of the others, nobody knows"
    shard.crash()
    shard.same_as(live)
    assert shard.decider.policy.pacer.status(target) == account if policy is contextual else True


def test_answers_that_their_client_cut_count_in_the_shares() -> None:
    """Their cost is learned, so they count as others do."""
    shard = Shard(contextual)
    taught(shard, "h" * 5)
    cut = taught(shard, "e" * 10, kind="default", bounded=True)
    assert Counter(cut) == {"priced": 7, "abandoned": 3}
    live = shard.decider
    shard.crash()
    assert shard.decider.shares.window() == live.shares.window()
    shard.same_as(live)


def test_a_recovery_finds_the_weights_of_the_live_run() -> None:
    rng = np.random.default_rng(5)
    live = Shard(LinUCB, seed=3)
    for at in range(12):
        taught(live, "".join(rng.choice(list("aaaaab"), 20)))
        if at % 4 == 2:
            live.apply(live.snapshot())
        before = live.decider
        live.crash()
        assert live.decider.shares.window() == before.shares.window()
        live.same_as(before)
    counted = Counter((row.tenant, row.weight) for row in (live.entry(f"q{at}") for at in range(230, 240)))
    assert set(counted) == {("a", 0), ("a", 1), ("b", 1)}
