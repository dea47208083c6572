"""What all records share: frozen structs with a schema version, JSON by orjson, zstd frames for the big ones.

`encode` and `decode` are called once, at the edge. Unknown fields are ignored, so an older process reads a
newer record; a new field has a default; a changed meaning is a new version. NaN and infinity never travel.
"""

import functools
import math
import re
import threading
from collections.abc import Iterator
from typing import Any, ClassVar, Final, TypeVar

import msgspec
import orjson
import zstandard
from msgspec import Struct

from schemas.errors import InvalidField, RecordTooLarge, UniscaleError, UnknownSchema, UnreadableRecord

MAX_RECORD: Final = 4 * 1024 * 1024
"""Bytes of one record. Producer, consumer, topic and preflight are all set from it."""

# Key, headers and the frame of a batch count against the same limit on the broker.
MAX_VALUE: Final = MAX_RECORD - 4096

MAX_DECODED: Final = 64 * 1024 * 1024
"""Bytes a zstd frame may unfold to: a small hostile frame must not fill the memory."""

MAX_TEXT: Final = 1024 * 1024
"""UTF-8 bytes of a question, all messages together: it travels in every record of its search."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_LEVEL = (
    3  # zstd's default: at 1 a forest of repeated wording grows by a sixth, at 9 it shrinks by little
)
_QUERY_ID = re.compile(r"[\x21-\x7e]{1,200}")
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<field>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>.+)`$")

R = TypeVar("R", bound="Record")


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema"):
    """One message on the wire. Its `schema` is the class's tag, for instance `query.v1`."""

    framed: ClassVar[bool] = False  # whether its value is a zstd frame

    @classmethod
    def schema(cls) -> str:
        """Return the name and version this class reads and writes."""
        return str(cls.__struct_config__.tag)


def encode(record: Record) -> bytes:
    """Return the value of a record: JSON, as a zstd frame where its class says so.

    Raises:
        InvalidField: when a number in it is not finite.
        RecordTooLarge: when the value would exceed what every broker and client is set to take.
    """
    kind = type(record).__name__
    plain = msgspec.to_builtins(record)
    value = orjson.dumps(plain)
    # orjson writes NaN and infinity as null: where there is none, there is nothing to look for.
    if b"null" in value:
        for field in _not_finite(plain, ""):
            raise InvalidField(kind, field, "is not a finite number; NaN and infinity never travel")
    if record.framed:
        value = _zstd().compressor.compress(value)
    if len(value) > MAX_VALUE:
        raise RecordTooLarge(
            kind, "", f"takes {len(value)} bytes of {MAX_VALUE}; shorten the text or narrow the search"
        )
    return value


def decode(value: bytes | None, kind: type[R]) -> R:
    """Return the record in a value, JSON or zstd frame.

    Raises:
        UnreadableRecord: when the bytes are no JSON object.
        UnknownSchema: when `schema` is missing, or names another record or version.
        InvalidField: naming the field and the mend.
    """
    plain = load(value, kind.__name__)
    if (found := plain.get("schema")) != kind.schema():
        write = f'write "schema": "{kind.schema()}"'
        if found is None:
            raise UnknownSchema(kind.__name__, "schema", f"is missing; {write}")
        raise UnknownSchema(
            kind.__name__, "schema", f"is {found!r}, which this release cannot read here; {write}"
        )
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise _invalid(kind.__name__, error) from None


def load(value: bytes | None, kind: str = "record") -> dict[str, Any]:
    """Return the JSON object in a value, not yet validated.

    Raises:
        UnreadableRecord: when the bytes are no JSON object; tombstones are none either.
    """
    if not value:
        raise UnreadableRecord(kind, "", "the value is empty; send a JSON object")
    if value.startswith(_ZSTD_MAGIC):
        value = _unframed(value, kind)
    try:
        plain = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise UnreadableRecord(
            kind, "", f"the value is not JSON in UTF-8 ({error}); send a JSON object"
        ) from None
    if not isinstance(plain, dict):
        raise UnreadableRecord(kind, "", f"the value is a JSON {type(plain).__name__}; send a JSON object")
    return plain


def readable_id(value: bytes | None) -> str | None:
    """Return the query_id of a value that may be anything, where one can be read.

    A poison Query whose id is readable still gets its Answer, with status `rejected`.
    """
    try:
        found = load(value).get("query_id")
    except UniscaleError:
        return None
    return found if isinstance(found, str) and _QUERY_ID.fullmatch(found) else None


def check_id(kind: str, query_id: str, field: str = "query_id") -> None:
    """Refuse an id that cannot be a key: 1 to 200 printable ASCII characters without spaces.

    Raises:
        InvalidField: naming the field.
    """
    if not _QUERY_ID.fullmatch(query_id):
        raise InvalidField(
            kind, field, f"is {query_id[:40]!r}; give 1 to 200 printable ASCII characters, no spaces"
        )


def check_finite(kind: str, **fields: float | None) -> None:
    """Refuse NaN and infinity.

    Raises:
        InvalidField: naming the first field at fault.
    """
    for field, number in fields.items():
        if number is not None and not math.isfinite(number):
            raise InvalidField(kind, field, f"is {number}; give a finite number")


class _Zstd(threading.local):
    """Contexts of one thread: making one costs more than framing a record of common size."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = functools.cache(_Zstd)  # made when first needed: most commands frame nothing


def _unframed(value: bytes, kind: str) -> bytes:
    try:
        size = zstandard.frame_content_size(value)
        if size > MAX_DECODED:
            raise UnreadableRecord(
                kind, "", f"the zstd frame unfolds to {size} bytes, more than {MAX_DECODED}"
            )
        return _zstd().decompressor.decompress(value, max_output_size=MAX_DECODED)
    except zstandard.ZstdError as error:
        raise UnreadableRecord(kind, "", f"the zstd frame is damaged ({error}); send it whole") from None


def _invalid(kind: str, error: msgspec.ValidationError) -> InvalidField:
    place = _PLACE.match(str(error))
    what, field = (place["what"], place["field"] or "") if place else (str(error), "")
    if isinstance(cause := error.__cause__, InvalidField):
        return InvalidField(kind, ".".join(part for part in (field, cause.field) if part), cause.why)
    if missing := _MISSING.match(what):
        return InvalidField(
            kind, f"{field}.{missing['field']}" if field else missing["field"], "is missing; give it"
        )
    return InvalidField(kind, field, f"{what[0].lower()}{what[1:]}; correct it")


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
