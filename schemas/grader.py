"""Grader: the rule for comparing an answer with a query's reference."""

from typing import Any, Final, TypeAlias

from msgspec import Struct

from schemas.errors import InvalidField, closest, shown
from schemas.record import check_json

GRADERS: Final = ("boxed-only", "boxed", "last-number", "exact", "contains", "regex", "json")
"""Grader names, described in docs/grading.md. The first is the default."""

MAX_GRADER: Final = 16 * 1024
"""Maximum size of a grader's schema as JSON, in bytes. The grader travels with its query."""

MAX_FIELDS: Final = 100
"""Maximum number of names in `fields`."""


# Other records ignore unknown fields, but unknown options are rejected here. If an option known only to a later release
# were ignored, an answer would be graded by a different rule from the one requested.
class Grader(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A grader with its options.

    Attributes:
        name: One of `GRADERS`.
        schema: For `json`: the JSON Schema that an answer must satisfy. With a schema, no reference is needed.
        fields: For `json`: the object fields to compare; if empty, the whole value is compared.
    """

    name: str
    schema: dict[str, Any] | None = None
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject an unknown name, and options that the named grader does not have."""
        if self.name not in GRADERS:
            raise InvalidField("Grader", "name", f"is {shown(self.name)}; {closest(self.name, GRADERS)}")
        for option, value in (("schema", self.schema), ("fields", self.fields)):
            if value and self.name != "json":
                why = f"is an option of grader json; leave it out with {self.name}, or name json"
                raise InvalidField("Grader", option, why)
        if len(self.fields) > MAX_FIELDS or not all(self.fields):
            why = f"holds an empty name, or more than {MAX_FIELDS}; name the fields to compare"
            raise InvalidField("Grader", "fields", why)
        if self.schema is not None:
            check_json("Grader", "schema", self.schema, MAX_GRADER)

    @property
    def needs_reference(self) -> bool:
        """Return whether the grader cannot grade without a reference."""
        return self.schema is None


NamedGrader: TypeAlias = str | Grader
"""A grader as users specify it: a name, or an object with options."""


def grader_of(given: NamedGrader | None) -> Grader | None:
    """Return the grader for a name or object; None if there is none.

    Raises:
        InvalidField: There is no grader with that name; the field is `grader`.

    >>> grader_of("exact")
    Grader(name='exact', schema=None, fields=())
    """
    if not isinstance(given, str):
        return given
    if given not in GRADERS:
        raise InvalidField("Grader", "grader", f"is {shown(given)}; {closest(given, GRADERS)}")
    return Grader(name=given)
