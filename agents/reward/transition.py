"""The result of processing one record in the reward join: a new row, records to send and events to count."""

from dataclasses import dataclass
from typing import Literal

from agents.reward.join_row import JoinRow
from agents.reward.reward import reward_of
from schemas.answer import Answer
from schemas.decision import Cohort, Decision
from schemas.query import Origin
from schemas.record import MAX_VALUE
from schemas.reward import Due, Feedback, GradedBy, Kind, Reward

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
    """How long a deployment waits, in ms, unless the query specifies it."""

    timeout_ms: int = 600_000
    feedback_ms: int = 0
    # The feedback wait if a verifier scores some models but not others.
    mixed_feedback_ms: int = 0
    # Rows without a Decision are kept as long as the topics retain records, so that redeliveries are recognised.
    keep_ms: int = 7 * 24 * 3_600_000
    # Maximum size of a row in bytes, without its key and the overhead of a batch.
    row_bytes: int = MAX_VALUE


@dataclass(frozen=True)
class Arrival:
    """A record, with its append time and position on the broker."""

    record: Decision | Answer | Feedback | Due
    at_ms: int
    origin: Origin | None = None


@dataclass(frozen=True)
class Orphan:
    """A Feedback bound for the dead-letter topic: no Answer arrived in time, or it does not fit into its row."""

    feedback: Feedback
    origin: Origin | None
    why: Literal["unanswered", "oversized"] = "unanswered"


@dataclass(frozen=True)
class Transition:
    """One record's result: the row to store (None to delete it), the records to send first, and the events to count.

    `cohort` is the query's cohort if the transition closes the query, and empty otherwise.
    """

    row: JoinRow | None
    out: tuple[Reward | Answer | Orphan, ...] = ()
    counts: tuple[Count, ...] = ()
    cohort: Cohort | Literal[""] = ""


def close(
    row: JoinRow,
    kind: Kind,
    correct: float | None,
    graded_by: GradedBy,
    counts: tuple[Count, ...] = (),
    *,
    closed_early: bool = False,
) -> Transition:
    """Close a query. Its row is deleted, and the fold's caller remembers its id."""
    assert row.decision is not None
    return Transition(
        None, (reward_of(row, kind, correct, graded_by, closed_early),), counts, row.decision.cohort
    )
