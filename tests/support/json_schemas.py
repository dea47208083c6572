"""The JSON Schema of a record, made from its struct, with what its docstring says of each field."""

import inspect
import re
from typing import Any

import msgspec

from schemas.record import Record

_FIELD = re.compile(r"^    (\w+): ")


def json_schema(kind: type[Record]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a record's JSON, unfolded where its value is a zstd frame.

    What depends on several fields, such as a reward's kind and its correctness, is checked by the struct alone.
    """
    [held], parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": kind.schema(),
        **held,
        "$defs": {name: described(part) for name, part in sorted(parts.items())},
    }


def described(part: dict[str, Any]) -> dict[str, Any]:
    """Return a struct's schema with its docstring divided: what it is, and what each field is."""
    text, _, attributes = inspect.cleandoc(part.get("description", "")).partition("\nAttributes:\n")
    told: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines():
        if field := _FIELD.match(line):
            name, line = field[1], line[field.end() :]
        told[name] = f"{told.get(name, '')} {line.strip()}".strip()
    fields = {
        field: {"description": told[field], **held} if field in told else held
        for field, held in part.get("properties", {}).items()
    }
    return {**part, "description": text.strip(), **({"properties": fields} if fields else {})}
