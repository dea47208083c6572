"""A closed query takes no place in the aggregator, and what is delivered of it again changes nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Feedback, Reward
from streams.runtime.memory import MemoryRuntime, run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.settings import Settings

MANY = 20


def read(cluster: Cluster, topic: str, kind: Any) -> list[Any]:
    return [decode(r.value, kind) for r in cluster.broker.records(topic)]


def aggregator(cluster: Cluster) -> MemoryRuntime:
    (worker,) = [worker for worker in cluster.workers if worker.service == "aggregator"]
    return worker


def test_a_closed_query_has_no_row_and_is_known_after_a_restart(
    in_memory: Callable[..., Settings], ask: Callable[..., Query]
) -> None:
    async def main() -> None:
        cluster = Cluster(in_memory(), SERVICES, seed=3)
        await cluster.up()
        topics = cluster.topics
        for n in range(MANY):
            cluster.produce(topics.query, b"q%d" % n, encode(ask(n)))
        waits = ask(0, query_id="waits", reference=None, feedback_wait_s=3000.0)
        cluster.produce(topics.query, b"waits", encode(waits))
        await cluster.until(lambda: len(cluster.broker.records(topics.reward)) == MANY + 1)
        rewards, answers = read(cluster, topics.reward, Reward), cluster.broker.records(topics.answer)
        for restart in (False, True):
            if restart:
                cluster.kill(aggregator(cluster))
            await asyncio.sleep(60.0)
            for record in [*cluster.broker.records(topics.decision), *answers]:
                if record.key != b"waits":
                    cluster.produce(record.topic, record.key, record.value)
            late = Feedback(query_id="q0", correct=False)
            cluster.produce(topics.feedback, b"q0", encode(late))
            await asyncio.sleep(10.0)
            await cluster.until(lambda: not cluster.busy)
            (table,) = aggregator(cluster).tables
            assert [key for key, _ in table.items()] == [b"waits"]
            assert aggregator(cluster).metrics.open_rows._value.get() == 1
            assert aggregator(cluster).metrics.late.labels(topics.feedback)._value.get() == 1
        await asyncio.sleep(700.0)  # past every deadline but the feedback's
        assert read(cluster, topics.reward, Reward) == rewards
        assert cluster.broker.records(topics.dead_letter) == []
        await cluster.close()

    run(main())
