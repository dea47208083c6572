"""Rewards that wait for feedback are bounded: who has most open pays, and restarts and redelivery change nothing."""

import asyncio
from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Feedback, Reward
from streams.log.memory import Effect
from streams.runtime.memory_cluster import Cluster
from streams.services.open_rewards import OpenRewards
from tests.support.cluster import Ask, Audit, InMemory, running, send

MONTH_S = 30 * 24 * 3600.0

REWARDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=60)


@given(REWARDS, st.integers(1, 20), st.integers(1, 20), st.randoms(use_true_random=False))
def test_largest_accounts_oldest_reward_goes_in_any_order(
    opened: list[tuple[str, int]], most: int, most_each: int, rng: object
) -> None:
    rewards = [(account, at_ms, f"q{n}") for n, (account, at_ms) in enumerate(opened)]

    def beyond(order: list[tuple[str, int, str]]) -> list[str]:
        bounded = OpenRewards(most, most_each)
        for each in order:
            bounded.add(*each)
        found = list(bounded.beyond())
        assert len(bounded) == len(order) - len(found) <= most
        return found

    gone = beyond(rewards)
    shuffled = list(rewards)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert beyond(shuffled) == gone
    left: dict[str, list[tuple[int, str]]] = {}
    for account, at_ms, query_id in sorted(rewards, key=lambda each: each[1:]):
        left.setdefault(account, []).append((at_ms, query_id))
    owners = {query_id: account for account, _, query_id in rewards}
    for query_id in gone:
        sizes = {account: len(each) for account, each in left.items()}
        assert sum(sizes.values()) > most or max(sizes.values()) > most_each
        assert sizes[owners[query_id]] == max(sizes.values())
        assert left[owners[query_id]].pop(0)[1] == query_id
    assert all(len(each) <= most_each for each in left.values())


def test_a_reward_that_is_closed_counts_no_more() -> None:
    rewards = OpenRewards(most=2, most_each=2)
    for n in range(3):
        rewards.add("a", n, f"q{n}")
    rewards.remove("a", "q1")
    rewards.remove("b", "q0")
    assert list(rewards.beyond()) == []
    assert len(rewards) == 2


def rewards_of(cluster: Cluster) -> list[Reward]:
    return [decode(record.value, Reward) for record in cluster.broker.records(cluster.topics.reward)]


def closed_early(cluster: Cluster) -> list[str]:
    return [reward.query_id for reward in rewards_of(cluster) if reward.closed_early]


def waiting(ask: Ask, n: int, tenant: str) -> Query:
    return ask(n, query_id=f"{tenant}{n}", reference=None, feedback_wait_s=MONTH_S, tenant=tenant)


BOUNDS = {"join_partitions": 1, "max_open_rewards": 12, "feedback_wait_s": 1.0}


async def test_tenant_with_most_open_rewards_has_them_closed(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    async with running(in_memory(**BOUNDS), seed=1) as cluster:
        send(cluster, *(waiting(ask, n, "honest") for n in range(4)))
        await cluster.until(lambda: len(rewards_of(cluster)) == 4)
        for n in range(40):
            send(cluster, waiting(ask, n, "greedy"))
            await asyncio.sleep(1.0)
        await cluster.until(lambda: len(closed_early(cluster)) == 32)
        await asyncio.sleep(60)
        answered = [
            record.key.decode() for record in cluster.broker.records(cluster.topics.answer) if record.key
        ]
        greedy = [query_id for query_id in answered if query_id.startswith("greedy")]
        assert sorted(closed_early(cluster)) == sorted(greedy[:32]), "its oldest, and no more than needed"
        (aggregator,) = [each for each in cluster.workers if each.service == "aggregator"]
        assert aggregator.metrics.closed_early._value.get() == 32
        assert aggregator.metrics.cohort_queries.labels("policy", "graded")._value.get() == 0
        for n in range(4):
            told = Feedback(query_id=f"honest{n}", correct=True)
            cluster.produce(cluster.topics.feedback, told.query_id.encode(), encode(told))
        late = Feedback(query_id=greedy[0], correct=True)
        cluster.produce(cluster.topics.feedback, late.query_id.encode(), encode(late))
        await cluster.until(lambda: sum(each.kind == "correction" for each in rewards_of(cluster)) == 4)
        await asyncio.sleep(60)
        assert aggregator.metrics.late.labels(cluster.topics.feedback)._value.get() == 1
        assert len(rewards_of(cluster)) == 44 + 32 + 4, "each reward once"
        audited(cluster)


async def test_an_account_has_a_bound_of_its_own(in_memory: InMemory, ask: Ask, audited: Audit) -> None:
    bounds = {**BOUNDS, "max_open_rewards": 100, "max_open_rewards_per_account": 3}
    async with running(in_memory(**bounds), seed=1) as cluster:
        send(cluster, *(waiting(ask, n, tenant) for n in range(5) for tenant in ("a", "b")))
        await cluster.until(lambda: len(closed_early(cluster)) == 4)
        await asyncio.sleep(30)
        assert Counter(each[0] for each in closed_early(cluster)) == {"a": 2, "b": 2}
        audited(cluster)


@pytest.mark.parametrize("dies_at", ["send", "row"])
async def test_early_closing_survives_deaths_and_lower_bounds(
    in_memory: InMemory, ask: Ask, audited: Audit, dies_at: str
) -> None:
    closings = count()

    def dies(effect: Effect) -> bool:
        """Die after every second closing Reward is sent, or its row deleted."""
        topic = "m.reward" if dies_at == "send" else "m.aggregator-join-changelog"
        return armed and (effect.kind, effect.topic) == (dies_at, topic) and next(closings) % 2 == 0

    armed = False
    async with running(in_memory(**{**BOUNDS, "max_open_rewards": 1000}), seed=2, dies_after=dies) as cluster:
        for n in range(10):
            send(cluster, waiting(ask, n, "a"))
            await asyncio.sleep(1.0)
        await cluster.until(lambda: len(rewards_of(cluster)) == 10)
        (worker,) = [each for each in cluster.workers if each.service == "aggregator"]
        await cluster.stop(worker)
        cluster.settings = in_memory(**{**BOUNDS, "max_open_rewards": 4})
        armed = True
        await cluster.start("aggregator")
        await cluster.until(lambda: len(set(closed_early(cluster))) == 6)
        armed = False
        await asyncio.sleep(60)
        answered = [
            record.key.decode() for record in cluster.broker.records(cluster.topics.answer) if record.key
        ]
        assert set(closed_early(cluster)) == set(answered[:6])
        same = {reward.reward_id: reward for reward in rewards_of(cluster)}
        assert all(same[reward.reward_id] == reward for reward in rewards_of(cluster))
        assert next(closings) > 2, "it died in between"
        audited(cluster)
