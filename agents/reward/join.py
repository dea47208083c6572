"""The reward join: one row per query, a fold over Decision, Answer, Feedback and Due in any order, and its Rewards."""

import dataclasses
import math
import operator
from dataclasses import dataclass
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
from schemas.record import MAX_VALUE, is_id
from schemas.reward import Charge, Cost, Due, Feedback, GradedBy, Kind, Reward, reward_id
from schemas.spent import Spent

# What is known of a query while its reward is open: a row of the join's table.

DueKind = Literal["timeout", "feedback", "parked", "forget", "crowded"]


class Deadline(NamedTuple):
    """A deadline of a row, in ms on the broker's clock."""

    kind: DueKind
    deadline_ms: int


class DecisionInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a Decision that the join keeps. Reference and grader are dropped once the Answer is graded.

    `generator` is the model's architecture when the Decision arrived, so that the search's cost can be computed even if
    the model has since been removed from the catalogue, its record compacted and this process restarted. `cohort` is
    empty if the query was not assigned to one.

    A further attempt at the query replaces this; `earlier` lists the attempts before it.
    """

    seq: int
    action: Action
    objective: ObjectiveInForce
    appended_ms: int  # of the Query
    decided_ms: int = 0  # append time of the Decision; 0 in rows written before this field existed
    timeout_ms: int  # from there to expiry
    feedback_ms: int  # from the Answer to the default reward
    reference: Reference | None = None
    grader: Grader | None = None  # in force when the Decision arrived; None: the default
    tenant: str = ""
    key: str = ""  # digest of its API key; dropped after the first reward, which carries the charge
    generator: Architecture | None = None
    learn: bool = True
    cohort: Cohort | Literal[""] = ""
    spent: Spent = field(default_factory=Spent)  # for the Answer if the query expires
    verified: Verified = "all"
    attempt: int = 1
    earlier: tuple[EarlierAttempt, ...] = ()

    def of(self, attempt: int) -> "DecisionInfo":
        """Return this with the sequence number and the action of one of the attempts so far."""
        for each in self.earlier:
            if each.attempt == attempt:
                before = self.earlier[: attempt - 1]
                return replace(
                    self, seq=each.seq, action=each.action, generator=None, attempt=attempt, earlier=before
                )
        return self


class ScoredAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reward terms of an Answer: its cost, its path score, its grade."""

    status: Status
    score: Unit | None = None
    price: Cost | None = None
    cut_cost: float = field(
        default=0.0, name="cut_eflops"
    )  # upper bound on the cost of a step that the deadline cut
    correct: Unit | None = None  # None: not known yet
    grader: str = ""  # name and version, if it was graded against a reference
    rule: str = ""  # the grader's rule that decided
    fault: Fault = ""
    bounded: bool = False  # cut by the client's own bounds
    unscored: bool = False  # it has a text, but no verifier score
    missing: str = ""  # why a term could not be computed
    attempt: int = 0  # the attempt it ends; 0 if the Answer names none


