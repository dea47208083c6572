"""Code shared by all records: frozen structs with a schema version, JSON encoding, zstd frames and field checks."""

import functools
import math
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec
import orjson
import zstandard
from msgspec import Meta, Struct

from schemas.errors import InvalidField, RecordTooLarge, UniscaleError, UnknownSchema, UnreadableRecord, shown

# `encode` and `decode` are called once, at the edge. Unknown fields are ignored, so an older process can read a newer
# record. A new field needs a default, and a changed meaning needs a new version. NaN and infinity are never sent.

MAX_RECORD: Final = 4 * 1024 * 1024
"""Maximum size of one record, in bytes. The limits of the producer, consumer, topic and preflight derive from it."""

# The key, the headers and the batch framing count towards the same limit on the broker.
MAX_VALUE: Final = MAX_RECORD - 4096

MAX_UNFOLDED: Final = 8 * 1024 * 1024
"""Maximum size of a decompressed zstd frame, in bytes: 64 paths of 128 KiB, the widest search in a context of 32,768
tokens."""

MAX_WIDENED: Final = 24 * 1024 * 1024
"""Maximum number of bytes that one record's strings may take in memory. Python stores every character of a string at
the width of the widest, so a single emoji makes a string four times as large. With the value itself, this adds up to
32 MiB."""

