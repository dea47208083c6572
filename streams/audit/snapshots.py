"""The learner's snapshots, decoded independently: chunks, manifest, ids, and the sums of a linear policy.

A state is `USPOLICY`, a SHA-256 of the rest, the length of a header, the header as JSON, and arrays one after the
other. A policy that explores wraps the state of an inner policy. The ids of ended queries are arrays: n sorted digests
of 8 bytes, then n places (partition and offset) of 8 bytes.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from streams.audit.reading.records import Chunk

Matrix = npt.NDArray[np.float64]

_PREFIX: Final = b"\x00snapshot/"
_IDS: Final = b"\x00ended/"
_START: Final = b"\x00start"
_MAGIC: Final = b"USPOLICY"
_KEPT: Final = 2  # older versions are being removed, perhaps at this moment


@dataclass(slots=True)
class Snapshot:
    """One version of the policy.

    Attributes:
        version: The sequence number up to which it contains everything.
        kind: Name of the innermost policy.
        settings: Settings of that policy.
        meta: Plain values of its state.
        arrays: Arrays of its state.
    """

    version: int
    kind: str
    settings: dict[str, Any]
    meta: dict[str, Any]
    arrays: dict[str, Matrix]

    @property
    def counted(self) -> int | None:
        """Return the number of rewards and corrections it contains; None if its policy does not count them."""
        if "updates" not in self.meta or "corrections" not in self.meta:
            return None
        return int(self.meta["updates"]) + int(self.meta["corrections"])

    def sums(self) -> tuple[Matrix, Matrix] | None:
        """Return S = A − λI and B in the coordinates of the embeddings; None for another kind of policy.

        The state stores them in a basis of the span of the action vectors; each row of `basis` is an axis.
        """
        policy, features = self.settings.get("policy", {}), self.settings.get("features", {})
        if features.get("action_features") != "raw" or features.get("interactions") != "none":
            return None
        if "rewarded.a" not in self.arrays or "rewarded.b" not in self.arrays:
            return None
        basis, q = self.arrays["basis"], int(features["query_dim"])
        dim = q + len(basis)
        a = np.zeros((dim, dim))
        a[np.tril_indices(dim)] = self.arrays["rewarded.a"]
        a += np.tril(a, -1).T
        a[np.diag_indices(dim)] -= float(policy["ridge"])
        turn = np.zeros((dim, q + basis.shape[1]))
        turn[:q, :q] = np.eye(q)
        turn[q:, q:] = basis
        return turn.T @ a @ turn, turn.T @ self.arrays["rewarded.b"]


def snapshots(chunks: Iterable[Chunk]) -> tuple[list[Snapshot], list[tuple[str, str]]]:
    """Return the newest complete snapshots, oldest first, and name and fault of those that are damaged."""
    records = {chunk.key: chunk.value for chunk in chunks}
    whole = sorted(
        int(key[len(_PREFIX) :].partition(b"/")[0]) for key in records if key.endswith(b"/manifest")
    )
    taken, wrong = [], []
    for version in whole[-_KEPT:]:
        try:
            taken.append(_snapshot(records, version))
        except (KeyError, ValueError, IndexError, TypeError) as error:
            wrong.append((f"snapshot {version}", f"the snapshot is damaged: {error}"))
    return taken, wrong


class Ended:
    """The queries that both of the newest snapshots list as ended: their rows may have left the log.

    A repaired log starts from a single snapshot, which then is enough.

    Args:
        chunks: Every record of the snapshots.
    """

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        manifests: dict[int, dict[str, Any]] = {}
        arrays: dict[str, bytes] = {}
        moved = False
        for key, value in chunks:
            moved = moved or key == _START
            if key.startswith(_IDS):
                arrays[key[len(_IDS) :].decode(errors="replace")] = value
            elif key.startswith(_PREFIX) and key.endswith(b"/manifest"):
                manifests[_version(key)] = _body(value)
        self.digests = np.empty(0, "<u8")
        whole = sorted(version for version in manifests if version >= 0)[-_KEPT:]
        if len(whole) < _KEPT and not (whole and moved):
            return
        try:
            held = [arrays[part["sha256"]] for part in manifests[whole[0]].get("ended", ())]
        except (KeyError, TypeError):
            return  # the snapshot is damaged, and `learner` reports it
        found = [np.frombuffer(data[: len(data) // 16 * 8], "<u8") for data in held]
        self.digests = np.sort(np.concatenate([self.digests, *found]))

    def __contains__(self, query_id: object) -> bool:
        """Return whether a query's id is among them."""
        digest = hashlib.blake2b(str(query_id).encode(), digest_size=8).digest()
        wanted = np.uint64(int.from_bytes(digest, "little"))
        at = int(self.digests.searchsorted(wanted))
        return at < len(self.digests) and bool(self.digests[at] == wanted)


def _version(key: bytes) -> int:
    number = key[len(_PREFIX) :].partition(b"/")[0]
    return int(number) if number.removeprefix(b"-").isdigit() else -2


def _body(value: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(value.partition(b"\n")[2])
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _snapshot(records: dict[bytes, bytes], version: int) -> Snapshot:
    prefix = _PREFIX + f"{version}/".encode()
    stated, _, body = records[prefix + b"manifest"].partition(b"\n")
    _same(body, stated.decode(errors="replace"), "manifest")
    manifest = orjson.loads(body)
    parts = []
    for at, digest in enumerate(manifest["chunks"]):
        part = records.get(prefix + str(at).encode())
        if part is None:
            raise ValueError(f"chunk {at} of {len(manifest['chunks'])} is missing")
        _same(part, digest, f"chunk {at}")
        parts.append(part)
    for at, digest in enumerate(manifest.get("rows", ())):
        _same(records.get(prefix + f"rows/{at}".encode(), b""), digest, f"chunk {at} of rows")
    for part in manifest.get("ended", ()):
        _same(records.get(_IDS + part["sha256"].encode(), b""), part["sha256"], "ids of ended queries")
    state = b"".join(parts)
    _same(state, manifest["sha256"], "state")
    header, arrays = _state(state)
    while "inner" in arrays:
        header, arrays = _state(arrays["inner"].tobytes())
    return Snapshot(version, header["kind"], header["settings"], header["meta"], arrays)


def _state(data: bytes) -> tuple[dict[str, Any], dict[str, Matrix]]:
    if data[:8] != _MAGIC:
        raise ValueError("it does not begin with USPOLICY")
    body = data[40:]
    _same(body, data[8:40].hex(), "state of the policy")
    length = int.from_bytes(body[:4], "little")
    header = orjson.loads(body[4 : 4 + length])
    payload, arrays = body[4 + length :], {}
    for entry in header["arrays"]:
        count = int(np.prod(entry["shape"], dtype=np.int64))
        flat = np.frombuffer(payload, np.dtype(entry["dtype"]), count, entry["offset"])
        arrays[entry["name"]] = flat.reshape(entry["shape"])
    return header, arrays


def _same(data: bytes, digest: str, what: str) -> None:
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise ValueError(f"SHA-256 of the {what} is {found[:12]}…, stated {digest[:12]}…")
