"""Runs `timeline.sql` and `checks.sql` over the facts: one state per query, and what must hold for its records."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from streams.audit.reading import TABLES, Ledger, statements
from streams.audit.snapshots import Snapshots

CLOSE: Final = 1e-9
"""Relative difference allowed between two ways of adding the same numbers."""

BATCH: Final = 64
"""More records than the decider handles at once: it has finished with whatever lies this far behind its newest row."""

_APPLIED: Final = """
SELECT total(iif(t.since_ms > :kept_reward, p.updates, (l.learned >= 0) + (l.corrected >= 0)))
FROM Row l JOIN Applied p USING (query_id) JOIN Timeline t USING (query_id)"""
_UPDATES: Final = "SELECT total((learned >= 0) + (corrected >= 0)) FROM Row"
_REPEATED: Final = """
SELECT (SELECT count(*) FROM Query q JOIN Timeline t USING (query_id) WHERE t.query <> q.rowid)
+ (SELECT count(*) - count(DISTINCT query_id) FROM Context WHERE error IS NULL)
+ (SELECT count(*) - count(DISTINCT query_id) FROM Decision WHERE error IS NULL)
+ (SELECT count(*) - count(DISTINCT query_id) FROM Answer WHERE error IS NULL)
+ (SELECT count(*) - count(DISTINCT query_id || '/' || kind) FROM Reward WHERE error IS NULL)"""
_STATES: Final = (
    "SELECT iif(why <> '', state || ' (' || why || ')', state) AS said, count(*) FROM State GROUP BY said"
)
_OLDEST: Final = """
SELECT query_id, waits_for, round((:now_ms - asked_ms) / 1e3, 1), round((deadline_ms - :now_ms) / 1e3, 1) FROM State
WHERE state = 'pending' ORDER BY asked_ms, query_id LIMIT 100"""
_OVERDUE: Final = "SELECT count(*) FROM State WHERE state = 'pending' AND deadline_ms < :now_ms"


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

    def states(self) -> dict[str, int]:
        """Return the number of queries in each state, with the reason of states that have one."""
        return dict(self._db.execute(_STATES).fetchall())

    def oldest(self) -> list[tuple[str, str, float, float]]:
        """Return the hundred oldest pending queries: id, what it waits for, age and time left in seconds."""
        return self._db.execute(_OLDEST, self._known).fetchall()

    def overdue(self) -> int:
        """Return the number of queries pending past their deadline."""
        return int(self._one(_OVERDUE))

    def repeated(self) -> int:
        """Return the number of harmless repeats."""
        return int(self._one(_REPEATED))

    def updates(self) -> int:
        """Return the number of rewards and corrections that entered the policy, by the learner's rows."""
        return int(self._one(_UPDATES))

    def applied(self) -> int:
        """Return the number that should have, by the Rewards; where those are gone, the rows' own number."""
        return int(self._one(_APPLIED))

    def _one(self, statement: str) -> Any:
        return self._db.execute(statement, self._known).fetchone()[0]

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
