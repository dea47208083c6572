"""The fold of `control`: models and objectives as a process knows them once it has read so far.

Every process folds the same topic, but compaction drops records that others have read: what is in force must follow
from the last record of each key alone. So an entry for a model that is there replaces it *at the end*, where it would
stand had the first never been seen; and to remove what is not there still counts as a change. Likewise an entry brings
its own price factor, and one for what is not there counts as a change: the entry that it was meant for has been
replaced by a later one. One thing cannot be fixed here: to remove the last model is refused, so whoever writes
`control` must refuse it first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agents.catalogue.file import decode_model
from agents.catalogue.models import Catalogue
from agents.catalogue.objectives import DEFAULT_MODE, Objectives, goal_of
from schemas.control import (
    CatalogueEntry,
    ControlRecord,
    CostBoundsEntry,
    KeyEntry,
    ObjectiveEntry,
    PriceFactorEntry,
)


@dataclass(frozen=True)
class Steering:
    """Catalogue and objectives in force.

    Attributes:
        offset: Of the last record folded in; −1 before any.
    """

    catalogue: Catalogue
    objectives: Objectives
    offset: int = -1

    @classmethod
    def of(
        cls,
        catalogue: Catalogue,
        own: Mapping[str, ObjectiveEntry] | None = None,
        default: str = DEFAULT_MODE,
    ) -> "Steering":
        """Return what is in force before any record: a catalogue, the paper's four modes, `careful`, and its own.

        Args:
            catalogue: The models.
            own: The deployment's own objectives by name, as its settings name them.
            default: The objective of a query that asks for nothing.

        Raises:
            ObjectiveError: there is no objective of the default's name.
        """
        objectives = Objectives(cost_range=catalogue.cost_range)
        goals = {name: goal for name, entry in (own or {}).items() if (goal := goal_of(entry)) is not None}
        return cls(catalogue, replace(objectives, named={**objectives.named, **goals}, default=default))

    def after(self, record: ControlRecord, offset: int) -> "Steering":
        """Return what is in force after one more record; one that was folded in before changes nothing.

        Args:
            record: The record.
            offset: Its offset in `control`: the version of what it changes.

        Raises:
            CatalogueError: the entry cannot be used, or would leave no model.
            ObjectiveError: the default objective would be gone.
        """
        if offset <= self.offset:
            return self
        match record:
            case CatalogueEntry():
                return replace(self, catalogue=self._catalogue_after(record, offset), offset=offset)
            case PriceFactorEntry(name=name, factor=factor):
                there = name in self.catalogue.model_names
                change = (
                    self.catalogue.with_price_factor(name, factor, offset)
                    if there
                    else self.catalogue.unchanged(offset)
                )
                return replace(self, catalogue=change, offset=offset)
            case ObjectiveEntry():
                return replace(self, objectives=self._objectives_after(record, offset), offset=offset)
            case CostBoundsEntry(cost_range=cost_range):
                return replace(self, objectives=self.objectives.within(cost_range, offset), offset=offset)
            case KeyEntry():
                return replace(self, offset=offset)  # the gateway's business alone

    def _objectives_after(self, entry: ObjectiveEntry, offset: int) -> Objectives:
        goal = goal_of(entry)
        if goal is None:
            return self.objectives.remove(entry.name, offset)
        return self.objectives.set(entry.name, goal, offset)

    def _catalogue_after(self, entry: CatalogueEntry, offset: int) -> Catalogue:
        there = entry.name in self.catalogue.model_names
        if entry.model is None:
            return self.catalogue.remove(entry.name, offset) if there else self.catalogue.unchanged(offset)
        model = decode_model(entry.model, f"control, offset {offset}")
        change = self.catalogue.replace if there else self.catalogue.add
        return change(model, offset)
