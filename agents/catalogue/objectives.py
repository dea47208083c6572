"""What a query is served for (App. B.3), and the fold of `control`: models and objectives as processes know them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from agents.catalogue.file import decode_model
from agents.catalogue.models import Catalogue, ObjectiveError
from schemas.control import (
    CatalogueEntry,
    ControlRecord,
    CostBoundsEntry,
    KeyEntry,
    ObjectiveEntry,
    PriceFactorEntry,
)
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Query

# What a query is served for: reward weights by name (App. B.3), and the cost range that normalises log C.
#
# The paper prints w₁ = w₂ for each of its four modes; any other convex weights are as good. Where the minimum
# and maximum of log C come from is not printed: they are shared by all objectives and versioned with them.

MODES: Mapping[str, Weights] = {
    "cost-sensitive": Weights(correct=0.1, score=0.1, cost=0.8),
    "cost-leaning": Weights(correct=0.2, score=0.2, cost=0.6),
    "quality-leaning": Weights(correct=0.3, score=0.3, cost=0.4),
    "quality-priority": Weights(correct=0.4, score=0.4, cost=0.2),
}
DEFAULT_MODE = "cost-sensitive"
CAREFUL = "careful"
"""Right answers for less: as cheap as possible at 98 % of the accuracy within reach. Not of the paper."""

ACCURACY_ONLY = Weights(correct=1.0)
"""The reward under a shadow price λ: accuracy less λ·cost. Score and log cost have no weight in it."""


@dataclass(frozen=True)
class MeanCost:
    """As accurate as possible at this mean cost per query.

    Attributes:
        eflops: The mean cost, above zero.
    """

    eflops: float


@dataclass(frozen=True)
class Accuracy:
    """As cheap as possible at this share of the accuracy that is predicted to be within reach.

    Attributes:
        share: Above 0, at most 1.
    """

    share: float


Goal: TypeAlias = Weights | MeanCost | Accuracy


def goal_of(asked: Query | ObjectiveEntry) -> Goal | None:
    """Return the goal that a query or a control record brings, None when it brings none."""
    if asked.mean_cost is not None:
        return MeanCost(asked.mean_cost)
    if asked.accuracy is not None:
        return Accuracy(asked.accuracy)
    return asked.weights


@dataclass(frozen=True)
class Objectives:
    """The objectives that queries may name.

    Attributes:
        cost_range: The bounds of log C, for all of them.
        named: What each name asks for: weights, a mean cost or an accuracy.
        default: The one for a query that asks for nothing.
        versions: Offset in `control` of the last change of each name; absent for the deployment's own.
        range_version: Likewise of the cost range.
    """

    cost_range: CostRange
    named: Mapping[str, Goal] = field(default_factory=lambda: {**MODES, CAREFUL: Accuracy(0.98)})
    default: str = DEFAULT_MODE
    versions: Mapping[str, int] = field(default_factory=dict)
    range_version: int = -1

    def __post_init__(self) -> None:
        """Refuse a default that is not there, and a cost range whose numbers would be taken for eFLOPs."""
        if self.cost_range.unit != "eflops":
            why = f"cost range is in {self.cost_range.unit}; give it in eflops, which services count in"
            raise ObjectiveError(why)
        if self.default not in self.named:
            raise ObjectiveError(
                f"default objective {self.default!r} is unknown; choose one of {self._known()}"
            )

    def set(self, name: str, goal: Goal, version: int) -> "Objectives":
        """Return the objectives with one set, new or not."""
        return replace(self, named={**self.named, name: goal}, versions={**self.versions, name: version})

    def remove(self, name: str, version: int) -> "Objectives":
        """Return the objectives without one.

        Raises:
            ObjectiveError: when it is the default, which a query may still fall back on.
        """
        if name == self.default:
            raise ObjectiveError(f"objective {name!r} is the default; set another default first")
        left = {each: goal for each, goal in self.named.items() if each != name}
        return replace(self, named=left, versions={**self.versions, name: version})

    def within(self, cost_range: CostRange, version: int) -> "Objectives":
        """Return the objectives under another cost range."""
        return replace(self, cost_range=cost_range, range_version=version)

    def of(self, query: Query) -> ObjectiveInForce:
        """Return what a query is served for: its own goal, the objective it names, or the default.

        The shadow price of a goal by mean cost or accuracy is the decider's to fill in.

        Raises:
            ObjectiveError: when it names one that is not there.
        """
        if (goal := goal_of(query)) is not None:
            return self._in_force(goal, None, self.range_version)
        return self.in_force(self.default if query.objective is None else query.objective)

    def in_force(self, name: str) -> ObjectiveInForce:
        """Return an objective with the range it is under.

        Raises:
            ObjectiveError: when it is not there.
        """
        if name not in self.named:
            raise ObjectiveError(
                f"objective {name!r} is unknown; choose one of {self._known()}, or send weights"
            )
        version = max(self.versions.get(name, -1), self.range_version)
        return self._in_force(self.named[name], name, version)

    def _in_force(self, goal: Goal, name: str | None, version: int) -> ObjectiveInForce:
        return ObjectiveInForce(
            weights=goal if isinstance(goal, Weights) else ACCURACY_ONLY,
            cost_range=self.cost_range,
            name=name,
            version=version,
            mean_cost=goal.eflops if isinstance(goal, MeanCost) else None,
            accuracy=goal.share if isinstance(goal, Accuracy) else None,
        )

    def _known(self) -> str:
        return ", ".join(self.named) or "none"


# The fold of `control`: what a process knows of models and objectives once it has read so far.
#
# Every process folds the same topic, but compaction drops records that others have read: what is in force must
# follow from the last record of each key alone. So an entry for a model that is there replaces it *at the end*,
# where it would stand had the first never been seen; and to remove what is not there still counts as a change.
# Likewise an entry brings its own price factor, and one for what is not there counts as a change: the entry that it
# was meant for has been replaced by a later one. One thing cannot be fixed here: to remove the last model is
# refused, so whoever writes `control` must refuse it first.


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
