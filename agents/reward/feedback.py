"""Feedback in the reward join: parked until its Answer arrives, applied, too late, or sent to the dead-letter topic.

Feedback is applied if the time between the Feedback and the Answer, whichever was appended first, is at most the
query's feedback wait, and if the Decision, which contains that wait, was appended within the deployment's own wait.
Otherwise, the Feedback is late, or is sent to the dead-letter topic if the Answer or Decision came too long after it.
This depends only on append times, never on the order that topics are read in or on when the timer runs. There are three
exceptions, because a row does not keep enough information to decide them: Feedback read after its query was closed
always counts as late; Feedback that does not fit into its row is sent to the dead-letter topic; and a second Feedback
read while the first is parked is a duplicate, even if the first is sent there later.
"""

import dataclasses

from msgspec.structs import replace

from agents.reward.join_row import JoinRow, Parked
from agents.reward.transition import Arrival, Count, Orphan, Timeouts, Transition, close
from schemas.reward import Feedback


def on_feedback(row: JoinRow, feedback: Feedback, arrival: Arrival, timeouts: Timeouts) -> Transition:
    """Fold a Feedback into its query's row."""
    if arrival.origin is not None and arrival.origin == row.orphaned:
        return Transition(row, counts=("duplicate_feedback",))
    if row.parked is not None:
        return Transition(row, counts=("duplicate_feedback",))
    at_ms, origin = arrival.at_ms, arrival.origin
    parked = Parked(feedback=feedback, at_ms=at_ms, until_ms=at_ms + timeouts.feedback_ms, origin=origin)
    row = replace(row, parked=parked)
    return apply_parked(row, Transition(replace(row, parked=None) if row.provisional else row))


def apply_parked(row: JoinRow, transition: Transition) -> Transition:
    """Return a transition that also applies any Feedback parked in a row.

    Args:
        row: The query's row.
        transition: The transition without the Feedback, which stays parked until there is an Answer.
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
        return send_to_dead_letters(transition, parked)
    if answered_ms is None:
        return transition
    late = parked.at_ms is not None and parked.at_ms > row.feedback_deadline_ms
    if transition.row is None or late:
        return dataclasses.replace(transition, counts=(*transition.counts, "late_feedback"))
    # The learner may use the next Reward only if the feedback allows it.
    decision = replace(decision, learn=decision.learn and parked.feedback.learn)
    judged, feedback = replace(transition.row, decision=decision), parked.feedback
    closed = close(judged, "correction", feedback.grade, feedback.graded_by, transition.counts)
    return dataclasses.replace(closed, out=(*transition.out, *closed.out))


def send_to_dead_letters(transition: Transition, parked: Parked) -> Transition:
    """Return a transition that sends a Feedback to the dead-letter topic."""
    row = transition.row and replace(transition.row, parked=None, orphaned=parked.origin)
    orphan = Orphan(parked.feedback, parked.origin)
    counts: tuple[Count, ...] = (*transition.counts, "orphan_feedback")
    return dataclasses.replace(transition, row=row, out=(*transition.out, orphan), counts=counts)
