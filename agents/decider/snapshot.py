"""Learner snapshots as records, the ids of ended queries, and which records a snapshot makes obsolete."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from threadpoolctl import threadpool_info

from agents.bandit.errors import CorruptState
from agents.decider.open_rows import ROWS_KEY, HeldRows, OpenRows, RowsPart
from agents.decider.rows import ENDED, ActionRow, AnyRow, OfferRow, RefitRow, Row, decode_row
from agents.decider.sessions import Turn
from agents.decider.shares import Window
from schemas.query import Origin

# The keys of a snapshot's records, and the manifests, which list each version's contents.
#
# Nothing here does I/O: keys and values in, values out.

SNAPSHOT_KEY: Final = b"\x00snapshot/"
"""Key prefix for snapshot records. A query_id is printable ASCII, so no query's row can start with this."""

IDS_KEY: Final = b"\x00ended/"
"""Key prefix for arrays of ids. The rest of the key is the SHA-256 of the array's bytes."""

START_KEY: Final = b"\x00start"
"""Key of the offset that the log is read from at startup."""

RESET_KEY: Final = b"\x00reset"
"""Key of the Decision topic's end offsets, by partition, at the time of `learner reset`. The audit needs them."""

BEGINNING: Final = -1
"""Version of a prior: the state before the first decision."""


_RECORD: Final = re.compile(
    rb"\x00snapshot/(?P<version>-1|0|[1-9][0-9]{0,17})/(?:manifest|(?:rows/)?[0-9]{1,9})"
)
_SHARED: Final = re.compile(rb"\x00(?:ended|rows)/[0-9a-f]{64}")


class Manifest(Struct, frozen=True, kw_only=True, tag="decider-snapshot.v1", tag_field="schema"):
    """The record that makes a version complete. Key: SNAPSHOT_KEY + version + "/manifest".

    Attributes:
        version: The last sequence number that the state contains.
        clock: Number of decisions in the state.
        context_offset, reward_offset, failure_offset: Newest offsets that the state contains; -1 for none.
        chunks: SHA-256 of each chunk, in order.
        sha256: SHA-256 of all chunks together.
        size: Total size of all chunks, in bytes.
        prior: SHA-256 of the prior that makes up version -1; empty in other versions.
        log_offset: First offset of the log that this version does not cover; -1 if it needs the whole log, as a prior
            does.
        rows: SHA-256 of each chunk of rows before that offset that are still needed but are not decisions, such as
            actions; one JSON row per line. In versions written before `waiting` existed, open decisions are included
            too.
        waiting: The chunks of open decisions.
        ended: The arrays of ids, oldest first.
        taught: The tenants of the latest outcomes.
        sessions: Each session's last turn, oldest first.
        kernel: The kernels that computed the state; empty if unknown.
    """

    version: int
    clock: int
    context_offset: int
    reward_offset: int
    chunks: tuple[str, ...]
    sha256: str
    size: int
    failure_offset: int = -1
    prior: str = ""
    log_offset: int = -1
    rows: tuple[str, ...] = ()
    waiting: tuple[RowsPart, ...] = ()
    ended: tuple[IdsPart, ...] = ()
    taught: Window = Window()
    sessions: tuple[Turn, ...] = ()
    kernel: str = ""


@cache
def kernel() -> str:
    """Return the BLAS used by NumPy and SciPy: its library, version and kernels, such as `openblas 0.3.30 Haswell`.

    OpenBLAS chooses kernels to suit the processor, or by OPENBLAS_CORETYPE. Different kernels sum in different orders,
    so the last bits differ. The result is empty if the BLAS is unknown because NumPy was not installed from its own
    wheel.
    """
    names = ("internal_api", "version", "architecture")
    ours = [each for each in threadpool_info() if each["user_api"] == "blas" and "scipy" in each["filepath"]]
    return ", ".join(sorted({" ".join(str(each[name]) for name in names) for each in ours}))


def other_kernels(found: Iterable[Manifest]) -> list[str]:
    """Return the kernels, sorted, that computed these snapshots but are not in use here."""
    return sorted({each.kernel for each in found} - {kernel(), ""}) if kernel() else []


def prior_of(records: Mapping[bytes, bytes]) -> str:
    """Return the SHA-256 of the prior that a log started from; empty if there was none."""
    beginning = manifests(records).get(BEGINNING)
    return "" if beginning is None else beginning.prior


