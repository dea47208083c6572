"""Recovers a learner: loads the newest complete snapshot, checks that no row is missing, and folds the later rows."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from agents.bandit.errors import FIX_LOG, FIX_PRIOR, CorruptState, DeciderError
from agents.bandit.policy import Policy
from agents.decider import snapshot
from agents.decider.open_rows import HeldRows, OpenRows
from agents.decider.policy_fold import (
    Folded,
    fold,
    offer_at,
    outcome_weights,
    refits_of,
    register_actions,
    sequence_gap,
)
from agents.decider.rows import ActionRow, AnyRow, OfferRow, Row, decode_row, own_row
from agents.decider.sessions import Sessions
from agents.decider.shares import TeachingShares
from agents.decider.snapshot import BEGINNING, EndedIds, is_record, prior_of, versions
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.objective import CostUnit
from schemas.record import decode

Records = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery.

    Attributes:
        folded: Counts of the events after the snapshot.
        snapshot_version: Sequence number of the snapshot used; -1 for none.
        refused: Newer snapshots that were damaged, each with the reason.
        next_context, next_reward, next_failure: First offsets that the log does not cover. If the group's commit is
            ahead of the log, reading restarts here.
        carried: Rows, by key, taken from the snapshot because the log no longer has them.
        foreign: Keys of skipped records, which the learner cannot have written, in the log and in the snapshot topic.
        open_rows: The chunks of open decisions in the snapshot used.
    """

    folded: Folded
    snapshot_version: int
    refused: tuple[CorruptState, ...]
    next_context: int
    next_reward: int
    next_failure: int
    carried: Mapping[bytes, bytes]
    foreign: tuple[Sequence[bytes], Sequence[bytes]] = ((), ())
    open_rows: OpenRows = field(default_factory=OpenRows)


@dataclass(frozen=True, slots=True)
class Restored:
    """A learner's state except its policy; see the attributes of `Decider`."""

    seq: int
    clock: int
    context_offset: int
    reward_offset: int
    failure_offset: int
    actions: dict[str, ActionRow]
    offered: OfferRow
    prior: str
    shares: TeachingShares
    sessions: Sessions
    ended: EndedIds
    found: Recovered


