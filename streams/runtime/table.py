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
"""A row's key, value and partition; a value of None deletes the row."""

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
    """Rows (bytes) by key, in memory, rebuilt from a changelog at startup. A row is durable once its write returns.

    A row is written to its key's partition (`partition_for`); rows in other partitions are not recovered. The runtime
    implements writing and recovery, and this class decides which rows are visible.

    Args:
        changelog: The topic that holds the rows.
        write: Writes records; see `Runtime.table` for when this is atomic.
        owned: Returns the partitions that this worker owns. Rows in other partitions stay in memory but are invisible.
        limit: Maximum size of a record, in bytes.
        rows: The mapping to store the rows in, by key, which the table's recovery fills; None for a new dictionary.
        places: The partition of each row; None for a table with one partition.
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
        """Return the number, from 1, of the recovery that read the rows; 0 if partitions were reassigned since.

        Results derived from rows read by one recovery must not be written after a later recovery. Only single-writer
        tables count recoveries in both runtimes.
        """
        return 0

    def get(self, key: bytes) -> bytes | None:
        """Return the row of a key, or None if there is none."""
        return self._rows.get(key)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the keys of the rows in the partitions this worker owns."""
        owned = self._owned()
        return (key for key in list(self._rows) if self._place(key) in owned)

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return the key and value of every row in the partitions this worker owns."""
        return [(key, self._rows[key]) for key in self]

    def partition_of(self, key: bytes) -> int | None:
        """Return the partition of a row, or None if there is no such row or another worker owns its partition."""
        place = self._place(key)
        return place if place in self._owned() and key in self._rows else None

    def _place(self, key: bytes) -> int | None:
        return 0 if self._places is None else self._places.get(key)

    async def put_all(self, rows: Iterable[PlacedRow]) -> None:
        """Write rows in order. They become visible once all of them are durable.

        Args:
            rows: The rows. A value of None deletes the row. No value may be empty, because a recovery would treat the
                row as deleted.

        Raises:
            PartitionLost: the handler's record now belongs to another worker; nothing was written.
            RowTooLarge: a row exceeds the record limit; nothing was written.
            SendFailed: the broker did not accept a row. None of the rows is visible, but some may have been written.
        """
        rows = list(rows)
        for row in rows:
            self.check(row)
        if rows:
            await self._write(self.changelog, rows)
            self._show(rows)

    async def put_again(self, late: Iterable[bytes]) -> None:
        """Rewrite the rows of keys that have had late writes, if this worker owns the rows' partitions."""
        for key in sorted(late):
            # A handler that started earlier may close its query in the meantime.
            if (place := self.partition_of(key)) is not None:
                _log.warning(
                    "%s: row %r was written late: the earlier one is written again", self.changelog, key
                )
                await self.put_all([(key, self._rows[key], place)])

    def check(self, row: PlacedRow) -> None:
        """Raise an error if a row cannot be written.

        Raises:
            RowTooLarge: the row exceeds the record limit.
            ValueError: the row's value is empty.
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
        """Add rows (key, value, partition) that are durable elsewhere, except for keys that already have a row."""
        self._show(row for row in rows if row[0] not in self._rows)

    async def post(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write records (key, value) to another single-partition topic, under this table's write fence.

        Once another worker has taken over the table, this worker cannot write such records either. A value of None
        deletes the key.

        Raises:
            SendFailed: the broker did not accept a record; other records of this call may have been written.
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


# Rows whose values are in a file, so each row takes only a few dozen bytes of memory besides its key.

_BLOCK: Final = 256
_LENGTH_BITS: Final = 32
_LENGTHS: Final = (1 << _LENGTH_BITS) - 1


class FileRows(MutableMapping[bytes, bytes]):
    """Values by key, in an unnamed file that disappears when its process ends, even if the process is killed.

    The file caches data that is on the broker, and no other process reads it, so a partial write is harmless. A value
    takes up whole blocks of 256 bytes. Freed blocks are reused by the next value with the same number of blocks.

    Args:
        folder: The folder for the file; created if missing.

    Raises:
        Crash: the file cannot be created, written or read; the message names the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The first block of each value and its length, packed into one integer.
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
