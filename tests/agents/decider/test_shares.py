"""Who teaches how much: of several tenants none more than half, and a recovery finds the same."""

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
from agents.decider import shares
from agents.decider.shares import TeachingShares
from tests.support.shard import Shard


def test_one_tenant_alone_is_not_held_back() -> None:
    alone = TeachingShares(prior=3)
    for _ in range(2 * shares.WINDOW):
        assert alone.weight("a") == 1
        alone.add("a", 1)


@given(st.integers(0, 30), st.text("abc", max_size=200), st.integers(2, 60))
def test_none_of_several_tenants_gets_beyond_half_of_the_window(prior: int, taught: str, window: int) -> None:
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
            if alone:
                assert weight == 1
            elif weight:
                # Half, this outcome, and one of another's that has left the window.
                assert 2 * held[tenant] <= held.total() + 2
        assert TeachingShares.of(watched.window()).window() == watched.window()


def taught(shard: Shard, tenants: str, **reward: Any) -> list[str]:
    """Ask and answer once for each tenant; return what the learner made of the rewards."""
    verdicts = []
    for tenant in tenants:
        [decided] = shard.ask(shard.context(tenant=tenant))
        verdicts.append(shard.tell(shard.reward(decided, **reward))[0].verdict)
    return verdicts


def contextual(_: FeatureMap) -> Contextual:
    return Contextual(ContextualFeatures(FeatureSettings(21, 10, query_rank=11)))


@pytest.mark.parametrize("policy", [contextual, LinUCB])
def test_a_hostile_tenant_teaches_no_more_than_the_others_together(policy: Any) -> None:
    shard = Shard(policy)
    assert taught(shard, "h" * 20) == ["learned"] * 20
    hostile = taught(shard, "e" * 50, correct=0.0)
    assert Counter(hostile) == {"learned": 21, "priced": 29}
    before = shard.decider.policy.version
    taught(shard, "e" * 20, correct=0.0)
    assert shard.decider.policy.version == before, "nothing more was learned of it"
    assert taught(shard, "h") == ["learned"]


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
