"""Finds the records that prevent a learner from starting, and repairs the log without them.

A learner does not start if a row is from another release, if a sequence number is repeated or missing, or if the prior
is damaged and no snapshot is complete. A row from another release, or with a repeated number, is left out. A missing
row or a damaged prior cannot be restored; instead, a snapshot of the remaining rows replaces the log, and the missing
sequence numbers stay unused. Records that the learner cannot have written do not prevent it from starting, because it
skips them, but they are reported too. If such a record replaced a row, the row is restored, provided the topic still
has it.

If two rows have the same sequence number, the one whose Decision was sent is kept.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from agents.bandit.errors import CorruptState
from agents.decider import snapshot
from agents.decider.decider import Decider
from agents.decider.rows import REFIT_KEY, Row, decode_row, without_question
from agents.decider.snapshot import (
    BEGINNING,
    IDS_KEY,
    RESET_KEY,
    START_KEY,
    is_prior,
    is_record,
    manifest_key,
    versions,
)
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.record import decode

Rows = list[tuple[bytes, Row]]
Sent = Callable[[Collection[bytes]], Mapping[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Refused:
    """A fault that prevents a learner from starting, or a record that it skips.

    Attributes:
        key: Key of the record to leave out; None if a row is missing.
        what: Description of the fault.
        among_snapshots: Whether the record is in the snapshot topic rather than the log.
    """

    key: bytes | None
    what: str
    among_snapshots: bool = False


def refused(
    log: Mapping[bytes, bytes],
    snapshots: Mapping[bytes, bytes],
    accept: Callable[[bytes], None] = lambda state: None,
    sent: Sent = lambda keys: {},
) -> list[Refused]:
    """Return every fault that prevents a learner from starting, and every record it skips; empty for a sound log.

    Args:
        log: The newest value of each key, from the offset where a learner starts reading, in topic order.
        snapshots: The snapshot records.
        accept: Checks a snapshot's policy state and raises CorruptState if it is invalid, as `Policy.load` does.
        sent: Returns those of the given keys' Decisions that are still on the broker, as values by key. Called only if
            sequence numbers are repeated or missing.
    """
    found, rows = list[Refused](), Rows()
    for key, value in log.items():
        try:
            row = decode_row(key, value)
        except CorruptState as error:
            found.append(Refused(key, f"row {shown(key)} cannot be read: {error.found}"))
            continue
        if row.key != key:
            found.append(Refused(key, f"row {shown(key)} is the row of {shown(row.key)}"))
        elif isinstance(row, Row):
            rows.append((key, row))
    base, damaged = snapshot.read(snapshots, accept)
    after = -1 if base is None else base.version
    found += _foreign(snapshots, after)
    if base is None and BEGINNING in versions(snapshots):
        what = f"{damaged[-1].what} is {damaged[-1].found!r}; without it, what the prior taught is lost"
        found.append(Refused(manifest_key(BEGINNING), what, among_snapshots=True))
    if base is not None:
        read = {key for key, _ in rows}
        carried = ((key, decode_row(key, value)) for key, value in base.rows.items() if key not in read)
        rows = [(key, row) for key, row in carried if isinstance(row, Row)] + rows
    rows, doubled = _without_doubled(rows, after, sent)
    rows, unsent = _without_unsent(rows, after, sent)
    found += [*doubled, *unsent]
    why = f" ({damaged[0]})" if damaged and base is None else ""
    for first, last in _missing(rows, after):
        numbers = f"sequence number {first}" if first == last else f"sequence numbers {first} to {last}"
        found.append(Refused(None, f"no row has {numbers}{why}"))
    return found


def repaired(
    decider: Decider,
    log: Mapping[bytes, bytes],
    snapshots: Mapping[bytes, bytes],
    without: Collection[bytes],
    log_offset: int,
    chunk_bytes: int = snapshot.CHUNK_BYTES,
    earlier: Mapping[bytes, bytes] | None = None,
) -> tuple[list[tuple[bytes, bytes | None]], list[bytes]]:
    """Return snapshot records that a learner can start from, and the keys to delete from the log.

    Queries whose rows are left out count as ended: if they are sent again, they are rejected as duplicates, and any
    rewards that still arrive for them count as late.

    Args:
        decider: A new decider. It recovers from the repaired log.
        log: As for `refused`.
        snapshots: As for `refused`.
        without: Keys of the rows to leave out.
        log_offset: The end of the log.
        chunk_bytes: Chunk size, in bytes.
        earlier: The previous value of each key, if the topic still has it. A row that was replaced by a record in
            `without` is restored from it.
    """
    # The log's refits were estimated from the whole history and do not fit the remaining part. They are recomputed and
    # stored in the snapshot.
    refits = [key for key in log if key.startswith(REFIT_KEY)]
    out = {*refits, *without}
    kept = {key: value for key, value in log.items() if key not in out}
    replaced = {key: value for key, value in (earlier or {}).items() if key in out and key not in refits}
    unfit = {each.key for each in refused(kept | replaced, snapshots)}
    restored = {key: value for key, value in replaced.items() if key not in unfit}
    kept |= restored
    left_out = _rows(log, [key for key in without if key not in restored])
    found = decider.recover(kept.items(), snapshots.items(), whole=False, without=left_out)
    # Sequence numbers of removed rows are not reused, and version -1 is reserved for a prior.
    decider.seq = max([decider.seq, 1, *(row.last_seq + 1 for row in left_out.values())])
    for row in left_out.values():
        decider.ended.add(row.query_id, row.query_origin, row.context_origin.offset)
    rows = ChainMap(found.carried, kept)  # type: ignore[arg-type]
    parsed = ((key, value, decode_row(key, value)) for key, value in rows.items())
    carried, ended = snapshot.carry(
        parsed, log_offset, decider.ended, value=rows.get, chunk_bytes=chunk_bytes
    )
    made = decider.snapshot(chunk_bytes, carried=carried, present=snapshots)
    needed = {key for key, _ in made} | {START_KEY, RESET_KEY}
    needed |= {IDS_KEY + part.sha256.encode() for part, _ in decider.ended.parts()}
    needed |= {part.key for part in carried.open_rows.parts()}
    gone = [key for key in snapshots if key not in needed and not is_prior(key)]
    start = (START_KEY, str(log_offset).encode())
    dropped = dict.fromkeys([*without, *refits, *(key for key in ended if key in log)])
    return [*made, start, *((key, None) for key in gone)], list(dropped)


def _rows(log: Mapping[bytes, bytes], keys: Collection[bytes]) -> dict[bytes, Row]:
    """Return the decision rows among the given keys of a log. Other rows and unreadable records are left out."""
    found = dict[bytes, Row]()
    for key in keys:
        with suppress(CorruptState):
            if isinstance(row := decode_row(key, log[key]), Row):
                found[key] = row
    return found


def shown(key: bytes) -> str:
    """Return a key in readable form, for messages."""
    return key.decode("ascii", "backslashreplace").replace("\x00", "")


def _foreign(snapshots: Mapping[bytes, bytes], after: int) -> list[Refused]:
    """Return the records that are not part of a snapshot, and the damaged versions newer than the one in use."""
    found = [
        Refused(
            key, f"{shown(key) or 'a record without a key'} is not part of a snapshot", among_snapshots=True
        )
        for key in snapshots
        if not is_record(key)
    ]
    _, damaged = snapshot.read(snapshots, lambda state: None)
    for version, error in zip(sorted(versions(snapshots), reverse=True), damaged, strict=False):
        if version > after:
            what = f"{error.what} is {error.found}"
            found.append(Refused(manifest_key(version), what, among_snapshots=True))
    return found


def _without_doubled(rows: Rows, after: int, sent: Sent) -> tuple[Rows, list[Refused]]:
    """Keep one of any rows with the same sequence number, preferably one whose Decision was sent; report the rest."""
    had = Counter(seq for _, row in rows for seq in row.seqs if seq > after)
    disputed = [key for key, row in rows if any(had[seq] > 1 for seq in row.seqs)]
    if not disputed:
        return rows, []
    decisions, taken = sent(disputed), dict[int, bytes]()
    kept, found = Rows(), list[Refused]()
    for key, row in sorted(rows, key=lambda each: not _holds(each[1], decisions.get(each[0]))):
        own = [seq for seq in row.seqs if seq > after]
        if twice := [seq for seq in own if seq in taken]:
            other = shown(taken[twice[0]])
            found.append(Refused(key, f"row {shown(key)} has sequence number {twice[0]}, as row {other} has"))
        else:
            taken |= dict.fromkeys(own, key)
            kept.append((key, row))
    return kept, found


def _without_unsent(rows: Rows, after: int, sent: Sent) -> tuple[Rows, list[Refused]]:
    """If Decisions of rows after a missing sequence number were sent, keep only those rows and report the others."""
    gaps = _missing(rows, after)
    beyond = {key for key, row in rows if gaps and row.last_seq > gaps[0][0]}
    decisions = sent(beyond) if beyond else {}
    kept, found = Rows(), list[Refused]()
    for key, row in rows:
        if decisions and key in beyond and not _holds(row, decisions.get(key)):
            what = f"row {shown(key)} has sequence number {row.last_seq}, of a Decision that was never sent"
            found.append(Refused(key, what))
        else:
            kept.append((key, row))
    return kept, found


def _holds(row: Row, sent: bytes | None) -> bool:
    """Return whether a row contains the Decision that was sent."""
    if sent is None:
        return False
    try:
        return without_question(decode(sent, Decision)) == bytes(row.decision)
    except UniscaleError:
        return False


def _missing(rows: Rows, after: int) -> list[tuple[int, int]]:
    told = sorted({seq for _, row in rows for seq in row.seqs if seq > after})
    return [(one + 1, two - 1) for one, two in zip([after, *told], told, strict=False) if two > one + 1]