def is_record(key: bytes) -> bool:
    """Return whether a record belongs to a snapshot; if not, it is a row of the log, or foreign."""
    return key in (START_KEY, RESET_KEY) or bool(_RECORD.fullmatch(key) or _SHARED.fullmatch(key))


def manifest_key(version: int) -> bytes:
    """Return the key of a version's manifest."""
    return SNAPSHOT_KEY + f"{version}/manifest".encode()


def versions(records: Iterable[bytes]) -> set[int]:
    """Return the versions that have a manifest, even a damaged one."""
    return {
        version for key in records if key.endswith(b"/manifest") and (version := version_of(key)) is not None
    }


def manifests(records: Mapping[bytes, bytes]) -> dict[int, Manifest]:
    """Return the undamaged manifests, keyed by version; only `read` verifies their chunks."""
    found = {}
    for version in versions(records):
        try:
            found[version] = manifest_of(records, version)
        except CorruptState:
            continue
    return found


def start_of(records: Mapping[bytes, bytes]) -> int:
    """Return the offset that the log is read from at startup; 0 if the whole log is needed.

    It is always a snapshot's offset. If the record says anything else, the learner did not write it, and the lowest
    snapshot offset is used: reading more of the log than necessary does no harm.
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
    """Return the version that a record belongs to; None if it belongs to none or to several."""
    found = _RECORD.fullmatch(key)
    return None if found is None else int(found["version"])


def manifest_of(records: Mapping[bytes, bytes], version: int) -> Manifest:
    """Return a version's manifest, which must exist. Raises CorruptState if it is damaged."""
    stated, _, body = records[manifest_key(version)].partition(b"\n")
    if stated.decode(errors="replace") != digest(body):
        raise CorruptState("manifest sha256", digest(body), stated)
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptState("manifest", str(error), "decider-snapshot.v1") from None
    if manifest.version != version:
        raise CorruptState("manifest version", manifest.version, version)
    return manifest


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


# Ids of queries whose rows have ended, in 16 bytes each. They identify duplicates after the row has been removed.
#
# An id is stored as its 8-byte BLAKE2b digest, with its Query's partition and offset. The digests are in sorted arrays
# of up to 65,536 ids. A full array never changes, so it is written once, under the SHA-256 of its bytes, and later
# snapshots refer to it.
#
# Among N remembered ids, a new id is mistaken for one of them with probability N/2⁶⁴: 5·10⁻¹³ at ten million.

ID_BYTES: Final = 16
"""Bytes per id: its digest, and its Query's partition and offset."""

ARRAY_IDS: Final = 65_536
"""Number of ids in a full array, which takes 1 MiB: a quarter of the record limit."""

MOST: Final = 10_000_000
"""Maximum number of remembered ids: 160 MB, or four months at one query a second."""

_OFFSET_BITS: Final = 48
_OFFSETS: Final = (1 << _OFFSET_BITS) - 1

Numbers = npt.NDArray[np.uint64]


class IdsPart(Struct, frozen=True, kw_only=True):
    """A snapshot's reference to an array of ids.

    Attributes:
        sha256: Digest of the array's bytes; part of its record's key.
        count: Number of ids in the array.
        context_offset: Largest Context offset among its queries.
    """

    sha256: str
    count: int
    context_offset: int


@dataclass(frozen=True, slots=True)
class _Array:
    part: IdsPart
    digests: Numbers
    places: Numbers


