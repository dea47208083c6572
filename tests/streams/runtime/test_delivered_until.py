"""Up to when a partition has been delivered: what its end says, markers, retention, and a partition always behind."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition as TP

from streams.metrics import Metrics
from streams.runtime.kafka import KafkaRuntime, consumer_of
from streams.runtime.kafka_consumer import Consumer, PartitionCursor
from streams.runtime.runtime import Binding
from streams.settings import Settings
from tests.support.cluster import InMemory

PART = ("told", 0)


class Told:
    """An aggregator that reads one partition of feedback; no broker is there. To be made within a loop."""

    def __init__(self, settings: Settings) -> None:
        self.runtime = KafkaRuntime(settings, Metrics("aggregator"), service="aggregator")
        self.consumer: Consumer = consumer_of(self.runtime.app)
        self.consumer.bind("told", Binding(self._handle))
        self.state = SimpleNamespace(_position=0)
        thread: Any = self.consumer._thread
        thread._consumer = SimpleNamespace(
            _subscription=SimpleNamespace(
                subscription=SimpleNamespace(assignment=SimpleNamespace(state_value=lambda tp: self.state))
            )
        )
        self.end = self.at_ms = 0
        runtime: Any = self.runtime
        runtime.log.end_offsets, runtime.clock.now_ms = self._say, lambda: self.at_ms

    async def _handle(self, records: Any) -> None:
        pass

    async def _say(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        return {PART: self.end}

    async def arrive(self, *offsets: int) -> None:
        """Hand over records, one appended every ten ms."""
        batch = [SimpleNamespace(offset=n, timestamp=10 * n + 10, key=b"", value=b"v") for n in offsets]
        self.state._position = offsets[-1] + 1
        assert await self.consumer._deliver(TP(*PART), batch, None)

    async def up_to(self, now_ms: int, end: int) -> int | None:
        self.at_ms, self.end = now_ms, end
        return (await self.runtime.delivered_until(["told"])).get(PART)


@pytest.fixture
def settings(in_memory: InMemory, tmp_path: Path) -> Any:
    return in_memory(state_dir=str(tmp_path))


def test_partition_end_counts_markers_and_deleted_records(settings: Settings) -> None:
    async def main() -> None:
        told = Told(settings)
        assert await told.up_to(90, 0) is None, "it is another worker's"
        told.consumer._cursors[TP(*PART)] = PartitionCursor(0)
        assert await told.up_to(100, 0) == 100
        await told.arrive(0, 1, 2)
        assert await told.up_to(200, 3) == 200
        assert await told.up_to(300, 4) == 29, "the fourth may be a record"
        told.state._position = 4
        assert await told.up_to(400, 4) == 400, "it was a marker"
        told.state._position = 90
        assert await told.up_to(500, 90) == 500, "the rest has been deleted"

    asyncio.run(main())


def test_position_means_nothing_while_fetching_or_rebalancing(settings: Settings) -> None:
    async def main() -> None:
        told = Told(settings)
        told.consumer._cursors[TP(*PART)] = PartitionCursor(0)
        told.state._position = 5
        told.consumer.fetched = {TP(*PART)}
        assert await told.up_to(100, 5) == -2
        told.consumer.fetched = set()
        told.consumer._may_deliver.clear()
        assert await told.up_to(200, 5) == -2
        told.consumer._may_deliver.set()
        assert await told.up_to(300, 5) == 300

    asyncio.run(main())


def test_lagging_partition_goes_by_newest_record_or_earlier_end(settings: Settings) -> None:
    async def main() -> None:
        told = Told(settings)
        told.consumer._cursors[TP(*PART)] = PartitionCursor(0)
        await told.arrive(0)
        assert await told.up_to(1000, 5) == 9
        await told.arrive(1, 2, 3)
        assert await told.up_to(2000, 7) == 39, (
            "one before the newest: another may be of the same millisecond"
        )
        await told.arrive(4)
        assert await told.up_to(3000, 9) == 1000, "what was the end then has been reached"
        await told.arrive(5, 6)
        assert await told.up_to(4000, 11) == 69
        await told.arrive(7, 8)
        assert await told.up_to(5000, 12) == 3000

    asyncio.run(main())
