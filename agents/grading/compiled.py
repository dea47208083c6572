"""Clients' patterns and JSON Schemas. Only grading processes run them, because one may run forever or use all memory.

Importing jsonschema takes a tenth of a second. A grading process does so before its first request.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from schemas.errors import shown


def matches(patterns: Sequence[str], text: str) -> bool:
    """Return whether any of the patterns matches anywhere in a text."""
    return any(re.search(pattern, text) for pattern in patterns)


def conforms(schema: Mapping[str, Any], value: Any) -> bool:
    """Return whether a value conforms to a JSON Schema. References must be internal, since nothing is fetched."""
    return bool(_validator(schema).is_valid(value))


def refusal(patterns: Sequence[str] = (), schema: Mapping[str, Any] | None = None) -> str:
    """Return the reason that patterns or a schema cannot be used, naming the field and the fix; empty if they can."""
    for pattern in patterns:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about syntax that may change
                re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            return f"is {shown(pattern)}, which is not a valid regular expression ({error}); correct it"
    return "" if schema is None else _schema_refusal(schema)


def _validator(schema: Mapping[str, Any]) -> Any:
    # The registry is empty because, by default, references would be fetched from any URL in the schema.
    return validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())


def _schema_refusal(schema: Mapping[str, Any]) -> str:
    if "$schema" in schema and validator_for(schema, default=None) is None:
        return f"has $schema {shown(schema['$schema'])}, a dialect not known here; leave it out for draft 2020-12"
    validator = _validator(schema)
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = Registry().resolver_with_root(resource)
    values: tuple[Any, ...] = (
        None,
        0,
        "",
        [],
        {},
    )  # a schema that refers directly to itself recurses forever for any value
    try:
        validator.check_schema(schema)
        for reference in _references(schema):
            if not reference.startswith("#"):
                return f"refers to {shown(reference)}, and nothing is fetched; put it under $defs, and write #/$defs/…"
            try:
                resolver.lookup(reference)
            except Unresolvable:
                return f"refers to {shown(reference)}, which is not in it; correct the reference"
        for value in values:
            validator.is_valid(value)
    except SchemaError as error:
        return f"is not a JSON Schema ({error.json_path}: {error.message[:200]}); correct it"
    except RecursionError:
        return "refers to itself without end; correct its references"
    return ""


def _references(schema: object) -> Iterator[str]:
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield from (part[name] for name in ("$ref", "$dynamicRef") if isinstance(part.get(name), str))
            left += part.values()
        elif isinstance(part, list):
            left += part
