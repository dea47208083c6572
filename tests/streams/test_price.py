"""A price that changes while queries are in flight: each is charged once, as it was decided, and the log says so."""

import math

import pytest
from msgspec.structs import replace

from agents.decider.rows import Row
from schemas.answer import Answer
from schemas.control import PriceFactorEntry
from schemas.decision import Decision
from schemas.query import Budget
from schemas.record import encode
from streams.runtime.memory_cluster import Cluster
from tests.support.cluster import (
    Ask,
    Audit,
    InMemory,
    closing,
    decider_of,
    read,
    recovered,
    reproduced,
    running,
    send,
    served,
    worker_of,
)

FACTOR = 5.0
OLD = {f"q{n}" for n in range(14)} | {"pin-2"}


def decisions(cluster: Cluster) -> dict[str, Decision]:
    return {each.query_id: each for each in read(cluster, cluster.topics.decision, Decision)}


async def priced(cluster: Cluster, name: str, factor: float) -> None:
    entry = PriceFactorEntry(name=name, factor=factor)
    cluster.produce(cluster.topics.control, entry.key.encode(), encode(entry))
    wanted = {name: factor} if factor != 1.0 else {}
    await cluster.until(lambda: all(w.control.catalogue.price_factors == wanted for w in cluster.workers))


@pytest.mark.parametrize("policy", ["contextual", "linucb"])
async def test_price_change_applies_from_the_next_decision(
    in_memory: InMemory, ask: Ask, audited: Audit, policy: str
) -> None:
    settings = in_memory(policy=policy, warm_up=4, snapshot_every=20)
    target = {"accuracy": 0.9} if policy == "contextual" else {}
    before = [ask(n, **target) for n in range(14)]
    after = [ask(n, query_id=f"after-{n}", **target) for n in range(14)]
    pinned = [ask(n, query_id=f"pin-{n}", pin_action="large/2/1/1") for n in range(3)]
    async with running(settings) as cluster:
        await served(cluster, *before[:10])
        # Decided, and not yet answered, when the price changes.
        send(cluster, *before[10:])
        await cluster.until(lambda: len(decisions(cluster)) == len(before))
        await priced(cluster, "large", FACTOR)
        await cluster.until(lambda: len(closing(cluster)) == len(before) and not cluster.busy)
        await served(cluster, *after[:7], *pinned[:1])
        cluster.kill(worker_of(cluster, "decider"))
        await cluster.until(lambda: any(each.service == "decider" for each in cluster.workers))
        # Pinned, so that the log ends with a row at the new price whatever the policy prefers.
        await served(cluster, *after[7:], *pinned[1:2])
        await priced(cluster, "large", 1.0)
        await served(cluster, *pinned[2:])
        state = decider_of(cluster).policy.state()
    made = decisions(cluster)
    assert {made[q.query_id].price_factor for q in before} == {1.0}
    assert {d.price_factor for d in made.values() if d.query_id.startswith("after")} <= {1.0, FACTOR}
    assert [made[q.query_id].price_factor for q in pinned] == [FACTOR, FACTOR, 1.0]
    for query_id, reward in closing(cluster).items():
        price = reward.price
        assert price is not None
        assert reward.log_cost == math.log(price.cost)
        assert price.factor == made[query_id].price_factor
        assert price.factor == (
            FACTOR if made[query_id].action.model == "large" and query_id not in OLD else 1.0
        )
        plain = price.compute_flops + price.intensity * price.memory_bytes
        assert price.cost == pytest.approx(price.factor * plain, rel=1e-12)
    rows, _ = reproduced(cluster)
    assert {r.price_factor for r in rows if isinstance(r, Row)} == {1.0, FACTOR}
    decider = recovered(cluster)
    assert decider.offered.price_factors == {}
    if policy == "contextual":
        assert decider.policy.state() == state
    assert audited(cluster).discrepancies == []


async def test_a_budget_is_spent_at_the_price(in_memory: InMemory, ask: Ask) -> None:
    async with running(in_memory(policy="linucb")) as cluster:
        await served(cluster, *(ask(n, pin_action="large/1/1/1") for n in range(6)))
        long = next(answer for answer in read(cluster, cluster.topics.answer, Answer) if answer.steps > 1)
        price = closing(cluster)[long.query_id].price
        assert price is not None
        asked = decisions(cluster)[long.query_id].query
        for query_id, factor in (("enough", 1.0), ("short", 1000.0)):
            await priced(cluster, "large", factor)
            await served(cluster, replace(asked, query_id=query_id, budget=Budget(eflops=2 * price.cost)))
    *_, enough, short = read(cluster, cluster.topics.answer, Answer)
    assert (enough.query_id, enough.status) == ("enough", "ok")
    assert (short.query_id, short.status, short.error) == ("short", "budget", "the budget of eflops ran out")


def choices_until_half(before: list[str], after: list[str]) -> int | None:
    """Return after how many choices the small model has half its former share of the last 20; None: never."""
    share = before.count("small") / len(before)
    for n in range(1, len(after) + 1):
        last = [*before, *after[:n]][-20:]
        if last.count("small") / len(last) <= share / 2:
            return n
    return None


async def test_default_policy_follows_a_price_sooner_than_linucb(in_memory: InMemory, ask: Ask) -> None:
    took: dict[str, int | None] = {}
    for policy in ("contextual", "linucb"):
        settings = in_memory(policy=policy, objective="cost-sensitive", warm_up=30, seed=1)
        async with running(settings) as cluster:
            for part in ("before", "after"):
                for at in range(0, 80, 8):
                    await served(cluster, *(ask(n % 12, query_id=f"{part}-{n}") for n in range(at, at + 8)))
                if part == "before":
                    # Both policies take the small model for the cheaper one.
                    await priced(cluster, "small", 12.0)
        made = sorted(decisions(cluster).values(), key=lambda d: d.seq)
        own = [d for d in made if d.reason == "policy"]
        before, after = (
            [d.action.model for d in own if d.query_id.startswith(part)] for part in ("before", "after")
        )
        assert before.count("small") > len(before) / 2
        took[policy] = choices_until_half(before, after)
    assert took["contextual"] is not None
    assert took["contextual"] <= 12  # about ten is the least: the last 20 choices reach back over the change
    assert took["linucb"] is None or took["linucb"] > took["contextual"]
