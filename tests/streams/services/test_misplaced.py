"""Records in another partition than their key's: what a client with another partitioner, or without a key, sends."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agents.reward.join import JoinRow, decode_row
from schemas.answer import Answer
from schemas.control import Cancel
from schemas.dead_letter import DeadLetter
from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Feedback, Reward
from streams.audit.run import Report
from streams.runtime.base import partition_for
from streams.runtime.memory import Effect, run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.settings import Settings

InMemory = Callable[..., Settings]
Ask = Callable[..., Query]
Audited = Callable[[Cluster], Report]


def read(cluster: Cluster, topic: str, kind: Any) -> list[Any]:
    return [decode(r.value, kind) for r in cluster.broker.records(topic)]


def elsewhere(cluster: Cluster, topic: str, query_id: str) -> int:
    """Return a partition of a topic that is not the query's."""
    partitions = cluster.broker.partitions(topic)
    return (partition_for(query_id.encode(), partitions) + 1) % partitions


def tell(cluster: Cluster, query_id: str, correct: bool, key: bytes | None) -> None:
    topic = cluster.topics.feedback
    value = encode(Feedback(query_id=query_id, correct=correct))
    cluster.produce(topic, key, value, elsewhere(cluster, topic, query_id))


def closing(cluster: Cluster) -> dict[str, Reward]:
    return {r.query_id: r for r in read(cluster, cluster.topics.reward, Reward) if r.closes}


def joined(cluster: Cluster) -> list[tuple[int, JoinRow]]:
    """Return the rows of the join with the partition each lies in."""
    name = cluster.topics.changelog("aggregator", "join")
    return [
        (partition, decode_row(value))
        for partition in range(cluster.settings.kafka.join_partitions)
        for value in cluster.broker.changelog(name, partition).values()
    ]


async def deployment(settings: Settings, queries: Sequence[Query], aggregators: int, **how: Any) -> Cluster:
    cluster = Cluster(settings, SERVICES, **how)
    await cluster.up()
    for at in range(1, aggregators):
        await cluster.start("aggregator", instance=str(at))
    for query in queries:
        cluster.produce(cluster.topics.query, query.query_id.encode(), encode(query))
    return cluster


async def corrected(cluster: Cluster, ids: set[str], early: set[str]) -> None:
    """Give feedback in wrong partitions, for some queries before their Answer, and wait for the rewards."""
    for query_id in sorted(early):
        tell(cluster, query_id, True, None)
    await cluster.until(lambda: len(read(cluster, cluster.topics.answer, Answer)) >= len(ids))
    for query_id in sorted(ids - early):
        tell(cluster, query_id, True, query_id.encode())
    await cluster.until(lambda: closing(cluster).keys() >= ids, 100)
    await cluster.until(lambda: not cluster.busy)


def right(cluster: Cluster, ids: set[str]) -> None:
    """Each feedback counted once, in its query's partition, and nothing was given up."""
    rewards = closing(cluster)
    assert {(i, rewards[i].graded_by, rewards[i].correct) for i in ids} == {(i, "person", 1.0) for i in ids}
    assert read(cluster, cluster.topics.dead_letter, DeadLetter) == []
    assert joined(cluster) == [], "a closed query has no row, in whatever partition"


@pytest.mark.parametrize("aggregators", [1, 2])
def test_feedback_in_another_partition_reaches_its_query(
    in_memory: InMemory, ask: Ask, audited: Audited, aggregators: int
) -> None:
    queries = [ask(n, reference=None) for n in range(6)]
    ids = {query.query_id for query in queries}

    async def main() -> None:
        cluster = await deployment(in_memory(feedback_wait_s=120.0), queries, aggregators, seed=2)
        await corrected(cluster, ids, early={"q0", "q4"})
        right(cluster, ids)
        assert len(cluster.broker.records(cluster.topics.feedback)) == 2 * len(ids), "each was sent on once"
        counted = [w.metrics.misplaced.labels(cluster.topics.feedback) for w in cluster.workers]
        assert sum(each._value.get() for each in counted) == len(ids)
        assert audited(cluster).states == {"answered and learned": len(ids)}
        await cluster.close()

    run(main())


def test_feedback_that_is_sent_on_twice_counts_once(in_memory: InMemory, ask: Ask, audited: Audited) -> None:
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

        cluster = await deployment(in_memory(feedback_wait_s=120.0), queries, 1, dies_after=dies)
        await corrected(cluster, ids, early={"q0"})
        right(cluster, ids)
        assert len(cluster.deaths) == min(at, 1)
        assert audited(cluster).states == {"answered and learned": len(ids)}
        await cluster.close()
        return seen

    effects = run(main(0))
    assert effects > 6
    for at in range(1, effects + 1):
        run(main(at))


def test_queries_and_cancels_may_lie_in_any_partition(
    in_memory: InMemory, ask: Ask, audited: Audited
) -> None:
    async def main() -> None:
        cluster = Cluster(in_memory(), SERVICES, seed=1)
        await cluster.up()
        topics = cluster.topics
        stop = encode(Cancel(query_id="q1", by="test", reason="not wanted"))
        cluster.produce(
            topics.cancel_for("mini"), None, stop, elsewhere(cluster, topics.cancel_for("mini"), "q1")
        )
        await cluster.until(lambda: not cluster.busy)
        for query in (ask(0), ask(1), ask(4)):
            where = elsewhere(cluster, topics.query, query.query_id)
            cluster.produce(topics.query, None, encode(query), where)
        await cluster.until(lambda: closing(cluster).keys() >= {"q0", "q1", "q4"}, 100)
        await cluster.until(lambda: not cluster.busy)
        ended = {a.query_id: a.status for a in read(cluster, topics.answer, Answer)}
        assert ended == {"q0": "ok", "q1": "cancelled", "q4": "ok"}
        assert audited(cluster).queries == 3
        await cluster.close()

    run(main())
