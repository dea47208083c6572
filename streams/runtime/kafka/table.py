"""A changelog-backed table whose writes can be awaited.

`table[key] = value` throws the delivery's future away, so a row the broker refused would be lost and the
offset committed all the same. `put` waits for the delivery and only then shows the row.
"""

from collections.abc import Iterable

import faust


class RowTooLarge(ValueError):
    """A row would exceed the record limit; the source record must be refused before the row is made."""


class DurableTable(faust.Table[bytes, bytes]):
    """Rows as bytes, in memory, rebuilt from the changelog at start."""

    async def put(self, key: bytes, value: bytes, partition: int) -> None:
        """Write a row and wait until the broker has it.

        Args:
            key: The query_id.
            value: The row, never empty: recovery treats falsy values and deletions alike.
            partition: Partition of the event being handled; the changelog has the same count.

        Raises:
            RowTooLarge: the row exceeds the record limit.
            Exception: what the producer raised; the process must not go on.
        """
        if not value:
            raise ValueError(f"{self.name}: row {key!r} is empty")
        limit = self.app.conf.producer_max_request_size
        if len(value) + len(key) + 512 > limit:
            raise RowTooLarge(f"{self.name}: row {key!r} has {len(value)} bytes, the record limit is {limit}")
        await self.send_changelog(partition, key, value)
        self.data[key] = value

    async def put_all(self, rows: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Write several rows, in order, and wait for all of them."""
        futures = []
        kept = []
        for key, value, partition in rows:
            if not value:
                raise ValueError(f"{self.name}: row {key!r} is empty")
            futures.append(self.send_changelog(partition, key, value))
            kept.append((key, value))
        for future in futures:
            await future
        for key, value in kept:
            self.data[key] = value

    async def drop_all(self, keys: Iterable[tuple[bytes, int]]) -> None:
        """Delete several rows and wait until the broker has all tombstones."""
        keys = list(keys)
        for future in [self.send_changelog(p, key, None, value_serializer="raw") for key, p in keys]:
            await future
        for key, _ in keys:
            self.data.pop(key, None)

    async def drop(self, key: bytes, partition: int) -> None:
        """Delete a row and wait until the broker has the tombstone."""
        await self.drop_all([(key, partition)])
