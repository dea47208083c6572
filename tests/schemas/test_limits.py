"""Hostile bytes: every limit on depth, size and count, and the memory that decoding takes at most."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemas.answer import Answer, Completion
from schemas.control import CatalogueEntry, decode_control
from schemas.dead_letter import DeadLetter
from schemas.errors import InvalidField, RecordTooLarge, UniscaleError, UnknownSchema, UnreadableRecord
from schemas.query import Origin, Query
from schemas.record import (
    MAX_NESTING,
    MAX_RECORD,
    MAX_UNFOLDED,
    MAX_VALUES,
    Record,
    decode,
    encode,
    load,
    readable_id,
)
from schemas.reward import Feedback
from schemas.search import SearchStep, Verification

ORIGIN = Origin(topic="uniscale.query", partition=0, offset=7)
# Each record with a field that takes any JSON, and how such a field is filled.
FREE = (
    (Query, {"schema": "query.v1", "query_id": "q", "text": "x"}, "metadata"),
    (Query, {"schema": "query.v1", "query_id": "q", "text": "x"}, "reference"),
    (Feedback, {"schema": "feedback.v1", "query_id": "q", "correct": True}, "metadata"),
    (CatalogueEntry, {"schema": "catalogue-entry.v1", "name": "m", "op": "add"}, "model"),
)


def nested(levels: int) -> str:
    """Return a JSON object with so many levels of lists in it, as text: json itself would not write it."""
    return '{"name":"m","x":' + "[" * levels + "1" + "]" * levels + "}"


def record_with(plain: dict[str, Any], field: str, text: str) -> bytes:
    return (json.dumps(plain)[:-1] + f', "{field}": {text}}}').encode()


@pytest.mark.parametrize(("of", "plain", "field"), FREE)
@pytest.mark.parametrize("levels", [0, 1, MAX_NESTING - 1, MAX_NESTING, 200, 253, 254, 255, 800, 1000, 5000])
def test_what_decodes_encodes_whatever_the_nesting(
    of: type[Record], plain: dict[str, Any], field: str, levels: int
) -> None:
    value = record_with(plain, field, nested(levels))
    try:
        record = decode(value, of)
    except (InvalidField, UnreadableRecord):
        assert levels >= MAX_NESTING
        return
    assert levels < MAX_NESTING
    assert decode(encode(record), of) == record


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=60,
)


@given(free=st.dictionaries(st.text(max_size=5), JSON, max_size=5))
def test_any_free_field_that_decodes_encodes(free: dict[str, Any]) -> None:
    for kind, plain, field in FREE:
        filled = free | {"name": "m"} if kind is CatalogueEntry else free
        try:
            record = decode(json.dumps(plain | {field: filled}).encode("utf-8", "surrogatepass"), kind)
        except UniscaleError:
            continue
        assert decode(encode(record), kind) == record


@pytest.mark.parametrize(
    "metadata",
    [{"x": 2**70}, {"x": {1, 2}}, {3: "x"}, {"x": "\ud800"}],
    ids=["int", "set", "key", "surrogate"],
)
def test_what_is_not_json_is_refused_where_it_is_made(metadata: dict[Any, Any]) -> None:
    with pytest.raises(InvalidField, match="metadata: cannot be written as JSON"):
        Feedback(query_id="q", correct=1.0, metadata=metadata)


def test_a_text_that_is_not_unicode_does_not_end_the_process() -> None:
    with pytest.raises(InvalidField, match="cannot be written as JSON"):
        encode(Answer(query_id="q", status="failed", by="executor", error="\ud800"))
    letter = DeadLetter.of(b"x", ValueError("bad bytes: \ud800"), service="r", origin=ORIGIN)
    assert decode(encode(letter), DeadLetter).reason == "bad bytes: ?"


@pytest.mark.parametrize(
    "before", [b"{" + b"," * (MAX_VALUES + 1), '{"\u0100"'.encode()], ids=["many", "wide"]
)
def test_endless_string_takes_linear_time(before: bytes) -> None:
    frame = zstandard.ZstdCompressor().compress(before + b'"' + b'\\"' * (MAX_RECORD // 2))
    began_s = time.process_time()
    with pytest.raises(UnreadableRecord):
        load(frame)
    assert time.process_time() - began_s < 5.0


NO_MEMORY = """
import resource
from pathlib import Path
from schemas.query import Query
from schemas.record import decode
value = b'{"schema": "query.v1", "query_id": "q", "text": "' + b"x" * 1_000_000 + b'"}'
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 4 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (taken, taken))
try:
    decode(value, Query)
