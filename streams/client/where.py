"""Conditions on records, such as `price.cost=1e9`: checked against the records' fields before the first one is read."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from schemas.errors import UniscaleError, closest
from streams.client.events import RECORDS, Kind, QueryEvent

_ID = ("query_id",)
"""Field that every event has, whether its record contains the id directly or in a nested record."""


class WrongCondition(UniscaleError):
    """A condition names a field that the records do not have, or is not FIELD=VALUE. The message says what to write."""


class Condition(Struct, frozen=True):
    """A field of a record has a value.

    Attributes:
        path: The names of the enclosing fields, outermost first, then the field's name.
        text: The value: as JSON, or as text without quotation marks.
    """

    path: tuple[str, ...]
    text: str

    @classmethod
    def parse(cls, said: str, kinds: Iterable[Kind]) -> "Condition":
        """Return the condition of `FIELD=VALUE`.

        Args:
            said: The condition. A nested field is written `price.cost`; in a list, any element may match.
            kinds: Kinds of records to match: each must have the field.

        Raises:
            WrongCondition: it has another form, or a kind has no such field.
        """
        field, equals, text = said.partition("=")
        if not (field and equals):
            raise WrongCondition(f"--where {said}: write FIELD=VALUE, for instance status=ok")
        path = tuple(field.split("."))
        for kind in kinds:
            check_field(kind, path)
        return cls(path, text)

    def holds(self, event: QueryEvent) -> bool:
        """Return whether the record of an event meets the condition."""
        try:
            wanted = msgspec.json.decode(self.text)
        except msgspec.DecodeError:
            wanted = self.text
        return any(value == wanted or str(value) == self.text for value in values_of(event, self.path))


def values_of(event: QueryEvent, path: tuple[str, ...]) -> Iterator[Any]:
    """Yield the values of a field: from every element of a list on the path, none if anything on it is null."""
    if path == _ID:
        yield event.query_id
        return
    found: list[Any] = [event.record]
    for name in path:
        found = [each for outer in found for each in _elements(_inside(outer, name))]
    yield from found


def check_field(kind: Kind, path: tuple[str, ...]) -> None:
    """Refuse a field that records of a kind do not have.

    Raises:
        WrongCondition: naming the available fields.
    """
    if path == _ID:
        return
    types = [msgspec.inspect.type_info(RECORDS[kind])]
    for depth, name in enumerate(path):
        types = [each for outer in types for each in _opened(outer)]
        if any(isinstance(each, msgspec.inspect.AnyType) for each in types):
            return  # a free-form field may hold anything
        fields = {field.encode_name: field.type for each in types for field in getattr(each, "fields", ())}
        if name not in fields:
            where = f"{kind}, field {'.'.join(path[:depth])}" if depth else kind
            hint = closest(name, fields) if fields else "there is nothing below it"
            raise WrongCondition(f"--where {'.'.join(path)}: {where} has no field {name!r}; {hint}")
        types = [fields[name]]


def _opened(kind: Any) -> Iterator[Any]:
    """Yield the types inside a type: members of a union, elements of a list, values of a mapping."""
    if isinstance(kind, msgspec.inspect.UnionType):
        for each in kind.types:
            yield from _opened(each)
    elif isinstance(kind, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
        yield from _opened(kind.item_type)
    elif isinstance(kind, msgspec.inspect.DictType):
        yield kind.value_type
    else:
        yield kind


def _inside(outer: Any, name: str) -> Any:
    if isinstance(outer, dict):
        return outer.get(name)
    return getattr(outer, name, None)


def _elements(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)
