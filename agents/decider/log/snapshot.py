"""A snapshot of the learner as records: the state of its policy and the rows still open, in chunks.

A snapshot replaces the learner's log up to an offset. It holds the state of the policy, the rows from before that
offset that are still needed (open ones, the actions, what is on offer), and the ids of the queries that have ended.
Snapshots have a topic of their own. A version consists of arrays of ids, which later versions share, of chunks, and of
a manifest, which is written last and makes the version complete. `retention` says which versions stay.

Nothing here does I/O: keys and values in, keys and values out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from agents.decider.errors import CorruptState
from agents.decider.log.ended import EndedIds
from agents.decider.log.manifest import (
    IDS_KEY,
    SNAPSHOT_KEY,
    Manifest,
    digest,
    manifest_key,
    manifest_of,
    versions,
)
from agents.decider.log.rows import decode_row

CHUNK_BYTES: Final = 1 << 20
"""Bytes of a chunk: a quarter of the record limit. Larger chunks gain nothing and stall the producer's batch."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What a snapshot contains besides the policy, so that the log before an offset is not needed.

    Attributes:
        log_offset: First offset of the log that it does not cover.
        rows: Values of the rows still needed.
        ended: Ids of the queries whose rows have ended.
    """

    log_offset: int = -1
    rows: tuple[bytes, ...] = ()
    ended: EndedIds = field(default_factory=EndedIds)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version that was read back.

    Attributes:
        manifest: Its manifest.
        rows: Its rows, by key.
        ended: Ids of the queries whose rows had ended.
    """

    manifest: Manifest
    rows: Mapping[bytes, bytes]
    ended: EndedIds

    @property
    def version(self) -> int:
        """Return the sequence number up to which it contains everything."""
        return self.manifest.version


def write(
    state: bytes,
    *,
    version: int,
    clock: int,
    context_offset: int,
    reward_offset: int,
    chunk_bytes: int = CHUNK_BYTES,
    prior: str = "",
    carried: Carried | None = None,
    present: Collection[bytes] = (),
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a version in the order in which they must be written, the manifest last.

    Args:
        state: `Policy.state()`.
        version: Last sequence number that the state contains.
        clock: Decisions made.
        context_offset: Newest Context offset in the state.
        reward_offset: Newest Reward offset in the state.
        chunk_bytes: Size of a chunk.
        prior: SHA-256 of the prior, for version -1.
        carried: What it contains besides the state; None for a snapshot that needs the whole log.
        present: Keys that exist already; an array of ids is written only once.
    """
    carried = carried or Carried()
    arrays = carried.ended.parts()
    for part, data in arrays:
        if (key := IDS_KEY + part.sha256.encode()) not in present:
            yield key, data
    chunks = _pieces(state, chunk_bytes)
    for index, chunk in enumerate(chunks):
        yield _chunk_key(version, index), chunk
    rows = _pieces(b"\n".join(carried.rows), chunk_bytes)
    for index, chunk in enumerate(rows):
        yield _rows_key(version, index), chunk
    manifest = Manifest(
        version=version,
        clock=clock,
        context_offset=context_offset,
        reward_offset=reward_offset,
        chunks=tuple(map(digest, chunks)),
        sha256=digest(state),
        size=len(state),
        prior=prior,
        log_offset=carried.log_offset,
        rows=tuple(map(digest, rows)),
        ended=tuple(part for part, _ in arrays),
    )
    body = msgspec.json.encode(manifest)
    yield manifest_key(version), digest(body).encode() + b"\n" + body


def read(
    records: Mapping[bytes, bytes],
    accept: Callable[[bytes], None],
    *,
    oldest: bool = False,
    most_ids: int | None = None,
) -> tuple[Snapshot | None, list[CorruptState]]:
    """Return the newest complete, verified and accepted version, and why each newer one was refused.

    Chunks without a manifest belong to a version whose writing was interrupted; they are no error.

    Args:
        records: Every snapshot record.
        accept: Takes the state, or raises CorruptState: `Policy.load`.
        oldest: Try the oldest version first; a replay then has the most rows after it.
        most_ids: Ids remembered at most; None for the default.
    """
    refused: list[CorruptState] = []
    for version in sorted(versions(records), reverse=not oldest):
        try:
            manifest, state = _verified(records, version)
            rows = _rows(records, manifest)
            ended = _ids(records, manifest, most_ids)
            accept(state)
        except CorruptState as error:
            refused.append(error.within(f"snapshot {version}"))
        else:
            return Snapshot(manifest, rows, ended), refused
    return None, refused


def _verified(records: Mapping[bytes, bytes], version: int) -> tuple[Manifest, bytes]:
    manifest = manifest_of(records, version)
    state = _joined(records, manifest.chunks, lambda index: _chunk_key(version, index), "chunk")
    if (len(state), digest(state)) != (manifest.size, manifest.sha256):
        raise CorruptState("size", len(state), manifest.size)
    return manifest, state


def _rows(records: Mapping[bytes, bytes], manifest: Manifest) -> dict[bytes, bytes]:
    lines = _joined(records, manifest.rows, lambda index: _rows_key(manifest.version, index), "chunk of rows")
    return {decode_row(b"", value).key: value for value in lines.split(b"\n") if value}


def _ids(records: Mapping[bytes, bytes], manifest: Manifest, most: int | None) -> EndedIds:
    def load(sha256: str) -> bytes | None:
        return records.get(IDS_KEY + sha256.encode())

    return EndedIds.read(manifest.ended, load) if most is None else EndedIds.read(manifest.ended, load, most)


def _joined(
    records: Mapping[bytes, bytes], digests: tuple[str, ...], key: Callable[[int], bytes], what: str
) -> bytes:
    parts = []
    for index, stated in enumerate(digests):
        part = records.get(key(index))
        if part is None:
            raise CorruptState(f"{what} {index}", "nothing", f"{len(digests)} chunks")
        if digest(part) != stated:
            raise CorruptState(f"{what} {index} sha256", digest(part), stated)
        parts.append(part)
    return b"".join(parts)


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _chunk_key(version: int, index: int) -> bytes:
    return SNAPSHOT_KEY + f"{version}/{index}".encode()


def _rows_key(version: int, index: int) -> bytes:
    return SNAPSHOT_KEY + f"{version}/rows/{index}".encode()
