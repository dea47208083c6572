"""Records as events, for clients: live as they are appended, or read back from the log of a run."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Self, get_args

from msgspec import Struct

from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.chunk import AnswerChunk
from schemas.control import Cancel, ControlRecord, Heartbeat, decode_control
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Query, QueryContext
from schemas.record import decode
from schemas.reward import Due, Feedback, Reward
from schemas.search import SearchStep, Verification
from streams.log.base import Begin, ConsumerRecord, Since
from streams.log.blocking import BlockingLog, read_all
from streams.settings import Settings
from streams.timeline import Timeline
from streams.topics import Topics

# Decoded records with their kind: one QueryEvent for each record that is not a row of a service's table.

OfQueries = Literal[
    "query",
    "context",
    "decision",
    "step",
    "verification",
    "attempt-failed",
    "answer",
    "feedback",
    "reward",
    "dead-letter",
]
Kind = OfQueries | Literal["answer-chunk", "due", "cancel", "control", "heartbeat"]
"""The kinds of records."""

KINDS: tuple[OfQueries, ...] = get_args(OfQueries)
"""The kinds that concern one query, in chronological order."""

RECORDS: dict[Kind, Any] = {
    "query": Query,
    "context": QueryContext,
    "decision": Decision,
    "step": SearchStep,
    "verification": Verification,
    "attempt-failed": AttemptFailed,
    "answer": Answer,
    "feedback": Feedback,
    "reward": Reward,
    "dead-letter": DeadLetter,
    "answer-chunk": AnswerChunk,
    "due": Due,
    "cancel": Cancel,
    "control": ControlRecord,
    "heartbeat": Heartbeat,
}
"""The record class for each kind; `control` has five classes."""

_GROUPED: tuple[Kind, ...] = ("verification", "cancel")
"""The kinds with one topic per executor group."""


class QueryEvent(Struct, frozen=True, kw_only=True):
    """One decoded record.

    Attributes:
        kind: The kind of record.
        query_id: The query it concerns; empty if there is none, or for a dead letter whose query cannot be read.
        record: The decoded record: an Answer for kind `answer`, and so on.
        at_ms: When the broker appended it, in milliseconds since the epoch.
        bytes: The size of its value on the wire.
    """

    kind: Kind
    query_id: str
    record: Any
    at_ms: int
    bytes: int = 0


def topic_names(topics: Topics, kinds: Iterable[Kind], groups: Iterable[str] = ()) -> list[str]:
    """Return the topics containing records of some kinds.

    Args:
        topics: The deployment's topics.
        kinds: The kinds to read.
        groups: The executor groups; `verification` and `cancel` have one topic per group.
    """
    wanted = set(kinds)
    names = [name for name, kind in _plain(topics).items() if kind in wanted]
    for kind in wanted.intersection(_GROUPED):
        names += [_of_group(topics, kind, group) for group in groups]
    return names


@lru_cache(maxsize=512)
def kind_of(topics: Topics, name: str) -> Kind | None:
    """Return the kind of records on a topic; None for a topic that does not concern clients."""
    grouped = (kind for kind in _GROUPED if name.startswith(_of_group(topics, kind, "")))
    return next(grouped, _plain(topics).get(name))


def event_of(topics: Topics, raw: ConsumerRecord) -> QueryEvent | None:
    """Return the event in a raw record; None for a tombstone, or for a topic without a kind.

    Raises:
        RecordError: the record cannot be decoded.
    """
    kind = kind_of(topics, raw.topic)
    if kind is None or raw.value is None:
        return None
    record: Any = decode_control(raw.value) if kind == "control" else decode(raw.value, RECORDS[kind])
    return QueryEvent(
        kind=kind,
        query_id=getattr(record, "query_id", None) or "",
        record=record,
        at_ms=raw.timestamp_ms,
        bytes=len(raw.value),
    )


def _plain(topics: Topics) -> dict[str, Kind]:
    return {
        topics.query: "query",
        topics.context: "context",
        topics.decision: "decision",
        topics.search_step: "step",
        topics.attempt_failed: "attempt-failed",
        topics.answer: "answer",
        topics.answer_chunk: "answer-chunk",
        topics.feedback: "feedback",
        topics.reward: "reward",
        topics.dead_letter: "dead-letter",
        topics.due: "due",
        topics.control: "control",
        topics.heartbeat: "heartbeat",
    }


def _of_group(topics: Topics, kind: Kind, group: str) -> str:
    return topics.cancel_for(group) if kind == "cancel" else topics.verification_for(group)


# Follow records of some kinds as they are appended, without committing anything.

log = logging.getLogger("streams.client")


class EventFollower:
    """Iterator over new records of some kinds.

    It has no consumer group, so it does not affect the services, and every follower sees every record. Records
    of one query and kind arrive in order; across kinds, the order is that of the broker's responses. A record that
    cannot be decoded is logged and skipped. Use a follower from one thread only.

    Args:
        settings: The deployment.
        kinds: The kinds to follow, for instance `("decision", "step", "answer")`.
        groups: The executor groups, needed for `verification` and `cancel` only.
        everything: Start with the oldest record still available.
        since_ms: Start with the first record appended at or after this time, in ms since the epoch on the broker's
            clock.

    Raises:
        BrokerUnreachable: no broker answers.
        UnknownTopic: none of the topics exists.

    Example:
        with client.follow("answer") as answers:
            for event in answers:
                print(event.query_id, event.record.status)
    """

    def __init__(
        self,
        settings: Settings,
        kinds: Iterable[Kind],
        *,
        groups: Iterable[str] = (),
        everything: bool = False,
        since_ms: int | None = None,
    ) -> None:
        self._topics = Topics(settings)
        self._since_ms = since_ms or 0
        names = topic_names(self._topics, kinds, groups)
        begin: Begin = "beginning" if everything else "end"
        self._log = BlockingLog(settings)
        self._reader = self._log.follow(names, begin if since_ms is None else Since(since_ms))

    def poll(self, timeout_s: float = 0.5) -> list[QueryEvent]:
        """Return the records that have arrived; wait up to `timeout_s` for the first."""
        return list(self._events(self._reader.poll(timeout_s)))

    def catch_up(self) -> Iterator[QueryEvent]:
        """Yield everything up to the current ends of the topics."""
        for records in self._reader.catch_up():
            yield from self._events(records)

    def _events(self, records: Iterable[ConsumerRecord]) -> Iterator[QueryEvent]:
        for raw in records:
            try:
                event = event_of(self._topics, raw)
            except UniscaleError as error:
                log.warning("%s cannot be read: %s", raw.coordinates, error)
                continue
            # The embedded broker may also deliver earlier records.
            if event is not None and event.at_ms >= self._since_ms:
                yield event

    def close(self) -> None:
        """Close the connection."""
        self._log.close()

    def __iter__(self) -> Iterator[QueryEvent]:
        while True:
            yield from self.poll(1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


# A run's log, read back: every record of every query, in order, with its append time.
#
# The summaries of a run (demo, explain, tests) are computed from this and nothing else.


@dataclass
class Timelines:
    """A run's queries by query_id, and its dead letters."""

    by_id: dict[str, Timeline] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    unreadable: int = 0
    bytes: int = 0

    def timeline(self, query_id: str) -> Timeline:
        """Return the timeline of a query, creating it if there is none yet."""
        return self.by_id.setdefault(query_id, Timeline(query_id))

    def add(self, topics: Topics, raw: ConsumerRecord, about: str | None = None) -> None:
        """Add one raw record from any topic; with `about`, only if it concerns that query."""
        if about is not None and not concerns(topics, raw, about.encode()):
            return
        try:
            event = event_of(topics, raw)
        except UniscaleError:
            self.bytes += len(raw.value or b"")
            self.unreadable += 1
            return
        if event is not None:
            self.take(event)

    def take(self, event: QueryEvent) -> None:
        """Add one decoded record."""
        self.bytes += event.bytes
        if isinstance(event.record, DeadLetter):
            self.dead_letters.append(event.record)
        else:
            self.timeline(event.query_id).add(event.record, event.at_ms)


