"""Poison: records that nobody should have written, for any topic, each made from a few small numbers.

A `Dose` says how one is made; `poison` makes its key and value from real records of another run, whose queries are not
asked here. Whatever a poison record says, it speaks of no query that is asked.
"""

import json
import random
import struct
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar

import orjson
import zstandard
from hypothesis import strategies as st

from agents.bandit.errors import CorruptState
from agents.decider.rows import own_row
from schemas.action import Action
from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.chunk import AnswerChunk
from schemas.control import Cancel, KeyEntry, ObjectiveEntry
from schemas.errors import UniscaleError
from schemas.objective import Weights
from schemas.record import Record, decode
from schemas.reward import Due, Feedback
from streams.topics import Topics

R = TypeVar("R", bound=Record)
NOBODY = "pnone"
"""Who asked nothing."""
Raw = tuple[bytes | None, bytes | None]
"""Key and value."""

_LEVELS = (20, 253, 254, 255, 1_000, 50_000)
_FLOATS = (float("nan"), float("inf"), -1e38, 1e-45, 0.0)


def _vector(number: float, length: int) -> str:
    return b64encode(struct.pack(f"<{length}f", *[number] * length)).decode()


_BAD: tuple[Any, ...] = (
    None, True, False, 0, -1, 7, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, 5e-324,
    "", " ", "x", "\x00", "ü" * 300, "x" * 20_000, "0" * 5_000, "../../etc", "{}", "small/1/1/1", "large/1024/1024/1",
    "Infinity", [], {}, [[]], [None], {"": ""}, [1] * 2_000, {"query_id": "p-inner"}, {"model": 1},
    *(_vector(number, length) for number in _FLOATS for length in (1, 8)), "====", "AAA",
)  # fmt: skip
"""Values for a field, as JSON."""

_RAW = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1" * 5_000, b'"\\ud800"', b'"\xff\xfe"', b'"\xc0\x80"',
    b"", b"tru", b"0x10", b"01", b"'x'", *(b"[" * n + b"]" * n for n in _LEVELS),
    *(b'{"a":' * n + b"1" + b"}" * n for n in _LEVELS),
    b"[" + b"[]," * 200_000 + b"[]]", b'"' + b"x" * 1_100_000 + b'"',
)  # fmt: skip
"""Values for a field, as bytes: not all of them are JSON."""

_WHOLE = (
    b"", b"{", b"}", b"null", b"[]", b"{}", b"0", b'""', b"\x00" * 64, b"\xff" * 64, b"\xef\xbb\xbf{}", b"{}{}",
    *(b"[" * n for n in _LEVELS), *(b'{"query":' * n for n in _LEVELS), b"[" + b"0," * 300_000 + b"0]",
    b"x" * 3_000_000,
    b'{"schema":null}', b'{"schema":[]}', b'{"schema":"query.v999","query_id":"p-9"}',
    b'{"query":{"query":{"query_id":"p-deep"}}}',
    b'{"query_id":{"query_id":"p-in"}}', b'{"query_id":"two words"}', b'{"search":{"query_id":"p-s"},"query_id":7}',
)  # fmt: skip
"""Whole values."""

_KEYS = (
    None,
    b"",
    b"\x00",
    b"\xff\xfe",
    b"p-other",
    b"x" * 1_000,
    b"\x00snapshot/1/0",
    b"\x00action/small/1/1/1",
    b"0",
)

HOWS = (
    "field", "field", "field", "raw", "raw", "missing", "schema", "foreign", "whole", "bytes", "truncated", "flipped",
    "bomb", "frame", "key", "tombstone", "twice",
)  # fmt: skip


class Dose(NamedTuple):
    """How one poison record is made.

    Attributes:
        topic: Which topic it goes to.
        how: One of `HOWS`.
        sample: Which real record it is made from.
        at: Where in that record.
        what: Which value is put there.
        key: Which key it gets; a key of its own query three times out of four.
    """

    topic: int
    how: str
    sample: int
    at: int
    what: int
    key: int


_NUMBER = st.integers(0, 2**16)
DOSES = st.builds(Dose, _NUMBER, st.sampled_from(HOWS), _NUMBER, _NUMBER, _NUMBER, _NUMBER)


def doses(count: int, seed: int) -> list[Dose]:
    """Return doses drawn without hypothesis, for what takes too long to be repeated."""
    rng = random.Random(seed)
    return [
        Dose._make([rng.choice(HOWS) if i == 1 else rng.randrange(2**16) for i in range(6)])
        for _ in range(count)
    ]