class EndedIds:
    """The ids of queries that have ended, each with its Query's partition and offset.

    Args:
        most: Maximum number of remembered ids; beyond that, the oldest full arrays are forgotten.
        array_ids: Number of ids in a full array.
    """

    def __init__(self, most: int = MOST, array_ids: int = ARRAY_IDS) -> None:
        self.most = most
        self.array_ids = array_ids
        self._full: list[_Array] = []
        self._newest: dict[int, int] = {}
        self._newest_context = -1

    def __len__(self) -> int:
        """Return the number of remembered ids."""
        return len(self._newest) + sum(array.part.count for array in self._full)

    def add(self, query_id: str, query: Origin, context_offset: int) -> None:
        """Remember a query that has ended. If the id is already known, this has no effect.

        Args:
            query_id: The query's id.
            query: Origin of the Query.
            context_offset: Offset of the query's Context.
        """
        if self.find(query_id) is not None:
            return
        self._newest[_digest(query_id)] = query.partition << _OFFSET_BITS | query.offset
        self._newest_context = max(self._newest_context, context_offset)
        if len(self._newest) >= self.array_ids:
            self._full.append(self._array())
            self._newest, self._newest_context = {}, -1

    def find(self, query_id: str) -> tuple[int, int] | None:
        """Return the partition and offset of the ended Query with this id; None if there is none."""
        digest = _digest(query_id)
        place = self._newest.get(digest)
        if place is None:
            wanted = np.uint64(digest)
            for array in reversed(self._full):
                at = int(array.digests.searchsorted(wanted))
                if at < len(array.digests) and array.digests[at] == wanted:
                    place = int(array.places[at])
                    break
        return None if place is None else (place >> _OFFSET_BITS, place & _OFFSETS)

    def forget(self, first_queries: Mapping[int, int], first_context: int) -> tuple[int, int]:
        """Forget full arrays whose queries can no longer be redelivered, then the oldest ones beyond `most`.

        Args:
            first_queries: Oldest Query offset on the broker, by partition.
            first_context: Oldest Context offset on the broker.

        Returns:
            The number of ids forgotten because they cannot be redelivered, and the number forgotten because there were
            too many.
        """
        before = len(self)
        firsts = {part: np.uint64(first) for part, first in first_queries.items()}
        self._full = [a for a in self._full if a.part.context_offset >= first_context or _held(a, firsts)]
        gone = before - len(self)
        while self._full and len(self) > self.most:
            del self._full[0]
        return gone, before - gone - len(self)

    def parts(self) -> list[tuple[IdsPart, bytes]]:
        """Return every array with its bytes, oldest first; the last one may not be full yet."""
        arrays = [*self._full, self._array()] if self._newest else self._full
        return [(array.part, _bytes(array)) for array in arrays]

    @classmethod
    def read(
        cls,
        parts: Iterable[IdsPart],
        load: Callable[[str], bytes | None],
        most: int = MOST,
        array_ids: int = ARRAY_IDS,
    ) -> EndedIds:
        """Return the ids that a snapshot refers to.

        Args:
            parts: The snapshot's arrays, oldest first.
            load: Returns an array's bytes by their SHA-256.
            most: Maximum number of remembered ids.
            array_ids: Number of ids in a full array.

        Raises:
            CorruptState: An array is missing or damaged.
        """
        made = cls(most, array_ids)
        for number, part in enumerate(parts):
            data = load(part.sha256)
            if data is None:
                raise CorruptState(f"ids {number}", "nothing", part.sha256)
            if (found := hashlib.sha256(data).hexdigest()) != part.sha256:
                raise CorruptState(f"ids {number} sha256", found, part.sha256)
            if len(data) != part.count * ID_BYTES:
                raise CorruptState(f"ids {number} size", len(data), part.count * ID_BYTES)
            digests, places = np.frombuffer(data, "<u8").reshape(2, part.count)
            if part.count >= array_ids:
                made._full.append(_Array(part, digests, places))
            else:
                made._newest |= zip(digests.tolist(), places.tolist(), strict=True)
                made._newest_context = max(made._newest_context, part.context_offset)
        return made

    def _array(self) -> _Array:
        digests = np.fromiter(self._newest.keys(), np.uint64, len(self._newest))
        places = np.fromiter(self._newest.values(), np.uint64, len(self._newest))
        order = np.argsort(digests)
        digests, places = digests[order], places[order]
        part = IdsPart(
            sha256=hashlib.sha256(_packed(digests, places)).hexdigest(),
            count=len(digests),
            context_offset=self._newest_context,
        )
        return _Array(part, digests, places)


def _held(array: _Array, firsts: Mapping[int, np.uint64]) -> bool:
    """Return whether the broker still has any of an array's Queries."""
    partitions = array.places >> np.uint64(_OFFSET_BITS)
    offsets = array.places & np.uint64(_OFFSETS)
    return any(
        bool((offsets[partitions == part] >= firsts.get(int(part), 0)).any())
        for part in np.unique(partitions)
    )


def _bytes(array: _Array) -> bytes:
    return _packed(array.digests, array.places)


