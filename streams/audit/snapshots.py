"""The learner's snapshots: which versions are whole, and whose rows may have left its log.

A version is a manifest and what it names by SHA-256: chunks of the policy's state, the rows of open queries, and the
ids of ended ones. The ids are arrays: n sorted digests of 8 bytes, then n places (partition and offset) of 8 bytes.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import orjson

_PREFIX: Final = b"\x00snapshot/"
_IDS: Final = b"\x00ended/"
_START: Final = b"\x00start"
_KEPT: Final = 2  # older versions are being removed, perhaps at this moment


class Snapshots:
    """The newest complete snapshots.

    Args:
        chunks: Every record of the snapshots, as key and value.

    Attributes:
        versions: What is wrong with each, None where nothing is; oldest first. A version is the sequence number up to
            which it holds everything.
    """

    def __init__(self, chunks: Iterable[tuple[bytes, bytes]]) -> None:
        records = dict(chunks)
        whole = sorted(_version(key) for key in records if _is_manifest(key))
        self.versions = {version: _fault(records, version) for version in whole[-_KEPT:]}
        self._ended = np.empty(0, "<u8")
        # A row may leave the log once both of the newest snapshots call its query ended; a repaired log starts from
        # a single snapshot, which then is enough.
        kept = [version for version in whole if version >= 0][-_KEPT:]
        if len(kept) == _KEPT or (kept and _START in records):
            self._ended = _ended(records, kept[0])

    def ended(self, query_id: str) -> bool:
        """Return whether the row of a query may have left the log."""
        digest = hashlib.blake2b(query_id.encode(), digest_size=8).digest()
        wanted = np.uint64(int.from_bytes(digest, "little"))
        at = int(self._ended.searchsorted(wanted))
        return at < len(self._ended) and bool(self._ended[at] == wanted)


def _is_manifest(key: bytes) -> bool:
    number, _, name = key.removeprefix(_PREFIX).partition(b"/")
    return key.startswith(_PREFIX) and name == b"manifest" and number.removeprefix(b"-").isdigit()


def _version(key: bytes) -> int:
    return int(key[len(_PREFIX) :].partition(b"/")[0])


def _fault(records: dict[bytes, bytes], version: int) -> str | None:
    """Return what is wrong with a snapshot; None if it is whole."""
    try:
        _check(records, version)
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        return f"the snapshot is damaged: {error}"
    return None


def _check(records: dict[bytes, bytes], version: int) -> None:
    prefix = _PREFIX + f"{version}/".encode()
    stated, _, body = records[prefix + b"manifest"].partition(b"\n")
    _same(body, stated.decode(errors="replace"), "manifest")
    manifest: dict[str, Any] = orjson.loads(body)
    parts = []
    for at, digest in enumerate(manifest["chunks"]):
        part = records.get(prefix + str(at).encode())
        if part is None:
            raise ValueError(f"chunk {at} of {len(manifest['chunks'])} is missing")
        _same(part, digest, f"chunk {at}")
        parts.append(part)
    _same(b"".join(parts), manifest["sha256"], "state")
    for at, digest in enumerate(manifest.get("rows", ())):
        _same(records.get(prefix + f"rows/{at}".encode(), b""), digest, f"chunk {at} of rows")
    for ids in manifest.get("ended", ()):
        _same(records.get(_IDS + ids["sha256"].encode(), b""), ids["sha256"], "ids of ended queries")


def _ended(records: dict[bytes, bytes], version: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """Return the digests of the ids that a snapshot lists as ended, sorted; none of a snapshot that is damaged."""
    try:
        manifest = orjson.loads(records[_PREFIX + f"{version}/manifest".encode()].partition(b"\n")[2])
        held = [records[_IDS + ids["sha256"].encode()] for ids in manifest.get("ended", ())]
    except (KeyError, TypeError, ValueError, AttributeError):
        return np.empty(0, "<u8")  # `_fault` says so
    return np.sort(np.concatenate([np.frombuffer(ids[: len(ids) // 16 * 8], "<u8") for ids in [b"", *held]]))


def _same(data: bytes, digest: str, what: str) -> None:
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise ValueError(f"SHA-256 of the {what} is {found[:12]}…, stated {digest[:12]}…")
