"""What steers every process: catalogue, objectives, cost bounds. Compacted by name: the last one stands."""

from typing import Any, Literal

from schemas.base import Record, check_json, decode, load, shown
from schemas.errors import InvalidField, UnknownSchema
from schemas.objective import CostRange
from schemas.query import Weights, check_aims

MAX_ENTRY = 64 * 1024
"""Bytes of a catalogue entry's model as JSON."""


class CatalogueEntry(Record, frozen=True, kw_only=True, tag="catalogue-entry.v1"):
    """A model comes or goes. Key: `model/<name>`.

    Attributes:
        name: The model's name.
        op: `add` or `remove`.
        model: The entry as in a catalogue file; validated by `agents.space`. Absent with `remove`.
    """

    name: str
    op: Literal["add", "remove"]
    model: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse an addition without an entry, or one of another name."""
        _check_name("CatalogueEntry", self.name)
        if (self.op == "add") != (self.model is not None):
            raise InvalidField(
                "CatalogueEntry", "model", f"does not fit op {self.op!r}; give it with add only"
            )
        if self.model is not None and self.model.get("name") != self.name:
            why = f"is {shown(self.model.get('name'))} in an entry for {self.name!r}; write the same name"
            raise InvalidField("CatalogueEntry", "model.name", why)
        if self.model is not None:
            check_json("CatalogueEntry", "model", self.model, MAX_ENTRY)

    @property
    def key(self) -> str:
        """Return the key it is compacted by."""
        return f"model/{self.name}"


class ObjectiveEntry(Record, frozen=True, kw_only=True, tag="objective-entry.v1"):
    """An objective is set or removed by name. Key: `objective/<name>`.

    Attributes:
        name: What queries call it by.
        op: `set` or `remove`.
        weights: w₁, w₂, w₃; or
        mean_cost: mean eFLOPs per query; or
        accuracy: share of the best configuration's accuracy. Exactly one with `set`, none with `remove`.
    """

    name: str
    op: Literal["set", "remove"]
    weights: Weights | None = None
    mean_cost: float | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        """Refuse a setting that does not say one thing, and a removal that says any."""
        _check_name("ObjectiveEntry", self.name)
        names = ("weights", "mean_cost", "accuracy")
        given = [name for name in names if getattr(self, name) is not None]
        if self.op == "remove" and given:
            raise InvalidField("ObjectiveEntry", given[0], "does not fit op 'remove'; give it with set only")
        if self.op == "set" and len(given) != 1:
            what = f"comes with {', '.join(given)}" if given else "is missing with op 'set'"
            why = f"{what}; give exactly one of {', '.join(names)}"
            raise InvalidField("ObjectiveEntry", given[-1] if given else "weights", why)
        check_aims("ObjectiveEntry", mean_cost=self.mean_cost, accuracy=self.accuracy)

    @property
    def key(self) -> str:
        """Return the key it is compacted by."""
        return f"objective/{self.name}"


class CostBoundsEntry(Record, frozen=True, kw_only=True, tag="cost-bounds-entry.v1"):
    """The bounds that normalise log C, for all objectives. Key: `cost-bounds`."""

    cost_range: CostRange

    @property
    def key(self) -> str:
        """Return the key it is compacted by."""
        return "cost-bounds"


ControlRecord = CatalogueEntry | ObjectiveEntry | CostBoundsEntry

_KINDS: dict[str, type[ControlRecord]] = {
    kind.schema(): kind for kind in (CatalogueEntry, ObjectiveEntry, CostBoundsEntry)
}


def decode_control(value: bytes | None) -> ControlRecord:
    """Return the control record in a value.

    Raises:
        RecordError: as `decode` does.
    """
    schema = load(value, "control record", framed=False).get("schema")
    kind = _KINDS.get(schema) if isinstance(schema, str) else None
    if kind is None:
        raise UnknownSchema(
            "control record", "schema", f"is {shown(schema)}; write one of {', '.join(_KINDS)}"
        )
    return decode(value, kind)


def _check_name(kind: str, name: str) -> None:
    if not 1 <= len(name) <= 200 or not name.isprintable() or name != name.strip():
        raise InvalidField(kind, "name", f"is {name[:40]!r}; give 1 to 200 printable characters")
