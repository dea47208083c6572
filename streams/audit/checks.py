"""Runs `timeline.sql`, `checks.sql` and `summary.sql` over the facts: a state per query, what must hold, and totals."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from streams.audit.reading import TABLES, Ledger, statements
from streams.audit.snapshots import Snapshots

CLOSE: Final = 1e-9
"""Relative difference allowed between two ways of adding the same numbers."""

BATCH: Final = 64
"""More records than the decider handles at once: it has finished with whatever lies this far behind its newest row."""


class Discrepancy(NamedTuple):
    """What is wrong: the check that says so, the query_id or another subject, and words."""

    check: str
    query_id: str
    what: str


class Checks:
    """One state for each query of a ledger, and what is wrong.

    Args:
        ledger: Everything has been added.
        topics: The topic of each kind of record.
        known: What the statements know besides the facts, by the names of their parameters: times in ms, and how far
            each service had come.
    """

    def __init__(self, ledger: Ledger, topics: dict[str, str], known: dict[str, Any]) -> None:
        self._db = ledger.db
        snapshots = Snapshots(self._db.execute("SELECT key, value FROM Chunk"))
        for version, fault in snapshots.versions.items():
            ledger.add("Version", version, fault)
        self._db.execute("COMMIT")
        # A prior is the snapshot before all rows.
        self._known = {**known, "batch": BATCH, "after": max(-1, min(snapshots.versions, default=-1))}
        self._db.create_function("close", 2, _close, deterministic=True)
        self._db.create_function("said", 1, _said, deterministic=True)
        self._db.create_function("ended", 1, snapshots.ended, deterministic=True)
        for kind, table in TABLES.items():
            self._db.execute(f"ALTER TABLE {table} ADD COLUMN error TEXT")
            if kind not in ("learner", "join"):
                self._give_up(table, topics[kind])
        for statement in statements("timeline.sql").values():
            self._db.execute(statement, self._known)

    def wrong(self) -> Iterator[Discrepancy]:
        """Yield what is wrong, check by check."""
        for name, statement in statements("checks.sql").items():
            for query_id, what in self._db.execute(statement, self._known):
                yield Discrepancy(name, query_id, what)

    def found(self, name: str) -> list[Any]:
        """Return the rows of a statement of `summary.sql`."""
        return self._db.execute(statements("summary.sql")[name], self._known).fetchall()

    def number(self, name: str) -> int:
        """Return the number that a statement of `summary.sql` finds."""
        [(number,)] = self.found(name)
        return int(number)

    def _give_up(self, table: str, topic: str) -> None:
        """Write beside each record of a topic why it was given up, if it was."""
        self._db.execute(
            f"UPDATE {table} SET error = Letter.error FROM Letter"
            f" WHERE Letter.topic = ? AND Letter.part = {table}.part AND Letter.off = {table}.off",
            (topic,),
        )


def _close(one: float | None, two: float | None) -> bool:
    return one is not None and two is not None and abs(one - two) <= CLOSE * max(1.0, abs(one), abs(two))


def _said(value: object) -> str:
    return "none" if value is None else str(value)
