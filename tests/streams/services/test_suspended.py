"""A worker that is suspended past its session, and goes on when another has its partitions."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from schemas.answer import Answer
from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Reward
from streams.audit.run import Report
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.settings import Settings

Rows = Iterable[tuple[bytes, bytes, int]]


def read(cluster: Cluster, topic: str, kind: Any) -> list[Any]:
    return [decode(r.value, kind) for r in cluster.broker.records(topic)]


def test_the_row_of_a_suspended_aggregator_undoes_nothing_after_a_restart(
    in_memory: Callable[..., Settings],
    ask: Callable[..., Query],
    audited: Callable[[Cluster], Report],
) -> None:
    async def main() -> None:
        cluster = Cluster(in_memory(timeout_s=60.0), SERVICES, seed=3)
        await cluster.up()
        (first,) = [worker for worker in cluster.workers if worker.service == "aggregator"]
        table, held = first.tables[0], list[tuple[bytes, bytes, int]]()
        put = table.put_all

        async def put_late(rows: Rows) -> None:
            if held:
                await put(rows)
                return
            held.extend(rows)
            await asyncio.Future()

        table.put_all = put_late  # type: ignore[method-assign]
        cluster.produce(cluster.topics.query, b"q0", encode(ask(0)))
        await cluster.until(lambda: bool(held))
        cluster.kill(first)
        closed = lambda: [r for r in read(cluster, cluster.topics.reward, Reward) if r.closes]  # noqa: E731
        await cluster.until(lambda: bool(closed()))
        for key, value, partition in held:  # its request had left the process, and the topic has no fence
            cluster.broker.append(table.changelog, key, value, partition)
        (second,) = [worker for worker in cluster.workers if worker.service == "aggregator"]
        cluster.kill(second)
        await asyncio.sleep(120.0)  # past the deadline of the query
        await cluster.until(lambda: not cluster.busy)
        assert [(a.status, a.by) for a in read(cluster, cluster.topics.answer, Answer)] == [
            ("ok", "executor")
        ]
        assert len(closed()) == 1
        audited(cluster)
        await cluster.close()

    run(main())
