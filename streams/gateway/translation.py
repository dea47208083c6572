"""Shared by the translations of other protocols: each field is honoured, named as ignored, or refused."""

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
        kind: Struct of these fields, with their types.
        others: Names of the protocol's other fields.

    Raises:
        ApiError: 400 for an unknown field, a wrong type, or `uniscale.progress`.
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
    """One request, expressed as a chat completion request.

    Args:
        names: The protocol's names for the fields of chat completions; see `own_name`.

    Attributes:
        fields: Fields of the chat completion request.
        names: The protocol's names, including those for single messages.
        ignored: Names of the request's fields that have no effect.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.fields: dict[str, Any] = {"messages": []}
        self.names = dict(names)
        self.ignored: list[str] = []

    def ignore(self, *fields: tuple[Any, ...]) -> None:
        """Record as ignored each (name, value, *neutral values) whose value is neither null nor a neutral value."""
        self.ignored += [
            name for name, value, *neutral in fields if value is not None and value not in neutral
        ]

    def check(
        self, place: str, item: Mapping[str, Any], known: Sequence[str], ignored: Sequence[str] = ()
    ) -> None:
        """Record an object's fields that have no effect (`ignored`), and refuse unknown ones. Raises ApiError 400."""
        for name, value in item.items():
            if value in (None, [], False) or name in known:
                continue
            if name not in ignored:
                raise unsupported(f"{place}.{name[:100]}", f"use {', '.join(known)}")
            self.ignored.append(f"{re.sub('[0-9]+', '', place)}.{name}")
