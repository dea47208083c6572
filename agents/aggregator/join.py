"""The reward join: one row a query, a fold over Decision, Answer, Feedback and Due in whatever order.

    provisional   score and cost are known, correctness is awaited
    final         all is known at once; correction: correctness came after a provisional
    default       correctness did not come in time, nothing could be run, or the client's own bounds cut the answer;
                  the row closes with what it has

Each kind is made at most once, exactly one of the last three closes the row, and a record seen before changes
nothing. Whoever runs the fold sends what it returns *before* it stores the row: after a crash in between,
the same record makes the same rewards again, under the same identity.

A row always fits a record: what would make it too large is left out, and the turn says so (`oversized`). All
times are append times of the broker. Which deadline comes next is read from the row (`dues`); the clock
only sends Due records back into the fold.
"""

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from agents.aggregator.reward import reward_of
from agents.aggregator.row import Deadline, Opened, Parked, Row, Valued, dues, encode_row
from agents.space.models import Architecture
from schemas.answer import Answer
from schemas.base import MAX_VALUE
from schemas.decision import Decision
from schemas.query import Origin, Reference
from schemas.reward import Due, Feedback, Kind, Reward

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
class Waits:
    """What a deployment waits, in ms, where the query does not say."""

    timeout_ms: int = 600_000
    feedback_ms: int = 0
    # A closed row recognises what is delivered again for as long as the topics keep it.
    keep_ms: int = 7 * 24 * 3_600_000
    # Most bytes of a row; its key and the frame of a batch come on top.
    row_bytes: int = MAX_VALUE


@dataclass(frozen=True)
class Arrival:
    """A record with its append time on the broker and its place there."""

    record: Decision | Answer | Feedback | Due
    at_ms: int
    origin: Origin | None = None


@dataclass(frozen=True)
class Orphan:
    """A Feedback that is not applied: a dead letter. It met no Answer in time, or its row has no place for it."""

    feedback: Feedback
    origin: Origin | None
    why: Literal["unanswered", "oversized"] = "unanswered"


@dataclass(frozen=True)
class Turn:
    """What one record led to: the row to store (None: remove it), what to send first, what to count."""

    row: Row | None
    out: tuple[Reward | Answer | Orphan, ...] = ()
    counts: tuple[Count, ...] = ()


def to_value(
    row: Row | None, record: Decision | Answer | Feedback | Due
) -> tuple[Reference | None, Answer] | None:
    """Return (reference, answer) when this record makes it possible, and needed, to value an Answer.

    Pricing and grading take time that the fold does not have: do them, then call `on` with the result.
    """
    if isinstance(record, Answer) and row is not None and row.opened is not None and row.valued is None:
        return row.opened.reference, record
    if isinstance(record, Decision) and row is not None and row.opened is None and row.answer is not None:
        return record.query.reference, row.answer
    return None


def on(
    row: Row | None,
    arrival: Arrival,
    waits: Waits,
    value: Valued | None = None,
    generator: Architecture | None = None,
) -> Turn:
    """Fold one record into its query's row.

    Args:
        row: As stored; None for a query not heard of.
        arrival: The record.
        waits: Of this deployment.
        value: Price and grade, exactly when `to_value` asked for them.
        generator: With a Decision, the architecture of its model where the catalogue knows it.

    Raises:
        ValueError: a value is missing.
    """
    return _fitted(_fold(row, arrival, waits, value, generator), waits.row_bytes)


def _fold(
    row: Row | None,
    arrival: Arrival,
    waits: Waits,
    value: Valued | None,
    generator: Architecture | None,
) -> Turn:
    record = arrival.record
    if isinstance(record, Decision):
        row = row or Row(query_id=record.query_id)
        return _on_decision(row, record, arrival.at_ms, waits, value, generator)
    if isinstance(record, Answer):
        return _on_answer(row or Row(query_id=record.query_id), record, arrival.at_ms, waits, value)
    if isinstance(record, Feedback):
        return _on_feedback(row or Row(query_id=record.query_id), record, arrival, waits)
    return _on_due(row, record, arrival.at_ms, waits)


def _fitted(turn: Turn, most_bytes: int) -> Turn:
    """Return a turn whose row can be written: a row that cannot would meet each of its deadlines in vain.

    In this order a parked Feedback, an early Answer and the reference are left out until the rest fits. The
    first is a dead letter; without the others the query closes with a term unknown, and the reward says why.
    """
    if turn.row is None or len(encode_row(turn.row)) <= most_bytes:
        return turn
    row, out = turn.row, turn.out
    if row.parked is not None:
        out = (*out, Orphan(row.parked.feedback, row.parked.origin, "oversized"))
        row = replace(row, parked=None, orphaned=row.parked.origin)
    if row.answer is not None and len(encode_row(row)) > most_bytes:
        missing = f"price, correct: the Answer came before its Decision and does not fit a row of {most_bytes} bytes"
        valued = Valued(status=row.answer.status, missing=missing, fault=row.answer.fault)
        row = replace(row, answer=None, valued=valued)
    if row.opened is not None and len(encode_row(row)) > most_bytes:
        row = replace(row, opened=replace(row.opened, reference=None))
    return Turn(row, out, (*turn.counts, "oversized"))


