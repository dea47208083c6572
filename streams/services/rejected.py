"""Ids of queries that were rejected before they were decided, stored as digests alongside the join's rows."""

from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from streams.runtime.table import Table

KEY: Final = b"\x00rejected/"
"""Prefix for the digests' keys. A query_id is printable ASCII, so no query's row can have a key with this prefix."""

_AT_ONCE: Final = 2


class RejectedIds:
    """The latest rejected ids, as 8 bytes of their BLAKE2b digest, with the append time of the Answer.

    A Decision may still follow if the worker that refused the Query ended before committing and its successor handled
    it. That Decision is then matched with the Answer that the client has. With N ids stored, a new one is mistaken for
    one of them with probability N/2⁶⁴.

    Args:
        table: The table to store them in.
        most: Maximum number of ids per partition, of about 250 bytes each; new ones replace the oldest.
        keep_ms: Ids whose Answers are older than this are removed when new ones are added.
    """

    def __init__(self, table: Table, most: int, keep_ms: int) -> None:
        self._table = table
        self._most = most
        self._keep_ms = keep_ms
        # By partition, oldest first.
        self._keys: dict[int, deque[bytes]] = {}

    def answered_ms(self, query_id: str) -> int | None:
        """Return the append time of the Answer that rejected a query, ms since the epoch; None if unknown."""
        value = self._table.get(_key(query_id))
        return None if value is None else int(value)

    def rows(self, query_id: str, at_ms: int, partition: int) -> list[tuple[bytes, bytes | None]]:
        """Return the rows to write to remember a query, including deletions of the oldest ids.

        Args:
            query_id: The query's id.
            at_ms: The append time of its Answer, ms since the epoch.
            partition: The partition of its records.
        """
        key, known = _key(query_id), self._keys.get(partition, deque())
        if self._table.get(key) is not None:
            return []
        oldest = [known[at] for at in range(min(_AT_ONCE, len(known)))]
        gone = [
            each
            for at, each in enumerate(oldest)
            if len(known) - at >= self._most or int(self._table.get(each) or 0) < at_ms - self._keep_ms
        ]
        return [(key, str(at_ms).encode()), *((each, None) for each in gone)]

    def written(self, rows: Sequence[tuple[bytes, bytes | None]], partition: int) -> None:
        """Record that rows were written."""
        known = self._keys.setdefault(partition, deque())
        for key, value in rows:
            if value is not None:
                known.append(key)
            elif known and known[0] == key:
                known.popleft()

    def recovered(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Start from the table's rows, using those that are ids."""
        self._keys = {}
        for key, _ in sorted(rows, key=lambda row: int(row[1])):
            partition = self._table.partition_of(key)
            if partition is not None:
                self._keys.setdefault(partition, deque()).append(key)


def _key(query_id: str) -> bytes:
    return KEY + blake2b(query_id.encode(), digest_size=8).digest()
