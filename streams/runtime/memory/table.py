"""The Table protocol over the memory broker: rows by key and partition, rebuilt from their changelog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from streams.runtime.errors import RowTooLarge
from streams.runtime.partitions import partition_for

if TYPE_CHECKING:
    from streams.runtime.memory.runtime import MemoryRuntime


class MemoryTable:
    """Rows by key and partition, rebuilt from their changelog; see the protocol `Table`."""

    def __init__(
        self,
        runtime: MemoryRuntime,
        changelog: str,
        source: str,
        recovered: Callable[[], Awaitable[None]],
        begins: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self.runtime = runtime
        self.changelog = changelog
        self.source = source
        self.recovered = recovered
        self.begins = begins
        self._rows: dict[bytes, tuple[int, bytes]] = {}

    async def recover(self) -> None:
        """Read the changelog of the partitions that are owned now; a row outside its key's partition is left out."""
        partitions = self.runtime.broker.partitions(self.changelog)
        owned = sorted(self.runtime.assigned(self.source))
        begin = await self.begins() if self.begins and owned else 0
        self._rows = {
            key: (partition, value)
            for partition in owned
            for key, value in self.runtime.broker.changelog(self.changelog, partition, begin).items()
            if partition_for(key, partitions) == partition
        }
        await self.recovered()

    def get(self, key: bytes) -> bytes | None:
        """Return a row."""
        found = self._rows.get(key)
        return found[1] if found else None

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return all rows of owned partitions."""
        owned = self.runtime.assigned(self.source)
        return [(key, value) for key, (partition, value) in self._rows.items() if partition in owned]

    def partition_of(self, key: bytes) -> int | None:
        """Return where a row lies."""
        found = self._rows.get(key)
        return found[0] if found and found[0] in self.runtime.assigned(self.source) else None

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.items())

    async def put(self, key: bytes, value: bytes, partition: int) -> None:
        """Write one row."""
        await self.put_all([(key, value, partition)])

    async def put_all(self, rows: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Write rows, each an effect of its own."""
        rows = list(rows)
        limit = self.runtime.settings.kafka.max_record_bytes
        for key, value, _ in rows:
            if not value:
                raise ValueError(f"{self.changelog}: row {key!r} is empty")
            if len(value) + len(key) + 512 > limit:
                raise RowTooLarge(
                    f"{self.changelog}: row {key!r} has {len(value)} bytes, the record limit is {limit}"
                )
        for key, value, partition in rows:
            await self.runtime.effect("row", self.changelog, key, value, partition)
        for key, value, partition in rows:
            self._rows[key] = (partition, value)

    async def drop_all(self, keys: Iterable[tuple[bytes, int]]) -> None:
        """Delete rows, each an effect of its own."""
        keys = list(keys)
        for key, partition in keys:
            await self.runtime.effect("row", self.changelog, key, None, partition)
        for key, _ in keys:
            self._rows.pop(key, None)

    def seed(self, rows: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Show rows that are durable elsewhere."""
        for key, value, partition in rows:
            self._rows.setdefault(key, (partition, value))

    async def post(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write records of another topic, each an effect of its own."""
        self.runtime.require_own(topic)
        for key, value in records:
            await self.runtime.effect("row", topic, key, value, 0)