MAX_VALUES: Final = 128 * 1024
"""Maximum number of JSON values in one record. A list takes two bytes on the wire and about ninety in memory, so a
limit on bytes alone does not limit memory. The largest search has some 30,000 values."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# zstd's default. At level 1 a forest of repetitive text is a sixth larger, and at level 9 barely smaller.
_ZSTD_LEVEL = 3
_MARKS = (b",", b"[", b"{")
# An unterminated string matches too. Otherwise each quotation mark in it would be tried, which takes quadratic time.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_TWO_BYTES = re.compile(rb"[\xc4-\xef]|\\u")
_FOUR_BYTES = re.compile(rb"[\xf0-\xff]|\\u[dD][89a-bA-B]")
# Values above this size are read by msgspec, which avoids the copy that orjson makes. They come only from frames.
_LARGE = MAX_RECORD
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<field>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>.+)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.+)`$")

R = TypeVar("R", bound="Record")

Millis = Annotated[int, Meta(ge=0, le=2**48)]
"""Milliseconds since the epoch, up to the year 10889."""


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema"):
    """One record on the wire. Its `schema` is the class tag, for instance `query.v1`."""

    framed: ClassVar[bool] = False  # whether its value is a zstd frame

    @classmethod
    def schema(cls) -> str:
        """Return the schema name and version that this class reads and writes."""
        return str(cls.__struct_config__.tag)


def encode(record: Record) -> bytes:
    """Return a record's value: JSON, in a zstd frame if its class is framed.

    Raises:
        InvalidField: A number is not finite, or a field cannot be written as JSON.
        RecordTooLarge: The value exceeds the limit that brokers and clients are configured with.
    """
    kind = type(record).__name__
    try:
        plain = msgspec.to_builtins(record)
        value = orjson.dumps(plain)
    except (TypeError, RecursionError) as error:  # orjson's own error is a TypeError
        raise InvalidField(kind, "", f"cannot be written as JSON ({error}); use plain, flat values") from None
    # orjson writes NaN and infinity as null, so if there is no null, there is nothing to check.
    if b"null" in value:
        check_all_finite(kind, plain)
    if record.framed:
        if len(value) > MAX_UNFOLDED:
            raise RecordTooLarge(
                kind, "", f"takes {len(value)} bytes of {MAX_UNFOLDED} before compression; narrow the search"
            )
        if len(value) > _LARGE and (size := _widened(value)) > MAX_WIDENED:
            raise RecordTooLarge(
                kind, "", f"takes {size} bytes of {MAX_WIDENED} in memory, for its emoji; narrow the search"
            )
        value = _zstd().compressor.compress(value)
    if len(value) > MAX_VALUE:
        raise RecordTooLarge(
            kind, "", f"takes {len(value)} bytes of {MAX_VALUE}; shorten the text or narrow the search"
        )
    return value


def decode(value: bytes | None, kind: type[R]) -> R:
    """Return the record encoded in a value: JSON, or a zstd frame if the kind is framed.

    Memory is bounded for any input: 32 MiB for the most hostile frame (`MAX_UNFOLDED`, `MAX_WIDENED` and `MAX_VALUES`).
    The widest search still passes: 8 MiB with an `≤` in every draft, so that a character takes two bytes, or 6 MiB with
    an emoji in every draft, so that a character takes four.

    Raises:
        UnreadableRecord: The bytes are not a JSON object, or exceed a limit.
        UnknownSchema: `schema` is missing, or names a different record or version.
        InvalidField: A field is invalid; the message names the field and the fix.
    """
    plain = load(value, kind.__name__, framed=kind.framed)
    if (found := plain.get("schema")) != kind.schema():
        write = f'write "schema": "{kind.schema()}"'
        if found is None:
            raise UnknownSchema(kind.__name__, "schema", f"is missing; {write}")
        raise UnknownSchema(
            kind.__name__, "schema", f"is {shown(found)}, which this release cannot read here; {write}"
        )
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise invalid_field(kind.__name__, error) from None
    except RecursionError:
        raise UnreadableRecord(kind.__name__, "", "is nested too deeply; send flat values") from None


def load(value: bytes | None, kind: str = "record", *, framed: bool = True) -> dict[str, Any]:
    """Return the JSON object in a value, without validating it.

    Args:
        value: The value as received.
        kind: Name of the record, for errors.
        framed: Whether a zstd frame is accepted.

    Raises:
        UnreadableRecord: The bytes are not a JSON object (nor is a tombstone), or exceed a limit.
    """
    if not value:
        raise UnreadableRecord(kind, "", "the value is empty; send a JSON object")
    if len(value) > MAX_RECORD:
        raise UnreadableRecord(kind, "", f"the value takes {len(value)} bytes of {MAX_RECORD}; shorten it")
    if value.startswith(_ZSTD_MAGIC):
        if not framed:
            raise UnreadableRecord(kind, "", "the value is a zstd frame; send this record as plain JSON")
        value = _unframed(value, kind)
    if len(value) > MAX_VALUES and _too_many_values(value):
        raise UnreadableRecord(kind, "", f"holds more than {MAX_VALUES} JSON values; send fewer")
    if len(value) > _LARGE and (size := _widened(value)) > MAX_WIDENED:
        raise UnreadableRecord(
            kind, "", f"the text takes {size} bytes of {MAX_WIDENED} in memory; shorten it"
        )
    try:
        plain = orjson.loads(value) if len(value) <= _LARGE else msgspec.json.decode(value)
    except (orjson.JSONDecodeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _fits(error)
        raise UnreadableRecord(
            kind, "", f"the value is not JSON in UTF-8 ({error}); send a JSON object"
        ) from None
    if not isinstance(plain, dict):
        raise UnreadableRecord(kind, "", f"the value is a JSON {type(plain).__name__}; send a JSON object")
    return plain


def readable_id(value: bytes | None) -> str | None:
    """Return the query_id in an arbitrary value, or None if there is no valid one.

    The id is the record's own, or that of the Query, SearchStep or Answer inside it. A poison record with a readable id
    still gets an Answer, so only an id that can be a key is returned.
    """
    try:
        plain = load(value)
    except UniscaleError:
        return None
    for carrier in (plain, plain.get("query"), plain.get("search"), plain.get("answer")):
        if isinstance(carrier, dict):
            found = carrier.get("query_id")
            if isinstance(found, str) and is_id(found):
                return found
    return None


class _Carrier(Struct):
    query_id: str = ""
    query: "_Carrier | None" = None
    search: "_Carrier | None" = None
    answer: "_Carrier | None" = None


_carriers = msgspec.json.Decoder(_Carrier)


def quick_id(value: bytes | None) -> str | None:
    """Return the same id as `readable_id`, in half the time, by parsing nothing else.

    For an unreadable record, it may return an id when `readable_id` would return None.
    """
    try:
        plain = value or b""
        carrier = _carriers.decode(_unframed(plain, "record") if plain.startswith(_ZSTD_MAGIC) else plain)
    except (UniscaleError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return readable_id(value)  # fields with these names may contain anything
    for each in (carrier, carrier.query, carrier.search, carrier.answer):
        if each is not None and each.query_id and is_id(each.query_id):
            return each.query_id
    return None


class _Zstd(threading.local):
    """One thread's zstd contexts, kept because creating one costs more than compressing a typical record."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_UNFOLDED)


