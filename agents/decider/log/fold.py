"""From rows to policy state: recovery, replay and the live run compute the same function of the log.

A policy whose state depends only on the set of observations gets all decisions, then all updates, then all corrections,
in large batches (BLAS-3). The others (networks, windows, ties of k-NN) are told in the order of the live run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from agents.decider.errors import FIX_LOG, CorruptState
from agents.decider.log.events import events, tell
from agents.decider.log.offers import ActionRow, OfferRow, offer, resume_offer
from agents.decider.log.rows import AnyRow, Row
from agents.decider.policies.policy import Policy

BATCH: Final = 2048
"""Rows per batch; each batch costs one factorisation, and takes 20 MB for joint vectors at d = 1,192."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Counts of what a fold told the policy."""

    decisions: int
    updates: int
    corrections: int
    outstanding: int
    last_seq: int
    clock: int


def fold(
    policy: Policy, rows: Iterable[AnyRow], after: int = -1, actions: Mapping[str, ActionRow] | None = None
) -> Folded:
    """Tell a policy everything in the log after a sequence number.

    Args:
        policy: The policy, with the actions of the log added, in its initial state or that of a snapshot.
        rows: Rows in any order.
        after: Last sequence number that the policy's state already contains; -1 for none.
        actions: Every action of the log by id, for policies whose state depends on what was on offer; None skips
            offers.
    """
    whole = list(rows)
    if actions and not policy.order_free:
        resume_offer(policy, whole, after, actions)
    told = [event for event in events(whole, after) if event.told != "nothing"]
    if policy.order_free:
        order = {"expect": 0, "abandon": 1, "price": 1, "update": 2, "correct": 3}
        told = sorted((e for e in told if e.told != "offer"), key=lambda e: (order[e.told], e.seq))
    for kind, group in groupby(told, key=attrgetter("told")):
        rows_of_kind = [event.row for event in group]
        if actions:
            for row in rows_of_kind:
                if isinstance(row, OfferRow):
                    offer(policy, row, actions)
        alike = [row for row in rows_of_kind if isinstance(row, Row)]
        for start in range(0, len(alike), BATCH):
            tell(policy, kind, alike[start : start + BATCH])
    counted = Counter(event.told for event in told)
    decided = [row for row in whole if isinstance(row, Row)]
    return Folded(
        decisions=counted["expect"],
        updates=counted["update"],
        corrections=counted["correct"],
        outstanding=sum(row.stage == "pending" for row in decided),
        last_seq=max((row.last_seq for row in decided), default=after),
        clock=max((row.clock + 1 for row in decided), default=0),
    )


def untold(rows: Sequence[Row], after: int = -1) -> CorruptState | None:
    """Return the first missing or repeated sequence number of a log as an error; None if the log is complete.

    Decisions and updates share one sequence without gaps, so a row that was lost or not yet read leaves a gap.

    Args:
        rows: Rows in any order.
        after: Last sequence number that a snapshot already contains; -1 for none.
    """
    found = sorted((seq, row.query_id) for row in rows for seq in row.seqs if seq > after)
    for wanted, (seq, query_id) in enumerate(found, after + 1):
        if seq != wanted:
            other = found[wanted - after - 2][1] if seq < wanted else None
            why = (
                f"row {query_id!r} has {seq}" + (f", as row {other!r} has" if other else "") + f"; {FIX_LOG}"
            )
            return CorruptState("the log's next sequence number", seq, wanted, why)
    return None
