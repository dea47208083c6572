"""What each API key uses of its limits, counted from the log: all gateways of a deployment count the same requests.

A query reserves at admission what one like it costs, and settles that at its Answer. What another gateway admitted
counts here as soon as its Query has been read, which takes milliseconds.
"""

import math
import sqlite3
from typing import Final

from msgspec import Struct

from schemas.query import Query

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
_DAY_HOURS: Final = 24

SCHEMA: Final = """
create table if not exists spending (
    key text, hour integer, eflops real not null, answers integer not null, primary key (key, hour)
) without rowid;
create index if not exists by_key on queries (key, created_ms);
create index if not exists open_by_key on queries (key, until_ms) where status is null;
"""


class Used(Struct, frozen=True):
    """What an API key has used.

    Attributes:
        minute: Requests of the last minute.
        reset_s: Seconds until the first of these is more than a minute old.
        in_flight: Queries without an Answer.
        eflops: What its answers of the last 24 hours cost, by whole hours.
        reserved: What is reserved for its queries in flight.
        mean: Mean cost of an answer: what one more query reserves.
    """

    minute: int = 0
    reset_s: int = 0
    in_flight: int = 0
    eflops: float = 0.0
    reserved: float = 0.0
    mean: float = 0.0


class Usage:
    """Use by API key, in the database of the index.

    Args:
        db: The database; its table `queries` exists.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._db.executescript(SCHEMA)

    def used(self, key: str, now_ms: int) -> Used:
        """Return what a key has used."""
        minute, oldest_ms = self._db.execute(
            "select count(*), min(created_ms) from queries where key = ? and created_ms > ?",
            (key, now_ms - MINUTE_MS),
        ).fetchone()
        in_flight, reserved = self._db.execute(
            "select count(*), total(reserved) from queries where key = ? and until_ms > ? and status is null",
            (key, now_ms),
        ).fetchone()
        (eflops,) = self._db.execute(
            "select total(eflops) from spending where key = ? and hour > ?",
            (key, now_ms // HOUR_MS - _DAY_HOURS - 1),
        ).fetchone()
        return Used(
            minute=minute, in_flight=in_flight, eflops=eflops, reserved=reserved, mean=self._mean(key),
            reset_s=max(1, math.ceil((oldest_ms + MINUTE_MS - now_ms) / 1000)) if minute else 0,
        )  # fmt: skip

    def reservation(self, key: str, query: Query) -> float:
        """Return what a query reserves: the mean cost of its key's answers, its own budget at most."""
        if not key:
            return 0.0
        return reserved(self._mean(key), query)

    def charge(self, key: str, created_ms: int, eflops: float) -> None:
        """Settle one Answer."""
        if key:
            self._db.execute(
                "insert into spending (key, hour, eflops, answers) values (?, ?, ?, 1) on conflict (key, hour)"
                " do update set eflops = eflops + excluded.eflops, answers = answers + 1",
                (key, created_ms // HOUR_MS, eflops),
            )

    def trim(self, now_ms: int) -> None:
        """Forget what is too old to count."""
        self._db.execute("delete from spending where hour < ?", (now_ms // HOUR_MS - _DAY_HOURS,))

    def _mean(self, key: str) -> float:
        """Return the mean cost of a key's answers; of everybody's while it has none."""
        found = self._db.execute(
            "select total(eflops), total(answers) from spending where key = ?", (key,)
        ).fetchone()
        if not found[1]:
            found = self._db.execute("select total(eflops), total(answers) from spending").fetchone()
        return float(found[0] / found[1]) if found[1] else 0.0


def reserved(mean: float, query: Query) -> float:
    """Return what a query reserves where an answer costs `mean` on average.

    >>> from schemas.query import Budget
    >>> reserved(5.0, Query(query_id="q", text="?", budget=Budget(eflops=2.0)))
    2.0
    """
    budget = query.budget.eflops if query.budget else None
    if budget is None:
        return mean
    return min(mean, budget) if mean else budget