_zstd = functools.cache(_Zstd)  # created on first use, because most commands compress nothing


def _unframed(value: bytes, kind: str) -> bytes:
    try:
        size = zstandard.frame_content_size(value)
        if size < 0:
            raise UnreadableRecord(
                kind, "", "the zstd frame does not state its content size; compress the value in one call"
            )
        if size > MAX_UNFOLDED:
            raise UnreadableRecord(
                kind, "", f"the zstd frame decompresses to {size} bytes of {MAX_UNFOLDED}; shorten the record"
            )
        return _zstd().decompressor.decompress(value)
    except zstandard.ZstdError as error:
        _fits(error)
        raise UnreadableRecord(kind, "", f"the zstd frame is damaged ({error}); send it whole") from None


def _fits(error: Exception) -> None:
    """Raise MemoryError if a library's error means that memory ran out; the record is then not at fault."""
    if "not enough memory" in str(error).lower():
        raise MemoryError(str(error)) from error


def _too_many_values(value: bytes, most: int = MAX_VALUES) -> bool:
    """Return whether JSON text may contain too many values, judging by the commas and brackets outside strings."""
    if (count := sum(map(value.count, _MARKS))) <= most:
        return False
    for strings, string in enumerate(_STRING.finditer(value)):
        if strings > 2 * most:  # a value has at most one key
            return True
        count -= sum(value.count(mark, *string.span()) for mark in _MARKS)
    return count > most


def _widened(value: bytes) -> int:
    """Return an upper bound on the bytes that the strings in JSON text take up in memory while being read."""
    size, longest = len(value), 0
    if not (_TWO_BYTES.search(value) or _FOUR_BYTES.search(value)):
        return size
    for strings, string in enumerate(_STRING.finditer(value)):
        if strings > 2 * MAX_VALUES:  # a value has at most one key
            return 4 * len(value)
        begin, end = string.span()
        if value.find(b"\\", begin, end) >= 0:  # unescaped in a buffer that the next one reuses
            longest = max(longest, end - begin)
        if _FOUR_BYTES.search(value, begin, end):
            size += 3 * (end - begin)
        elif _TWO_BYTES.search(value, begin, end):
            size += end - begin
    return size + longest


def invalid_field(kind: str, error: msgspec.ValidationError) -> InvalidField:
    """Return an error that names the field rejected by msgspec or by a struct's own check."""
    place = _PLACE.match(str(error))
    what, field = (place["what"], place["field"] or "") if place else (str(error), "")
    why, inner = f"{what[0].lower()}{what[1:]}; correct it", ""
    if isinstance(cause := error.__cause__, InvalidField):
        why, inner = cause.why, cause.field
    elif missing := _MISSING.match(what):
        why, inner = "is missing; give it", missing["field"]
    elif unknown := _UNKNOWN.match(what):
        why, inner = "is unknown; correct its name, or leave it out", unknown["field"]
    return InvalidField(kind, ".".join(part for part in (field, inner) if part), why)


# Field checks shared by several records. Each error names the record, the field at fault, and the fix.

MAX_NESTING: Final = 16
"""Maximum nesting of lists and objects inside a field that accepts any JSON. orjson writes at most 254 levels."""

MAX_NAME: Final = 200
"""Maximum number of characters in a name, such as that of a model, tenant or source."""

