"""The keys of a snapshot's records, and its manifests: which versions there are, and what each consists of.

Nothing here does I/O: keys and values in, values out.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from agents.decider.errors import CorruptState
from agents.decider.log.ended import Part

SNAPSHOT_KEY: Final = b"\x00snapshot/"
"""Prefix of snapshot records. A query_id is printable ASCII, so no query's row can begin like this."""

IDS_KEY: Final = b"\x00ended/"
"""Prefix of the arrays of ids, each under the SHA-256 of its bytes."""

START_KEY: Final = b"\x00start"
"""Key of the offset at which startup begins to read the log."""

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
            found[version] = manifest_of(records, version)
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


def manifest_of(records: Mapping[bytes, bytes], version: int) -> Manifest:
    """Return a version's manifest, which must be there. Raises CorruptState where it is damaged."""
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
    """Return the SHA-256 of some bytes, as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