except MemoryError:
    print("no memory")
"""


def test_out_of_memory_is_not_blamed_on_the_record() -> None:
    ran = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("no memory\n", "")


@pytest.mark.parametrize("schema", ["[" * 1000 + "]" * 1000, '"' + "x" * 1_000_000 + '"', "{}", "7"])
def test_a_hostile_schema_is_refused_in_a_short_message(schema: str) -> None:
    value = f'{{"schema": {schema}, "query_id": "q"}}'.encode()
    for read in (lambda: decode(value, Query), lambda: decode_control(value)):
        with pytest.raises(UnknownSchema) as caught:
            read()
        assert len(str(caught.value)) < 400


def test_a_frame_is_accepted_only_where_frames_are_written(samples: tuple[Record, ...]) -> None:
    for sample in samples:
        plain = orjson.dumps(load(encode(sample)))
        assert decode(plain, type(sample)) == sample
        if sample.framed:
            assert decode(zstandard.compress(plain), type(sample)) == sample
        else:
            with pytest.raises(UnreadableRecord, match="send this record as plain JSON"):
                decode(zstandard.compress(plain), type(sample))
    with pytest.raises(UnreadableRecord, match="send this record as plain JSON"):
        decode_control(zstandard.compress(encode(CatalogueEntry(name="m", op="remove"))))


def test_a_frame_is_refused_by_the_size_it_states() -> None:
    bomb = zstandard.compress(b" " * (MAX_UNFOLDED + 1))
    assert len(bomb) < 10_000
    with pytest.raises(UnreadableRecord, match=f"of {MAX_UNFOLDED}"):
        load(bomb)


def test_a_frame_that_states_no_size_is_refused() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    frame = stream.compress(b'{"query_id": "q"}') + stream.flush()
    with pytest.raises(UnreadableRecord, match="does not state its content size"):
        load(frame)
    assert readable_id(frame) is None


def test_a_frame_that_asks_for_a_huge_window_is_refused() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj(size=1_000_000)
    frame = bytearray(stream.compress(b" " * 1_000_000) + stream.flush())
    parameters = zstandard.get_frame_parameters(bytes(frame))
    if parameters.window_size > MAX_UNFOLDED:
        with pytest.raises(UnreadableRecord, match="damaged"):
            load(bytes(frame))
    else:  # the library shrinks the window to the content
        assert parameters.window_size <= 1_000_000 * 2


def test_a_value_over_the_record_limit_is_refused_unread() -> None:
    with pytest.raises(UnreadableRecord, match=f"of {MAX_RECORD}"):
        load(b'{"x":"' + b"x" * MAX_RECORD + b'"}')


def test_brackets_and_commas_in_a_text_are_not_counted_as_values() -> None:
    text = r"[{,\"\\" * 100_000
    value = orjson.dumps({"schema": "query.v1", "query_id": "q", "text": text})
    assert value.count(b",") > 100_000
    assert load(value)["text"] == text
    with pytest.raises(UnreadableRecord, match="JSON values"):
        load(b'{"x":[' + b"[]," * MAX_VALUES + b"[]]}")


def test_record_over_the_unfolded_limit_is_not_encoded() -> None:
    huge = Answer(query_id="q", status="ok", by="executor", text="x" * (MAX_UNFOLDED + 1))
    with pytest.raises(RecordTooLarge, match="before compression"):
        encode(huge)


def test_large_answer_of_wide_characters_round_trips_or_fails() -> None:
    """64 drafts of 120 KiB: one byte a character, two, or four; then more than fits with an emoji in each."""
    for mark, size, fits in (("x", 120, True), ("≤", 120, True), ("😀", 90, True), ("😀", 120, False)):
        text = "\n".join(mark + "x" * 1024 for _ in range(size))
        paths = tuple(Completion(text=text, score=0.5) for _ in range(64))
        huge = Answer(query_id="q", status="ok", by="executor", text="", answers=paths)
        if fits:
            assert decode(encode(huge), Answer) == huge
        else:
            with pytest.raises(RecordTooLarge, match="in memory"):
                encode(huge)


# Made where they are asked for: 8 MB each.
HOSTILE: dict[str, Callable[[], bytes]] = {
    "brackets": lambda: b'{"x":[' + b"[]," * 2_700_000 + b"[]]}",
    "objects": lambda: b'{"x":[' + b"{}," * 2_700_000 + b"{}]}",
    "keys": lambda: b"{" + b",".join(b'"%x":1' % n for n in range(700_000)) + b"}",
    "deep": lambda: b'{"x":[' + b",".join([b"[" * 1000 + b"]" * 1000] * 4000) + b"]}",
    "numbers": lambda: b'{"x":[' + b"999," * 2_000_000 + b"9]}",
    "strings": lambda: b'{"x":[' + b'"ab",' * 1_600_000 + b'"a"]}',
    "spaces": lambda: b"{" + b" " * 8_000_000 + b"}",
    "wide": lambda: b'{"x":"' + "😀".encode() + b"x" * 8_000_000 + b'"}',
    "wide, 64 times": lambda: b'{"x":[' + b",".join([('"😀' + "x" * 130_000 + '"').encode()] * 64) + b"]}",
    "wide, as wide as may be": lambda: (
        b'{"x":"' + "😀".encode() + b"x" * 5_500_000 + b'","y":"' + b"y" * 2_000_000 + b'"}'
    ),
    "two bytes": lambda: b'{"x":[' + b",".join([('"≤' + "x" * 130_000 + '"').encode()] * 64) + b"]}",
    "escaped": lambda: (
        b'{"x":"' + b"\\ud83d\\ude00" + b"x" * 3_700_000 + b'","y":"' + b"\\n" * 2_000_000 + b'"}'
    ),
    "quotes": lambda: b'{"x":"' + b'\\"' * 4_000_000 + b'"}',
    "open": lambda: b'"' * 8_000_000,
}
_MEASURE = """
import re, sys, time
from pathlib import Path
from schemas.answer import Answer, Completion
from schemas.record import decode, readable_id
from schemas.errors import UniscaleError
value = sys.stdin.buffer.read()
kib = lambda name: int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before, began = kib("VmRSS"), time.process_time()
try:
    decode(value, Answer)
