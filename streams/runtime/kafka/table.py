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
        topic = self.changelog_topic.get_topic_name()
        if fence := consumer_of(self.app).fences.get(topic):
            await fence.write([(key, value) for key, value, _ in rows])
            return
        await sender_of(self.app).send([(topic, partition, key, value) for key, value, partition in rows])