def _packed(digests: Numbers, places: Numbers) -> bytes:
    return digests.astype("<u8").tobytes() + places.astype("<u8").tobytes()


def _digest(query_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(query_id.encode(), digest_size=8).digest(), "little")


# Snapshot and log retention: which rows a snapshot must contain, and which records it makes obsolete.
#
# A snapshot is written, and the records it replaces are deleted, in this order. Recovery after a crash between any two
# writes yields the same state:
#
# 1. the new version: arrays of ids and chunks of open rows that no earlier version has, chunks, manifest;
# 2. tombstones, in the log, for the ended rows that the *previous* version contains;
# 3. the offset that the log is read from at startup: the previous version's;
# 4. tombstones for older versions.
#
# Two versions are kept, along with every row newer than the older version. If the newer version is damaged, the older
# one and the log yield the same state.

KEPT: Final = 2
"""Number of versions kept: the newest, and the previous one in case the newest is damaged."""

CHUNK_BYTES: Final = 1 << 20
"""Bytes per chunk: a quarter of the record limit. Larger chunks have no advantage and stall the producer's batch."""


def carry(
    rows: Iterable[tuple[bytes, bytes, AnyRow]],
    log_offset: int,
    ended: EndedIds,
    *,
    value: Callable[[bytes], bytes | None],
    open_rows: OpenRows | None = None,
    changed: Collection[bytes] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[Carried, dict[bytes, int]]:
    """Return everything in a snapshot except the policy's state, and the rows that have ended.

    Args:
        rows: Key, value and decoded row, for every row that has changed since the last snapshot and for all rows that
            are not decisions.
        log_offset: The end of the log.
        ended: Ids of the queries that have ended. Those of ended rows in `rows` are added.
        value: Returns a row's value.
        open_rows: The chunks of open decisions in the last snapshot; None if there are none.
        changed: Keys of the rows changed or removed since the last snapshot; None for the keys in `rows`.
        chunk_bytes: Chunk size, in bytes.

    Returns:
        The snapshot's contents, and the keys of the ended rows, each with the sequence number of its last change.
    """
    needed, done, offers = list[bytes](), dict[bytes, int](), list[tuple[int, bytes]]()
    waiting, had = list[bytes](), set[bytes]()
    for key, line, row in rows:
        had.add(key)
        match row:
            case Row() if row.stage in ENDED:
                done[key] = row.last_seq
                ended.add(row.query_id, row.query_origin, row.context_origin.offset)
            case RefitRow():
                done[key] = row.seq
            case OfferRow():
                offers.append((row.seq, line))
            case Row():
                waiting.append(key)
            case ActionRow():
                needed.append(line)
    needed += [line for _, line in sorted(offers)[-1:]]
    before = open_rows or OpenRows()
    renewed, chunks = before.renewed(had if changed is None else changed, waiting, value, chunk_bytes)
    return Carried(log_offset, tuple(needed), ended, renewed, tuple(chunks)), done


def floor_of(known: Mapping[int, Manifest]) -> Manifest | None:
    """Return the oldest version to keep; None if there are too few. Ended rows up to it may leave the log.

    Args:
        known: The complete versions' manifests, by version. Versions that need the whole log are ignored.
    """
    own = sorted(version for version, manifest in known.items() if manifest.log_offset >= 0)
    return known[own[-KEPT]] if len(own) >= KEPT else None


def obsolete(keys: Iterable[bytes], known: Mapping[int, Manifest]) -> list[bytes]:
    """Return the keys of the snapshot records that no retained version needs.

    Args:
        keys: Keys of all snapshot records.
        known: The complete versions' manifests, by version.
    """
    floor = floor_of(known)
    if floor is None:
        return []
    kept = {v: m for v, m in known.items() if v >= floor.version}
    shared = {IDS_KEY + part.sha256.encode() for manifest in kept.values() for part in manifest.ended}
    shared |= {part.key for manifest in kept.values() for part in manifest.waiting}
    # Version -1 is kept, because a replay of the whole log starts from it.
    return [
        key
        for key in keys
        if (key.startswith((IDS_KEY, ROWS_KEY)) and key not in shared)
        or ((version := version_of(key)) is not None and BEGINNING < version < floor.version)
    ]


# A learner snapshot as records: the policy's state, the rows that are still needed, and ids.
#
# A snapshot replaces the learner's log up to an offset. It contains the policy's state, the rows before that offset
# that are still needed (open decisions, actions, the current offer), and the ids of ended queries. Snapshots have their
# own topic. A version has its own chunks, with the policy's state and the rows that are not decisions. Arrays of ids
# and chunks of open decisions are shared with later versions. The manifest lists all of them; it is written last and
# makes the version complete.
#
# Nothing here does I/O: keys and values in, keys and values out.


@dataclass(frozen=True, slots=True)
class Carried:
    """Everything in a snapshot except the policy's state. It replaces the log before an offset.

    Attributes:
        log_offset: First offset of the log that is not covered.
        rows: Values of the rows that are still needed but are not decisions.
        ended: Ids of the queries whose rows have ended.
        open_rows: The chunks of open decisions.
        chunks: The records for those chunks that are new.
    """

    log_offset: int = -1
    rows: tuple[bytes, ...] = ()
    ended: EndedIds = field(default_factory=EndedIds)
    open_rows: OpenRows = field(default_factory=OpenRows)
    chunks: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot, read back from its records.

    Attributes:
        manifest: The snapshot's manifest.
        rows: The snapshot's rows, by key, except those in `held`.
        held: The open decisions. In snapshots written by earlier releases, they are in `rows` instead.
        ended: Ids of the queries whose rows had ended.
    """

    manifest: Manifest
    rows: Mapping[bytes, bytes]
    held: HeldRows
    ended: EndedIds

    @property
    def version(self) -> int:
        """Return the last sequence number that the snapshot contains."""
        return self.manifest.version


def write(
    state: bytes,
    *,
    version: int,
    clock: int,
    context_offset: int,
    reward_offset: int,
    failure_offset: int = -1,
    chunk_bytes: int = CHUNK_BYTES,
    prior: str = "",
    taught: Window | None = None,
    sessions: tuple[Turn, ...] = (),
    carried: Carried | None = None,
    present: Collection[bytes] = (),
) -> Iterator[tuple[bytes, bytes]]:
    """Yield a version's records in the order they must be written, with the manifest last.

    Args:
        state: `Policy.state()`.
        version: Last sequence number that the state contains.
        clock: Number of decisions made.
        context_offset: Newest Context offset in the state.
        reward_offset: Newest Reward offset in the state.
        failure_offset: Newest AttemptFailed offset in the state.
        chunk_bytes: Chunk size, in bytes.
        prior: SHA-256 of the prior, for version -1.
        taught: The tenants of the latest outcomes.
        sessions: Each session's last turn.
        carried: Everything except the policy's state; None for a snapshot that needs the whole log.
        present: Keys that already exist. Arrays of ids and chunks of open rows with these keys are not rewritten.
    """
    carried = carried or Carried()
    arrays = carried.ended.parts()
    for part, data in arrays:
        if (key := IDS_KEY + part.sha256.encode()) not in present:
            yield key, data
    yield from ((key, data) for key, data in carried.chunks if key not in present)
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
        failure_offset=failure_offset,
        chunks=tuple(map(digest, chunks)),
        sha256=digest(state),
        size=len(state),
        prior=prior,
        log_offset=carried.log_offset,
        rows=tuple(map(digest, rows)),
        waiting=carried.open_rows.parts(),
        ended=tuple(part for part, _ in arrays),
        taught=taught or Window(),
        sessions=sessions,
        kernel=kernel(),
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
    """Return the newest complete, verified and accepted version, and why each newer one was rejected.

    Chunks without a manifest come from a version whose writing was interrupted; they are not an error.

    Args:
        records: Every snapshot record.
        accept: Loads the state or raises CorruptState, as `Policy.load` does.
        oldest: Whether to try the oldest version first, to leave a replay as many rows after it as possible.
        most_ids: Maximum number of ids to remember; None for the default.
    """
    refused: list[CorruptState] = []
    for version in sorted(versions(records), reverse=not oldest):
        try:
            manifest, state = _verified(records, version)
            rows = _rows(records, manifest)
            held = HeldRows(manifest.waiting, records.get)
            ended = _ids(records, manifest, most_ids)
            accept(state)
        except CorruptState as error:
            refused.append(error.within(f"snapshot {version}"))
        else:
            return Snapshot(manifest, rows, held, ended), refused
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
