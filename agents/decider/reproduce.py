"""Was every Decision in the log the one its state calls for? Replay the log and compare.

Decisions and updates share one order, so the policy that made a Decision is the fold of what came before it.
The live run may have scored in batches; sums in another order differ in their last digits, so an action
counts as reproduced when its score is within TOLERANCE of the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from agents.decider import snapshot
from agents.decider.errors import CorruptState
from agents.decider.events import Event, Told, events, offer, tell
from agents.decider.fold import introduce, untold
from agents.decider.observations import (
    ActionRow,
    AnyRow,
    OfferRow,
    Row,
    aim_of,
    decode_row,
    policy_objective,
)
from agents.decider.policies.base import Context, Policy
from agents.space.action_space import ActionSpace
from schemas.action import Action
from schemas.base import decode
from schemas.decision import Decision

TOLERANCE: Final = 1e-9
"""Relative difference of scores that rounding may make: what is promised between a fold and the live run."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A Decision that the log does not call for."""

    query_id: str
    seq: int
    field: str
    logged: object
    replayed: object


def opened(policy: Policy, records: Mapping[bytes, bytes]) -> tuple[list[AnyRow], int]:
    """Return the rows of a log and the place after which they can be replayed.

    That place is -1, before everything, unless rows have left the log: then a snapshot holds them, and the
    policy becomes the oldest whole one.

    Args:
        policy: Of the settings of the live run; fresh.
        records: Every key and value of the log.

    Raises:
        CorruptState: There is no row, a row cannot be read, or rows are missing that no snapshot holds.
    """
    snapshots = {k: v for k, v in records.items() if k.startswith(snapshot.SNAPSHOT_KEY)}
    log = [decode_row(k, v) for k, v in records.items() if k not in snapshots]
    decided = [row for row in log if isinstance(row, Row)]
    if not decided:
        raise CorruptState("the decider's log", "no rows", "at least one decision")
    if (absent := untold(decided)) is None:
        return log, -1
    found, refused = snapshot.read(snapshots, policy.load, oldest=True)
    if found is None:
        raise refused[0] if refused else absent
    if (absent := untold(decided, found.version)) is not None:
        raise absent
    return log, found.version


def mismatches(policy: Policy, rows: Iterable[AnyRow], seed: int, after: int = -1) -> Iterator[Mismatch]:
    """Replay a log in order and yield every Decision that differs.

    Args:
        policy: Of the settings of the live run; fresh, or loaded from a snapshot.
        rows: Every row of the log.
        seed: The live run's seed.
        after: Place in the order of that snapshot; -1 for none.
    """
    log = list(rows)
    actions = {row.action: row for row in log if isinstance(row, ActionRow)}
    introduce(policy, actions.values())
    # A snapshot's place may lie behind the offer that is in force there.
    before = [row for row in log if isinstance(row, OfferRow) and row.seq <= after]
    offered = max(before, key=lambda row: row.seq).actions if before else ()
    if before:
        offer(policy, offered, actions)
    for told, group in groupby(events(log, after), key=_together):
        rows_of_kind = [event.row for event in group]
        kind = told[0]
        for row in rows_of_kind:
            if isinstance(row, OfferRow):
                offered = row.actions
                offer(policy, offered, actions)
        decided = [row for row in rows_of_kind if isinstance(row, Row)]
        if kind == "expect":
            # Decided together, so from one state: the prices too.
            for row in decided:
                yield from _compared(policy, row, offered, seed)
        tell(policy, kind, decided)


def _together(event: Event) -> tuple[Told, int]:
    """Return what events of one batch share: decisions made from one state, updates one at a time."""
    row = event.row
    if event.told == "expect" and isinstance(row, Row):
        return "expect", row.batch if row.batch >= 0 else row.seq
    return event.told, event.seq


def _compared(policy: Policy, row: Row, offered: tuple[str, ...], seed: int) -> Iterator[Mismatch]:
    decision = decode(bytes(row.decision), Decision)
    space = ActionSpace(tuple(Action.parse(action_id) for action_id in offered))
    living = set(space.models) - set(decision.masked_models)
    query = decision.query
    left = space.choices(
        pinned=query.pinned,
        allowed_models=query.allowed_models,
        available_models=living,
        answers=query.n,
    )
    context = Context(row.query_id, row.vector(), frozenset(space[i].id for i in left))
    choice = policy.select([context], [policy_objective(row.objective)], seed)[0]
    aim = aim_of(row.objective)
    if aim is not None and not _close(row.objective.price, price := policy.price(aim), relative=True):
        yield Mismatch(row.query_id, row.seq, "objective.price", row.objective.price, price)

    def differ(field: str, logged: object, replayed: object) -> Iterator[Mismatch]:
        if logged != replayed:
            yield Mismatch(row.query_id, row.seq, field, logged, replayed)

    yield from differ("candidates", decision.candidates, choice.candidates)
    yield from differ("policy.version", decision.policy.version, choice.version)
    chosen = choice
    if decision.action.id != choice.action_id and choice.reason == "policy":
        # Where two actions score alike to rounding, either reproduces the decision.
        alone = replace(context, allowed=frozenset({decision.action.id}))
        chosen = policy.select([alone], [policy_objective(row.objective)], seed)[0]
        if not _close(chosen.score, choice.score):
            chosen = choice
    yield from differ("action", decision.action.id, chosen.action_id)
    yield from differ("action of the row", row.action, decision.action.id)
    if decision.score is not None and not _close(decision.score, chosen.score):
        yield Mismatch(row.query_id, row.seq, "score", decision.score, chosen.score)


def _close(one: float, two: float, *, relative: bool = False) -> bool:
    unit = 0.0 if relative else 1.0
    return abs(one - two) <= TOLERANCE * max(unit, abs(one), abs(two))
