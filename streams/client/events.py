"""The records a client sees, decoded and named: one Event for each record on a topic that concerns queries."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, get_args

from msgspec import Struct

from schemas.answer import Answer
from schemas.base import Record, decode
from schemas.context import Context
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Query
from schemas.reward import Feedback, Reward
from schemas.search import SearchStep, Verification
from streams.topics import Topics

Kind = Literal[
    "query", "context", "decision", "step", "verification", "answer", "feedback", "reward", "dead-letter"
]
"""The kinds of records, in the order of a query's life."""

KINDS: tuple[Kind, ...] = get_args(Kind)

RECORDS: dict[Kind, type[Record]] = {
    "query": Query,
    "context": Context,
    "decision": Decision,
    "step": SearchStep,
    "verification": Verification,
    "answer": Answer,
    "feedback": Feedback,
    "reward": Reward,
    "dead-letter": DeadLetter,
}


class Event(Struct, frozen=True, kw_only=True):
    """One record about a query.

    Attributes:
        kind: Kind of the record.
        query_id: The query it is about; empty for a dead letter whose query cannot be read.
        record: The decoded record: an Answer for kind `answer`, and so on.
        at_ms: When the broker appended it, in milliseconds since the epoch.
        bytes: Size of its value on the wire.
    """

    kind: Kind
    query_id: str
    record: Any
    at_ms: int
    bytes: int = 0


def topic_names(topics: Topics, kinds: Iterable[Kind], groups: Iterable[str] = ()) -> list[str]:
    """Return the topics that hold records of some kinds.

    Args:
        topics: The deployment's topics.
        kinds: The kinds to read.
        groups: The executor groups; `verification` has one topic per group.
    """
    wanted = set(kinds)
    names = [name for name, kind in _plain(topics).items() if kind in wanted]
    if "verification" in wanted:
        names += [topics.verification_for(group) for group in groups]
    return names


@lru_cache(maxsize=512)
def kind_of(topics: Topics, name: str) -> Kind | None:
    """Return the kind of the records of a topic; None for a topic that does not concern clients."""
    if name.startswith(topics.verification_for("")):
        return "verification"
    return _plain(topics).get(name)


def event_of(topics: Topics, raw: Any) -> Event | None:
    """Return the event in a raw record of kafka-python; None for a tombstone, or for a topic without a kind.

    Raises:
        RecordError: the record cannot be decoded.
    """
    kind = kind_of(topics, raw.topic)
    if kind is None or raw.value is None:
        return None
    record: Any = decode(raw.value, RECORDS[kind])
    return Event(
        kind=kind,
        query_id=record.query_id or "",
        record=record,
        at_ms=raw.timestamp,
        bytes=len(raw.value),
    )


def _plain(topics: Topics) -> dict[str, Kind]:
    return {
        topics.query: "query",
        topics.context: "context",
        topics.decision: "decision",
        topics.search_step: "step",
        topics.answer: "answer",
        topics.feedback: "feedback",
        topics.reward: "reward",
        topics.dead_letter: "dead-letter",
    }
