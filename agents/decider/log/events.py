"""The events of a log, in their single order: what a policy is told, one event after the other.

The live run, recovery and `verify-decisions` all tell a policy through `tell` and `offers.offer`; the latter two take
the events from `events`. So the three cannot diverge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from agents.decider.log.offers import OfferRow
from agents.decider.log.rows import AnyRow, Row
from agents.decider.policies.policy import Policy

Told = Literal["offer", "expect", "update", "correct", "price", "abandon", "nothing"]

_ENDS: Final[dict[str, Told]] = {"abandoned": "abandon", "priced": "price"}


class Event(NamedTuple):
    """One event of a log.

    Attributes:
        seq: Its sequence number; an offer precedes the decision with the same number.
        told: The method by which the policy is told.
        row: The present row.
    """

    seq: int
    told: Told
    row: Row | OfferRow


def events(rows: Iterable[AnyRow], after: int = -1) -> list[Event]:
    """Return every event of the log after a sequence number, in order.

    Args:
        rows: Rows in any order; rows of actions are no events.
        after: Last sequence number that the policy's state already contains; -1 for none.
    """
    found: list[Event] = []
    for row in rows:
        if isinstance(row, OfferRow):
            found.append(Event(row.seq, "offer", row))
        elif isinstance(row, Row):
            ended = _ENDS.get(row.stage, "nothing")
            found += [
                Event(row.seq, "expect", row),
                Event(row.learned_seq, "update", row),
                Event(row.corrected_seq, "correct", row),
                Event(row.ended_seq, ended, row),
            ]
    kept = (event for event in found if event.seq > after)
    return sorted(kept, key=lambda event: (event.seq, event.told != "offer"))


def tell(policy: Policy, told: Told, rows: Sequence[Row]) -> None:
    """Tell a policy, in order, about decisions or outcomes of one kind."""
    match told:
        case "expect":
            policy.expect([row.pending() for row in rows])
        case "update":
            policy.update([row.observation(row.entered) for row in rows])
        case "correct":
            policy.correct([row.observation(row.correct) for row in rows])
        case "price":
            policy.price_only([row.observation(None) for row in rows])
        case "abandon":
            policy.abandon([row.pending() for row in rows])
        case "offer" | "nothing":
            pass
