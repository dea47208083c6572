"""A snapshot's open rows, in chunks that are written once and referred to by later snapshots."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from agents.bandit.errors import CorruptState
from schemas.failure import attempt_id

# A row may wait weeks for its reward, whereas a snapshot is written every few minutes and must not rewrite every open
# row. Rows are therefore stored in chunks, one row per line, under the SHA-256 of the chunk's bytes. When a row changes
# or ends, its line becomes invalid; each snapshot records which lines are valid. Chunks with few valid lines are
# compacted, a few at a time. So a snapshot writes only the rows that have changed since the last one, and those of at
# most `MOVED` older chunks.

ROWS_KEY: Final = b"\x00rows/"
"""Key prefix for chunks of open rows. The rest of the key is the SHA-256 of the chunk's bytes."""

MOVED: Final = 8
"""Maximum number of chunks compacted per snapshot."""


class RowsPart(Struct, frozen=True, kw_only=True):
    """A snapshot's reference to a chunk of open rows.

    Attributes:
        sha256: Digest of the chunk's bytes; part of its record's key.
        count: Number of rows in the chunk, one per line.
        live: Which rows are valid, one bit per row. The first row is the lowest bit of the first byte.
    """

    sha256: str
    count: int
    live: bytes

    @property
    def key(self) -> bytes:
        """Return the key of the chunk's record."""
        return ROWS_KEY + self.sha256.encode()

    def lines(self) -> npt.NDArray[np.bool_]:
        """Return whether each row is valid, shape (count,).

        Raises:
            CorruptState: The number of bits does not match.
        """
        if len(self.live) != -(-self.count // 8):
            raise CorruptState("bits of a chunk of rows", len(self.live) * 8, self.count)
        bits = np.unpackbits(np.frombuffer(self.live, np.uint8), count=self.count, bitorder="little")
        return bits.astype(bool)


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    sha256: str
    keys: Sequence[bytes]
    lines: npt.NDArray[np.bool_]
    size: int

    @property
    def key(self) -> bytes:
        return ROWS_KEY + self.sha256.encode()

    @property
    def live(self) -> list[bytes]:
        return list(compress(self.keys, self.lines))

    @property
    def live_bytes(self) -> float:
        return self.size * float(self.lines.mean())


@dataclass(frozen=True, slots=True, eq=False)
class OpenRows:
    """The chunks that the newest snapshot refers to, oldest first.

    Only the rows' keys are in memory, not their values.
    """

    chunks: tuple[_Chunk, ...] = ()

    def parts(self) -> tuple[RowsPart, ...]:
        """Return a snapshot's references to the chunks."""
        return tuple(
            RowsPart(
                sha256=each.sha256,
                count=len(each.keys),
                live=np.packbits(each.lines, bitorder="little").tobytes(),
            )
            for each in self.chunks
        )

    def keys(self) -> Iterator[bytes]:
        """Yield the keys of the valid rows."""
        for each in self.chunks:
            yield from each.live

    def renewed(
        self,
        changed: Collection[bytes],
        still_open: Sequence[bytes],
        value: Callable[[bytes], bytes | None],
        size: int,
    ) -> tuple[OpenRows, list[tuple[bytes, bytes]]]:
        """Return the next snapshot's chunks, and the records of those that are new. Does not change this object.

        Args:
            changed: Keys of the rows written, ended or removed since the last snapshot.
            still_open: The keys in `changed` whose rows are still open.
            value: Returns a row's current value. Open rows must have one.
            size: Maximum chunk size, in bytes. A larger row gets a chunk of its own.
        """
        left = [
            _Chunk(each.sha256, each.keys, each.lines & [key not in changed for key in each.keys], each.size)
            for each in self.chunks
        ]
        left = [each for each in left if each.lines.any()]
        sparse = sorted(
            (each for each in left if each.live_bytes < size / 2), key=lambda each: each.live_bytes
        )
        moved = {each.sha256 for each in sparse[:MOVED]}
        kept = [each for each in left if each.sha256 not in moved]
        moving = [key for each in left if each.sha256 in moved for key in each.live]
        if not still_open and len(moved) == 1:
            return OpenRows(tuple(left)), []  # compacting a single chunk would only rewrite it
        made, records = list[_Chunk](), list[tuple[bytes, bytes]]()
        for keys, data in _filled([*moving, *still_open], value, size):
            sha256 = hashlib.sha256(data).hexdigest()
            made.append(_Chunk(sha256, keys, np.ones(len(keys), bool), len(data)))
            records.append((made[-1].key, data))
        return OpenRows((*kept, *made)), records


def _filled(
    keys: Iterable[bytes], value: Callable[[bytes], bytes | None], size: int
) -> Iterator[tuple[list[bytes], bytes]]:
    """Pack rows into chunks, and yield the keys and bytes of each chunk."""
    own, lines, length = list[bytes](), list[bytes](), 0
    for key in keys:
        line = value(key)
        if line is None:
            raise CorruptState(f"row {key!r}", "nothing", "an open row of the table")
        if own and length + len(line) + 1 > size:
            yield own, b"\n".join(lines)
            own, lines, length = [], [], 0
        own.append(key)
        lines.append(line)
        length += len(line) + 1
    if own:
        yield own, b"\n".join(lines)


# Reading open rows back, with at most one chunk in memory.


class _Line(Struct):
    query_id: str
    attempt: int = 1
    stage: str = "pending"


_LINES: Final = msgspec.json.Decoder(_Line)


class HeldRows(Mapping[bytes, bytes]):
    """A snapshot's open rows by key, read on demand. If they are read in order, each chunk is loaded once.

    Attributes:
        chunks: The chunks, which the next snapshot extends.
        pending: Keys of the decisions with no reward learned yet.
    """

    def __init__(
        self, parts: Sequence[RowsPart] = (), load: Callable[[bytes], bytes | None] = lambda key: None
    ) -> None:
        """Check every chunk.

        Args:
            parts: The snapshot's chunks.
            load: Returns a record by its key.

        Raises:
            CorruptState: A chunk is missing or damaged.
        """
        self._load = load
        self._parts = parts
        self._places: dict[bytes, tuple[int, int]] = {}
        self.pending = set[bytes]()
        self._read: tuple[int, list[bytes]] = (-1, [])
        chunks = []
        for number, part in enumerate(parts):
            data, what = load(part.key), f"chunk {number} of open rows"
            if data is None:
                raise CorruptState(what, "nothing", part.sha256)
            if (found := hashlib.sha256(data).hexdigest()) != part.sha256:
                raise CorruptState(f"{what} sha256", found, part.sha256)
            values, lines = data.split(b"\n"), part.lines()
            if len(values) != part.count:
                raise CorruptState(f"{what} rows", len(values), part.count)
            rows = [_LINES.decode(value) for value in values]
            keys = [attempt_id(row.query_id, row.attempt).encode() for row in rows]
            for at in map(int, np.flatnonzero(lines)):
                self._places[keys[at]] = number, at
                if rows[at].stage == "pending":
                    self.pending.add(keys[at])
            chunks.append(_Chunk(part.sha256, keys, lines, len(data)))
        self.chunks = OpenRows(tuple(chunks))

    def leave_out(self, keys: Iterable[bytes]) -> None:
        """Drop rows that must not be read from this snapshot, such as those that have changed since."""
        for key in keys:
            self._places.pop(key, None)
            self.pending.discard(key)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._places)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the keys, chunk by chunk."""
        return iter(self._places)

    def __contains__(self, key: object) -> bool:
        """Return whether there is a row, without reading it."""
        return key in self._places

    def __getitem__(self, key: bytes) -> bytes:
        """Return a row's value."""
        number, at = self._places[key]
        if self._read[0] != number:
            data = self._load(self._parts[number].key)
            assert data is not None, "it was there when it was checked"
            self._read = number, data.split(b"\n")
        return self._read[1][at]
