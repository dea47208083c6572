"""Objectives: named reward weights (App. B.3), targets, and the cost range that normalises log C.

The paper has w₁ = w₂ in each of its four modes, but any convex weights are possible. It does not say where the minimum
and maximum of log C come from. Here, all objectives share one range, which has its own version.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from agents.catalogue.models import ObjectiveError
from schemas.control import (
    ObjectiveEntry,
)
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Query

MODES: Mapping[str, Weights] = {
    "cost-sensitive": Weights(correct=0.1, score=0.1, cost=0.8),
    "cost-leaning": Weights(correct=0.2, score=0.2, cost=0.6),
    "quality-leaning": Weights(correct=0.3, score=0.3, cost=0.4),
    "quality-priority": Weights(correct=0.4, score=0.4, cost=0.2),
}
DEFAULT_MODE = "cost-sensitive"
CAREFUL = "careful"
"""As cheap as possible at 98 % of the achievable accuracy. Not from the paper."""

ACCURACY_ONLY = Weights(correct=1.0)
"""Weights of an objective with a target: the reward is accuracy minus λ·cost, so score and log cost have no weight."""


@dataclass(frozen=True)
class MeanCost:
    """A target: the highest accuracy at a given mean cost per query.

    Attributes:
        cost: The mean cost, above 0, in the deployment's unit.
    """

    cost: float


@dataclass(frozen=True)
class Accuracy:
    """A target: the lowest cost at which a given share of the achievable accuracy, as predicted, is kept.

    Attributes:
        share: The share, above 0 and at most 1.
    """

    share: float


Goal: TypeAlias = Weights | MeanCost | Accuracy


def goal_of(asked: Query | ObjectiveEntry) -> Goal | None:
    """Return the goal stated by a query or a control record; None if it states none."""
    if asked.mean_cost is not None:
        return MeanCost(asked.mean_cost)
    if asked.accuracy is not None:
        return Accuracy(asked.accuracy)
    return asked.weights


@dataclass(frozen=True)
class Objectives:
    """The objectives that queries may name.

    Attributes:
        cost_range: The bounds of log C, shared by all objectives.
        named: The goal of each objective by name: weights, a mean cost or an accuracy.
        default: The objective of a query without one.
        versions: Offset in `control` of the last change of each name; absent for names that never changed.
        range_version: Offset in `control` of the last change of the cost range.
    """

    cost_range: CostRange
    named: Mapping[str, Goal] = field(default_factory=lambda: {**MODES, CAREFUL: Accuracy(0.98)})
    default: str = DEFAULT_MODE
    versions: Mapping[str, int] = field(default_factory=dict)
    range_version: int = -1

    def __post_init__(self) -> None:
        """Reject an unknown default."""
        if self.default not in self.named:
            raise ObjectiveError(
                f"default objective {self.default!r} is unknown; choose one of {self._known()}"
            )

    def set(self, name: str, goal: Goal, version: int) -> "Objectives":
        """Return the objectives with one of them added or replaced."""
        return replace(self, named={**self.named, name: goal}, versions={**self.versions, name: version})

    def remove(self, name: str, version: int) -> "Objectives":
        """Return the objectives without one of them.

        Raises:
            ObjectiveError: It is the default, which queries may still use.
        """
        if name == self.default:
            raise ObjectiveError(f"objective {name!r} is the default; set another default first")
        left = {each: goal for each, goal in self.named.items() if each != name}
        return replace(self, named=left, versions={**self.versions, name: version})

    def within(self, cost_range: CostRange, version: int) -> "Objectives":
        """Return the objectives with a new cost range.

        Raises:
            ObjectiveError: The unit of the range is not that of the deployment's costs.
        """
        if cost_range.unit != self.cost_range.unit:
            why = f"cost range is in {cost_range.unit}, but costs are in {self.cost_range.unit}; give it in that unit"
            raise ObjectiveError(why)
        return replace(self, cost_range=cost_range, range_version=version)

    def of(self, query: Query) -> ObjectiveInForce:
        """Return the objective of a query: its own goal, the objective it names, or the default.

        The decider fills in the shadow price if the goal is a mean cost or an accuracy.

        Raises:
            ObjectiveError: The query names an unknown objective.
        """
        if (goal := goal_of(query)) is not None:
            return self._in_force(goal, None, self.range_version)
        return self.in_force(self.default if query.objective is None else query.objective)

    def in_force(self, name: str) -> ObjectiveInForce:
        """Return an objective with the current cost range.

        Raises:
            ObjectiveError: It does not exist.
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
            mean_cost=goal.cost if isinstance(goal, MeanCost) else None,
            accuracy=goal.share if isinstance(goal, Accuracy) else None,
        )

    def _known(self) -> str:
        return ", ".join(self.named) or "none"
