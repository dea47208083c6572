"""What stays of snapshots and log: which rows a snapshot must carry, and which records nothing needs any more.

A snapshot is written, and what it replaces is deleted, in this order. A crash between any two writes recovers the same
state:

1. the new version: arrays of ids that no earlier version has, chunks, manifest;
2. tombstones, in the log, of the ended rows that the version *before* holds;
3. the offset at which startup begins to read the log: that of the version before;
4. tombstones of older versions.

Two versions stay, and every row newer than the older one. If the newest is damaged, the one before it and the log give
the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from agents.decider.log.ended import EndedIds
from agents.decider.log.manifest import BEGINNING, IDS_KEY, Manifest, version_of
from agents.decider.log.offers import ActionRow, OfferRow
from agents.decider.log.rows import ENDED, AnyRow, Row
from agents.decider.log.snapshot import Carried

KEPT: Final = 2
"""Versions that stay: the newest, and the one before it in case the newest is damaged."""


def carry(
    rows: Iterable[tuple[bytes, bytes, AnyRow]], log_offset: int, ended: EndedIds
) -> tuple[Carried, dict[bytes, int]]:
    """Return what a snapshot of the present state must contain besides the policy, and the rows that have ended.

    Args:
        rows: Key, value and content of every row in memory.
        log_offset: The end of the log.
        ended: Ids of the queries that have ended; those of these rows are added to it.

    Returns:
        What the snapshot carries; and the key of each ended row with the sequence number of its last change.
    """
    needed, done, offers = list[bytes](), dict[bytes, int](), list[tuple[int, bytes]]()
    for key, value, row in rows:
        match row:
            case Row() if row.stage in ENDED:
                done[key] = row.last_seq
                ended.add(row.query_id, row.query_origin, row.context_origin.offset)
            case OfferRow():
                offers.append((row.seq, value))
            case Row() | ActionRow():
                needed.append(value)
    needed += [value for _, value in sorted(offers)[-1:]]
    return Carried(log_offset, tuple(needed), ended), done


def floor_of(known: Mapping[int, Manifest]) -> Manifest | None:
    """Return the oldest version that stays; what it contains may leave the log. None while there are too few.

    Args:
        known: Manifests of the complete versions, by version. Those that need the whole log do not count.
    """
    own = sorted(version for version, manifest in known.items() if manifest.log_offset >= 0)
    return known[own[-KEPT]] if len(own) >= KEPT else None


def obsolete(keys: Iterable[bytes], known: Mapping[int, Manifest]) -> list[bytes]:
    """Return the keys of the snapshot records that no kept version needs.

    Args:
        keys: Keys of all snapshot records.
        known: Manifests of the complete versions, by version.
    """
    floor = floor_of(known)
    if floor is None:
        return []
    kept = {v: m for v, m in known.items() if v >= floor.version}
    arrays = {IDS_KEY + part.sha256.encode() for manifest in kept.values() for part in manifest.ended}
    # Version -1 stays, because a replay of the whole log starts from it.
    return [
        key
        for key in keys
        if (key.startswith(IDS_KEY) and key not in arrays)
        or ((version := version_of(key)) is not None and BEGINNING < version < floor.version)
    ]
