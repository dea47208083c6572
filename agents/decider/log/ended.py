"""Ids of queries whose rows have ended, in 16 bytes each. They reveal a duplicate after the row has left memory.

An id is kept as the first 8 bytes of its BLAKE2b digest, together with the partition and offset of its Query. The
digests are in sorted arrays of up to 65,536 ids. A full array never changes again, so it is written once, under the
SHA-256 of its bytes, and later snapshots refer to it.

Among N remembered ids, a new id is mistaken for one of them with probability N/2⁶⁴: 5·10⁻¹³ at ten million.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from agents.decider.errors import CorruptState
from schemas.query import Origin

ID_BYTES: Final = 16
"""Bytes of an id: its digest, and its Query's partition and offset."""

ARRAY_IDS: Final = 65_536
"""Ids of a full array: 1 MiB, a quarter of the record limit."""

MOST: Final = 10_000_000
"""Ids remembered at most: 160 MB, and four months at one query a second."""

_OFFSET_BITS: Final = 48
_OFFSETS: Final = (1 << _OFFSET_BITS) - 1

Numbers = npt.NDArray[np.uint64]


class Part(Struct, frozen=True, kw_only=True):
    """An array of ids as a snapshot refers to it.

    Attributes:
        sha256: Digest of its bytes; part of its record's key.
        count: Number of ids in it.
        context_offset: Largest offset of a Context of its queries.
    """

    sha256: str
    count: int
    context_offset: int


@dataclass(frozen=True, slots=True)
class _Array:
    part: Part
    digests: Numbers
    places: Numbers


class EndedIds:
    """The ids of queries that have ended, each with the partition and offset of its Query.

    Args:
        most: Ids remembered at most; beyond that, the oldest full arrays are forgotten.
        array_ids: Number of ids in a full array.
    """

    def __init__(self, most: int = MOST, array_ids: int = ARRAY_IDS) -> None:
        self.most = most
        self.array_ids = array_ids
        self._full: list[_Array] = []
        self._newest: dict[int, int] = {}
        self._newest_context = -1

    def __len__(self) -> int:
        """Return how many ids are remembered."""
        return len(self._newest) + sum(array.part.count for array in self._full)

    def add(self, query_id: str, query: Origin, context_offset: int) -> None:
        """Remember a query that has ended. This has no effect on an id that is known already.

        Args:
            query_id: Its id.
            query: Origin of its Query.
            context_offset: Offset of its Context.
        """
        if self.find(query_id) is not None:
            return
        self._newest[_digest(query_id)] = query.partition << _OFFSET_BITS | query.offset
        self._newest_context = max(self._newest_context, context_offset)
        if len(self._newest) >= self.array_ids:
            self._full.append(self._array())
            self._newest, self._newest_context = {}, -1

    def find(self, query_id: str) -> tuple[int, int] | None:
        """Return partition and offset of the Query that ended with this id; None if there is none."""
        digest = _digest(query_id)
        place = self._newest.get(digest)
        if place is None:
            wanted = np.uint64(digest)
            for array in reversed(self._full):
                at = int(array.digests.searchsorted(wanted))
                if at < len(array.digests) and array.digests[at] == wanted:
                    place = int(array.places[at])
                    break
        return None if place is None else (place >> _OFFSET_BITS, place & _OFFSETS)

    def forget(self, first_queries: Mapping[int, int], first_context: int) -> tuple[int, int]:
        """Forget full arrays whose queries can no longer be redelivered, then the oldest ones beyond `most`.

        Args:
            first_queries: Oldest Query offset on the broker, by partition.
            first_context: Oldest Context offset on the broker.

        Returns:
            How many ids were forgotten because they cannot be redelivered, and how many because there were too many.
        """
        before = len(self)
        firsts = {part: np.uint64(first) for part, first in first_queries.items()}
        self._full = [a for a in self._full if a.part.context_offset >= first_context or _held(a, firsts)]
        gone = before - len(self)
        while self._full and len(self) > self.most:
            del self._full[0]
        return gone, before - gone - len(self)

    def parts(self) -> list[tuple[Part, bytes]]:
        """Return every array with its bytes, oldest first; the last one may not be full yet."""
        arrays = [*self._full, self._array()] if self._newest else self._full
        return [(array.part, _bytes(array)) for array in arrays]

    @classmethod
    def read(
        cls,
        parts: Iterable[Part],
        load: Callable[[str], bytes | None],
        most: int = MOST,
        array_ids: int = ARRAY_IDS,
    ) -> EndedIds:
        """Return the ids that a snapshot refers to.

        Args:
            parts: Its arrays, oldest first.
            load: Returns the bytes of an array by their SHA-256.
            most: Ids remembered at most.
            array_ids: Number of ids in a full array.

        Raises:
            CorruptState: An array is missing or damaged.
        """
        made = cls(most, array_ids)
        for number, part in enumerate(parts):
            data = load(part.sha256)
            if data is None:
                raise CorruptState(f"ids {number}", "nothing", part.sha256)
            if (found := hashlib.sha256(data).hexdigest()) != part.sha256:
                raise CorruptState(f"ids {number} sha256", found, part.sha256)
            if len(data) != part.count * ID_BYTES:
                raise CorruptState(f"ids {number} size", len(data), part.count * ID_BYTES)
            digests, places = np.frombuffer(data, "<u8").reshape(2, part.count)
            if part.count >= array_ids:
                made._full.append(_Array(part, digests, places))
            else:
                made._newest |= zip(digests.tolist(), places.tolist(), strict=True)
                made._newest_context = max(made._newest_context, part.context_offset)
        return made

    def _array(self) -> _Array:
        digests = np.fromiter(self._newest.keys(), np.uint64, len(self._newest))
        places = np.fromiter(self._newest.values(), np.uint64, len(self._newest))
        order = np.argsort(digests)
        digests, places = digests[order], places[order]
        part = Part(
            sha256=hashlib.sha256(_packed(digests, places)).hexdigest(),
            count=len(digests),
            context_offset=self._newest_context,
        )
        return _Array(part, digests, places)


def _held(array: _Array, firsts: Mapping[int, np.uint64]) -> bool:
    """Return whether the broker still has one of the Queries."""
    partitions = array.places >> np.uint64(_OFFSET_BITS)
    offsets = array.places & np.uint64(_OFFSETS)
    return any(
        bool((offsets[partitions == part] >= firsts.get(int(part), 0)).any())
        for part in np.unique(partitions)
    )


def _bytes(array: _Array) -> bytes:
    return _packed(array.digests, array.places)


def _packed(digests: Numbers, places: Numbers) -> bytes:
    return digests.astype("<u8").tobytes() + places.astype("<u8").tobytes()


def _digest(query_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(query_id.encode(), digest_size=8).digest(), "little")