def restore(
    policy: Policy,
    log: Records,
    snapshots: Records,
    ended: EndedIds,
    *,
    whole: bool,
    without: Collection[bytes] = (),
    unit: CostUnit = "eflops",
    encoder: str = "",
) -> Restored:
    """Restore the policy's state from its log, and return the rest of the learner's state.

    Args:
        policy: The policy in its initial state, without actions.
        log: As for `Decider.recover`.
        snapshots: As for `Decider.recover`.
        ended: An empty collection, which is returned if no snapshot is used; otherwise only its limit is used.
        whole: Whether to reject a log with a missing sequence number.
        without: As for `Decider.recover`.
        unit: The unit of the deployment's costs.
        encoder: Identity of the deployment's query encoder; empty if unknown.

    Raises:
        CorruptState: Costs are in the other unit; the encoder is another; a row comes from another release; a sequence
            number is missing or repeated; or no snapshot is complete although rows have been removed or the learner
            started from a prior.
    """
    own, known, foreign = _sorted_out(dict(log), dict(snapshots))
    found, refused = snapshot.read(known, policy.load, most_ids=ended.most)
    if refused and found is None and (other := snapshot.read(known, lambda _: None)[0]) is not None:
        # The policy also rejects a state in another unit or from another encoder, but its error does not name them.
        _require_same((decode_row(key, value) for key, value in other.rows.items()), unit, encoder)
    # Actions and offers never change, so those in a snapshot are still valid.
    carried = {} if found is None else dict(found.rows)
    carried = {k: v for k, v in carried.items() if not isinstance(own.get(k), Row) and k not in without}
    # Open decisions that have not changed since the snapshot add no events to the fold, so they are not read here.
    held = HeldRows() if found is None else found.held
    held.leave_out([*without, *(key for key, row in own.items() if isinstance(row, Row))])
    own |= {k: decode_row(k, v) for k, v in carried.items()}
    rows = [row for row in own.values() if isinstance(row, Row)]
    offers = [row for row in own.values() if isinstance(row, OfferRow)]
    actions = {row.action: row for row in own.values() if isinstance(row, ActionRow)}
    _require_same(offers, unit, encoder)
    after = -1 if found is None else found.version
    if whole and (absent := sequence_gap(rows, after)) is not None:
        error = refused[0] if refused and found is None else absent
        raise CorruptState(error.what, error.found, error.wanted, _fix(rows, policy, error.fix))
    if whole and found is None and BEGINNING in versions(known):
        prior = refused[-1]
        raise CorruptState(prior.what, prior.found, prior.wanted, _fix(rows, policy, FIX_PRIOR))
    clock, shares, sessions = 0, TeachingShares(), Sessions()
    contexts, rewards = [row.context_origin.offset for row in rows], [row.reward_offset for row in rows]
    failures = [row.failure_offset for row in rows]
    if found is not None:
        ended, clock = found.ended, found.manifest.clock
        shares = TeachingShares.of(found.manifest.taught)
        sessions = Sessions(found.manifest.sessions)
        contexts.append(found.manifest.context_offset)
        rewards.append(found.manifest.reward_offset)
        failures.append(found.manifest.failure_offset)
    if not offers and not rows and found is None:
        # A crash interrupted the first offer. The centre must be computed from the whole offer, not from part of it.
        actions.clear()
    try:
        register_actions(policy, actions.values())
        policy.refits.results.update(logged := refits_of(own.values(), after))
        folded = fold(policy, [*rows, *offers], after, actions)
        for outcomes, result in logged.items():
            # The log already has these. The remaining ones will be written, because for them the log has no estimates,
            # only some of their parts, or estimates from another history.
            if policy.refits.results[outcomes] == result:
                del policy.refits.results[outcomes]
    except (DeciderError, KeyError, ValueError) as error:
        raise CorruptState(
            "the rows of the log", f"{error}", "rows of this learner", _fix(rows, policy, FIX_LOG)
        ) from error
    shares.extend(outcome_weights(rows, after))
    for row in sorted((row for row in rows if row.seq > after and row.session), key=attrgetter("seq")):
        sessions.add(row.turn)
    context_offset, reward_offset = max(contexts, default=-1), max(rewards, default=-1)
    failure_offset = max(failures, default=-1)
    return Restored(
        seq=max(after, folded.last_seq) + 1,
        clock=max(clock, folded.clock),
        context_offset=context_offset,
        reward_offset=reward_offset,
        failure_offset=failure_offset,
        actions=actions,
        offered=offer_at(offers),
        prior=prior_of(known),
        shares=shares,
        sessions=sessions,
        ended=ended,
        found=Recovered(
            replace(folded, outstanding=folded.outstanding + len(held.pending)),
            after,
            tuple(refused),
            context_offset + 1,
            reward_offset + 1,
            failure_offset + 1,
            ChainMap(carried, held),  # type: ignore[arg-type]
            foreign,
            held.chunks,
        ),
    )


def _require_same(rows: Iterable[AnyRow], unit: CostUnit, encoder: str) -> None:
    """Reject a log whose costs are in another unit or whose questions another encoder embedded: neither converts."""
    reset = "or start over with `python -m streams learner reset`, or under another topic prefix"
    for row in rows:
        if not isinstance(row, OfferRow):
            continue
        if row.unit != unit:
            fix = f"go back to a catalogue with costs in that unit, {reset}"
            raise CorruptState("the unit of costs", row.unit, unit, fix)
        if row.encoder and encoder and row.encoder != encoder:
            fix = f"go back to that encoder (UNISCALE_ENCODER), {reset}"
            raise CorruptState("the query encoder", row.encoder, encoder, fix)


def _fix(rows: Sequence[Row], policy: Policy, fix: str) -> str:
    """Return the fix for a log that a policy rejects: `fix`, unless a different policy wrote the log."""
    last = max(rows, key=lambda row: row.seq, default=None)
    if last is None:
        return fix
    try:
        writer = decode(bytes(last.decision), Decision).policy.name
    except UniscaleError:  # a forged row, which the command in `fix` reports
        return fix
    own, other = (name.removeprefix("explored-") for name in (policy.name, writer))
    if own == other:
        return fix
    return (
        f"the policy {other!r} wrote it, and this is {own!r}: set UNISCALE_POLICY={other} to go on, "
        "or start over with `python -m streams learner reset`"
    )


def _sorted_out(
    log: Mapping[bytes, bytes], snapshots: Mapping[bytes, bytes]
) -> tuple[dict[bytes, AnyRow], dict[bytes, bytes], tuple[Sequence[bytes], Sequence[bytes]]]:
    """Return the log's rows, the snapshot records, and the keys of all other records in the two topics.

    The learner cannot have written those other records.

    Raises:
        CorruptState: A row comes from another release.
    """
    known = {key: value for key, value in snapshots.items() if is_record(key)}
    rows = {key: row for key, value in log.items() if (row := own_row(key, value)) is not None}
    return (
        rows,
        known,
        ([key for key in log if key not in rows], [key for key in snapshots if key not in known]),
    )
