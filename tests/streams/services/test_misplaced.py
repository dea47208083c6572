"""Records in another partition than their key's: what a client with another partitioner, or without a key, sends."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from schemas.answer import Answer
from schemas.control import Cancel
from schemas.query import Query
from schemas.record import encode
from schemas.reward import Feedback
from streams.log.memory import Effect
from streams.log.partitioner import partition_for
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.settings import Settings
from tests.support.cluster import Ask, Audit, InMemory, answered, closing, read, running, send


def elsewhere(cluster: Cluster, topic: str, query_id: str) -> int:
    """Return a partition of a topic that is not the query's."""
    partitions = cluster.broker.partitions(topic)
    return (partition_for(query_id.encode(), partitions) + 1) % partitions


def tell(cluster: Cluster, query_id: str, correct: bool, key: bytes | None) -> None:
    topic = cluster.topics.feedback
    value = encode(Feedback(query_id=query_id, correct=correct))
    cluster.produce(topic, key, value, elsewhere(cluster, topic, query_id))


@asynccontextmanager
async def deployed(
    settings: Settings, queries: Sequence[Query], aggregators: int = 1, **how: Any
) -> AsyncIterator[Cluster]:
    """Let a deployment with so many aggregators run, and send it queries."""
    async with running(settings, **how) as cluster:
        for at in range(1, aggregators):
            await cluster.start("aggregator", instance=str(at))
        send(cluster, *queries)
        yield cluster


async def corrected(cluster: Cluster, ids: set[str], early: set[str]) -> None:
    """Give feedback in wrong partitions, for some queries before their Answer, and wait for the rewards."""
    for query_id in sorted(early):
        tell(cluster, query_id, True, None)
    await cluster.until(lambda: answered(cluster) >= ids)
    for query_id in sorted(ids - early):
        tell(cluster, query_id, True, query_id.encode())
    await cluster.until(lambda: closing(cluster).keys() >= ids and not cluster.busy, 100)


def right(cluster: Cluster, ids: set[str]) -> None:
    """Each feedback counted once, in its query's partition, and nothing was given up."""
    rewards = closing(cluster)
    assert {(i, rewards[i].graded_by, rewards[i].correct) for i in ids} == {(i, "person", 1.0) for i in ids}
    assert cluster.broker.records(cluster.topics.dead_letter) == []
    join = cluster.topics.changelog("aggregator", "join")
    for partition in range(cluster.settings.kafka.join_partitions):
        assert cluster.broker.changelog(join, partition) == {}, (
            "a closed query has no row, in whatever partition"
        )


@pytest.mark.parametrize("aggregators", [1, 2])
async def test_feedback_in_another_partition_reaches_its_query(
    in_memory: InMemory, ask: Ask, audited: Audit, aggregators: int
) -> None:
    queries = [ask(n, reference=None) for n in range(6)]
    ids = {query.query_id for query in queries}
    async with deployed(in_memory(feedback_wait_s=120.0), queries, aggregators, seed=2) as cluster:
        await corrected(cluster, ids, early={"q0", "q4"})
        right(cluster, ids)
        assert len(cluster.broker.records(cluster.topics.feedback)) == 2 * len(ids), "each was sent on once"
        counted = [w.metrics.misplaced.labels(cluster.topics.feedback) for w in cluster.workers]
        assert sum(each._value.get() for each in counted) == len(ids)
        assert audited(cluster).states == {"answered and learned": len(ids)}


def test_feedback_that_is_sent_on_twice_counts_once(in_memory: InMemory, ask: Ask, audited: Audit) -> None:
    watched = ("m.feedback", "m.aggregator-join-changelog")
    queries = [ask(n, reference=None) for n in range(3)]
    ids = {query.query_id for query in queries}

    async def main(at: int) -> int:
        seen = 0

        def dies(effect: Effect) -> bool:
            nonlocal seen
            if effect.app != "m.aggregator" or effect.topic not in watched:
                return False
            seen += 1
            return seen == at

        async with deployed(in_memory(feedback_wait_s=120.0), queries, dies_after=dies) as cluster:
            await corrected(cluster, ids, early={"q0"})
            right(cluster, ids)
            assert len(cluster.deaths) == min(at, 1)
            assert audited(cluster).states == {"answered and learned": len(ids)}
        return seen

    effects = run(main(0))
    assert effects > 6
    for at in range(1, effects + 1):
        run(main(at))


async def test_queries_and_cancels_may_lie_in_any_partition(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    async with running(in_memory(), seed=1) as cluster:
        topics = cluster.topics
        stop = encode(Cancel(query_id="q1", by="test", reason="not wanted"))
        cluster.produce(
            topics.cancel_for("mini"), None, stop, elsewhere(cluster, topics.cancel_for("mini"), "q1")
        )
        await cluster.until(lambda: not cluster.busy)
        for query in (ask(0), ask(1), ask(4)):
            where = elsewhere(cluster, topics.query, query.query_id)
            cluster.produce(topics.query, None, encode(query), where)
        await cluster.until(lambda: closing(cluster).keys() >= {"q0", "q1", "q4"} and not cluster.busy, 100)
        ended = {a.query_id: a.status for a in read(cluster, topics.answer, Answer)}
        assert ended == {"q0": "ok", "q1": "cancelled", "q4": "ok"}
        assert audited(cluster).queries == 3
