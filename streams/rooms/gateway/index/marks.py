"""Changes of catalogue, objectives and cost bounds, as marks on the page's time axis."""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from schemas.control import CatalogueEntry, ControlRecord, CostBoundsEntry, ObjectiveEntry, PriceEntry

_KEPT: Final = 100


class Mark(Struct, frozen=True):
    """One change.

    Attributes:
        at_ms: When, ms since the epoch.
        kind: `catalogue`, `objective` or `costs`.
        what: In words.
    """

    at_ms: int
    kind: str
    what: str


class Marks:
    """The latest changes that `control` still tells of: compaction keeps the last one of each name.

    Args:
        models: The models of the deployment's own catalogue.
    """

    def __init__(self, models: Iterable[str]) -> None:
        self._models = set(models)
        self._marks: deque[Mark] = deque(maxlen=_KEPT)

    def note(self, entry: ControlRecord, at_ms: int) -> None:
        """Add a control record; one that changes no choice adds nothing."""
        match entry:
            case CatalogueEntry(name=name, model=None):
                self._models.discard(name)
                self._add(at_ms, "catalogue", f"model {name} removed")
            case CatalogueEntry(name=name):
                what = "changed" if name in self._models else "added"
                self._models.add(name)
                self._add(at_ms, "catalogue", f"model {name} {what}")
            case PriceEntry(name=name, factor=factor):
                self._add(at_ms, "catalogue", f"an eFLOP of model {name} costs {factor:g}")
            case ObjectiveEntry(name=name, op=op):
                self._add(at_ms, "objective", f"objective {name} {'set' if op == 'set' else 'removed'}")
            case CostBoundsEntry():
                self._add(at_ms, "costs", "cost bounds changed")

    def listed(self) -> list[dict[str, Any]]:
        """Return the marks, oldest first, as the page draws them."""
        return [{"at": each.at_ms // 1000, "kind": each.kind, "what": each.what} for each in self._marks]

    def _add(self, at_ms: int, kind: str, what: str) -> None:
        self._marks.append(Mark(at_ms, kind, what))
