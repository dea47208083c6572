"""A policy's state as bytes: magic, SHA-256, header, arrays.

The digest covers everything after it, so a truncated or altered state is refused before any number in it is used. The
header names the format version, the kind of policy and its settings, so a state never loads into a policy that was set
up differently.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final

import msgspec
import numpy as np

from agents.decider.errors import CorruptState

MAGIC: Final = b"USPOLICY"
FORMAT: Final = 1
_HEAD: Final = len(MAGIC) + 32


def pack(kind: str, settings: dict[str, Any], meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Serialise plain values and arrays.

    Args:
        kind: The policy's name.
        settings: Settings that must be equal when the state is loaded.
        meta: JSON values of the state.
        arrays: Arrays of the state, of any numeric type.
    """
    entries, parts, offset = [], [], 0
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        entries.append({"name": name, "dtype": array.dtype.str, "shape": list(array.shape), "offset": offset})
        parts.append(raw)
        offset += len(raw)
    header = msgspec.json.encode(
        {
            "format": FORMAT,
            "kind": kind,
            "settings": settings,
            "meta": meta,
            "arrays": entries,
            "payload": offset,
        }
    )
    body = b"".join([struct.pack("<I", len(header)), header, *parts])
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes, kind: str, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (meta, arrays) of a complete, unaltered state of this kind and these settings.

    Raises:
        CorruptState: The message names what differs.
    """
    head, payload = _opened(data)
    for what, has, needs in (
        ("state format", head["format"], FORMAT),
        ("state kind", head["kind"], kind),
        ("state settings", head["settings"], plain(settings)),
    ):
        if has != needs:
            raise CorruptState(what, has, needs)
    arrays = {}
    for entry in head["arrays"]:
        dtype = np.dtype(entry["dtype"])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        flat = np.frombuffer(payload, dtype=dtype, count=count, offset=entry["offset"])
        arrays[entry["name"]] = flat.reshape(entry["shape"]).copy()
    return head["meta"], arrays


def header(data: bytes) -> tuple[str, dict[str, Any]]:
    """Return the kind and the settings of a complete, unaltered state of any policy.

    Raises:
        CorruptState: It is not one.
    """
    head, _ = _opened(data)
    return head["kind"], head["settings"]


def values(data: bytes) -> dict[str, Any]:
    """Return the plain values of a complete, unaltered state of any policy.

    Raises:
        CorruptState: It is not one.
    """
    return dict(_opened(data)[0]["meta"])


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as JSON returns them, so that a tuple equals the list it becomes."""
    return dict(msgspec.json.decode(msgspec.json.encode(settings)))


def _opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptState("state magic", data[: len(MAGIC)], MAGIC)
    body = data[_HEAD:]
    found, wanted = hashlib.sha256(body).hexdigest(), data[len(MAGIC) : _HEAD].hex()
    if found != wanted:
        raise CorruptState("state sha256", found, wanted)
    (length,) = struct.unpack_from("<I", body)
    return msgspec.json.decode(body[4 : 4 + length]), body[4 + length :]