class Parked(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Feedback that was read before its Answer, or before its Decision.

    `at_ms` is its append time, and `until_ms` is the deployment's feedback wait after it: the Decision, which contains
    the query's own wait, must arrive by then. Rows written before `at_ms` existed have none: their Feedback waits until
    `until_ms`, whatever the query's own wait is, and is never late.
    """

    feedback: Feedback
    at_ms: int | None = None
    until_ms: int
    origin: Origin | None = None


Offsets = tuple[int, int, int, int]
"""The highest offsets applied to a row, of Decision, Answer, Feedback and Due; -1 for none."""

_TOPICS = (Decision, Answer, Feedback, Due)


class JoinRow(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag="join-row.v1"):
    """One query in the join.

    Attributes:
        query_id: The query's id.
        decision: The kept fields of its Decision; stored as `opened`.
        answer: An Answer that arrived before the Decision, whole.
        answered_ms: Append time of the Answer that counts.
        scored: The reward terms of that Answer; stored as `valued`.
        parked: A Feedback that was read before the Answer or the Decision.
        orphaned: Position of a Feedback that became a dead letter: it stays one.
        provisional: Whether a provisional reward awaits its correction.
        expiry_sent: Whether the `expired` Answer was written.
        forget_ms: When a row without a Decision may be deleted.
        seen: The highest offsets applied to it.
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
        """Return whether the row says only that its query was rejected undecided, so that a digest can replace it."""
        answer = self.answer
        alone = self.decision is None and self.parked is None
        return alone and answer is not None and answer.status == "rejected" and answer.seq is None

    @property
    def parked_deadline_ms(self) -> int:
        """Return the deadline for the Answer of a parked Feedback, or for its Decision if there is none yet."""
        assert self.parked is not None
        if self.decision is None or self.parked.at_ms is None:
            return self.parked.until_ms
        return self.parked.at_ms + self.decision.feedback_ms


def rejected_row(query_id: str, answered_ms: int) -> JoinRow:
    """Return the row of a rejected query of which only the append time of the rejecting Answer was kept, in ms."""
    answer = Answer(query_id=query_id, status="rejected", by="", error="rejected before it was decided")
    return JoinRow(query_id=query_id, answer=answer, answered_ms=answered_ms)


def dues(row: JoinRow) -> tuple[Deadline, ...]:
    """Return the pending deadlines of a row. Once one has passed, the timer sends it back as a Due."""
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
        UnreadableRecord: it is not a row of this release: rebuild the changelog from its topics.
    """
    try:
        row = msgspec.json.decode(value, type=JoinRow)
    # msgspec's own error covers neither bytes that are not UTF-8 nor a value nested too deeply.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableRecord("join row", "", f"cannot be read ({error}); rebuild the table") from None
    if not _possible(row):
        raise UnreadableRecord("join row", "", "contradicts itself; rebuild the table")
    return row


def _possible(row: JoinRow) -> bool:
    """Return whether a row can be the result of a fold; the next record and the timer rely on that."""
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
    """Return whether a stored row includes everything that an earlier row of its query does.

    If not, it was written by a worker that had lost its partition without noticing, when its successor was already
    further ahead. A value that is not a row never replaces one.
    """
    row, before = _offsets(value), _offsets(than)
    return before is None or (row is not None and all(map(operator.ge, row, before)))


def _offsets(value: bytes) -> Offsets | None:
    try:
        return msgspec.json.decode(value, type=_Seen).seen
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# The Reward record of each stage: the raw terms, and the scalar under the objective in force.
#
# The scalar is Equation 4, `ObjectiveInForce.reward`. The raw terms always go with it, so that any other
# objective can be applied to them later.


def reward_of(
    query_id: str,
    kind: Kind,
    decision: DecisionInfo,
    scored: ScoredAnswer,
    answered_ms: int | None,
    correct: float | None,
    graded_by: GradedBy,
    closed_early: bool = False,
) -> Reward:
    """Return the Reward record of one stage, its scalar where no term is missing."""
    log_cost = math.log(scored.price.cost) if scored.price is not None else None
    alike = decision.verified == "all" and not scored.unscored
    score = scored.score if alike else correct
    return Reward(
        reward_id=reward_id(query_id, kind),
        query_id=query_id,
        kind=kind,
        seq=decision.seq,
        action=decision.action,
        status=scored.status,
        correct=correct,
        score=scored.score,
        log_cost=log_cost,
        price=scored.price,
        objective=decision.objective,
        reward=_scalar(correct, score, log_cost, decision.objective),
        graded_by=graded_by,
        grader=scored.grader if scored.correct is not None else "",
        rule=scored.rule if scored.correct is not None else "",
        latency_s=(answered_ms - decision.appended_ms) / 1000 if answered_ms is not None else None,
        fault=scored.fault,
        learn=decision.learn,
        bounded=scored.bounded,
        unscored=scored.unscored,
        charge=_charge(decision, scored),
        missing=scored.missing,
        closed_early=closed_early,
        verified=decision.verified,
        attempt=decision.attempt,
        earlier=decision.earlier,
    )


def _charge(decision: DecisionInfo, scored: ScoredAnswer) -> Charge | None:
    spent = scored.cut_cost + (0.0 if scored.price is None else scored.price.cost)
    spent += sum(each.cost for each in decision.earlier)
    if not decision.key or not spent:
        return None
    unit = decision.objective.cost_range.unit
    return Charge(key=decision.key, **{unit: spent})


def _scalar(
    correct: float | None, score: float | None, log_cost: float | None, objective: ObjectiveInForce
) -> float | None:
    if correct is None or score is None or log_cost is None:
        return None
    return objective.reward(correct, score, log_cost)


# The reward join: one row per query, a fold over Decision, Answer, Feedback and Due in any order.
#
#     provisional   score and cost are known, correctness is awaited
#     correction    feedback gave the correctness in time: always follows a provisional, even if both come at once
#     final         correctness is known at once, from the reference or because the model gave no text
#     default       correctness did not arrive in time, nothing could be run, or the client's own bounds cut the answer;
#                   the row closes with the terms it has. With too many open rewards, the wait ends early
#
# The first Answer ends the query, whichever attempt it belongs to. An Answer read before the Decision of its attempt
# waits for it. A Decision of a further attempt replaces the one before.
#
# Feedback counts if at most the query's feedback wait lies between it and the Answer, whichever was appended first, and
# if the Decision, which contains that wait, was appended within the deployment's own wait. Otherwise it is late, or a
# dead letter if Answer or Decision came too long after it. This depends on append times only, never on the order in
# which topics are read or on when the timer runs. Three corner cases remain, because no row keeps enough to decide
# them: Feedback read after its query was closed always counts as late; Feedback that does not fit its row is a dead
# letter; and a second Feedback, read while the first is parked, is a duplicate even if the first becomes a dead letter.
#
# Each kind is made at most once, and exactly one of the last three closes the query and deletes its row. A record seen
# before changes nothing. The caller withholds records of closed queries from the fold, and sends what it returns
# *before* it stores the row: after a crash in between, the same record makes the same rewards, with the same identity.
#
# A row always fits into a record: fields that would make it too large are dropped, and the transition says so
# (`oversized`). All times are append times of the broker. The next deadline is read from the row (`dues`); the clock
# only sends Due records back into the fold.

Count = Literal[
    "duplicate_decision",
    "duplicate_answer",
    "duplicate_feedback",
    "late_feedback",
    "orphan_feedback",
    "stale_due",
    "early_due",
    "expired",
    "oversized",
]


@dataclass(frozen=True)
class Timeouts:
    """How long a deployment waits, in ms, where the query does not say."""

    timeout_ms: int = 600_000
    feedback_ms: int = 0
    # Rows without a Decision are kept for as long as the topics retain records, so that a redelivery is recognised.
    keep_ms: int = 7 * 24 * 3_600_000
    # Maximum bytes of a row, without its key and the overhead of a batch.
    row_bytes: int = MAX_VALUE


@dataclass(frozen=True)
class Arrival:
    """A record with its append time on the broker and its position there."""

    record: Decision | Answer | Feedback | Due
    at_ms: int
    origin: Origin | None = None


@dataclass(frozen=True)
class Orphan:
    """A Feedback that becomes a dead letter: no Answer arrived in time, or it does not fit into its row."""

    feedback: Feedback
    origin: Origin | None
    why: Literal["unanswered", "oversized"] = "unanswered"


@dataclass(frozen=True)
class Transition:
    """The result of one record: the row to store (None: delete it), the records to send first, the events to count.

    `cohort` is the query's if the transition closes it.
    """

    row: JoinRow | None
    out: tuple[Reward | Answer | Orphan, ...] = ()
    counts: tuple[Count, ...] = ()
    cohort: Cohort | Literal[""] = ""


def to_value(
    row: JoinRow | None, record: Decision | Answer | Feedback | Due
) -> tuple[Reference | None, Answer] | None:
    """Return (reference, answer) if with this record an Answer can and must be valued.

    Computing cost and grade is too slow for the fold: compute both, then call `on` with the result.
    """
    if isinstance(record, Answer) and row is not None and row.decision is not None and row.scored is None:
        met = row.answer is None and record.attempt <= row.decision.attempt
        return (row.decision.reference, record) if met else None
    if isinstance(record, Decision) and row is not None and _settles(row, record):
        assert row.answer is not None
        return record.query.reference, row.answer
    return None


def _settles(row: JoinRow, record: Decision) -> bool:
    """Return whether an Answer that was read early waits for this Decision: that of its attempt, or a later one."""
    known = 0 if row.decision is None else row.decision.attempt
    return row.answer is not None and row.answer.attempt <= record.attempt and known < record.attempt


def on(
    row: JoinRow | None,
    arrival: Arrival,
    timeouts: Timeouts,
    value: ScoredAnswer | None = None,
    generator: Architecture | None = None,
    grader: Grader | None = None,
) -> Transition:
    """Fold one record into its query's row.

    Args:
        row: As stored; None for an unknown query.
        arrival: The record.
        timeouts: Of this deployment.
        value: Cost and grade, exactly when `to_value` asked for them.
        generator: With a Decision, the architecture of its model if it is in the catalogue.
        grader: With a Decision, the grader of its Answer; None for the default.

    Raises:
        ValueError: a value is missing.
    """
    transition = _fold(row, arrival, timeouts, value, generator, grader)
    if transition.row is not None and transition.row != row and arrival.origin is not None:
        transition = dataclasses.replace(
            transition, row=replace(transition.row, seen=_seen(transition.row, arrival))
        )
    return _fitted(transition, timeouts)


def _seen(row: JoinRow, arrival: Arrival) -> Offsets:
    seen = list(row.seen)
    at = _TOPICS.index(type(arrival.record))
    assert arrival.origin is not None
    seen[at] = max(seen[at], arrival.origin.offset)
    return seen[0], seen[1], seen[2], seen[3]


def _fold(
    row: JoinRow | None,
    arrival: Arrival,
    timeouts: Timeouts,
    value: ScoredAnswer | None,
    generator: Architecture | None,
    grader: Grader | None,
) -> Transition:
    record = arrival.record
    if isinstance(record, Decision):
        row = row or JoinRow(query_id=record.query_id)
        return _on_decision(row, record, arrival.at_ms, timeouts, value, generator, grader)
    if isinstance(record, Answer):
        return _on_answer(row or JoinRow(query_id=record.query_id), record, arrival.at_ms, timeouts, value)
    if isinstance(record, Feedback):
        return _on_feedback(row or JoinRow(query_id=record.query_id), record, arrival, timeouts)
    return _on_due(row, record, arrival.at_ms, timeouts)


def _fitted(transition: Transition, timeouts: Timeouts) -> Transition:
    """Return a transition whose row is small enough to be written.

    A parked Feedback, an early Answer and the reference are dropped, in this order, until the rest fits. The Feedback
    becomes a dead letter; without the others the query closes with an unknown term, and the reward says why.
    """
    most_bytes = timeouts.row_bytes
    if transition.row is None or len(encode_row(transition.row)) <= most_bytes:
        return transition
    row, out = transition.row, transition.out
    if row.parked is not None:
        out = (*out, Orphan(row.parked.feedback, row.parked.origin, "oversized"))
        forget_ms = row.forget_ms
        if row.decision is None and forget_ms is None:  # nothing else ends the row of an unknown query
            forget_ms = row.parked.until_ms + timeouts.keep_ms
        row = replace(row, parked=None, orphaned=row.parked.origin, forget_ms=forget_ms)
    if row.answer is not None and len(encode_row(row)) > most_bytes:
        missing = f"price, correct: the Answer came before its Decision and does not fit a row of {most_bytes} bytes"
        named = row.answer.attempt if row.answer.seq is not None else 0
        scored = ScoredAnswer(
            status=row.answer.status, missing=missing, fault=row.answer.fault, attempt=named
        )
        row = replace(row, answer=None, scored=scored)
    if row.decision is not None and len(encode_row(row)) > most_bytes:
        row = replace(row, decision=replace(row.decision, reference=None, grader=None, tenant=""))
    return dataclasses.replace(transition, row=row, out=out, counts=(*transition.counts, "oversized"))


def _on_decision(
    row: JoinRow,
    record: Decision,
    at_ms: int,
    timeouts: Timeouts,
    value: ScoredAnswer | None,
    generator: Architecture | None,
    grader: Grader | None,
) -> Transition:
    if (known := row.decision) is not None and (
        record.attempt <= known.attempt or row.expiry_sent or row.provisional
    ):
        return Transition(row, counts=("duplicate_decision",))
    query = record.query
    timeout_ms = timeouts.timeout_ms if query.timeout_s is None else int(query.timeout_s * 1000)
    feedback_ms = timeouts.feedback_ms if query.feedback_wait_s is None else int(query.feedback_wait_s * 1000)
    decision = DecisionInfo(
        seq=record.seq,
        action=record.action,
        objective=record.objective,
        appended_ms=record.appended_ms or at_ms,
        decided_ms=at_ms,
        timeout_ms=timeout_ms,
        feedback_ms=feedback_ms,
        reference=query.reference,
        grader=grader,
        tenant=query.account,
        key=query.api_key,
        learn=query.learn,
        cohort=record.cohort if record.randomised else "",
        generator=generator,
        spent=record.spent,
        verified=record.verified,
        attempt=record.attempt,
        earlier=record.earlier,
    )
    settles = row.answered_ms is not None and (row.answer is None or _settles(row, record))
    row = replace(
        row, decision=decision, forget_ms=None if settles or row.answered_ms is None else row.forget_ms
    )
    return _judged(row, _settle(row, value or row.scored) if settles else Transition(row))


def _on_answer(
    row: JoinRow, answer: Answer, at_ms: int, timeouts: Timeouts, value: ScoredAnswer | None
) -> Transition:
    # The first in offset order counts. A query has one partition of this topic, so it is also the first to arrive.
    if row.answered_ms is not None:
        return Transition(row, counts=("duplicate_answer",))
    row = replace(row, answered_ms=at_ms)
    if row.decision is None or row.decision.attempt < answer.attempt:
        return Transition(replace(row, answer=answer, forget_ms=at_ms + timeouts.keep_ms))
    return _judged(row, _settle(row, value))


def _settle(row: JoinRow, value: ScoredAnswer | None) -> Transition:
    """Make the first reward of a query that has its Decision and Answer. `_judged` handles parked Feedback."""
    if value is None:
        raise ValueError(f"{row.query_id}: the Answer has no cost and grade yet; ask `to_value` first")
    assert row.decision is not None
    wait_ms = row.decision.feedback_ms
    # Neither text is needed any more, nor are the inputs of the cost.
    decision = row.decision.of(value.attempt) if value.attempt else row.decision
    decision = replace(decision, reference=None, grader=None, generator=None, spent=Spent())
    row = replace(row, decision=decision, answer=None, scored=value, parked=None)
    counts: tuple[Count, ...] = ("expired",) if value.status == "expired" else ()
    if value.status == "cancelled" or value.bounded:
        # Cancelled: a cost, but neither score nor correctness, so the decider abandons the row. Learning from it would
        # make the searches that people give up on look cheap. Bounded: feedback on an answer that the client's own
        # bounds cut says nothing about the configuration, so none is awaited.
        return _close(row, "default", None, "", counts)
    if value.fault == "model":
        return _close(row, "final", 0.0, "", counts)
    if value.correct is not None:
        return _close(row, "final", value.correct, "reference", counts)
    if (value.score is None and not value.unscored) or wait_ms == 0:
        return _close(row, "default", None, _stands_in(row), counts)
    charged = replace(decision, key="")
    return Transition(
        replace(row, provisional=True, decision=charged), (_reward(row, "provisional", None, ""),), counts
    )


def _on_feedback(row: JoinRow, feedback: Feedback, arrival: Arrival, timeouts: Timeouts) -> Transition:
    if arrival.origin is not None and arrival.origin == row.orphaned:
        return Transition(row, counts=("duplicate_feedback",))
    if row.parked is not None:
        return Transition(row, counts=("duplicate_feedback",))
    at_ms, origin = arrival.at_ms, arrival.origin
    parked = Parked(feedback=feedback, at_ms=at_ms, until_ms=at_ms + timeouts.feedback_ms, origin=origin)
    row = replace(row, parked=parked)
    return _judged(row, Transition(replace(row, parked=None) if row.provisional else row))


def _judged(row: JoinRow, transition: Transition) -> Transition:
    """Return a transition that also applies the Feedback parked in a row.

    Args:
        row: The query's row.
        transition: The transition without the Feedback, which stays parked while there is no Answer.
    """
    parked, decision = row.parked, row.decision
    if (
        parked is None
        or decision is None
        or (transition.row is not None and transition.row.answer is not None)
    ):
        return transition
    answered_ms = row.answered_ms
    unmet = answered_ms is not None and answered_ms > row.parked_deadline_ms
    if unmet or decision.decided_ms > parked.until_ms:
        return _orphaned(transition, parked)
    if answered_ms is None:
        return transition
    late = parked.at_ms is not None and parked.at_ms > row.feedback_deadline_ms
    if transition.row is None or late:
        return dataclasses.replace(transition, counts=(*transition.counts, "late_feedback"))
    # The next Reward is learned from only if the feedback allows it.
    decision = replace(decision, learn=decision.learn and parked.feedback.learn)
    judged, feedback = replace(transition.row, decision=decision), parked.feedback
    closed = _close(judged, "correction", feedback.grade, feedback.graded_by, transition.counts)
    return dataclasses.replace(closed, out=(*transition.out, *closed.out))


def _orphaned(transition: Transition, parked: Parked) -> Transition:
    """Return a transition with a Feedback as a dead letter."""
    row = transition.row and replace(transition.row, parked=None, orphaned=parked.origin)
    orphan = Orphan(parked.feedback, parked.origin)
    counts: tuple[Count, ...] = (*transition.counts, "orphan_feedback")
    return dataclasses.replace(transition, row=row, out=(*transition.out, orphan), counts=counts)


def _on_due(row: JoinRow | None, due: Due, at_ms: int, timeouts: Timeouts) -> Transition:
    crowded = due.kind == "crowded" and row is not None and row.provisional
    if row is None or not (crowded or Deadline(due.kind, due.deadline_ms) in dues(row)):
        return Transition(row, counts=("stale_due",))
    if at_ms < due.deadline_ms:
        # A timer whose clock runs ahead must not expire a query early.
        return Transition(row, counts=("early_due",))
    if due.kind == "timeout":
        assert row.decision is not None
        return Transition(replace(row, expiry_sent=True), (_expired(row, row.decision),))
    if due.kind in ("feedback", "crowded"):
        return _close(row, "default", None, _stands_in(row), closed_early=crowded)
    if due.kind == "forget":
        return Transition(None)
    assert row.parked is not None
    # For an unknown query only this is kept, so that a redelivered Feedback is handled as before.
    forget_ms = row.forget_ms if row.decision or row.answer else at_ms + timeouts.keep_ms
    return _orphaned(Transition(replace(row, forget_ms=forget_ms)), row.parked)


def _close(
    row: JoinRow,
    kind: Kind,
    correct: float | None,
    graded_by: GradedBy,
    counts: tuple[Count, ...] = (),
    *,
    closed_early: bool = False,
) -> Transition:
    """Close a query: its row is deleted, and the caller of the fold remembers its id."""
    assert row.decision is not None
    return Transition(
        None, (_reward(row, kind, correct, graded_by, closed_early),), counts, row.decision.cohort
    )


def _stands_in(row: JoinRow) -> GradedBy:
    """Return what replaces an unknown correctness."""
    assert row.decision is not None
    assert row.scored is not None
    return "" if row.scored.score is None or row.decision.verified != "all" else "score"


def _reward(
    row: JoinRow, kind: Kind, correct: float | None, graded_by: GradedBy, closed_early: bool = False
) -> Reward:
    assert row.decision is not None
    assert row.scored is not None
    terms = row.decision, row.scored, row.answered_ms, correct, graded_by, closed_early
    return reward_of(row.query_id, kind, *terms)


def _expired(row: JoinRow, decision: DecisionInfo) -> Answer:
    """Return the `expired` Answer of a query whose executor did not answer. The first Answer on the topic counts."""
    return Answer(
        query_id=row.query_id,
        status="expired",
        by="aggregator",
        action=decision.action,
        attempt=decision.attempt,
        seq=decision.seq,
        spent=decision.spent,
        error=f"no answer within {decision.timeout_ms / 1000:g} s; is an executor of this model running?",
    )
