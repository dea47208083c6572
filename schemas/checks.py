"""Field checks that several records share. Each error names the record, the field at fault, and the fix."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from schemas.errors import InvalidField

MAX_NESTING: Final = 16
"""Levels of lists and objects inside a field that takes any JSON. orjson writes at most 254 for a whole record."""

MAX_NAME: Final = 200
"""Characters of a name in a record: of a model, a tenant, a source."""

_GROUP = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_QUERY_ID = re.compile(r"[\x21-\x7e]{1,200}")


def is_id(query_id: str) -> bool:
    """Return whether an id can be a key: 1 to 200 printable ASCII characters without spaces."""
    return _QUERY_ID.fullmatch(query_id) is not None


def check_id(kind: str, query_id: str, field: str = "query_id") -> None:
    """Refuse an id that cannot be a key: 1 to 200 printable ASCII characters without spaces.

    Raises:
        InvalidField: naming the field.
    """
    if not is_id(query_id):
        raise InvalidField(
            kind, field, f"is {query_id[:40]!r}; give 1 to 200 printable ASCII characters, no spaces"
        )


def check_group(kind: str, group: str, field: str = "group") -> None:
    """Refuse the name of an executor group that a catalogue would refuse: topics are named by it.

    Raises:
        InvalidField: naming the field.
    """
    if not _GROUP.fullmatch(group):
        why = f"is {group[:40]!r}; give 1 to 100 small letters, digits, '.', '_' and '-', a letter or digit first"
        raise InvalidField(kind, field, why)


def check_json(kind: str, field: str, value: object, most_bytes: int) -> None:
    """Refuse a free field that is too large, nested too deeply, or not JSON.

    Whatever passes can be written again, also inside the records that carry this one.

    Raises:
        InvalidField: naming the field and the limit.
    """
    level: list[object] = [value]
    for _ in range(MAX_NESTING + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            break
    else:
        raise InvalidField(kind, field, f"is nested more than {MAX_NESTING} levels deep; send it flatter")
    try:
        size = len(orjson.dumps(value))
    except TypeError as error:  # orjson's own error is a TypeError
        raise InvalidField(kind, field, f"cannot be written as JSON ({error}); use plain values") from None
    if size > most_bytes:
        raise InvalidField(kind, field, f"takes {size} bytes of {most_bytes}; shorten it")


def check_name(kind: str, field: str, name: str, most: int = MAX_NAME) -> None:
    """Refuse a name that is empty or too long.

    Raises:
        InvalidField: naming the field.
    """
    if not 1 <= len(name) <= most:
        raise InvalidField(kind, field, f"has {len(name)} characters; give 1 to {most} characters")


def check_finite(kind: str, **fields: float | None) -> None:
    """Refuse NaN and infinity.

    Raises:
        InvalidField: naming the first field at fault.
    """
    for field, number in fields.items():
        if number is not None and not math.isfinite(number):
            raise InvalidField(kind, field, f"is {number}; give a finite number")


def check_all_finite(kind: str, plain: object) -> None:
    """Refuse NaN and infinity anywhere in a record, given as plain lists and dicts.

    Raises:
        InvalidField: naming the first field at fault, for instance `forest.drafts[3].score`.
    """
    for field in _not_finite(plain, ""):
        raise InvalidField(kind, field, "is not a finite number; NaN and infinity never travel")


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
