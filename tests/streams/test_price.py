"""A price that changes while queries are in flight: each is charged once, as it was decided, and the log says so."""

import math
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from agents.decider.decider import Decider
from agents.decider.log import Row
from agents.decider.verify import mismatches, opened
from schemas.answer import Answer
from schemas.control import PriceEntry
from schemas.decision import Decision
from schemas.query import Budget, Query
from schemas.record import decode, encode
from schemas.reward import Reward
from streams.audit.run import Report
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.services.decider import policy_of
from streams.services.embedder import encoder_of
from streams.settings import Settings

InMemory = Callable[..., Settings]
Ask = Callable[..., Query]
FACTOR = 5.0


def decisions(cluster: Cluster) -> dict[str, Decision]:
    found = (decode(r.value, Decision) for r in cluster.broker.records(cluster.topics.decision))
    return {d.query_id: d for d in found}


def rewards(cluster: Cluster) -> dict[str, Reward]:
    found = (decode(r.value, Reward) for r in cluster.broker.records(cluster.topics.reward))
    return {r.query_id: r for r in found if r.closes}


def send(cluster: Cluster, queries: list[Query]) -> None:
    for query in queries:
        cluster.produce(cluster.topics.query, query.query_id.encode(), encode(query))


async def rewarded(cluster: Cluster, queries: list[Query]) -> None:
    ids = {query.query_id for query in queries}
    await cluster.until(lambda: rewards(cluster).keys() >= ids and not cluster.busy)


async def priced(cluster: Cluster, name: str, factor: float) -> None:
    entry = PriceEntry(name=name, factor=factor)
    cluster.produce(cluster.topics.control, entry.key.encode(), encode(entry))
    wanted = {name: factor} if factor != 1.0 else {}
    await cluster.until(lambda: all(w.control.catalogue.price_factors == wanted for w in cluster.workers))


@pytest.mark.parametrize("policy", ["contextual", "linucb"])
def test_a_price_holds_from_the_next_decision_on_and_what_was_decided_keeps_its_own(
    in_memory: InMemory, ask: Ask, audited: Callable[[Cluster], Report], policy: str
) -> None:
    settings = in_memory(policy=policy, warm_up=4, snapshot_every=20)
    aim = {"accuracy": 0.9} if policy == "contextual" else {}
    before = [ask(n, **aim) for n in range(14)]
    after = [ask(n, query_id=f"after-{n}", **aim) for n in range(14)]
    pinned = [ask(n, query_id=f"pin-{n}", pin_action="large/2/1/1") for n in range(3)]
    states: list[bytes] = []

    async def life() -> Cluster:
        cluster = Cluster(settings, SERVICES)
        await cluster.up()
        send(cluster, before[:10])
        await rewarded(cluster, before[:10])
        # Decided, and not yet answered, when the price changes.
        send(cluster, before[10:])
        await cluster.until(lambda: len(decisions(cluster)) == len(before))
        await priced(cluster, "large", FACTOR)
        await rewarded(cluster, before)
        send(cluster, after[:7] + pinned[:1])
        await rewarded(cluster, after[:7] + pinned[:1])
        (worker,) = (each for each in cluster.workers if each.service == "decider")
        cluster.kill(worker)
        await cluster.until(lambda: any(each.service == "decider" for each in cluster.workers))
        # Pinned, so that the log ends with a row at the new price whatever the policy prefers.
        send(cluster, after[7:] + pinned[1:2])
        await rewarded(cluster, after + pinned[1:2])
        await priced(cluster, "large", 1.0)
        send(cluster, pinned[2:])
        await rewarded(cluster, pinned)
        (worker,) = (each for each in cluster.workers if each.service == "decider")
        service = worker.built
        states.append(service.decider.policy.state())
        await cluster.close()
        return cluster

    cluster = run(life())
    made, closed = decisions(cluster), rewards(cluster)
    assert {made[q.query_id].price_factor for q in before} == {1.0}
    assert {d.price_factor for d in made.values() if d.query_id.startswith("after")} <= {1.0, FACTOR}
    assert [made[q.query_id].price_factor for q in pinned] == [FACTOR, FACTOR, 1.0]
    for query_id, reward in closed.items():
        price = reward.price
        assert price is not None
        assert reward.log_cost == math.log(price.cost)
        assert price.factor == made[query_id].price_factor
        assert price.factor == (
            FACTOR if made[query_id].action.model == "large" and query_id not in OLD else 1.0
        )
        plain = price.compute_flops + price.intensity * price.memory_bytes
        assert price.cost == pytest.approx(price.factor * plain, rel=1e-12)
    log = cluster.broker.changelog(cluster.topics.changelog("decider", "pending"), 0)
    snapshots = cluster.broker.changelog(cluster.topics.snapshot, 0)
    fresh = policy_of(settings, encoder_of(settings))
    rows, at = opened(fresh, log | snapshots)
    assert {r.price_factor for r in rows if isinstance(r, Row)} == {1.0, FACTOR}
    assert list(mismatches(fresh, rows, settings.policy.seed, at)) == []
    decider = Decider(policy_of(settings, encoder_of(settings)), seed=settings.policy.seed)
    decider.recover(log.items(), snapshots.items())
    assert decider.price_factors == {}
    if policy == "contextual":
        assert decider.policy.state() == states[0]
    assert audited(cluster).discrepancies == []


