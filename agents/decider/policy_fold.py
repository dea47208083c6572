"""The fold from rows to policy state. Recovery, replay and the live run compute the same function of the log.

The live run, recovery and `verify-decisions` all update a policy through `update_policy` and `offer`. Recovery and
`verify-decisions` also get their events from `events`, so the three cannot diverge.

A policy whose state depends only on the set of observations receives all decisions, then all updates, then all
corrections, in large batches (BLAS-3). The others (networks, windows, k-NN with its ties) receive them in the order of
the live run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from agents.bandit.errors import FIX_LOG, CorruptState
from agents.bandit.policy import Policy
from agents.decider.rows import ActionRow, AnyRow, EventKind, OfferRow, RefitRow, Row

# Offers: which actions were available when, and how they are passed to a policy.

NO_OFFER: Final = OfferRow(seq=-1, actions=())
"""The offer in force before the first real one."""


def offer(policy: Policy, row: OfferRow, actions: Mapping[str, ActionRow]) -> None:
    """Make exactly these actions available, with these price factors; trust scores less if the catalogue became mixed.

    Args:
        policy: The policy.
        row: The offer.
        actions: Every action ever added, keyed by id.
    """
    policy.offer([actions[action_id].vector() for action_id in row.actions], row.price_factors, row.newcomers)
    if row.mixed_seq >= 0:
        policy.distrust_scores(row.mixed_seq)


def offer_at(rows: Iterable[object], seq: float = math.inf) -> OfferRow:
    """Return the offer at a sequence number, by default the last; NO_OFFER before the first.

    Args:
        rows: Rows of the log, in any order.
        seq: The sequence number; an offer precedes the decision with the same number.
    """
    known = (row for row in rows if isinstance(row, OfferRow) and row.seq <= seq)
    return max(known, key=attrgetter("seq"), default=NO_OFFER)


def resume_offer(
    policy: Policy, rows: Iterable[object], seq: int, actions: Mapping[str, ActionRow]
) -> OfferRow:
    """Make the offer at a sequence number, if there was one, and return it."""
    offered = offer_at(rows, seq)
    if offered is not NO_OFFER:
        offer(policy, offered, actions)
    return offered


def register_actions(policy: Policy, actions: Iterable[ActionRow]) -> None:
    """Add the log's actions in order of appearance, the first catalogue's together because they fix the centre."""
    known = sorted(actions, key=lambda row: row.position)
    policy.offer([row.vector() for row in known if row.anchor])
    policy.offer([row.vector() for row in known])


def refits_of(rows: Iterable[AnyRow], after: int = -1) -> dict[int, bytes]:
    """Return a log's refit results, keyed by number of outcomes; incomplete ones are omitted.

    Args:
        rows: Rows in any order. Old parts of a rewritten result may remain; the newest win.
        after: Last sequence number that the policy's state already contains; -1 for none. Earlier results are part of
            that state, or belong to a history that it replaced (`repair`).
    """
    found: dict[int, list[RefitRow]] = {}
    for row in rows:
        if isinstance(row, RefitRow) and row.seq > after:
            found.setdefault(row.outcomes, []).append(row)
    results = {}
    for outcomes, written in found.items():
        newest = max(row.seq for row in written)
        parts = sorted((row for row in written if row.seq == newest), key=attrgetter("part"))
        if len(parts) == parts[0].parts:
            results[outcomes] = b"".join(part.result for part in parts)
    return results


# A log's events in their total order, the order that a policy receives them in.

_ENDS: Final[dict[str, EventKind]] = {"abandoned": "abandoned", "priced": "cost"}


class LogEvent(NamedTuple):
    """One event in a log.

    Attributes:
        seq: The event's sequence number; an offer precedes the decision with the same number.
        kind: How the policy is updated.
        row: The current row.
    """

    seq: int
    kind: EventKind
    row: Row | OfferRow


def events(rows: Iterable[AnyRow], after: int = -1) -> list[LogEvent]:
    """Return every event in the log after a sequence number, in order.

    Args:
        rows: Rows in any order; action rows are not events.
        after: Last sequence number that the policy's state already contains; -1 for none.
    """
    found: list[LogEvent] = []
    for row in rows:
        if isinstance(row, OfferRow):
            found.append(LogEvent(row.seq, "offer", row))
        elif isinstance(row, Row):
            ended = _ENDS.get(row.stage, "nothing")
            found += [
                LogEvent(row.seq, "decided", row),
                LogEvent(row.learned_seq, "failure" if row.stage == "failed" else "reward", row),
                LogEvent(row.corrected_seq, "correction", row),
                LogEvent(row.ended_seq, ended, row),
            ]
    kept = (event for event in found if event.seq > after)
    return sorted(kept, key=lambda event: (event.seq, event.kind != "offer"))


def update_policy(policy: Policy, kind: EventKind, rows: Sequence[Row]) -> None:
    """Update a policy with decisions or outcomes of one kind, in order."""
    match kind:
        case "decided" | "abandoned":
            policy.decided([row.pending(abandoned=kind == "abandoned") for row in rows])
        case "reward" | "correction" | "cost" | "failure":
            policy.learn([row.observation(kind) for row in rows])
        case "offer" | "nothing":
            pass


def outcome_weights(rows: Iterable[Row], after: int = -1) -> list[tuple[str, int]]:
    """Return the tenant and weight of every outcome after a sequence number, in order."""
    found = []
    for row in rows:
        at_end = row.stage == "priced" or not row.weight
        found.append((row.ended_seq if at_end else row.learned_seq, row.tenant, row.weight))
    return [(tenant, weight) for seq, tenant, weight in sorted(found) if seq > after]


# Folding the whole log, in that order or in batches.

BATCH: Final = 2048
"""Rows per batch; each batch takes one factorisation, and 20 MB for joint vectors at d = 1,192."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Counts of a fold's events."""

    decisions: int
    updates: int
    outstanding: int
    last_seq: int
    clock: int


