"""The reward join: folds Decision, Answer, Feedback and Due, in any order, into one row per query and its Rewards."""

import dataclasses

from msgspec.structs import replace

from agents.catalogue.models import Architecture
from agents.reward.feedback import apply_parked, on_feedback, send_to_dead_letters
from agents.reward.join_row import (
    TOPICS,
    Deadline,
    DecisionInfo,
    JoinRow,
    Offsets,
    ScoredAnswer,
    dues,
    encode_row,
)
from agents.reward.reward import reward_of, substitute
from agents.reward.transition import (
    Arrival,
    Count,
    Orphan,
    Timeouts,
    Transition,
    close,
)
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.grader import Grader
from schemas.query import Reference
from schemas.reward import Due, Feedback
from schemas.spent import Spent

# The kinds of Reward:
#
#     provisional   score and cost are known, correctness is awaited
#     correction    feedback supplied the correctness in time; always follows a provisional reward, even if both are
#                   sent at once
#     final         correctness is known at once, from the reference or because the model gave no text
#     default       correctness did not arrive in time, nothing could be run, or the client's own bounds cut the answer;
#                   the row closes with the terms it has. If too many rewards are open, the wait is cut short
#
# The first Answer ends the query, whichever attempt it belongs to. An Answer read before its attempt's Decision waits
# for that Decision. A further attempt's Decision replaces the previous one.
#
# Each kind is made at most once, and exactly one of the last three closes the query and deletes its row. A record that
# was seen before changes nothing. The caller withholds records for closed queries from the fold, and sends the returned
# records *before* storing the row, so that after a crash in between, the same record makes the same rewards, with the
# same ids.
#
# A row always fits into a record: fields that would make it too large are dropped, and the transition reports this
# (`oversized`). All times are the broker's append times. The next deadline is read from the row (`dues`); the clock
# only sends Due records back into the fold.


def to_value(
    row: JoinRow | None, record: Decision | Answer | Feedback | Due
) -> tuple[Reference | None, Answer] | None:
    """Return (reference, answer) if this record makes it possible and necessary to compute an Answer's cost and grade.

    Since that is too slow for the fold, the caller computes both first and then calls `on` with the result.
    """
    if isinstance(record, Answer) and row is not None and row.decision is not None and row.scored is None:
        met = row.answer is None and record.attempt <= row.decision.attempt
        return (row.decision.reference, record) if met else None
    if isinstance(record, Decision) and row is not None and _settles(row, record):
        assert row.answer is not None
        return record.query.reference, row.answer
    return None


def _settles(row: JoinRow, record: Decision) -> bool:
    """Return whether an Answer read early is waiting for this Decision: its own attempt's or a later one's."""
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
        row: The stored row; None for an unknown query.
        arrival: The record.
        timeouts: The deployment's timeouts.
        value: The cost and grade, if and only if `to_value` returned an Answer.
        generator: For a Decision, the architecture of its model if the model is in the catalogue.
        grader: For a Decision, the grader for its Answer; None for the default.

    Raises:
        ValueError: `value` is missing.
    """
    transition = _fold(row, arrival, timeouts, value, generator, grader)
    if transition.row is not None and transition.row != row and arrival.origin is not None:
        transition = dataclasses.replace(
            transition, row=replace(transition.row, seen=_seen(transition.row, arrival))
        )
    return _fitted(transition, timeouts)


def _seen(row: JoinRow, arrival: Arrival) -> Offsets:
    seen = list(row.seen)
    at = TOPICS.index(type(arrival.record))
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
        return on_feedback(row or JoinRow(query_id=record.query_id), record, arrival, timeouts)
    return _on_due(row, record, arrival.at_ms, timeouts)


def _fitted(transition: Transition, timeouts: Timeouts) -> Transition:
    """Return a transition whose row is small enough to be written.

    A parked Feedback, an early Answer and the reference are dropped, in this order, until the rest fits. The Feedback
    is sent to the dead-letter topic. If either of the others is dropped, the query closes with an unknown term, and the
    reward states the reason.
    """
    most_bytes = timeouts.row_bytes
    if transition.row is None or len(encode_row(transition.row)) <= most_bytes:
        return transition
    row, out = transition.row, transition.out
    if row.parked is not None:
        out = (*out, Orphan(row.parked.feedback, row.parked.origin, "oversized"))
        forget_ms = row.forget_ms
        if row.decision is None and forget_ms is None:  # nothing else removes the row of an unknown query
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
    usual_ms = timeouts.mixed_feedback_ms if record.verified == "some" else timeouts.feedback_ms
    feedback_ms = usual_ms if query.feedback_wait_s is None else int(query.feedback_wait_s * 1000)
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
    return apply_parked(row, _settle(row, value or row.scored) if settles else Transition(row))


def _on_answer(
    row: JoinRow, answer: Answer, at_ms: int, timeouts: Timeouts, value: ScoredAnswer | None
) -> Transition:
    # The first by offset wins. All of a query's Answers are in one partition, so it is also the first to arrive.
    if row.answered_ms is not None:
        return Transition(row, counts=("duplicate_answer",))
    row = replace(row, answered_ms=at_ms)
    if row.decision is None or row.decision.attempt < answer.attempt:
        return Transition(replace(row, answer=answer, forget_ms=at_ms + timeouts.keep_ms))
    return apply_parked(row, _settle(row, value))


def _settle(row: JoinRow, value: ScoredAnswer | None) -> Transition:
    """Make the first reward for a query that has its Decision and Answer. `apply_parked` handles parked Feedback."""
    if value is None:
        raise ValueError(f"{row.query_id}: the Answer has no cost and grade yet; ask `to_value` first")
    assert row.decision is not None
    wait_ms = row.decision.feedback_ms
    # The reference, the grader and the inputs of the cost are no longer needed.
    decision = row.decision.of(value.attempt) if value.attempt else row.decision
    decision = replace(decision, reference=None, grader=None, generator=None, spent=Spent())
    row = replace(row, decision=decision, answer=None, scored=value, parked=None)
    counts: tuple[Count, ...] = ("expired",) if value.status == "expired" else ()
    if value.status == "cancelled" or value.bounded:
        # A cancelled search has a cost, but neither score nor correctness, so the decider abandons the row. Learning
        # from it would make searches look cheap if people often give up on them. If the answer was cut by the client's
        # own bounds, feedback on it would not reflect the configuration, so none is awaited.
        return close(row, "default", None, "", counts)
    if value.fault == "model":
        return close(row, "final", 0.0, "", counts)
    if value.correct is not None:
        return close(row, "final", value.correct, "reference", counts)
    if (value.score is None and not value.unscored) or wait_ms == 0:
        return close(row, "default", None, substitute(row), counts)
    charged = replace(decision, key="")
    return Transition(
        replace(row, provisional=True, decision=charged), (reward_of(row, "provisional", None, ""),), counts
    )


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
        return close(row, "default", None, substitute(row), closed_early=crowded)
    if due.kind == "forget":
        return Transition(None)
    assert row.parked is not None
    # For an unknown query, only the Feedback's position is kept, so that it is handled the same way if it is
    # redelivered.
    forget_ms = row.forget_ms if row.decision or row.answer else at_ms + timeouts.keep_ms
    return send_to_dead_letters(Transition(replace(row, forget_ms=forget_ms)), row.parked)


def _expired(row: JoinRow, decision: DecisionInfo) -> Answer:
    """Return the `expired` Answer for a query that got no Answer in time. The first Answer on the topic wins."""
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