def read_timelines(settings: Settings, groups: Iterable[str], about: str | None = None) -> Timelines:
    """Read all topics of a deployment from the beginning to their current ends.

    Args:
        settings: The deployment.
        groups: Its executor groups.
        about: A query_id whose records alone are to be read; the others are skipped without being decoded.

    Raises:
        BrokerUnreachable: no broker answers.
        UnknownTopic: none of the topics exists.
    """
    topics = Topics(settings)
    names = topic_names(topics, [kind for kind in KINDS if kind != "feedback"], groups)
    timelines = Timelines()
    for raw in read_all(settings, names):
        timelines.add(topics, raw, about)
    return timelines


def executor_groups(settings: Settings) -> list[str]:
    """Return the executor groups that have topics on the broker."""
    start = Topics(settings).verification_for("")
    with BlockingLog(settings) as log:
        return sorted(name.removeprefix(start) for name in log.topics() if name.startswith(start))


def concerns(topics: Topics, raw: ConsumerRecord, query_id: bytes) -> bool:
    """Return whether a record may concern a query, by its key or, on topics with other keys, by its value.

    A client may send a Query under any key.
    """
    if raw.topic in (topics.query, topics.context, topics.reward, topics.dead_letter):
        return raw.key == query_id or query_id in (raw.value or b"")
    return bool(raw.key == query_id)