except UniscaleError:
    pass
readable_id(value)
print(1024 * (kib("VmHWM") - before), time.process_time() - began)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux alone has")
@pytest.mark.parametrize("name", HOSTILE)
def test_decoding_a_hostile_frame_takes_bounded_memory(name: str) -> None:
    hostile = HOSTILE[name]()
    assert len(hostile) <= MAX_UNFOLDED + 200_000
    frame = zstandard.compress(hostile[:MAX_UNFOLDED])
    done = subprocess.run([sys.executable, "-c", _MEASURE], input=frame, capture_output=True, check=True)
    used_bytes, took_s = map(float, done.stdout.split())
    print(name, used_bytes / 2**20, took_s)
    assert used_bytes < (32 if "wide" in name or name == "escaped" else 26) * 2**20, (
        f"{used_bytes / 2**20:.0f} MiB"
    )
    assert took_s < 5


@pytest.mark.parametrize("of", [SearchStep, Verification, Answer])
def test_a_deep_frame_raises_nothing_but_our_errors(of: type[Record]) -> None:
    for levels in (100, 900, 1023, 5000):
        value = f'{{"schema": "{of.schema()}", "search": {nested(levels)}, "query_id": {nested(levels)}}}'
        with pytest.raises(UniscaleError):
            decode(zstandard.compress(value.encode()), of)
        assert readable_id(zstandard.compress(value.encode())) is None


def test_invalid_nested_id_is_not_read() -> None:
    for bad in ("", "a b", "ü", "x" * 201, 3, None, ["q"]):
        for carrier in ("query", "search"):
            assert readable_id(orjson.dumps({carrier: {"query_id": bad}})) is None
            letter = DeadLetter.of(
                orjson.dumps({carrier: {"query_id": bad}}), ValueError("x"), service="r", origin=ORIGIN
            )
            assert letter.query_id is None
    # The record's own id counts before the one it carries, and a bad one does not hide it.
    assert readable_id(b'{"query_id":"a b","query":{"query_id":"q-1"}}') == "q-1"
