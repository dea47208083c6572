"""Keeps the facts while the log is read: SQLite on disk, so that memory does not grow with the log."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from streams.audit.reading.records import PER_QUERY, Chunk, Feedback, JoinRow, Letter, Row, Vector

_BATCH: Final = 500
F = TypeVar("F", bound=NamedTuple)

# Of these kinds, a later record or tombstone replaces an earlier one of the same key; of vectors, the first stays.
_KEYS: Final[dict[type[Any], str]] = {
    Row: "query_id", JoinRow: "query_id", Letter: "topic, part, off", Vector: "query_id", Chunk: "key",
}  # fmt: skip
_HUGE: Final = 2**63


def _allowed(hint: Any) -> frozenset[type]:
    """Return the types that a field may have: its hint's, and int where the hint allows float."""
    types = set(get_args(hint)) or {hint}
    return frozenset(types | {int} if float in types else types)


_TYPES: Final[dict[Any, list[frozenset[type]]]] = {
    kind: [_allowed(hint) for hint in get_type_hints(kind).values()]
    for kind in (*PER_QUERY, Letter, Vector, Chunk)
}


class Ledger:
    """The facts, on disk.

    Args:
        folder: Where the file is created; the caller removes it.
    """

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "facts.sqlite", isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-32768", "temp_store=FILE"):
            self.db.execute(f"PRAGMA {pragma}")
        for kind in _TYPES:
            key = f", PRIMARY KEY ({_KEYS[kind]})" if kind in _KEYS else ""
            rowid = " WITHOUT ROWID" if kind in (Letter,) else ""
            self.db.execute(f"CREATE TABLE {kind.__name__} ({', '.join(kind._fields)}{key}){rowid}")
        self._waiting: dict[type[Any], list[Any]] = {}
        self.db.execute("BEGIN")

    def add(self, fact: Any) -> None:
        """Keep a fact. Of a keyed kind, it replaces the earlier one of the same key.

        Raises:
            ValueError: A field has the wrong type, so the product did not write the record.
        """
        kind = type(fact)
        for value, allowed in zip(fact, _TYPES[kind], strict=True):
            if type(value) not in allowed or (type(value) is int and not -_HUGE <= value < _HUGE):
                raise ValueError(f"{kind.__name__}: a field is a {type(value).__name__}")
        waiting = self._waiting.setdefault(kind, [])
        waiting.append(fact)
        if len(waiting) >= _BATCH:
            self._write(kind)

    def drop(self, kind: type[Any], key: object) -> None:
        """Forget the fact of a key, whose tombstone was read."""
        self._write(kind)
        self.db.execute(f"DELETE FROM {kind.__name__} WHERE {_KEYS[kind]} = ?", (key,))

    def flush(self) -> None:
        """Write what is buffered, and build the indexes by query."""
        for kind in list(self._waiting):
            self._write(kind)
        self.db.execute("COMMIT")
        for kind in PER_QUERY:
            if kind not in _KEYS:
                self.db.execute(
                    f"CREATE INDEX by_id_{kind.__name__} ON {kind.__name__} (query_id, part, off)"
                )

    def query_ids(self) -> Iterator[str]:
        """Yield the query_id of every fact except Feedback and the aggregator's rows, sorted."""
        kinds = [kind.__name__ for kind in PER_QUERY if kind not in (Feedback, JoinRow)]
        union = " UNION ".join(f"SELECT query_id FROM {name} WHERE query_id IS NOT NULL" for name in kinds)
        yield from (query_id for (query_id,) in self.db.execute(f"{union} ORDER BY query_id"))

    def of_kind(self, kind: type[F], order: str = "query_id, part, off") -> Iterator[F]:
        """Yield the facts of a kind."""
        cursor = self.db.execute(f"SELECT * FROM {kind.__name__} ORDER BY {order}")
        while rows := cursor.fetchmany(_BATCH):
            yield from map(kind._make, rows)

    def letter(self, topic: str, part: int, off: int) -> str | None:
        """Return the error for which a record was given up; None if it was not."""
        found = self.db.execute(
            "SELECT error FROM Letter WHERE topic = ? AND part = ? AND off = ?", (topic, part, off)
        ).fetchone()
        return None if found is None else str(found[0])

    def one(self, statement: str, *values: object) -> Any:
        """Return the first column of the first row that a statement returns; None without rows."""
        found = self.db.execute(statement, values).fetchone()
        return None if found is None else found[0]

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    def _write(self, kind: type[Any]) -> None:
        if waiting := self._waiting.pop(kind, None):
            verb = "INSERT OR IGNORE" if kind is Vector else "INSERT OR REPLACE"
            marks = ", ".join("?" * len(kind._fields))
            self.db.executemany(f"{verb} INTO {kind.__name__} VALUES ({marks})", waiting)