_GROUP = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_QUERY_ID = re.compile(r"[\x21-\x7e]{1,200}")


def is_id(query_id: str) -> bool:
    """Return whether an id can be a key: 1 to 200 printable ASCII characters without spaces."""
    return _QUERY_ID.fullmatch(query_id) is not None


def check_id(kind: str, query_id: str, field: str = "query_id") -> None:
    """Reject an id that cannot be a key; a key is 1 to 200 printable ASCII characters without spaces.

    Raises:
        InvalidField: The id is invalid; the message names the field.
    """
    if not is_id(query_id):
        raise InvalidField(
            kind, field, f"is {query_id[:40]!r}; give 1 to 200 printable ASCII characters, no spaces"
        )


def check_group(kind: str, group: str, field: str = "group") -> None:
    """Reject an executor group name that a catalogue would reject, since topics are named after groups.

    Raises:
        InvalidField: The name is invalid; the message names the field.
    """
    if not _GROUP.fullmatch(group):
        why = f"is {group[:40]!r}; give 1 to 100 small letters, digits, '.', '_' and '-', a letter or digit first"
        raise InvalidField(kind, field, why)


def check_json(
    kind: str,
    field: str,
    value: object,
    most_bytes: int,
    *,
    deepest: int = MAX_NESTING,
    most_values: int = MAX_VALUES,
) -> None:
    """Reject a free field that is too large, nested too deeply, or not JSON.

    Any value that passes can be encoded again, even inside the records that carry the record.

    Args:
        kind: Name of the record, for errors.
        field: Name of the field, for errors.
        value: Value of the field.
        most_bytes: Maximum size of the value as JSON, in bytes.
        deepest: Maximum number of nesting levels.
        most_values: Maximum number of JSON values.

    Raises:
        InvalidField: The value is invalid; the message names the field and the limit.
    """
    level: list[object] = [value]
    for _ in range(deepest + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            break
    else:
        raise InvalidField(kind, field, f"is nested more than {deepest} levels deep; send it flatter")
    try:
        text = orjson.dumps(value)
    except TypeError as error:  # orjson's own error is a TypeError
        raise InvalidField(kind, field, f"cannot be written as JSON ({error}); use plain values") from None
    if len(text) > most_bytes:
        raise InvalidField(kind, field, f"takes {len(text)} bytes of {most_bytes}; shorten it")
    if _too_many_values(text, most_values):
        raise InvalidField(kind, field, f"holds more than {most_values} JSON values; send fewer")


def check_name(kind: str, field: str, name: str, most: int = MAX_NAME) -> None:
    """Reject a name that is empty or too long.

    Raises:
        InvalidField: The name is invalid; the message names the field.
    """
    if not 1 <= len(name) <= most:
        raise InvalidField(kind, field, f"has {len(name)} characters; give 1 to {most} characters")


def check_finite(kind: str, **fields: float | None) -> None:
    """Reject NaN and infinity.

    Raises:
        InvalidField: A number is not finite; the message names the first such field.
    """
    for field, number in fields.items():
        if number is not None and not math.isfinite(number):
            raise InvalidField(kind, field, f"is {number}; give a finite number")


def check_all_finite(kind: str, plain: object) -> None:
    """Reject NaN and infinity anywhere in a record, given as plain lists and dicts.

    Raises:
        InvalidField: A number is not finite; the message names the first such field (`forest.drafts[3].score`).
    """
    for field in _not_finite(plain, ""):
        raise InvalidField(kind, field, "is not a finite number; send a finite number")


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _not_finite(plain: Any, at: str) -> Iterator[str]:
    if type(plain) is float:
        if not math.isfinite(plain):
            yield at
    elif type(plain) is dict:
        for key, inner in plain.items():
            if type(inner) is not str:
                yield from _not_finite(inner, f"{at}.{key}" if at else key)
    elif type(plain) is list or type(plain) is tuple:
        for index, inner in enumerate(plain):
            if type(inner) is not str and type(inner) is not int:
                yield from _not_finite(inner, f"{at}[{index}]")
