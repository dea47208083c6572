"""From rows to policy state: recovery, replay and the live run are one function of the log.

A policy whose state depends only on the set of observations takes all decisions, then all updates, then all
corrections, in large batches of BLAS-3. The others (networks, windows, k-NN's ties) are told in the order of
the live run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from agents.decider.errors import CorruptState
from agents.decider.observations import ActionRow, Row
from agents.decider.policies.base import Policy

BATCH: Final = 2048
"""Rows told at once: each batch costs one factorisation, and holds 20 MB of joint vectors at d = 1,192."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold told the policy."""

    decisions: int
    updates: int
    corrections: int
    outstanding: int
    last_seq: int
    clock: int


def fold(policy: Policy, rows: Iterable[Row], after: int = -1) -> Folded:
    """Tell a policy everything in the log that comes after a place in the order.

    Args:
        policy: With the actions of the log added, in its initial state or in that of a snapshot.
        rows: Rows in any order.
        after: Last place that the policy's state holds already; -1 for none.
    """
    ordered = sorted(rows, key=lambda row: row.seq)
    decided = [r for r in ordered if r.seq > after]
    updated = [r for r in ordered if r.learned_seq > after]
    corrected = [r for r in ordered if r.corrected_seq > after]
    abandoned = [r for r in ordered if r.stage == "abandoned" and r.ended_seq > after]
    events = [
        *((r.seq, "expect", r) for r in decided),
        *((r.learned_seq, "update", r) for r in updated),
        *((r.corrected_seq, "correct", r) for r in corrected),
        *((r.ended_seq, "abandon", r) for r in abandoned),
    ]
    if policy.order_free:
        order = {"expect": 0, "abandon": 1, "update": 2, "correct": 3}
        events.sort(key=lambda event: (order[event[1]], event[0]))
    else:
        events.sort(key=itemgetter(0))
    for tell, group in groupby(events, key=itemgetter(1)):
        told = [row for _, _, row in group]
        for start in range(0, len(told), BATCH):
            _tell(policy, tell, told[start : start + BATCH])
    return Folded(
        decisions=len(decided),
        updates=len(updated),
        corrections=len(corrected),
        outstanding=sum(r.stage == "pending" for r in ordered),
        last_seq=max((r.last_seq for r in ordered), default=after),
        clock=max((r.clock + 1 for r in ordered), default=0),
    )


def untold(rows: Sequence[Row], after: int = -1) -> CorruptState | None:
    """Return what is missing from the log, None when it is whole.

    Decisions and updates share one order without gaps, so a row that was lost, or not yet read, leaves a place
    of which nothing tells.

    Args:
        rows: Rows in any order.
        after: Last place that a snapshot holds already; -1 for none.
    """
    places = sorted(place for row in rows for place in row.places if place > after)
    for wanted, place in enumerate(places, after + 1):
        if place != wanted:
            return CorruptState("the log at its next place", place, wanted)
    return None


def introduce(policy: Policy, actions: Iterable[ActionRow]) -> None:
    """Add the log's actions in order of appearance, the first catalogue as one: it fixes the centre."""
    known = sorted(actions, key=lambda row: row.position)
    policy.add_actions([row.vector() for row in known if row.anchor])
    policy.add_actions([row.vector() for row in known if not row.anchor])


def _tell(policy: Policy, tell: str, rows: Sequence[Row]) -> None:
    if tell == "expect":
        policy.expect([r.pending() for r in rows])
    elif tell == "abandon":
        policy.abandon([r.pending() for r in rows])
    elif tell == "update":
        policy.update([r.observation(r.entered) for r in rows])
    else:
        policy.correct([r.observation(r.correct) for r in rows])
