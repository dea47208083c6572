"""Changelog-backed tables whose writes can be awaited.

faust's `table[key] = value` discards the delivery future, so a row that the broker refused would be lost and the
offset committed anyway. `put_all` waits for the delivery and only then makes the rows visible.

faust recovers tables whose partitions are shared among workers (`Changelogged`). Tables with a single writer recover by
themselves (`fenced.py`).
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

import faust
from aiokafka.errors import KafkaError

from streams.runtime.errors import RowTooLarge, SendFailed
from streams.runtime.partitions import partition_for

Owned = Callable[[], frozenset[int]]
Write = Callable[[str, Sequence[tuple[bytes, bytes | None, int]]], Awaitable[None]]
"""Writes records (key, value or None, partition) to a topic in order, and waits until the broker has stored them."""


class Changelogged(faust.Table[bytes, bytes]):
    """A faust table of bytes in memory, which faust rebuilds from its changelog."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.places: dict[bytes, int] = {}
        """The partition of each row."""

    def apply_changelog_batch(self, batch: Iterable[Any]) -> None:
        """Apply recovered rows and remember the partition of each.

        A row outside its key's partition is skipped. An earlier release wrote such rows for misplaced feedback, and
        they would replace the valid ones.
        """
        batch = [
            event
            for event in batch
            if event.message.partition == partition_for(event.message.key, self.partitions or 1)
        ]
        super().apply_changelog_batch(batch)
        self.places.update((event.message.key, event.message.partition) for event in batch)


class KafkaTable:
    """A table with awaited writes that shows the rows of owned partitions; see the protocol `Table`.

    Args:
        changelog: The topic of its rows.
        rows: Rows by key; whatever recovers the table fills them.
        places: The partition of each row.
        write: Writes its records.
        owned: Returns the partitions that this worker owns.
        limit: Most bytes of a record.
    """

    def __init__(
        self,
        changelog: str,
        rows: MutableMapping[bytes, bytes],
        places: dict[bytes, int],
        write: Write,
        owned: Owned,
        limit: int,
    ) -> None:
        self.changelog = changelog
        self._rows = rows
        self._places = places
        self._write = write
        self._owned = owned
        self._limit = limit

    def get(self, key: bytes) -> bytes | None:
        """Return a row."""
        value = self._rows.get(key)
        return bytes(value) if value is not None else None

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return the rows of owned partitions; rows of partitions that have moved away stay in memory, unseen."""
        owned, places = self._owned(), self._places
        return [(k, v) for k, v in list(self._rows.items()) if places.get(k) in owned]

    def partition_of(self, key: bytes) -> int | None:
        """Return the partition of a row; None without a row in an owned partition."""
        place = self._places.get(key)
        return place if place in self._owned() and key in self._rows else None

    def __len__(self) -> int:
        """Return the number of rows in owned partitions."""
        owned, places = self._owned(), self._places
        return sum(places.get(key) in owned for key in list(self._rows))

    async def put(self, key: bytes, value: bytes, partition: int) -> None:
        """Write one row."""
        await self.put_all([(key, value, partition)])

    async def put_all(self, rows: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Write rows (key, value, partition), in order, and wait until the broker has all of them.

        Args:
            rows: No value may be empty, because recovery treats an empty value as a deletion. The partition is that of
                the record being handled; the changelog has as many partitions.

        Raises:
            RowTooLarge: a row exceeds the record limit; nothing was written.
            SendFailed: the broker refused a row; none is visible.
        """
        rows = list(rows)
        for key, value, _ in rows:
            self._check(key, value)
        await self._send(self.changelog, rows, "row")
        for key, value, partition in rows:
            self._rows[key] = value
            self._places[key] = partition

    async def drop_all(self, keys: Iterable[tuple[bytes, int]]) -> None:
        """Delete rows and wait until the broker has stored all tombstones."""
        keys = list(keys)
        await self._send(self.changelog, [(key, None, partition) for key, partition in keys], "tombstone")
        for key, _ in keys:
            self._rows.pop(key, None)
            self._places.pop(key, None)

    def seed(self, rows: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Add rows (key, value, partition) that are already durable; an existing row of the same key stays."""
        for key, value, partition in rows:
            if key not in self._rows:
                self._rows[key] = value
                self._places[key] = partition

    async def post(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write records to another topic of one partition; a table with a single writer writes them as that writer."""
        await self._send(topic, [(key, value, 0) for key, value in records], "record")

    async def _send(self, topic: str, rows: Sequence[tuple[bytes, bytes | None, int]], what: str) -> None:
        try:
            await self._write(topic, rows)
        except KafkaError as error:
            raise SendFailed(f"{topic}: the broker refused a {what}: {error!r}") from error

    def _check(self, key: bytes, value: bytes) -> None:
        if not value:
            raise ValueError(f"{self.changelog}: row {key!r} is empty")
        if len(value) + len(key) + 512 > self._limit:
            raise RowTooLarge(
                f"{self.changelog}: row {key!r} has {len(value)} bytes, the record limit is {self._limit}"
            )
