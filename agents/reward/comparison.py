"""The policy's gain over the control group, with intervals that remain valid no matter how often they are checked.

People watch a running experiment and stop when they like the result. An ordinary 95 % interval then misses the truth
far more often than once in twenty. A confidence *sequence* covers it at all times at once, with the stated probability:

    accuracy   Robbins' normal mixture for outcomes between 0 and 1, which is valid at any sample size
    cost       the same with an estimated standard deviation; it is valid only asymptotically, because costs are
               unbounded (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2021)

Each group gets half of the error probability, and the interval for their difference or ratio follows from the two. A
failed query counts as a wrong answer, at the cost it incurred. A query whose correctness is unknown, for instance
because its reward was closed early, counts only towards the cost and the feedback rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from schemas.answer import FAILURES, UNCOUNTED, Status

Cohort = Literal["policy", "control"]

BOUNDED: Final = 0.5
"""Maximum standard deviation of outcomes between 0 and 1."""

SHARPEST: Final = 250.0
"""The sequence is tightest at this number of observations, about what a control group collects in its first days."""

FEWEST: Final = 20
"""Minimum number of observations for estimating a standard deviation."""


@dataclass(frozen=True)
class Interval:
    """An estimate, with the bounds of its confidence sequence."""

    mean: float
    low: float
    high: float


@dataclass(slots=True)
class Running:
    """The count, mean, and sum of squared deviations (Welford) for one term in one group."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add one value."""
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the values so far."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


@dataclass(slots=True)
class CohortOutcomes:
    """One cohort's outcomes.

    Attributes:
        queries: Total number of answered, failed and expired queries.
        failed: Number of these queries without an answer.
        told: Number of these queries with known correctness.
        accuracy, cost: Statistics over the queries where each is known.
    """

    queries: int = 0
    failed: int = 0
    told: int = 0
    accuracy: Running = field(default_factory=Running)
    cost: Running = field(default_factory=Running)

    @property
    def feedback_rate(self) -> float:
        """Return the share of queries with known correctness. If it differs between cohorts, comparisons are biased."""
        return self.told / self.queries if self.queries else 0.0


class Uplift:
    """Comparison of the policy with the control group, updated outcome by outcome.

    Args:
        error: Probability that any interval ever misses the truth.
    """

    def __init__(self, error: float = 0.05) -> None:
        if not 0.0 < error < 1.0:
            raise ValueError(f"error is {error!r}; give a probability between 0 and 1")
        self.error = error
        self.groups: dict[Cohort, CohortOutcomes] = {"policy": CohortOutcomes(), "control": CohortOutcomes()}

    def add(self, cohort: Cohort, status: Status, *, correct: float | None, cost: float | None) -> None:
        """Add the outcome of one query. Rejected and cancelled queries are left out.

        Args:
            cohort: `Decision.cohort`.
            status: How the query ended.
            correct: Correctness from 0 to 1; None if unknown. A failure counts as 0, whatever this value.
            cost: Cost of the query; None if nothing was run.
        """
        if status in UNCOUNTED:
            return
        failed = status in FAILURES
        group = self.groups[cohort]
        group.queries += 1
        group.failed += failed
        known = 0.0 if failed else correct
        if known is not None:
            group.told += 1
            group.accuracy.add(known)
        if cost is not None:
            group.cost.add(cost)

    def accuracy_difference(self) -> Interval | None:
        """Return the policy's accuracy minus the control group's; None until both have outcomes."""
        mine, other = (self.groups[name].accuracy for name in ("policy", "control"))
        if not mine.count or not other.count:
            return None
        reach = sum(radius(each.count, BOUNDED, self.error / 2) for each in (mine, other))
        mean = mine.mean - other.mean
        return Interval(mean, max(-1.0, mean - reach), min(1.0, mean + reach))

    def cost_ratio(self) -> Interval | None:
        """Return the policy's mean cost divided by the control group's; None until both have enough outcomes."""
        mine, other = (self.groups[name].cost for name in ("policy", "control"))
        if min(mine.count, other.count) < FEWEST or not other.mean > 0:
            return None
        (low, high), (least, most) = (self._span(each) for each in (mine, other))
        return Interval(mine.mean / other.mean, low / most, high / least if least > 0 else math.inf)

    def report(self, control: str = "the control group") -> dict[str, Any]:
        """Return the comparison as a sentence and as numbers, ready for JSON. An infinite bound becomes None.

        Args:
            control: Description of the baseline that the policy is compared with.
        """
        groups = self.groups
        return {
            "sentence": self.sentence(control),
            "queries": {name: group.queries for name, group in groups.items()},
            "failed": {name: group.failed for name, group in groups.items()},
            "feedback_rate": {name: group.feedback_rate for name, group in groups.items()},
            "accuracy_difference": _finite(self.accuracy_difference()),
            "cost_ratio": _finite(self.cost_ratio()),
        }

    def sentence(self, control: str = "the control group") -> str:
        """Return the comparison as one sentence.

        Args:
            control: Description of the baseline that the policy is compared with.
        """
        accuracy, cost = self.accuracy_difference(), self.cost_ratio()
        if accuracy is None or cost is None:
            return f"Too few outcomes to compare the policy with {control}."
        a = [100 * x for x in (accuracy.mean, accuracy.low, accuracy.high)]
        c = [100 * x for x in (cost.mean, cost.low, cost.high)]
        return (
            f"Against {control} the policy's accuracy is {a[0]:+.1f} points ({a[1]:+.1f} to {a[2]:+.1f}) at "
            f"{c[0]:.0f} % of the cost ({c[1]:.0f} to {c[2]:.0f} %)."
        )

    def _span(self, values: Running) -> tuple[float, float]:
        reach = radius(values.count, values.deviation, self.error / 2)
        return max(0.0, values.mean - reach), values.mean + reach


def _finite(found: Interval | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    ends = {"mean": found.mean, "low": found.low, "high": found.high}
    return {name: value if math.isfinite(value) else None for name, value in ends.items()}


def radius(count: int, deviation: float, error: float) -> float:
    """Return the half-width of a confidence sequence for a mean after `count` observations.

    The boundary is √((n + ρ)·ln((n + ρ)/(ρ·error²))) standard deviations of the sum (Robbins 1970; Howard et al. 2021).

    >>> round(radius(100, 0.5, 0.05), 3), round(radius(10_000, 0.5, 0.05), 3)
    (0.156, 0.017)
    """
    if not count:
        return math.inf
    rho = SHARPEST / (2.0 * math.log(1.0 / error) + math.log(1.0 + 2.0 * math.log(1.0 / error)))
    boundary = math.sqrt((count + rho) * math.log((count + rho) / (rho * error**2)))
    return deviation * boundary / count
