"""Declare a room's tables: one that faust recovers, or one with a single writer, which recovers by itself."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import faust

from streams.metrics import Metrics
from streams.runtime.kafka.app import changelogged, crash
from streams.runtime.kafka.clients import connections
from streams.runtime.kafka.transport import consumer_of, sender_of
from streams.runtime.kafka.writing.fence import Fence
from streams.runtime.kafka.writing.fenced import FencedTable
from streams.runtime.kafka.writing.table import Changelogged, KafkaTable
from streams.settings import Settings


class Tables:
    """Declares the tables of one room.

    Args:
        app: The room's app.
        settings: Of the process.
        metrics: Of the process; how long each recovery reads is recorded.
        room: The room's name, for error messages.
    """

    def __init__(self, app: faust.App, settings: Settings, metrics: Metrics, room: str) -> None:
        self.app = app
        self.settings = settings
        self.metrics = metrics
        self.room = room

    def declare(
        self,
        name: str,
        partitions: int,
        *,
        owned: Callable[[], frozenset[int]],
        recovered: Callable[[], Awaitable[None]],
        one_writer: bool,
        begins: Callable[[], Awaitable[int]] | None,
    ) -> KafkaTable:
        """Declare a table; see `streams.runtime.base.Runtime.table`.

        Args:
            name: With the room's name, the changelog's.
            partitions: Of the changelog.
            owned: Returns the partitions that this worker owns.
            recovered: Awaited after each recovery.
            one_writer: Whether only the owner may write.
            begins: Returns the offset at which reading begins; for a table with one writer.

        Raises:
            ValueError: `begins` for a table with several writers.
        """
        if begins is not None and not one_writer:
            raise ValueError(f"{name}: only a table with one_writer=True can start at an offset")
        rows = changelogged(self.app, name, partitions)
        if one_writer:
            return self._fenced(rows, owned, recovered, begins)
        return self._shared(rows, owned, recovered)

    def _shared(
        self,
        rows: Changelogged,
        owned: Callable[[], frozenset[int]],
        recovered: Callable[[], Awaitable[None]],
    ) -> KafkaTable:
        """Declare a table that faust recovers; each worker writes the partitions that it owns."""
        began_s = time.monotonic()

        async def on_assigned(*_: Any, **__: Any) -> None:
            nonlocal began_s
            began_s = time.monotonic()

        async def on_recover() -> None:
            self.metrics.recovery_seconds.labels("read").set(time.monotonic() - began_s)
            with consumer_of(self.app).at_work():
                await recovered()

        async def write(topic: str, rows: Sequence[tuple[bytes, bytes | None, int]]) -> None:
            await sender_of(self.app).send([(topic, partition, key, value) for key, value, partition in rows])

        rows.on_recover(self._or_crash(on_recover))
        self.app.on_partitions_assigned.connect(on_assigned, weak=False)
        changelog = rows.changelog_topic.get_topic_name()
        return KafkaTable(
            changelog, rows.data, rows.places, write, owned, self.settings.kafka.max_record_bytes
        )

    def _fenced(
        self,
        known: Changelogged,
        owned: Callable[[], frozenset[int]],
        recovered: Callable[[], Awaitable[None]],
        begins: Callable[[], Awaitable[int]] | None,
    ) -> FencedTable:
        """Declare a table with a single writer; faust knows it only to assign its changelog."""
        connect: Any = self.app.producer
        changelog = known.changelog_topic.get_topic_name()
        fence = Fence(
            changelog, connect._new_producer, transactions=lambda: not connections.embedded(self.settings)
        )
        consumer = consumer_of(self.app)
        consumer.fences[changelog] = fence

        async def from_the_beginning() -> int:
            return 0

        async def on_recovered() -> None:
            self.metrics.recovery_seconds.labels("read").set(table.read_s)
            await recovered()

        table = FencedTable(
            self.settings, fence, consumer, owned, begins=begins or from_the_beginning, recovered=on_recovered
        )
        known.on_recover(self._or_crash(table.recover))
        return table

    def _or_crash(self, recover: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """End the room if recovery fails: faust drops exceptions of its callbacks, and would continue without rows."""

        async def whole() -> None:
            try:
                await recover()
            except Exception as error:
                crash(f"the {self.room} cannot recover: {error}", error)

        return whole
