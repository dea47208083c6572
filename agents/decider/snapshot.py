"""A policy's state in chunks, so that the log need not grow without bound.

Written in this order, and a crash between any two writes recovers the same state: the chunks of a new
version, its manifest (which makes it complete), tombstones of rows that the version *before* holds,
tombstones of versions older than that. Two versions stay, and every row newer than the older one: should the
newest be damaged, the one before it and the log give the same state. Nothing here does I/O: keys and values
in, keys and values out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from agents.decider.errors import CorruptState
from agents.decider.observations import Row
from schemas.query import Origin

SNAPSHOT_KEY: Final = b"\x00snapshot/"
"""Prefix of snapshot records. A query_id is printable ASCII, so no query's row can begin like this."""

CHUNK_BYTES: Final = 1 << 20
"""Bytes of a chunk: a quarter of the record limit. Larger gains nothing and stalls the producer's batch."""

BEGINNING: Final = -1
"""Version of a prior: the state before the first decision."""

KEPT: Final = 2
"""Versions that stay: the newest, and the one before it in case the newest is damaged."""


class Manifest(Struct, frozen=True, kw_only=True, tag="decider-snapshot.v1", tag_field="schema"):
    """What makes a version complete. Key: SNAPSHOT_KEY + version + "/manifest".

    Attributes:
        version: The sequence number up to which the state holds everything.
        clock: Decisions made by then.
        context_offset, reward_offset: Newest offsets in it; -1 for none.
        chunks: SHA-256 of each chunk, in order.
        sha256: Of all chunks together.
        size: Bytes of all chunks together.
        prior: SHA-256 of the prior that version -1 is made of; empty in all others.
    """

    version: int
    clock: int
    context_offset: int
    reward_offset: int
    chunks: tuple[str, ...]
    sha256: str
    size: int
    prior: str = ""


def write(
    state: bytes,
    *,
    version: int,
    clock: int,
    context_offset: int,
    reward_offset: int,
    chunk_bytes: int = CHUNK_BYTES,
    prior: str = "",
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a version in the order they must be written, the manifest last.

    Args:
        state: `Policy.state()`.
        version: Last sequence number that the state holds.
        clock: Decisions made.
        context_offset: Newest Context offset in the state.
        reward_offset: Newest Reward offset in the state.
        chunk_bytes: Size of a chunk.
        prior: SHA-256 of the prior that this is, for version -1.
    """
    parts = [state[at : at + chunk_bytes] for at in range(0, len(state), chunk_bytes)]
    for index, part in enumerate(parts):
        yield _chunk_key(version, index), part
    manifest = Manifest(
        version=version,
        clock=clock,
        context_offset=context_offset,
        reward_offset=reward_offset,
        chunks=tuple(_digest(part) for part in parts),
        sha256=_digest(state),
        size=len(state),
        prior=prior,
    )
    body = msgspec.json.encode(manifest)
    yield _manifest_key(version), _digest(body).encode() + b"\n" + body


def read(
    records: Mapping[bytes, bytes], accept: Callable[[bytes], None], *, oldest: bool = False
) -> tuple[Manifest | None, list[CorruptState]]:
    """Return the newest complete, verified and accepted version, and why each newer one was refused.

    Chunks without a manifest are a version whose writing was cut short; they are no error.

    Args:
        records: Every record of the log whose key begins with SNAPSHOT_KEY.
        accept: Takes the state, or raises CorruptState: `Policy.load`.
        oldest: Begin with the oldest version instead: a replay wants the most rows after it.
    """
    refused: list[CorruptState] = []
    for version in sorted(versions(records), reverse=not oldest):
        try:
            manifest, state = _verified(records, version)
            accept(state)
        except CorruptState as error:
            refused.append(error.within(f"snapshot {version}"))
        else:
            return manifest, refused
    return None, refused


def prior_of(records: Mapping[bytes, bytes]) -> str:
    """Return the SHA-256 of the prior that a log began from; empty where it began from nothing."""
    value = records.get(_manifest_key(BEGINNING))
    if value is None:
        return ""
    return msgspec.json.decode(value.partition(b"\n")[2], type=Manifest).prior


def versions(records: Iterable[bytes]) -> set[int]:
    """Return the versions that have a manifest, whole or not."""
    return {_version(key) for key in records if key.startswith(SNAPSHOT_KEY) and key.endswith(b"/manifest")}


def obsolete(
    records: Iterable[bytes], rows: Iterable[Row], replayable: Callable[[Origin], bool]
) -> Iterator[bytes]:
    """Yield the keys that may get a tombstone once a new manifest is written.

    Args:
        records: Keys of the snapshot records there are.
        rows: The rows of the log.
        replayable: Whether the broker still holds the record of an origin. A row stays as long as its Query or
            its Context could come again and would have to be recognised.
    """
    keys = list(records)
    # The beginning stays: a replay of the whole log starts from it.
    known = sorted(versions(keys) - {BEGINNING}, reverse=True)
    if len(known) < KEPT:
        return
    floor = known[KEPT - 1]
    for row in rows:
        ended = row.stage in ("closed", "abandoned")
        if not ended or row.last_seq > floor:
            continue
        if not (replayable(row.query_origin) or replayable(row.context_origin)):
            yield row.query_id.encode()
    for key in keys:
        if key.startswith(SNAPSHOT_KEY) and BEGINNING < _version(key) < floor:
            yield key


def is_prior(key: bytes) -> bool:
    """Return whether a record belongs to the state that a log began from."""
    return key.startswith(SNAPSHOT_KEY) and _version(key) == BEGINNING


def _verified(records: Mapping[bytes, bytes], version: int) -> tuple[Manifest, bytes]:
    stated, _, body = records[_manifest_key(version)].partition(b"\n")
    if stated.decode(errors="replace") != _digest(body):
        raise CorruptState("manifest sha256", _digest(body), stated)
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptState("manifest", str(error), "decider-snapshot.v1") from None
    if manifest.version != version:
        raise CorruptState("manifest version", manifest.version, version)
    parts = []
    for index, digest in enumerate(manifest.chunks):
        part = records.get(_chunk_key(version, index))
        if part is None:
            raise CorruptState(f"chunk {index}", "nothing", f"{len(manifest.chunks)} chunks")
        if _digest(part) != digest:
            raise CorruptState(f"chunk {index} sha256", _digest(part), digest)
        parts.append(part)
    state = b"".join(parts)
    if (len(state), _digest(state)) != (manifest.size, manifest.sha256):
        raise CorruptState("size", len(state), manifest.size)
    return manifest, state


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _chunk_key(version: int, index: int) -> bytes:
    return SNAPSHOT_KEY + f"{version}/{index}".encode()


def _manifest_key(version: int) -> bytes:
    return SNAPSHOT_KEY + f"{version}/manifest".encode()


def _version(key: bytes) -> int:
    return int(key[len(SNAPSHOT_KEY) :].partition(b"/")[0])
