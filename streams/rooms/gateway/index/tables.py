"""The tables of the index, and its rows as the rest of the gateway sees them."""

from typing import Any, Final, Literal

from msgspec import Struct, structs

from schemas.answer import Status
from schemas.query import Query

SCHEMA: Final = """
create table if not exists queries (
    query_id text primary key,
    tenant text,
    key text not null default '',
    digest text not null default '',
    created_ms integer not null,
    until_ms integer not null default 0,
    reserved real not null default 0,
    asked integer not null default 0,
    family text, level text,
    question text, action text, objective text, cohort text, randomised integer,
    reason text, twin_of text,
    status text, answered_ms integer, eflops real, correct real,
    decision blob, answer blob, reward blob
) without rowid;
create table if not exists feedback (
    query_id text, source text, value real not null, primary key (query_id, source)
) without rowid;
create table if not exists letters (
    origin text primary key, created_ms integer not null, letter blob not null, retried integer not null default 0
) without rowid;
create index if not exists by_body on queries (key, digest, created_ms);
create index if not exists by_age on queries (created_ms);
"""

_FAMILY: Final = ("family", "subject", "domain")
_MOST_WORD: Final = 80


class Seen(Struct, frozen=True):
    """One query of the index.

    Attributes:
        query_id: Its id.
        tenant: Who asked.
        digest: Of the request's body; empty where the query did not come through a gateway.
        created_ms: When it was asked, ms since the epoch.
    """

    query_id: str
    tenant: str | None
    digest: str
    created_ms: int


class Listed(Struct, frozen=True):
    """One query as lists and statistics show it; None for what is not known yet.

    Attributes:
        query_id: Its id.
        tenant: Who asked.
        created_ms: When it was asked, ms since the epoch.
        family: What kind of question it is, from its metadata.
        level: How hard it is, from its metadata.
        question: The first 200 characters.
        action: The configuration chosen.
        objective: Name of its objective, or what kind it is.
        cohort: `policy` or `control`.
        randomised: Whether a draw chose its cohort; see `Decision`.
        reason: What drew the configuration; see `Decision`.
        twin_of: The query that it asks once more with the control's configuration, from its metadata.
        status: How it ended.
        answered_ms: When.
        eflops: What it cost.
        correct: Whether it was right, 0 to 1.
    """

    query_id: str
    tenant: str | None
    created_ms: int
    family: str | None
    level: str | None
    question: str | None
    action: str | None
    objective: str | None
    cohort: str | None
    randomised: bool | None
    reason: str | None
    twin_of: str | None
    status: Status | None
    answered_ms: int | None
    eflops: float | None
    correct: float | None

    @property
    def arm(self) -> Literal["policy", "control"] | None:
        """Return whose choice it was: the policy's, the control's (a twin's too), or None: the client's own."""
        if self.twin_of is not None or self.cohort == "control":
            return "control"
        return "policy" if self.action is not None and self.reason != "pinned" else None


LISTED: Final = ", ".join(field.name for field in structs.fields(Listed))
"""The columns of `Listed`."""


def family_of(query: Query) -> str | None:
    """Return what kind of question a query is: `family`, `subject` or `domain` of its metadata."""
    return next((word for name in _FAMILY if (word := _word(query.metadata.get(name))) is not None), None)


def level_of(query: Query) -> str | None:
    """Return how hard a query is: `level` of its metadata."""
    return _word(query.metadata.get("level"))


def twin_of(query: Query) -> str | None:
    """Return the query whose twin this one is: `control_of` of its metadata."""
    found = query.metadata.get("control_of")
    return found if isinstance(found, str) else None


def _word(value: Any) -> str | None:
    return str(value)[:_MOST_WORD] if isinstance(value, str | int | float) and str(value) else None