def _on_decision(
    row: Row,
    decision: Decision,
    at_ms: int,
    waits: Waits,
    value: Valued | None,
    generator: Architecture | None,
) -> Turn:
    if row.opened is not None:
        return Turn(row, counts=("duplicate_decision",))
    query = decision.query
    timeout_ms = waits.timeout_ms if query.timeout_s is None else int(query.timeout_s * 1000)
    feedback_ms = waits.feedback_ms if query.feedback_wait_s is None else int(query.feedback_wait_s * 1000)
    opened = Opened(
        seq=decision.seq,
        action=decision.action,
        objective=decision.objective,
        appended_ms=decision.appended_ms or at_ms,
        timeout_ms=timeout_ms,
        feedback_ms=feedback_ms,
        reference=query.reference,
        learn=query.learn,
        cohort=decision.cohort if decision.randomised else "",
        generator=generator,
    )
    if row.answered_ms is None:
        return Turn(replace(row, opened=opened, forget_ms=None))
    return _settle(replace(row, opened=opened), at_ms, waits, value or row.valued)


def _on_answer(row: Row, answer: Answer, at_ms: int, waits: Waits, value: Valued | None) -> Turn:
    # The first in offset order counts: one topic, one partition a query, so the first to arrive.
    if row.answered_ms is not None:
        return Turn(row, counts=("duplicate_answer",))
    row = replace(row, answered_ms=at_ms)
    if row.opened is None:
        return Turn(replace(row, answer=answer, forget_ms=at_ms + waits.keep_ms))
    return _settle(row, at_ms, waits, value)


def _settle(row: Row, at_ms: int, waits: Waits, value: Valued | None) -> Turn:
    """Make the first reward of a query whose Decision and Answer have met."""
    if value is None:
        raise ValueError(f"{row.query_id}: the Answer is not priced and graded; ask `to_value` first")
    assert row.opened is not None
    wait_ms = row.opened.feedback_ms
    # Neither text is needed any more, nor what the price was worked out from.
    opened = replace(row.opened, reference=None, generator=None)
    row = replace(row, opened=opened, answer=None, valued=value, forget_ms=None)
    counts: tuple[Count, ...] = ("expired",) if value.status == "expired" else ()
    if value.status == "cancelled" or value.bounded:
        # Cancelled: priced, but without score and correctness, so the decider abandons the row. To learn from it would
        # make the searches that people give up on look cheap. Bounded: whoever judges an answer that the client's own
        # bounds cut judges these, not the configuration, so no feedback is awaited and a parked one does not count.
        return _close(row, "default", at_ms, waits, None, "", counts)
    if value.correct is not None:
        return _close(row, "final", at_ms, waits, value.correct, "reference", counts)
    if row.parked is not None:
        return _close(row, "final", at_ms, waits, row.parked.feedback.grade, "feedback", counts)
    if value.score is None or wait_ms == 0:
        return _close(row, "default", at_ms, waits, None, "", counts)
    return Turn(replace(row, provisional=True), (_reward(row, "provisional", None, ""),), counts)


def _on_feedback(row: Row, feedback: Feedback, arrival: Arrival, waits: Waits) -> Turn:
    if row.closed is not None:
        return Turn(row, counts=("late_feedback" if row.closed == "default" else "duplicate_feedback",))
    if arrival.origin is not None and arrival.origin == row.orphaned:
        return Turn(row, counts=("duplicate_feedback",))
    if row.provisional:
        if arrival.at_ms > row.feedback_deadline_ms:
            return Turn(row, counts=("late_feedback",))
        return _close(row, "correction", arrival.at_ms, waits, feedback.grade, "feedback")
    if row.parked is not None:
        return Turn(row, counts=("duplicate_feedback",))
    wait_ms = waits.feedback_ms if row.opened is None else row.opened.feedback_ms
    parked = Parked(feedback=feedback, origin=arrival.origin, until_ms=arrival.at_ms + wait_ms)
    return Turn(replace(row, parked=parked))


def _on_due(row: Row | None, due: Due, at_ms: int, waits: Waits) -> Turn:
    if row is None or Deadline(due.kind, due.deadline_ms) not in dues(row):
        return Turn(row, counts=("stale_due",))
    if at_ms < due.deadline_ms:
        # A timer whose clock runs ahead must not expire what still has time.
        return Turn(row, counts=("early_due",))
    if due.kind == "timeout":
        assert row.opened is not None
        return Turn(replace(row, expiry_sent=True), (_expired(row, row.opened),))
    if due.kind == "feedback":
        return _close(row, "default", at_ms, waits, None, "")
    if due.kind == "forget":
        return Turn(None)
    assert row.parked is not None
    orphan = Orphan(row.parked.feedback, row.parked.origin)
    # Of an unknown query only this is kept: delivered again, the Feedback stays what it was.
    forget_ms = row.forget_ms if row.opened or row.answer else at_ms + waits.keep_ms
    left = replace(row, parked=None, orphaned=orphan.origin, forget_ms=forget_ms)
    return Turn(left, (orphan,), ("orphan_feedback",))


def _close(
    row: Row,
    kind: Kind,
    at_ms: int,
    waits: Waits,
    correct: float | None,
    graded_by: Literal["", "reference", "feedback"],
    counts: tuple[Count, ...] = (),
) -> Turn:
    closed = replace(row, provisional=False, parked=None, closed=kind, forget_ms=at_ms + waits.keep_ms)
    return Turn(closed, (_reward(row, kind, correct, graded_by),), counts)


def _reward(
    row: Row, kind: Kind, correct: float | None, graded_by: Literal["", "reference", "feedback"]
) -> Reward:
    assert row.opened is not None
    assert row.valued is not None
    return reward_of(row.query_id, kind, row.opened, row.valued, row.answered_ms, correct, graded_by)


def _expired(row: Row, opened: Opened) -> Answer:
    """Return the Answer of a query whose executor is silent: it takes the topic's order like any other."""
    return Answer(
        query_id=row.query_id,
        status="expired",
        by="aggregator",
        action=opened.action,
        seq=opened.seq,
        error=f"no answer within {opened.timeout_ms / 1000:g} s; is an executor of this model running?",
    )
