"""What in the learner's log keeps a learner from starting, and what is left of it without that.

A log is refused for a row that cannot be read, for a sequence number that two rows have, or for one that no row has.
The first two are named by their keys and can be left out. A missing row cannot be brought back: a snapshot of what is
there then stands for the log so far, and the missing sequence numbers stay empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from agents.decider import snapshot
from agents.decider.agent import Decider
from agents.decider.errors import CorruptState
from agents.decider.observations import Row, decode_row


@dataclass(frozen=True, slots=True)
class Refused:
    """Something for which the fold refuses a log.

    Attributes:
        key: Key of the row to leave out; None where a row is missing.
        what: What is wrong, in words.
    """

    key: bytes | None
    what: str


def refused(
    log: Mapping[bytes, bytes],
    snapshots: Mapping[bytes, bytes],
    accept: Callable[[bytes], None] = lambda state: None,
) -> list[Refused]:
    """Return everything for which the fold of a log is refused; nothing where it is whole.

    Args:
        log: The rows from where startup reads, the newest of each key, in the order in which they were written.
        snapshots: The snapshot records.
        accept: Takes the state of a snapshot, or raises CorruptState: `Policy.load` of a fresh policy.
    """
    found, rows = list[Refused](), list[tuple[bytes, Row]]()
    for key, value in log.items():
        if snapshot.is_record(key):
            continue
        try:
            row = decode_row(key, value)
        except CorruptState as error:
            found.append(Refused(key, f"row {shown(key)} cannot be read: {error.found}"))
            continue
        if snapshot.row_key(row) != key:
            found.append(Refused(key, f"row {shown(key)} is the row of {shown(snapshot.row_key(row))}"))
        elif isinstance(row, Row):
            rows.append((key, row))
    base, damaged = snapshot.read({**log, **snapshots}, accept)
    after = -1 if base is None else base.version
    if base is not None:
        carried = ((key, decode_row(key, value)) for key, value in base.rows.items() if key not in log)
        rows = [(key, row) for key, row in carried if isinstance(row, Row)] + rows
    taken: dict[int, bytes] = {}
    for key, row in rows:
        own = [seq for seq in row.seqs if seq > after]
        if twice := [seq for seq in own if seq in taken]:
            other = shown(taken[twice[0]])
            found.append(
                Refused(key, f"row {shown(key)} has sequence number {twice[0]}, as row {other} before it")
            )
        else:
            taken |= dict.fromkeys(own, key)
    told = sorted({seq for _, row in rows for seq in row.seqs if seq > after})
    missing = [(one + 1, two - 1) for one, two in zip([after, *told], told, strict=False) if two > one + 1]
    why = f" ({damaged[0]})" if damaged and base is None else ""
    for first, last in missing:
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
) -> tuple[list[tuple[bytes, bytes | None]], list[bytes]]:
    """Return the records of snapshots that let a learner start again, then the keys to delete from the log.

    The queries of rows that are left out count as ended: sent again, they are refused as duplicates, and their rewards
    come too late.

    Args:
        decider: Fresh; it becomes the learner that will start.
        log: As for `refused`.
        snapshots: As for `refused`.
        without: Keys of the rows to leave out.
        log_offset: The end of the log.
        chunk_bytes: Size of a chunk.
    """
    kept = {key: value for key, value in log.items() if key not in without}
    found = decider.recover([*kept.items(), *snapshots.items()], whole=False)
    for key in without:
        try:
            row = decode_row(key, log[key])
        except CorruptState:
            continue
        if isinstance(row, Row):
            decider.ended.add(row.query_id, row.query_origin, row.context_origin.offset)
    rows = {key: value for key, value in {**found.carried, **kept}.items() if not snapshot.is_record(key)}
    parsed = ((key, value, decode_row(key, value)) for key, value in rows.items())
    carried, ended = snapshot.carry(parsed, log_offset, decider.ended)
    made = decider.snapshot(chunk_bytes, carried=carried, present=snapshots)
    needed = {key for key, _ in made} | {snapshot.START_KEY}
    needed |= {snapshot.IDS_KEY + part.sha256.encode() for part, _ in decider.ended.parts()}
    gone = [
        key
        for key in snapshots
        if key not in needed and not (key.startswith(snapshot.SNAPSHOT_KEY) and snapshot.is_prior(key))
    ]
    start = (snapshot.START_KEY, str(log_offset).encode())
    return [*made, start, *((key, None) for key in gone)], [*without, *(key for key in ended if key in log)]


def shown(key: bytes) -> str:
    """Return a key for a message."""
    return key.decode("ascii", "backslashreplace").replace("\x00", "")
