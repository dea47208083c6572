"""What the translations of other protocols share: each field is honoured, named as ignored, or refused."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from streams.gateway.errors import of_json, unsupported
from streams.gateway.request import unknown

S = TypeVar("S", bound=Struct)


def own_fields(plain: Mapping[str, Any], kind: type[S], others: Collection[str]) -> S:
    """Return the fields of a request that differ from those of a chat completion.

    Args:
        plain: The request.
        kind: These fields, with their types.
        others: Names of the protocol's other fields.

    Raises:
        ApiError: 400 for a field that is none of them, a wrong type, or `uniscale.progress`.
    """
    names = [field.name for field in msgspec.structs.fields(kind)]
    for name in plain:
        if name not in names and name not in others:
            raise unknown(name, [*names, *others])
    extension = plain.get("uniscale")
    if isinstance(extension, dict) and extension.get("progress"):
        raise unsupported("uniscale.progress", "watch GET /v1/queries/{id}/events, or use chat completions")
    try:
        return msgspec.convert({name: plain[name] for name in names if name in plain}, kind)
    except msgspec.ValidationError as error:
        raise of_json(error) from None


class Translation:
    """One request in terms of chat completions.

    Args:
        names: The protocol's names of fields of chat completions; see `own_name`.

    Attributes:
        fields: Fields of a chat completion request.
        names: As above, with those of single messages.
        ignored: Names of the fields without effect.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.fields: dict[str, Any] = {"messages": []}
        self.names = dict(names)
        self.ignored: list[str] = []

    def ignore(self, *fields: tuple[Any, ...]) -> None:
        """Name the fields whose value has an effect in the API: neither null nor one of the values after it."""
        self.ignored += [
            name for name, value, *neutral in fields if value is not None and value not in neutral
        ]

    def check(
        self, place: str, item: Mapping[str, Any], known: Sequence[str], ignored: Sequence[str] = ()
    ) -> None:
        """Name the fields of an object without effect, and refuse those that are not honoured. Raises ApiError 400."""
        for name, value in item.items():
            if value in (None, [], False) or name in known:
                continue
            if name not in ignored:
                raise unsupported(f"{place}.{name[:100]}", f"use {', '.join(known)}")
            self.ignored.append(f"{re.sub('[0-9]+', '', place)}.{name}")
