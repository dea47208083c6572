"""What is known of a query while its reward is open, and for a while after: a row of the join's table."""

from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from agents.space.models import Architecture
from schemas.action import Action
from schemas.answer import Answer, Fault, Status
from schemas.decision import Cohort
from schemas.errors import UnreadableRecord
from schemas.forest import Unit
from schemas.objective import ObjectiveInForce
from schemas.query import Origin, Reference
from schemas.reward import Feedback, Kind, Price

# msgspec's own error covers neither bytes that are not UTF-8 nor a value nested too deeply.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

DueKind = Literal["timeout", "feedback", "parked", "forget"]


class Deadline(NamedTuple):
    """A deadline of a row, in ms on the broker's clock."""

    kind: DueKind
    deadline_ms: int


class Opened(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the join keeps of a Decision. The reference goes as soon as the Answer is graded.

    `generator` is the model's architecture when the Decision arrived: the search can be priced even when the
    model has been removed from the catalogue, its record compacted and this process restarted since. `cohort` is empty
    where no draw chose it.
    """

    seq: int
    action: Action
    objective: ObjectiveInForce
    appended_ms: int  # of the Query
    timeout_ms: int  # from there to expiry
    feedback_ms: int  # from the Answer to the default
    reference: Reference | None = None
    generator: Architecture | None = None
    learn: bool = True
    cohort: Cohort | Literal[""] = ""


class Valued(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An Answer in the terms of the reward: its price, its path score, its grade."""

    status: Status
    score: Unit | None = None
    price: Price | None = None
    correct: Unit | None = None  # None: nobody knows yet
    grader: str = ""  # name and version, where a reference was graded against
    fault: Fault = ""
    bounded: bool = False  # the client's own bounds cut it
    missing: str = ""  # why a term could not be worked out


class Parked(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Feedback that came before its Answer."""

    feedback: Feedback
    until_ms: int
    origin: Origin | None = None


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag="join-row.v1"):
    """One query in the join.

    Attributes:
        query_id: The query's id.
        opened: Of its Decision.
        answer: An Answer that came before the Decision, whole.
        answered_ms: Append time of the Answer that counts.
        valued: That Answer in the terms of the reward.
        parked: A Feedback that came before the Answer.
        orphaned: Where a Feedback lies whose wait for the Answer was over: it stays a dead letter.
        provisional: Whether a provisional reward waits for its correction.
        expiry_sent: Whether the `expired` Answer was written.
        closed: The kind of reward that closed it.
        forget_ms: When the row may go.
    """

    query_id: str
    opened: Opened | None = None
    answer: Answer | None = None
    answered_ms: int | None = None
    valued: Valued | None = None
    parked: Parked | None = None
    orphaned: Origin | None = None
    provisional: bool = False
    expiry_sent: bool = False
    closed: Kind | None = None
    forget_ms: int | None = None

    @property
    def feedback_deadline_ms(self) -> int:
        """Return when an awaited Feedback is too late: `feedback_wait_s` after the Answer."""
        assert self.opened is not None
        assert self.answered_ms is not None
        return self.answered_ms + self.opened.feedback_ms


def dues(row: Row) -> tuple[Deadline, ...]:
    """Return the deadlines a row waits for. The timer sends each back as a Due once it has passed."""
    found: list[Deadline] = []
    if row.opened is not None and row.answered_ms is None and not row.expiry_sent:
        found.append(Deadline("timeout", row.opened.appended_ms + row.opened.timeout_ms))
    if row.provisional:
        found.append(Deadline("feedback", row.feedback_deadline_ms))
    if row.parked is not None:
        found.append(Deadline("parked", row.parked.until_ms))
    if row.forget_ms is not None:
        found.append(Deadline("forget", row.forget_ms))
    return tuple(found)


def encode_row(row: Row) -> bytes:
    """Return a row as stored: JSON with its schema version."""
    return msgspec.json.encode(row)


def decode_row(value: bytes) -> Row:
    """Return a stored row.

    An earlier release parked feedback whose `metadata` or `source` is refused today, and which could not be
    written again. Such a row is read without the two: they are still in the feedback topic.

    Raises:
        UnreadableRecord: it is not a row of this release: rebuild the changelog from its topics.
    """
    try:
        return msgspec.json.decode(value, type=Row)
    except _UNREADABLE as error:
        if (row := _without_notes(value)) is not None:
            return row
        raise UnreadableRecord("join row", "", f"cannot be read ({error}); rebuild the table") from None


def _without_notes(value: bytes) -> Row | None:
    try:
        plain = msgspec.json.decode(value)
        feedback = plain["parked"]["feedback"]
        plain["parked"]["feedback"] = {"query_id": feedback["query_id"], "correct": feedback["correct"]}
        return msgspec.convert(plain, Row)
    except (*_UNREADABLE, KeyError, TypeError):
        return None