def poison(dose: Dose, samples: Mapping[str, Sequence[Raw]]) -> tuple[str, Raw]:
    """Return a topic and what to put there.

    Args:
        dose: How.
        samples: Real records of each topic, of queries whose ids begin with `p`.
    """
    topics = sorted(samples)
    topic = topics[dose.topic % len(topics)]
    others = topics[dose.what % len(topics)] if dose.how == "foreign" else topic
    own = samples[others]
    key, value = own[dose.sample % len(own)] if own else (b"p", b'{"query_id":"p-none"}')
    made = _made(dose, value or b'{"query_id":"p-none"}')
    if made is not None and len(made) > 4_000_000:
        made = made[:4_000_000]
    if dose.how == "key" or dose.key % 4 == 0:
        key = _KEYS[dose.key // 4 % len(_KEYS)]
    return topic, (key, made)


_FAILED = Answer(
    query_id=NOBODY,
    status="failed",
    by="executor",
    action=Action(model="small", qp=1, cp=1, bs=1),
    group="mini",
    seq=0,
    error="429",
)


def of_nobody(t: Topics) -> list[tuple[str, str, Record]]:
    """Return a record of each topic that the services of a deployment leave empty, with topic and key."""
    return [
        (t.feedback, NOBODY, Feedback(query_id=NOBODY, correct=True, metadata={"a": 1})),
        (t.attempt_failed, "0", AttemptFailed(answer=_FAILED)),
        (t.answer_chunk, NOBODY, AnswerChunk(query_id=NOBODY, text="So")),
        (t.due, NOBODY, Due(query_id=NOBODY, kind="timeout", deadline_ms=0)),
        (t.cancel_for("mini"), NOBODY, Cancel(query_id=NOBODY, by="gateway", reason="hung up")),
        (t.control, "o", ObjectiveEntry(name=NOBODY, op="set", weights=Weights(correct=1.0))),
        (t.control, "k", KeyEntry(name=NOBODY, op="add", sha256="0" * 64, tenant="acme")),
    ]


def readable(records: Iterable[Any], kind: type[R]) -> list[R]:
    """Return those of a topic's records that can be decoded, decoded."""
    found = []
    for record in records:
        with suppress(UniscaleError):
            found.append(decode(record.value, kind))
    return found


def is_forged(key: bytes | None, value: bytes | None) -> bool:
    """Return whether a record in the learner's log passes for the learner's own, or takes the place of one."""
    if not key or key.startswith(b"\x00"):
        return bool(key)
    try:
        return value is not None and own_row(key, value) is not None
    except CorruptState:  # a row of another release
        return True


def _made(dose: Dose, value: bytes) -> bytes | None:
    match dose.how:
        case "tombstone":
            return None
        case "whole":
            return _WHOLE[dose.what % len(_WHOLE)]
        case "bytes":
            return random.Random(dose.what).randbytes(dose.at % 3_000)
        case "truncated":
            return value[: dose.at % len(value)]
        case "flipped":
            return _flipped(dose, value)
        case "bomb":
            return _bomb(dose)
        case "frame":
            frame = zstandard.ZstdCompressor(write_content_size=dose.what % 2 == 0).compress(_unframed(value))
            return frame[: 1 + dose.at % len(frame)] if dose.what % 3 == 0 else frame
        case "key" | "foreign" | "twice":
            return value
    return _changed(dose, value)


def _flipped(dose: Dose, value: bytes) -> bytes:
    at = dose.at % len(value)
    return value[:at] + bytes([value[at] ^ 1 << dose.what % 8]) + value[at + 1 :]


def _changed(dose: Dose, value: bytes) -> bytes:
    """Return a record with one field replaced, left out, or added."""
    framed = value.startswith(b"\x28\xb5\x2f\xfd")
    try:
        plain = orjson.loads(_unframed(value))
        places = list(_places(plain))
    except (orjson.JSONDecodeError, AttributeError, TypeError):  # a part of a snapshot has no fields
        return _flipped(dose, value)
    if dose.how == "schema":
        name = str(plain.get("schema", "x.v1"))
        plain["schema"] = (name[:-1] + "9", name.upper(), "", 7, None, [name])[dose.what % 6]
    else:
        holder, field = places[dose.at % len(places)]
        if dose.how == "missing":
            del holder[field]
        elif dose.how == "raw":
            holder[field] = "@@"
        else:
            holder[field] = _BAD[dose.what % len(_BAD)]
    text = _json(plain)
    if dose.how == "raw":
        text = text.replace(b'"@@"', _RAW[dose.what % len(_RAW)], 1)
    return zstandard.ZstdCompressor().compress(text) if framed else text


def _json(plain: Any) -> bytes:
    return json.dumps(plain, ensure_ascii=False).encode(errors="replace")  # orjson writes no 10**30


def _places(plain: Any) -> Any:
    """Yield every field, each with what holds it; never an id of a query, so that nobody is named who asked."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain)
    for field, inner in list(items):
        yield plain, field
        if isinstance(inner, dict | list):
            yield from _places(inner)


_BOMBS = (
    b" " * (1 << 24), b"[" + b"[]," * 4_000_000 + b"[]]", b'{"query_id":"p-bomb","text":"' + b"x" * (1 << 24) + b'"}',
)  # fmt: skip


def _bomb(dose: Dose) -> bytes:
    """Return a small frame of a large value, which says its size, a smaller one or none."""
    frame = _frame(dose.what % 3, dose.at % 2 == 0)
    if dose.at % 6 == 0:  # it says it unfolds to a few bytes
        return frame[:5] + b"\x10\x00\x00\x00" + frame[9:]
    return frame


@cache
def _frame(which: int, says_size: bool) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=says_size).compress(_BOMBS[which])


def _unframed(value: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(value) if value.startswith(b"\x28\xb5\x2f\xfd") else value
