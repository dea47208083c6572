"""The current models and objectives, folded from the records of the topic `control`.

Every process folds the same topic, but some of them start after compaction has dropped older records. They all reach
the same state only if it depends on nothing but the last record of each key. Therefore:

- An entry for an existing model moves the model to the end of the catalogue, because a process that never saw the
  earlier entry appends it there.
- An entry resets the model's price to its own, whatever price was set before.
- A removal or a price for an unknown model is not an error. It changes only the catalogue's version, because the model
  was known to the processes that read the entry before it was compacted away.

Removing the last model raises an error. By then the record is in the topic, so writers must check for this first.
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
class ControlState:
    """The current catalogue and objectives.

    Attributes:
        offset: Offset of the last record folded; −1 before the first.
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
    ) -> "ControlState":
        """Return the state before the first record: the paper's four modes, `careful`, and the deployment's objectives.

        Args:
            catalogue: The models.
            own: The deployment's own objectives by name.
            default: The objective of a query without one.

        Raises:
            ObjectiveError: `default` does not name an objective.
        """
        objectives = Objectives(cost_range=catalogue.cost_range)
        goals = {name: goal for name, entry in (own or {}).items() if (goal := goal_of(entry)) is not None}
        return cls(catalogue, replace(objectives, named={**objectives.named, **goals}, default=default))

    def after(self, record: ControlRecord, offset: int) -> "ControlState":
        """Return the state after one more record. A record that was folded before changes nothing.

        Args:
            record: The record.
            offset: Its offset in `control`, which becomes the version of whatever it changes.

        Raises:
            CatalogueError: The entry is invalid, or would leave no model.
            ObjectiveError: The default objective would be removed.
        """
        if offset <= self.offset:
            return self
        match record:
            case CatalogueEntry():
                return replace(self, catalogue=self._catalogue_after(record, offset), offset=offset)
            case PriceFactorEntry(name=name):
                there = name in self.catalogue.model_names
                change = (
                    self.catalogue.with_rate(name, record.rate, offset)
                    if there
                    else self.catalogue.unchanged(offset)
                )
                return replace(self, catalogue=change, offset=offset)
            case ObjectiveEntry():
                return replace(self, objectives=self._objectives_after(record, offset), offset=offset)
            case CostBoundsEntry(cost_range=cost_range):
                return replace(self, objectives=self.objectives.within(cost_range, offset), offset=offset)
            case KeyEntry():
                return replace(self, offset=offset)  # only the gateway uses API keys

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
