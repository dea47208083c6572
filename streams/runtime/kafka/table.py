"""A changelog-backed table whose writes can be awaited.

faust's `table[key] = value` discards the delivery future, so a row that the broker refused would be lost and the
offset committed anyway. `put_all` waits for the delivery and only then makes the rows visible.
"""

from collections.abc import Iterable
from typing import Any

import faust

from streams.runtime.base import RowTooLarge
from streams.runtime.kafka.transport import consumer_of, sender_of
from streams.runtime.partitions import partition_for


class DurableTable(faust.Table[bytes, bytes]):
    """Rows as bytes, in memory, rebuilt from the changelog at start."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.places: dict[bytes, int] = {}
        """The partition of each row."""
        self.begins_later = False
        """Whether reading begins at an offset that is known only when recovery starts; see `Consumer.begins`."""

    async def on_rebalance(self, *args: Any, **kwargs: Any) -> None:
        """Forget rows that are about to be read again, perhaps not from the beginning."""
        await super().on_rebalance(*args, **kwargs)
        if self.begins_later:
            self.data.clear()
            self.places.clear()

    def persisted_offset(self, tp: Any) -> int | None:
        """Return -1 where everything from the beginning of reading on is read again; None has faust decide."""
        return -1 if self.begins_later else None

    def seed(self, rows: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Show rows (key, value, partition) that are durable elsewhere, where there is none of that key."""
        for key, value, partition in rows:
            if key not in self.data:
                self.data[key] = value
                self.places[key] = partition

    async def post(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write records of another topic of one partition, under this table's right to write where it has one."""
        await self._send(topic, [(key, value, 0) for key, value in records])

    def apply_changelog_batch(self, batch: Iterable[Any]) -> None:
        """Apply recovered rows, and note where each lies.

        A row outside its key's partition is left out: an earlier release wrote such rows for misplaced feedback, and
        one of them would replace the row that counts.
        """
        batch = [
            event
            for event in batch
            if event.message.partition == partition_for(event.message.key, self.partitions or 1)
        ]
        super().apply_changelog_batch(batch)
        self.places.update((event.message.key, event.message.partition) for event in batch)

    async def put_all(self, rows: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Write rows (key, value, partition), in order, and wait until the broker has all of them.

        Args:
            rows: Values are never empty: recovery treats falsy values and deletions alike. The partition is that of
                the record being handled; the changelog has the same count.

        Raises:
            RowTooLarge: a row exceeds the record limit; nothing was written.
            Exception: what the producer raised; no row is visible.
        """
        rows = list(rows)
        for key, value, _ in rows:
            self._check(key, value)
        await self._write(rows)
        for key, value, partition in rows:
            self.data[key] = value
            self.places[key] = partition

    def _check(self, key: bytes, value: bytes) -> None:
        if not value:
            raise ValueError(f"{self.name}: row {key!r} is empty")
        limit = self.app.conf.producer_max_request_size
        if len(value) + len(key) + 512 > limit:
            raise RowTooLarge(f"{self.name}: row {key!r} has {len(value)} bytes, the record limit is {limit}")

    async def drop_all(self, keys: Iterable[tuple[bytes, int]]) -> None:
        """Delete several rows and wait until the broker has all tombstones."""
        keys = list(keys)
        await self._write([(key, None, partition) for key, partition in keys])
        for key, _ in keys:
            self.data.pop(key, None)
            self.places.pop(key, None)

    async def _write(self, rows: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        await self._send(self.changelog_topic.get_topic_name(), rows)

    async def _send(self, topic: str, rows: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        if fence := consumer_of(self.app).fences.get(self.changelog_topic.get_topic_name()):
            await fence.write([(key, value) for key, value, _ in rows], topic)
            return
        await sender_of(self.app).send([(topic, partition, key, value) for key, value, partition in rows])