OLD = {f"q{n}" for n in range(14)} | {"pin-2"}


def answers(cluster: Cluster) -> dict[str, Answer]:
    found = (decode(r.value, Answer) for r in cluster.broker.records(cluster.topics.answer))
    return {a.query_id: a for a in found}


def test_a_budget_is_spent_at_the_price(in_memory: InMemory, ask: Ask) -> None:
    async def life() -> Cluster:
        cluster = Cluster(in_memory(policy="linucb"), SERVICES)
        await cluster.up()
        free = [ask(n, pin_action="large/1/1/1") for n in range(6)]
        send(cluster, free)
        await rewarded(cluster, free)
        long = next(q for q in free if answers(cluster)[q.query_id].steps > 1)
        cost = rewards(cluster)[long.query_id].price
        assert cost is not None
        for query_id, factor in (("enough", 1.0), ("short", 1000.0)):
            await priced(cluster, "large", factor)
            query = replace(long, query_id=query_id, budget=Budget(eflops=2 * cost.cost))
            send(cluster, [query])
            await rewarded(cluster, [query])
        await cluster.close()
        return cluster

    found = answers(run(life()))
    assert found["enough"].status == "ok"
    assert (found["short"].status, found["short"].error) == ("budget", "the budget of eflops ran out")


def choices_until_half(before: list[str], after: list[str]) -> int | None:
    """Return after how many choices the small model has half its former share of the last 20; None: never."""
    share = before.count("small") / len(before)
    for n in range(1, len(after) + 1):
        last = [*before, *after[:n]][-20:]
        if last.count("small") / len(last) <= share / 2:
            return n
    return None


def test_the_default_policy_follows_a_price_at_once_and_linucb_as_it_learns_it(
    in_memory: InMemory, ask: Ask
) -> None:
    took: dict[str, int | None] = {}
    for policy in ("contextual", "linucb"):
        settings = in_memory(policy=policy, objective="cost-sensitive", warm_up=30, seed=1)

        async def life(settings: Settings = settings) -> Cluster:
            cluster = Cluster(settings, SERVICES)
            await cluster.up()
            for part in ("before", "after"):
                for at in range(0, 80, 8):
                    asked = [ask(n % 12, query_id=f"{part}-{n}") for n in range(at, at + 8)]
                    send(cluster, asked)
                    await rewarded(cluster, asked)
                if part == "before":
                    # Both policies take the small model for the cheaper one.
                    await priced(cluster, "small", 12.0)
            await cluster.close()
            return cluster

        made = sorted(decisions(run(life())).values(), key=lambda d: d.seq)
        own = [d for d in made if d.reason == "policy"]
        before, after = (
            [d.action.model for d in own if d.query_id.startswith(part)] for part in ("before", "after")
        )
        assert before.count("small") > len(before) / 2
        took[policy] = choices_until_half(before, after)
    assert took["contextual"] is not None
    assert took["contextual"] <= 12  # about ten is the least: the last 20 choices reach back over the change
    assert took["linucb"] is None or took["linucb"] > took["contextual"]
