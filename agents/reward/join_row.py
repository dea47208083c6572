"""The join's row for a query, which exists while the query's reward is open, and the row's deadlines."""

import operator
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from agents.catalogue.models import Architecture
from schemas.action import Action
from schemas.answer import Answer, Status
from schemas.decision import Cohort, Decision, Verified
from schemas.errors import UnreadableRecord
from schemas.failure import EarlierAttempt, Fault
from schemas.forest import Unit
from schemas.grader import Grader
from schemas.objective import ObjectiveInForce
from schemas.query import Origin, Reference
from schemas.record import is_id
from schemas.reward import Cost, Due, Feedback
from schemas.spent import Spent

DueKind = Literal["timeout", "feedback", "parked", "forget", "crowded"]


class Deadline(NamedTuple):
    """A row's deadline, in ms on the broker's clock."""

    kind: DueKind
    deadline_ms: int


class DecisionInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Decision fields that the join keeps. The reference and the grader are dropped once the Answer is graded.

    `generator` is the model's architecture when the Decision arrived, so that the search's cost can be computed even if
    the model has since been removed from the catalogue, its record compacted and this process restarted. `cohort` is
    empty if the query was not assigned to a cohort at random.

    A further attempt's Decision replaces these fields; `earlier` lists the previous attempts.
    """

    seq: int
    action: Action
    objective: ObjectiveInForce
    appended_ms: int  # of the Query
    decided_ms: int = 0  # append time of the Decision; 0 in rows written before this field existed
    timeout_ms: int  # from `appended_ms` to expiry
    feedback_ms: int  # from the Answer to the default reward
    reference: Reference | None = None
    grader: Grader | None = None  # in force when the Decision arrived; None for the default
    tenant: str = ""
    key: str = ""  # digest of the API key; dropped after the first reward, which contains the charge
    generator: Architecture | None = None
    learn: bool = True
    cohort: Cohort | Literal[""] = ""
    spent: Spent = field(default_factory=Spent)  # for the Answer that is written if the query expires
    verified: Verified = "all"
    attempt: int = 1
    earlier: tuple[EarlierAttempt, ...] = ()

    def of(self, attempt: int) -> "DecisionInfo":
        """Return a copy with the sequence number and action of one of the attempts so far."""
        for each in self.earlier:
            if each.attempt == attempt:
                before = self.earlier[: attempt - 1]
                return replace(
                    self, seq=each.seq, action=each.action, generator=None, attempt=attempt, earlier=before
                )
        return self


class ScoredAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An Answer's reward terms: its cost, its path score and its grade."""

    status: Status
    score: Unit | None = None
    price: Cost | None = None
    cut_cost: float = field(
        default=0.0, name="cut_eflops"
    )  # upper bound on the cost of a step that the deadline cut
    correct: Unit | None = None  # None: not yet known
    grader: str = ""  # name and version, if it was graded against a reference
    rule: str = ""  # the grader's rule that decided
    fault: Fault = ""
    bounded: bool = False  # cut by the client's own bounds
    unscored: bool = False  # has a text, but no verifier score
    missing: str = ""  # why a term could not be computed
    attempt: int = 0  # the attempt that it ends; 0 if the Answer has no Decision