def fold(
    policy: Policy, rows: Iterable[AnyRow], after: int = -1, actions: Mapping[str, ActionRow] | None = None
) -> Folded:
    """Update a policy with everything in the log after a sequence number.

    Args:
        policy: The policy, with the log's actions added, in its initial state or a snapshot's.
        rows: Rows in any order.
        after: Last sequence number that the policy's state already contains; -1 for none.
        actions: Every action in the log, keyed by id, for policies whose state depends on the available actions; None
            skips offers.
    """
    whole = list(rows)
    if actions and not policy.traits.order_free:
        resume_offer(policy, whole, after, actions)
    told = [event for event in events(whole, after) if event.kind != "nothing"]
    if policy.traits.order_free:
        order = {"decided": 0, "abandoned": 1, "cost": 1, "reward": 2, "failure": 2, "correction": 3}
        told = sorted((e for e in told if e.kind != "offer"), key=lambda e: (order[e.kind], e.seq))
    for kind, group in groupby(told, key=attrgetter("kind")):
        rows_of_kind = [event.row for event in group]
        if actions:
            for row in rows_of_kind:
                if isinstance(row, OfferRow):
                    offer(policy, row, actions)
        alike = [row for row in rows_of_kind if isinstance(row, Row)]
        for start in range(0, len(alike), BATCH):
            update_policy(policy, kind, alike[start : start + BATCH])
    counted = Counter(event.kind for event in told)
    decided = [row for row in whole if isinstance(row, Row)]
    return Folded(
        decisions=counted["decided"],
        updates=counted["reward"] + counted["failure"],
        outstanding=sum(row.stage == "pending" for row in decided),
        last_seq=max((row.last_seq for row in decided), default=after),
        clock=max((row.clock + 1 for row in decided), default=0),
    )


def sequence_gap(rows: Sequence[Row], after: int = -1) -> CorruptState | None:
    """Return a log's first missing or repeated sequence number as an error; None if the log is complete.

    Decisions and updates share one sequence without gaps, so a lost or unread row leaves a gap.

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
