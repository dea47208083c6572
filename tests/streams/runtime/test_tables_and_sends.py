"""What a service gets back when a row is too large, the broker takes nothing, or its partition has moved."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import ConcurrentTransactions
from aiokafka.producer.sender import AddPartitionsToTxnHandler

from schemas.answer import Answer
from schemas.query import QueryContext
from streams.log.base import ConsumerRecord, Outgoing, SendFailed
from streams.log.memory import MemoryBroker, MemoryLog
from streams.metrics import Metrics
from streams.runtime.errors import PartitionLost, RowTooLarge
from streams.runtime.kafka import KafkaRuntime
from streams.runtime.kafka_transactions import Fence, FencedTable
from streams.runtime.queues import WINDOW
from streams.runtime.runtime import Input, Runtime, ServiceSpec
from tests.support.cluster import InMemory, running

ROWS = [(b"small", b"x", 0), (b"large", b"x" * 70_000, 0)]


async def recovered() -> None:
    pass


def over_answers(build: Callable[[Runtime], Awaitable[None]], *outputs: str) -> dict[str, ServiceSpec]:
    """Return a service that reads answers and keeps a table."""
    inputs = {"answer": Input(Answer, "put")}
    state = ("aggregator-join-changelog",)
    return {
        "aggregator": ServiceSpec(name="aggregator", inputs=inputs, outputs=outputs, state=state, build=build)
    }


def test_oversized_row_is_refused_before_writing(in_memory: InMemory, tmp_path: object) -> None:
    """In memory `test_effects.py` has it."""

    async def main() -> None:
        settings = in_memory(max_record_bytes=65_536, state_dir=str(tmp_path))
        runtime = KafkaRuntime(settings, Metrics("aggregator"), service="aggregator")
        table = runtime.table("join", 2, source=runtime.topics.answer, recovered=recovered)
        with pytest.raises(RowTooLarge, match="large"):
            await table.put_all(ROWS)  # no producer was started: nothing could have been sent
        assert table.get(b"small") is None

    asyncio.run(main())


def test_all_that_an_embedder_may_have_in_hand_is_noted(in_memory: InMemory, tmp_path: Path) -> None:
    """Its calls wait for other queries: it has as many as it is handed of all partitions."""

    async def main() -> None:
        settings = in_memory(concurrency=2, query_partitions=3, state_dir=str(tmp_path))
        in_flight = KafkaRuntime(settings, Metrics("embedder"), service="embedder").in_flight
        with in_flight.holding(f"query/{partition}/{n}" for partition in range(3) for n in range(2 * WINDOW)):
            assert in_flight.held == 3 * 2 * WINDOW

    asyncio.run(main())


@pytest.mark.parametrize("one_writer", [False, True])
async def test_single_writer_table_writes_all_rows_or_none(in_memory: InMemory, one_writer: bool) -> None:
    shown: list[list[tuple[bytes, bytes]]] = []

    async def build(runtime: Runtime) -> None:
        table = runtime.table(
            "rows", 1, source=runtime.topics.context, recovered=recovered, one_writer=one_writer
        )

        async def on_context(record: ConsumerRecord) -> None:
            with pytest.raises(SendFailed):
                await table.put_all([(b"first", b"x", 0), (b"second", b"x", 0)])
            shown.append(table.items())

        runtime.each(runtime.topics.context, on_context, stage="put")

    spec = ServiceSpec(
        name="rows",
        inputs={"context": Input(QueryContext, "put")},
        outputs=(),
        state=("rows-rows-changelog",),
        one_writer=one_writer,
        build=build,
    )
    async with running(in_memory(), {"rows": spec}) as cluster:
        cluster.broker.refuses = lambda topic, key: "full" if key == b"second" else ""
        cluster.produce(cluster.topics.context, b"k", b"v", 0)
        await cluster.until(lambda: bool(shown), 10)
        assert shown == [[]]
        written = [record.key for record in cluster.broker.records("m.rows-rows-changelog")]
        assert written == ([] if one_writer else [b"first"])


async def test_fenced_table_shows_old_rows_while_it_rereads(in_memory: InMemory) -> None:
    """A handler that looked for its row meanwhile would take the query for a new one.

    And a service that recovered when its partition had just come would take the log for empty.
    """
    broker = MemoryBroker({"t": 1}, asyncio.get_running_loop().time)
    broker.append("t", b"q", b"first", 0)
    epoch, shown, owned = 0, [], frozenset[int]()

    class Slow(MemoryLog):
        async def read(
            self, topics: Sequence[str], begin: int = 0, **span: Any
        ) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
            await asyncio.sleep(1.0)
            shown.append(table.get(b"q"))
            async for records in super().read(topics, begin, **span):
                yield records

    class Assignment:
        moved = 0

        async def settled(self) -> int:
            return epoch

        def is_ours(self, of: int) -> bool:
            return of == epoch

        at_work = contextlib.nullcontext

    async def begins() -> int:
        return 0

    fence = Fence("t", lambda name: None)
    table = FencedTable(
        in_memory(), fence, Slow(broker), Assignment(), lambda: owned, begins=begins, recovered=recovered
    )
    await table.recover()
    owned, epoch = frozenset({0}), 1
    assert (table.reading, table.items()) == (0, [])
    await table.recover()
    assert table.reading == 2
    broker.append("t", b"q", b"another process's", 0)
    broker.append("t", b"r", b"another process's", 0)
    epoch = 2
    assert table.reading == 0  # whatever was computed from these rows is not written any more
    await table.recover()
    assert table.reading == 3
    assert shown == [None, b"first"]
    assert dict(table.items()) == dict.fromkeys((b"q", b"r"), b"another process's")


@pytest.mark.parametrize("stubborn", [False, True])
async def test_moved_partition_applies_no_effect_of_its_handler(in_memory: InMemory, stubborn: bool) -> None:
    """A handler that does not end when it is cancelled cannot send or write anything either."""
    refused: list[Exception] = []
    lives = 0

    async def build(runtime: Runtime) -> None:
        table = runtime.table("join", 2, source=runtime.topics.answer, recovered=recovered)

        async def on_answer(record: ConsumerRecord) -> None:
            nonlocal lives
            lives += 1
            if lives > 2:  # of the two records, one stays and the other is redelivered elsewhere
                await runtime.send(Outgoing(runtime.topics.due, record.key, b"second"))
                return
            try:
                await runtime.sleep(5.0)
            except asyncio.CancelledError:
                if not stubborn:
                    raise
            for effect in (
                runtime.send(Outgoing(runtime.topics.due, record.key, b"first")),
                table.put_all([(b"k", b"first", record.partition)]),
            ):
                try:
                    await effect
                except PartitionLost as error:
                    refused.append(error)

        runtime.each(runtime.topics.answer, on_answer, stage="put")

    async with running(in_memory(), over_answers(build, "due"), seed=1) as cluster:
        due = cluster.topics.due
        for partition in (0, 1):
            cluster.produce(cluster.topics.answer, b"%d" % partition, b"v", partition)
        await cluster.until(lambda: lives == 2, 10)
        await cluster.start("aggregator", instance="1")
        await cluster.until(lambda: len(cluster.broker.records(due)) >= 3, 60)
        await cluster.until(lambda: not cluster.busy, 60)
        sent = sorted((record.key, record.value) for record in cluster.broker.records(due))
        # What stays here may go on, and is redelivered all the same: nobody knew yet that it was handled.
        assert sent == [(b"0", b"first"), (b"0", b"second"), (b"1", b"second")]
        rows = [effect for effect in cluster.broker.effects if effect.kind == "row"]
        assert len(rows) == 1
        assert len(refused) == (2 if stubborn else 0)
        assert cluster.deaths == []


def test_concurrent_transaction_is_retried_within_milliseconds() -> None:
    nothing_added = SimpleNamespace(_txn_manager=SimpleNamespace(txn_partitions=set()), _retry_backoff=0.1)
    too_early = SimpleNamespace(errors=[("log", [(0, ConcurrentTransactions.errno)])])
    assert AddPartitionsToTxnHandler(nothing_added, []).handle_response(too_early) == 0.002
