"""What a room gets back when a row is too large or the broker takes nothing."""

import asyncio
from collections.abc import Callable

import pytest

from streams.metrics import Metrics
from streams.runtime.base import Outgoing, Record, RoomSpec, RowTooLarge, Runtime, SendFailed
from streams.runtime.kafka import KafkaRuntime
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.settings import Settings

ROWS = [(b"small", b"x", 0), (b"large", b"x" * 70_000, 0)]


async def recovered() -> None:
    pass


def test_a_row_that_is_too_large_is_refused_before_anything_is_written(
    in_memory: Callable[..., Settings], tmp_path: object
) -> None:
    settings = in_memory(max_record_bytes=65_536, state_dir=str(tmp_path))

    async def on_kafka() -> None:
        runtime = KafkaRuntime(settings, Metrics("aggregator"), room="aggregator")
        table = runtime.table("join", 2, source=runtime.topics.answer, recovered=recovered)
        with pytest.raises(RowTooLarge, match="large"):
            await table.put_all(ROWS)  # no producer was started: nothing could have been sent
        assert table.get(b"small") is None

    async def in_lists() -> None:
        refused: list[Exception] = []

        async def build(runtime: Runtime) -> None:
            table = runtime.table("join", 2, source=runtime.topics.answer, recovered=recovered)

            async def on_answer(record: Record) -> None:
                try:
                    await table.put_all(ROWS)
                except RowTooLarge as error:
                    refused.append(error)

            runtime.each(runtime.topics.answer, on_answer, stage="put")

        spec = RoomSpec(
            name="aggregator",
            inputs=("answer",),
            outputs=(),
            state=("aggregator-join-changelog",),
            build=build,
        )
        cluster = Cluster(settings, {"aggregator": spec})
        await cluster.up()
        cluster.produce(cluster.topics.answer, b"k", b"v")
        await cluster.until(lambda: bool(refused), 10)
        assert [effect for effect in cluster.broker.effects if effect.kind == "row"] == []
        await cluster.close()

    asyncio.run(on_kafka())
    run(in_lists())


def test_a_send_the_broker_refuses_raises_and_is_not_counted_against_the_record(
    in_memory: Callable[..., Settings],
) -> None:
    raised: list[SendFailed] = []

    async def build(runtime: Runtime) -> None:
        async def on_query(record: Record) -> None:
            try:
                await runtime.send(Outgoing(runtime.topics.context, b"0", b"v"))
            except SendFailed as error:
                raised.append(error)
                raise

        runtime.each(runtime.topics.query, on_query, stage="send")

    async def main() -> None:
        spec = RoomSpec(name="embedder", inputs=("query",), outputs=("context",), build=build)
        cluster = Cluster(in_memory(), {"embedder": spec})
        cluster.broker.refuses = lambda topic, key: "not enough replicas"
        await cluster.up()
        cluster.produce(cluster.topics.query, b"k", b"v")
        await cluster.until(lambda: len(raised) == 6, 60)
        cluster.broker.refuses = lambda topic, key: ""
        await cluster.until(lambda: len(cluster.broker.records(cluster.topics.context)) == 1, 60)
        assert "not enough replicas" in str(raised[0])
        assert cluster.deaths == [], "more than three failures, and none was counted"
        await cluster.close()

    run(main())
