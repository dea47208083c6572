"""A service's table: rows by key, in memory or in a file, rebuilt from a changelog at startup."""

import logging
import os
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from streams.log.base import Newer
from streams.runtime.errors import Crash, RowTooLarge

Recovered: TypeAlias = Callable[[], Awaitable[None]]
Begins: TypeAlias = Callable[[], Awaitable[int]]


PlacedRow: TypeAlias = tuple[bytes, bytes | None, int]
"""Key, value and partition of a row; None deletes it."""

Write: TypeAlias = Callable[[str, Sequence[PlacedRow]], Awaitable[None]]
"""Writes records to a topic in order, and returns once the broker has stored all of them."""


class DeclaredTable(NamedTuple):
    """A table as a service declares it; see `Runtime.table`."""

    name: str
    partitions: int
    source: str
    recovered: Recovered
    one_writer: bool
    begins: Begins | None
    newer: Newer | None


_log = logging.getLogger("streams.tables")


class Table:
    """Rows as bytes by key, in memory, rebuilt from a changelog at startup. A write is durable when it returns.

    A row is written to its key's partition (`partition_for`); rows in other partitions are not recovered. The runtime
    implements writing and recovery; this class decides which rows are visible.

    Args:
        changelog: The topic of its rows.
        write: Writes records; see `Runtime.table` for when this is atomic.
        owned: Returns the partitions that this worker owns. Rows of others stay in memory but are not visible.
        limit: Maximum bytes of a record.
        rows: Rows by key; whatever recovers the table fills them.
        places: The partition of each row; None for a table of one partition.
    """

    def __init__(
        self,
        changelog: str,
        write: Write,
        owned: Callable[[], frozenset[int]],
        limit: int,
        rows: MutableMapping[bytes, bytes] | None = None,
        places: dict[bytes, int] | None = None,
    ) -> None:
        self.changelog = changelog
        self._write = write
        self._owned = owned
        self._limit = limit
        self._rows = {} if rows is None else rows
        self._places = places

    @property
    def reading(self) -> int:
        """Return the number, from 1, of the recovery that its rows are from; 0 if partitions were reassigned since.

        Results derived from the rows of one recovery must not be written after another. Every runtime counts recoveries
        for single-writer tables only.
        """
        return 0

    def get(self, key: bytes) -> bytes | None:
        """Return a row, or None if the key has none."""
        return self._rows.get(key)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the keys of the rows in the partitions this worker owns."""
        owned = self._owned()
        return (key for key in list(self._rows) if self._place(key) in owned)

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of every row in the partitions this worker owns."""
        return [(key, self._rows[key]) for key in self]

    def partition_of(self, key: bytes) -> int | None:
        """Return the partition of a row, None if there is no such row or another worker owns its partition."""
        place = self._place(key)
        return place if place in self._owned() and key in self._rows else None

    def _place(self, key: bytes) -> int | None:
        return 0 if self._places is None else self._places.get(key)

    async def put_all(self, rows: Iterable[PlacedRow]) -> None:
        """Write rows in order. They are visible once all of them are durable.

        Args:
            rows: The rows. No value may be empty, because a recovery treats that as a deletion. None deletes a row.

        Raises:
            PartitionLost: the handler's record belongs to another worker now; nothing was written.
            RowTooLarge: a row exceeds the record limit; nothing was written.
            SendFailed: the broker did not accept a row; none is visible, others of the call may have been written.
        """
        rows = list(rows)
        for row in rows:
            self.check(row)
        if rows:
            await self._write(self.changelog, rows)
            self._show(rows)

    async def put_again(self, late: Iterable[bytes]) -> None:
        """Write rows of owned partitions again whose keys had late writes after them."""
        for key in sorted(late):
            # A handler that started earlier may close its query meanwhile.
            if (place := self.partition_of(key)) is not None:
                _log.warning(
                    "%s: row %r was written late: the earlier one is written again", self.changelog, key
                )
                await self.put_all([(key, self._rows[key], place)])

    def check(self, row: PlacedRow) -> None:
        """Refuse a row that cannot be written.

        Raises:
            RowTooLarge: it exceeds the record limit.
        """
        key, value, _ = row
        if value is None:
            return
        if not value:
            raise ValueError(f"{self.changelog}: row {key!r} is empty")
        if len(value) + len(key) + 512 > self._limit:
            raise RowTooLarge(
                f"{self.changelog}: row {key!r} has {len(value)} bytes, the record limit is {self._limit}"
            )

    def seed(self, rows: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Add rows (key, value, partition) that are durable elsewhere, for keys that the table lacks."""
        self._show(row for row in rows if row[0] not in self._rows)

    async def post(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write records (key, value) to another topic with one partition, under this table's write fence.

        A worker whose table was taken over by another cannot write them either. None deletes a key.

        Raises:
            SendFailed: the broker did not accept a record; others of the call may have been written.
        """
        if rows := [(key, value, 0) for key, value in records]:
            await self._write(topic, rows)

    def _show(self, rows: Iterable[PlacedRow]) -> None:
        for key, value, partition in rows:
            if value is not None:
                self._rows[key] = value
            elif key in self._rows:
                del self._rows[key]
            if self._places is not None and value is not None:
                self._places[key] = partition
            elif self._places is not None:
                self._places.pop(key, None)


# Rows whose values are in a file, so that each takes a few dozen bytes of memory besides its key.

_BLOCK: Final = 256
_LENGTH_BITS: Final = 32
_LENGTHS: Final = (1 << _LENGTH_BITS) - 1


class FileRows(MutableMapping[bytes, bytes]):
    """Values by key, in an unnamed file that disappears with its process, however that ends.

    It is a cache of data on the broker: no other process reads the file, so a partial write is harmless. A value takes
    whole blocks of 256 bytes, and freed blocks are reused by the next value of the same number of blocks, so the file
    does not grow beyond its peak contents.

    Args:
        folder: Folder of the file; created if missing.

    Raises:
        Crash: the file cannot be created, written or read; the message says where.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # First block of each value, and its length.
        self._index: dict[bytes, int] = {}
        self._end = 0
        self._free: dict[int, list[int]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise self._lost(error) from error
        weakref.finalize(self, os.close, self._file)

    @property
    def file_bytes(self) -> int:
        """Return the size of the file."""
        return self._end * _BLOCK

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._index)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the keys in insertion order."""
        return iter(self._index)

    def __contains__(self, key: object) -> bool:
        """Return whether a row exists, without reading it."""
        return key in self._index

    def __getitem__(self, key: bytes) -> bytes:
        """Return a value."""
        at, length = self._place(self._index[key])
        try:
            value = os.pread(self._file, length, at * _BLOCK)
        except OSError as error:
            raise self._lost(error) from error
        if len(value) != length:
            raise self._lost(OSError(f"{len(value)} bytes of {length} at {at * _BLOCK}"))
        return value

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        blocks = _blocks(len(value))
        free = self._free.get(blocks)
        at = free.pop() if free else self._end
        try:
            written = os.pwrite(self._file, value, at * _BLOCK)
        except OSError as error:
            raise self._lost(error) from error
        if written != len(value):
            raise self._lost(OSError("no space left"))
        self._end = max(self._end, at + blocks)
        before, self._index[key] = self._index.get(key), at << _LENGTH_BITS | len(value)
        self._leave(before)

    def __delitem__(self, key: bytes) -> None:
        """Remove a row."""
        self._leave(self._index.pop(key))

    def clear(self) -> None:
        """Remove all rows."""
        self._index.clear()
        self._free.clear()
        self._end = 0

    def _leave(self, place: int | None) -> None:
        if place is not None:
            at, length = self._place(place)
            self._free.setdefault(_blocks(length), []).append(at)

    @staticmethod
    def _place(place: int) -> tuple[int, int]:
        return place >> _LENGTH_BITS, place & _LENGTHS

    def _lost(self, error: OSError) -> Crash:
        return Crash(
            f"state_dir: rows cannot be kept in a file in {self._folder} ({error.strerror or error}); it needs space "
            "for the rows of all open queries, see docs/operating.md, Sizing"
        )


def _blocks(length: int) -> int:
    return max(1, -(-length // _BLOCK))
