"""A snapshot of the learner as records: the state of its policy and the rows still open, in chunks.

A snapshot replaces the learner's log up to an offset. It holds the state of the policy, the rows from before that
offset that are still needed (open ones, the actions, what is on offer), and the ids of the queries that have ended.
Snapshots have a topic of their own. A version consists of arrays of ids, which later versions share, of chunks, and of
a manifest, which is written last and makes the version complete. `retention` says which versions stay.

Nothing here does I/O: keys and values in, keys and values out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

from agents.decider.errors import CorruptState
from agents.decider.log.ended import EndedIds, Part
from agents.decider.log.rows import decode_row

SNAPSHOT_KEY: Final = b"\x00snapshot/"
"""Prefix of snapshot records. A query_id is printable ASCII, so no query's row can begin like this."""

IDS_KEY: Final = b"\x00ended/"
"""Prefix of the arrays of ids, each under the SHA-256 of its bytes."""

START_KEY: Final = b"\x00start"
"""Key of the offset at which startup begins to read the log."""

CHUNK_BYTES: Final = 1 << 20
"""Bytes of a chunk: a quarter of the record limit. Larger chunks gain nothing and stall the producer's batch."""

BEGINNING: Final = -1
"""Version of a prior: the state before the first decision."""


_RECORD: Final = re.compile(
    rb"\x00snapshot/(?P<version>-1|0|[1-9][0-9]{0,17})/(?:manifest|(?:rows/)?[0-9]{1,9})"
)
_IDS: Final = re.compile(rb"\x00ended/[0-9a-f]{64}")


class Manifest(Struct, frozen=True, kw_only=True, tag="decider-snapshot.v1", tag_field="schema"):
    """The record that makes a version complete. Key: SNAPSHOT_KEY + version + "/manifest".

    Attributes:
        version: The sequence number up to which the state contains everything.
        clock: Decisions made by then.
        context_offset, reward_offset: Newest offsets in it; -1 for none.
        chunks: SHA-256 of each chunk, in order.
        sha256: SHA-256 of all chunks together.
        size: Bytes of all chunks together.
        prior: SHA-256 of the prior that version -1 consists of; empty in other versions.
        log_offset: First offset of the log that it does not cover; -1 for a snapshot in the log itself, as 0.1.0 wrote
            them, which needs the whole log as well.
        rows: SHA-256 of each chunk of the rows from before that offset; a chunk has one JSON row per line.
        ended: The arrays of ids, oldest first.
    """

    version: int
    clock: int
    context_offset: int
    reward_offset: int
    chunks: tuple[str, ...]
    sha256: str
    size: int
    prior: str = ""
    log_offset: int = -1
    rows: tuple[str, ...] = ()
    ended: tuple[Part, ...] = ()


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
        chunks=tuple(map(_digest, chunks)),
        sha256=_digest(state),
        size=len(state),
        prior=prior,
        log_offset=carried.log_offset,
        rows=tuple(map(_digest, rows)),
        ended=tuple(part for part, _ in arrays),
    )
    body = msgspec.json.encode(manifest)
    yield manifest_key(version), _digest(body).encode() + b"\n" + body


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


def prior_of(records: Mapping[bytes, bytes]) -> str:
    """Return the SHA-256 of the prior that a log started from; empty if there was none."""
    beginning = manifests(records).get(BEGINNING)
    return "" if beginning is None else beginning.prior


def is_record(key: bytes) -> bool:
    """Return whether a record belongs to a snapshot; if not, it is a row of the log, or foreign."""
    return key == START_KEY or bool(_RECORD.fullmatch(key) or _IDS.fullmatch(key))


def manifest_key(version: int) -> bytes:
    """Return the key of a version's manifest."""
    return SNAPSHOT_KEY + f"{version}/manifest".encode()


def versions(records: Iterable[bytes]) -> set[int]:
    """Return the versions that have a manifest, sound or not."""
    return {
        version for key in records if key.endswith(b"/manifest") and (version := version_of(key)) is not None
    }


def manifests(records: Mapping[bytes, bytes]) -> dict[int, Manifest]:
    """Return the undamaged manifests by version; only `read` verifies the chunks that they list."""
    found = {}
    for version in versions(records):
        try:
            found[version] = _manifest(records, version)
        except CorruptState:
            continue
    return found


def start_of(records: Mapping[bytes, bytes]) -> int:
    """Return the offset at which startup begins to read the log; 0 if the whole log is needed.

    It is always the offset of a snapshot. If the record says anything else, the learner did not write it, and the
    lowest offset of a snapshot is used: reading more of the log than necessary does no harm.
    """
    value = records.get(START_KEY)
    if value is None:
        return 0
    offsets = {
        str(m.log_offset).encode(): m.log_offset for m in manifests(records).values() if m.log_offset >= 0
    }
    return offsets.get(value, min(offsets.values(), default=0))


def is_prior(key: bytes) -> bool:
    """Return whether a record belongs to the prior that a log started from."""
    return version_of(key) == BEGINNING


def version_of(key: bytes) -> int | None:
    """Return the version that a record belongs to; None for one that belongs to none, or to several."""
    found = _RECORD.fullmatch(key)
    return None if found is None else int(found["version"])


def _manifest(records: Mapping[bytes, bytes], version: int) -> Manifest:
    stated, _, body = records[manifest_key(version)].partition(b"\n")
    if stated.decode(errors="replace") != _digest(body):
        raise CorruptState("manifest sha256", _digest(body), stated)
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptState("manifest", str(error), "decider-snapshot.v1") from None
    if manifest.version != version:
        raise CorruptState("manifest version", manifest.version, version)
    return manifest


def _verified(records: Mapping[bytes, bytes], version: int) -> tuple[Manifest, bytes]:
    manifest = _manifest(records, version)
    state = _joined(records, manifest.chunks, lambda index: _chunk_key(version, index), "chunk")
    if (len(state), _digest(state)) != (manifest.size, manifest.sha256):
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
    for index, digest in enumerate(digests):
        part = records.get(key(index))
        if part is None:
            raise CorruptState(f"{what} {index}", "nothing", f"{len(digests)} chunks")
        if _digest(part) != digest:
            raise CorruptState(f"{what} {index} sha256", _digest(part), digest)
        parts.append(part)
    return b"".join(parts)


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _chunk_key(version: int, index: int) -> bytes:
    return SNAPSHOT_KEY + f"{version}/{index}".encode()


def _rows_key(version: int, index: int) -> bytes:
    return SNAPSHOT_KEY + f"{version}/rows/{index}".encode()
