"""Rows whose values are in a file, so that each takes a few dozen bytes of memory besides its key."""

import os
import tempfile
import weakref
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

from streams.runtime.errors import Crash

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
        """Keep a value."""
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
        """Forget a row."""
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