class Parked(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Feedback read before its Answer or its Decision.

    `at_ms` is its append time. `until_ms` is that plus the deployment's feedback wait. The Decision, which contains the
    query's own wait, must arrive by then. Rows written before the field `at_ms` existed lack it; their Feedback waits
    until `until_ms`, regardless of the query's own wait, and is never late.
    """

    feedback: Feedback
    at_ms: int | None = None
    until_ms: int
    origin: Origin | None = None


Offsets = tuple[int, int, int, int]
"""The highest offsets of a Decision, an Answer, a Feedback and a Due applied to a row; -1 for none."""

TOPICS = (Decision, Answer, Feedback, Due)


class JoinRow(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag="join-row.v1"):
    """One query in the join.

    Attributes:
        query_id: The query's id.
        decision: The fields kept from its Decision; stored as `opened`.
        answer: The whole Answer, if it arrived before the Decision.
        answered_ms: Append time of the Answer that ended the query.
        scored: That Answer's reward terms; stored as `valued`.
        parked: A Feedback read before the Answer or the Decision.
        orphaned: Position of a Feedback that was sent to the dead-letter topic and must not be applied later.
        provisional: Whether a provisional reward awaits its correction.
        expiry_sent: Whether the `expired` Answer was written.
        forget_ms: When a row without a Decision may be deleted.
        seen: The highest offsets applied to the row.
    """

    query_id: str
    decision: DecisionInfo | None = field(default=None, name="opened")
    answer: Answer | None = None
    answered_ms: int | None = None
    scored: ScoredAnswer | None = field(default=None, name="valued")
    parked: Parked | None = None
    orphaned: Origin | None = None
    provisional: bool = False
    expiry_sent: bool = False
    forget_ms: int | None = None
    seen: Offsets = (-1, -1, -1, -1)

    @property
    def feedback_deadline_ms(self) -> int:
        """Return the time after which Feedback is too late: `feedback_wait_s` after the Answer."""
        assert self.decision is not None
        assert self.answered_ms is not None
        return self.answered_ms + self.decision.feedback_ms

    @property
    def rejected(self) -> bool:
        """Return whether the row contains only a rejection before any Decision, so that a digest can replace it."""
        answer = self.answer
        alone = self.decision is None and self.parked is None
        return alone and answer is not None and answer.status == "rejected" and answer.seq is None

    @property
    def parked_deadline_ms(self) -> int:
        """Return the deadline for a parked Feedback's Answer, or for the Decision if there is none yet."""
        assert self.parked is not None
        if self.decision is None or self.parked.at_ms is None:
            return self.parked.until_ms
        return self.parked.at_ms + self.decision.feedback_ms


def rejected_row(query_id: str, answered_ms: int) -> JoinRow:
    """Return the row for a rejected query when only its Answer's append time was kept, in ms."""
    answer = Answer(query_id=query_id, status="rejected", by="", error="rejected before it was decided")
    return JoinRow(query_id=query_id, answer=answer, answered_ms=answered_ms)


def dues(row: JoinRow) -> tuple[Deadline, ...]:
    """Return a row's pending deadlines. Once a deadline has passed, the timer sends it back as a Due."""
    found: list[Deadline] = []
    if row.decision is not None and row.answered_ms is None and not row.expiry_sent:
        found.append(Deadline("timeout", row.decision.appended_ms + row.decision.timeout_ms))
    if row.provisional:
        found.append(Deadline("feedback", row.feedback_deadline_ms))
    if row.parked is not None:
        found.append(Deadline("parked", row.parked_deadline_ms))
    if row.forget_ms is not None:
        found.append(Deadline("forget", row.forget_ms))
    return tuple(found)


def encode_row(row: JoinRow) -> bytes:
    """Return a row as stored: JSON with its schema version."""
    return msgspec.json.encode(row)


def decode_row(value: bytes) -> JoinRow:
    """Return a stored row.

    Raises:
        UnreadableRecord: The value is not a row from this release. Rebuild the changelog from its topics.
    """
    try:
        row = msgspec.json.decode(value, type=JoinRow)
    # msgspec's own error covers neither bytes that are not UTF-8 nor values nested too deeply.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableRecord("join row", "", f"cannot be read ({error}); rebuild the table") from None
    if not _possible(row):
        raise UnreadableRecord("join row", "", "contradicts itself; rebuild the table")
    return row


def _possible(row: JoinRow) -> bool:
    """Return whether a row could be the result of a fold, as the next record and the timer assume."""
    price = None if row.scored is None else row.scored.price
    if not is_id(row.query_id) or (price is not None and not price.cost > 0.0):
        return False
    if row.answered_ms is None:
        return row.answer is None and row.scored is None and not row.provisional
    if row.decision is None:
        return (row.answer is None) != (row.scored is None) and not row.provisional
    if row.answer is not None and row.scored is None and not row.provisional:
        return row.answer.attempt > row.decision.attempt  # the Decision of its attempt has not been read yet
    return row.provisional and row.answer is None and row.scored is not None


class _Seen(Struct):
    seen: Offsets = (-1, -1, -1, -1)


def newer(value: bytes, than: bytes) -> bool:
    """Return whether a stored row includes all records that an earlier row for its query includes.

    If not, it was written by a worker that had lost its partition without noticing, after its successor had already
    applied more records. A value that is not a row never replaces a row.
    """
    row, before = _offsets(value), _offsets(than)
    return before is None or (row is not None and all(map(operator.ge, row, before)))


def _offsets(value: bytes) -> Offsets | None:
    try:
        return msgspec.json.decode(value, type=_Seen).seen
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
