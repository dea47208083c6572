"""What a dependency of a service does to a query when it is slow, down, or wrong; each in the memory runtime."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from agents.answers import GradingPool
from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Reward
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES, aggregator
from streams.settings import Settings

InMemory = Callable[..., Settings]
Ask = Callable[..., Query]


def read(cluster: Cluster, topic: str, kind: Any) -> list[Any]:
    return [decode(r.value, kind) for r in cluster.broker.records(topic)]


def counted(cluster: Cluster, service: str, name: str) -> float:
    """Return the sum of a counter over the workers of a service."""
    lines = [
        line
        for worker in cluster.workers
        if worker.service == service
        for line in worker.metrics.text().decode().splitlines()
        if line.startswith(f"uniscale_{name}_total")
    ]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_grader_that_is_slow_teaches_nothing_and_the_reward_says_so(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregator, "GradingPool", partial(GradingPool, timeout_s=0.0))

    async def main() -> None:
        cluster = Cluster(in_memory(), SERVICES, seed=3)
        await cluster.up()
        query = ask(0, reference={"tests": [["a", "b"]]})
        cluster.produce(cluster.topics.query, query.query_id.encode(), encode(query))
        await cluster.until(lambda: bool(cluster.broker.records(cluster.topics.reward)))
        (reward,) = read(cluster, cluster.topics.reward, Reward)
        assert (reward.kind, reward.correct, reward.reward) == ("default", None, None)
        assert reward.missing == "correct: GraderFailed: program: no result in 0 s"
        assert counted(cluster, "aggregator", "ungraded") == 1
        await cluster.close()

    run(main())
