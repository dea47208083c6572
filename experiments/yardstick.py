"""Cost at equal accuracy: a policy's cost to reach an accuracy, relative to the cheapest mix of fixed arms that does.

Operators want the same accuracy for less, not a weighted reward. The accuracy and cost of a randomised mix of points
are weighted means of theirs, so the least cost to reach an accuracy lies on the lower convex hull of the points. F(t)
is that cost for fixed arms, and P(t) for one policy's points, with one point for each price λ that it was run at.
`mean_cost_ratio` is the geometric mean of P/F over targets t = q·a, where a is the accuracy of the arm that is most
accurate on *history*. Choosing the arm on the judged questions would overestimate its accuracy.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

SHARES: Final = (0.90, 0.95, 0.98)
ALL: Final = 1.0  # reported, but not included in the mean
WORTH: Final = 0.01  # a target must be this far above the cheapest arm's accuracy
HISTORY: Final = 1 / 3
DRAWS: Final = 1_000
EXACT: Final = 1e-12


def is_history(question_id: str, share: float = HISTORY) -> bool:
    """Return whether a question belongs to history. This depends only on a hash of its id, so it never changes.

    >>> [is_history(f"level_1-{n}") for n in range(6)]
    [False, False, False, False, True, False]
    """
    first = hashlib.sha256(question_id.encode()).digest()[:8]
    return int.from_bytes(first, "big") < share * 2**64


def split(question_ids: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the indices of the history questions and of the live questions."""
    sides = [is_history(each) for each in question_ids]
    return [q for q, side in enumerate(sides) if side], [q for q, side in enumerate(sides) if not side]


def halves(question_ids: Sequence[str], judged: int) -> tuple[list[int], list[int]]:
    """Split history into a part to fit on and a part to judge on, for choices made while designing a policy.

    Args:
        question_ids: The ids in the whole table.
        judged: 0 or 1, the half to judge on.
    """
    history, _ = split(question_ids)
    sides = [is_history(f"half/{question_ids[q]}", 0.5) == bool(judged) for q in history]
    kept = list(zip(history, sides, strict=True))
    return [q for q, side in kept if not side], [q for q, side in kept if side]


@dataclass(frozen=True)
class Points:
    """The accuracy and linear cost of K points on Q questions, shape (K, Q) each."""

    accuracy: Array
    cost: Array

    def of(self, rows: Sequence[int]) -> "Points":
        """Return some of the points."""
        return Points(self.accuracy[list(rows)], self.cost[list(rows)])

    def means(self, weights: Array) -> tuple[Array, Array]:
        """Return accuracies and costs, shape (…, K) each, for question weights that sum to 1, shape (…, Q)."""
        return weights @ self.accuracy.T, weights @ self.cost.T


def hull(accuracy: Array, cost: Array) -> tuple[Array, Array]:
    """Return the corners (accuracy, cost) of the cheapest mixes, from the cheapest point to the most accurate one.

    Args:
        accuracy: Accuracy of each point, shape (K,).
        cost: Cost of each point, shape (K,).

    >>> hull(np.array([0.2, 0.4, 0.8]), np.array([1.0, 5.0, 6.0]))
    (array([0.2, 0.8]), array([1., 6.]))
    """
    corners: list[tuple[float, float]] = []
    for at in np.lexsort((-accuracy, cost)):
        a, c = float(accuracy[at]), float(cost[at])
        if corners and a <= corners[-1][0]:
            continue
        # A corner above the line from the previous corner to the new point is never cheapest.
        while len(corners) > 1:
            (a0, c0), (a1, c1) = corners[-2:]
            if (c1 - c0) * (a - a0) < (c - c0) * (a1 - a0):
                break
            corners.pop()
        corners.append((a, c))
    found = np.array(corners)
    return found[:, 0], found[:, 1]


def least_cost(corners: tuple[Array, Array], targets: Array) -> Array:
    """For each target accuracy, return the least cost of any mix that reaches it; infinite if no mix does."""
    accuracy, cost = corners
    reached = np.where(np.abs(targets - accuracy[-1]) <= EXACT, accuracy[-1], targets)
    return np.asarray(np.interp(reached, accuracy, cost, left=cost[0], right=np.inf))


def area(corners: tuple[Array, Array], low: float, high: float) -> float:
    """Return the best accuracy at each cost, averaged over the logarithm of the cost from low to high (AIQ).

    Below the cheapest point, a mix leaves some questions unanswered; they cost nothing and count as wrong.

    >>> round(area((np.array([0.5]), np.array([1.0])), 1.0, 10.0), 6)
    0.5
    """
    if not 0 < low < high:
        return float(corners[0].max())
    accuracy, cost = hull(np.append(corners[0], 0.0), np.append(corners[1], 0.0))
    total = 0.0
    edges = [*zip(cost, accuracy, strict=True), (np.inf, accuracy[-1])]
    for (c0, a0), (c1, a1) in itertools.pairwise(edges):
        left, right = max(float(c0), low), min(float(c1), high)
        if left >= right:
            continue
        slope = 0.0 if np.isinf(c1) else (a1 - a0) / (c1 - c0)
        total += (a0 - slope * c0) * np.log(right / left) + slope * (right - left)
    return float(total / np.log(high / low))


def holm(p: Sequence[float]) -> list[float]:
    """Return p values with Holm's correction for multiple tests.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, most = [0.0] * len(p), 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        most = max(most, min(1.0, (len(p) - rank) * p[at]))
        adjusted[at] = most
    return adjusted


@dataclass(frozen=True)
class Yardstick:
    """The fixed arms on the judged questions, and the bootstrap draws that the intervals of all policies share.

    Attributes:
        arms: The fixed arms' outcomes, averaged over samples.
        best: The arm that is most accurate on history.
        draws: Number of bootstrap draws of the questions; 0 for no intervals.
    """

    arms: Points
    best: int
    draws: int = DRAWS

    @cached_property
    def weights(self) -> Array:
        """Return the questions' weights, shape (1 + draws, Q): first equal weights, then one row per draw."""
        count = self.arms.accuracy.shape[1]
        even = np.full((1, count), 1.0 / count)
        drawn = np.random.default_rng(0).multinomial(count, even[0], size=self.draws) / count
        return np.concatenate([even, drawn])

    @cached_property
    def fixed(self) -> list[tuple[Array, Array]]:
        """Return the hull of the fixed arms for every draw."""
        return hulls(self.arms, self.weights)

    @cached_property
    def aims(self) -> Array:
        """Return, for every draw, the accuracy of the arm that is best on history."""
        return np.asarray(self.weights @ self.arms.accuracy[self.best])

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Return the valid targets as shares of the best arm's accuracy. They are the same for all draws."""
        accuracy, cost = (each.mean(axis=1) for each in (self.arms.accuracy, self.arms.cost))
        cheapest = float(accuracy[np.lexsort((-accuracy, cost))[0]])
        return tuple(q for q in SHARES if q * self.aims[0] >= cheapest + WORTH)

    @cached_property
    def span(self) -> tuple[float, float]:
        """Return the cost range of the area: from the cheapest arm's cost to that of the best arm on history."""
        cost = self.arms.cost.mean(axis=1)
        return float(cost.min()), float(cost[self.best])

    def ratios(self, *orders: Points) -> Array:
        """Return P/F per draw for each valid target and, last, for full accuracy, shape (1 + draws, targets + 1).

        Args:
            orders: The points for each order of the questions; each draw also draws orders. Averaged points are one.
        """
        targets = self.aims[:, None] * np.array([*self.shares, ALL])
        count = len(orders)
        even = np.full((1, count), 1.0 / count)
        drawn = np.random.default_rng(1).multinomial(count, even[0], size=self.draws) / count
        shares = np.concatenate([even, drawn]).T[:, :, None]  # (orders, 1 + draws, 1)
        accuracy, cost = (
            sum(shares * np.array(each))
            for each in zip(*(o.means(self.weights) for o in orders), strict=True)
        )
        mixes = [hull(a, c) for a, c in zip(accuracy, cost, strict=True)]
        pairs = zip(mixes, self.fixed, targets, strict=True)
        return np.array([least_cost(p, t) / least_cost(f, t) for p, f, t in pairs])

    def judge(self, points: Points, orders: Sequence[Points] = ()) -> dict[str, Any]:
        """Return a policy's cost at equal accuracy.

        Args:
            points: One point for each λ, averaged over orders.
            orders: The points for each order of the questions, for the spread between them.

        Returns:
            `mean_cost_ratio` with its interval over questions, or None if a target is not reached or none is valid;
            `unreached`, the targets that are not reached; `at`, the ratio and the accuracy of the cheapest mix by
            target; `aiq`, the area; and `over_orders`, the spread of the mean ratio.
        """
        ratios = self.ratios(points)
        means = _geometric(ratios[:, :-1])
        mixes = hulls(points, self.weights)
        areas = np.array([area(mix, *self.span) for mix in mixes])
        at = {}
        for k, share in enumerate((*self.shares, ALL)):
            accuracy, cost = mixes[0]
            reached = np.isfinite(ratios[0, k])
            target = share * self.aims[0]
            at[f"{share:g}"] = {
                "cost_ratio": interval(ratios[:, k]),
                "accuracy": float(max(target, accuracy[0])) if reached else float(accuracy[-1]),
                "target": float(target),
                "cost": float(least_cost((accuracy, cost), np.array([target]))[0]) if reached else None,
            }
        return {
            "mean_cost_ratio": interval(means) if self.shares else None,
            "unreached": [f"{q:g}" for k, q in enumerate(self.shares) if not np.isfinite(ratios[0, k])],
            "at": at,
            "aiq": interval(areas),
            "over_orders": self._spread(orders),
        }

    def against(self, points: Sequence[Points], others: Sequence[Points]) -> dict[str, Any]:
        """Return one policy's cost relative to another's at equal accuracy, paired by question and order.

        A policy that learns goes another way after any small change, so two orders of the same questions differ. The
        interval is over both; over questions alone, a policy differs from itself.

        Args:
            points: One policy's points for each order of the questions.
            others: The other's, for the same orders.

        Returns:
            `cost_ratio`, the geometric mean over the targets with its interval, or None if only this policy misses one;
            `p_worse`, the share of draws in which this policy costs no more (a small share shows that it is worse); and
            `p_better`, the share in which it costs no less. A target that both miss is treated as a tie.
        """
        lead = self._lead(self.ratios(*points), self.ratios(*others))
        drawn = lead[1:]
        return {
            "cost_ratio": interval(np.exp(lead)),
            "p_worse": float((1 + (drawn <= 0).sum()) / (1 + len(drawn))),
            "p_better": float((1 + (drawn >= 0).sum()) / (1 + len(drawn))),
        }

    def _lead(self, mine: Array, theirs: Array) -> Array:
        """Return the mean logarithm of one policy's ratios over another's per draw, shape (1 + draws,)."""
        mine, theirs = mine[:, :-1], theirs[:, :-1]
        with np.errstate(invalid="ignore"):
            each = np.log(mine) - np.log(theirs)
        each[np.isinf(mine) & np.isinf(theirs)] = 0.0
        with np.errstate(invalid="ignore"):
            lead = each.mean(axis=1) if self.shares else np.zeros(len(each))
        # If each misses a target that the other reaches, neither is ahead.
        lead[np.isnan(lead)] = 0.0
        return np.asarray(lead)

    def over_prices_against(self, points: Points, others: Points, found: dict[str, Any]) -> None:
        """Add the spread over prices to the result of `against`, if both policies were run at the same prices.

        `without_one_price` is the least and the largest cost ratio if any single price is left out of both; an end is
        None if it is infinite. The interval is extended by these factors.
        """
        count = len(points.cost)
        # A ratio of 0 means that only the other policy misses a target.
        if not (ratio := found["cost_ratio"]) or not ratio["mean"] or count != len(others.cost) or count < 2:
            return
        first = Yardstick(self.arms, self.best, draws=0)
        moved = []
        for left_out in range(count):
            kept = [k for k in range(count) if k != left_out]
            moved.append(
                float(np.exp(first._lead(first.ratios(points.of(kept)), first.ratios(others.of(kept)))[0]))
            )
        least, most = min(moved), max(moved)
        found["without_one_price"] = {"low": least, "high": most if np.isfinite(most) else None}
        if ratio.get("low") is not None:
            ratio["low"] *= min(1.0, least / ratio["mean"])
        if ratio.get("high") is not None:
            ratio["high"] = ratio["high"] * max(1.0, most / ratio["mean"]) if np.isfinite(most) else None

    def over_prices(self, points: Points, row: dict[str, Any]) -> float | None:
        """Return the largest relative increase in the mean ratio from leaving out any single price.

        The row's upper bound is raised by that factor. With few prices, the mix has no points in between, so the ratio
        depends on which prices were chosen. Returns None if there is no ratio, or if reaching a target depends on a
        single price.
        """
        if (found := row["mean_cost_ratio"]) is None:
            return None
        first, count = Yardstick(self.arms, self.best, draws=0), len(points.cost)
        fewer = [points.of([k for k in range(count) if k != left_out]) for left_out in range(count)]
        most = max(
            (float(_geometric(first.ratios(each)[:, :-1])[0]) for each in fewer if len(each.cost)),
            default=np.inf,
        )
        rise = most / found["mean"] - 1.0
        high = found.get("high")
        found["high"] = None if high is None or not np.isfinite(rise) else high * (1.0 + rise)
        return rise if np.isfinite(rise) else None

    def _spread(self, orders: Sequence[Points]) -> dict[str, Any] | None:
        if len(orders) < 2 or not self.shares:
            return None
        first = Yardstick(self.arms, self.best, draws=0)
        found = [float(_geometric(first.ratios(each)[:, :-1])[0]) for each in orders]
        reached = [each for each in found if np.isfinite(each)]
        # An order that misses a target has an infinite ratio, so the spread of the others alone would look too good.
        missed = len(reached) < len(found)
        spread = {"low": min(reached), "high": None if missed else max(reached)} if reached else {}
        std = None if missed else float(np.std(reached, ddof=1))
        return {"orders": len(found), "reached": len(reached), "std": std, **spread}


def hulls(points: Points, weights: Array) -> list[tuple[Array, Array]]:
    """Return the corners of the cheapest mixes (`hull`) for each row of question weights."""
    return [hull(a, c) for a, c in zip(*points.means(weights), strict=True)]


def _geometric(ratios: Array) -> Array:
    """Return the geometric mean of each row; infinite if any entry is."""
    return (
        np.asarray(np.exp(np.log(ratios).mean(axis=1))) if ratios.shape[1] else np.full(len(ratios), np.nan)
    )


def interval(values: Array) -> dict[str, float | None] | None:
    """Return the first value with the 95 % interval of the others; None if the first value is infinite."""
    if not np.isfinite(values[0]):
        return None
    if len(values) == 1:
        return {"mean": float(values[0])}
    # Order statistics without interpolation, because values are infinite in draws that miss a target.
    low, high = np.quantile(values[1:], [0.025, 0.975], method="nearest")
    return {
        "mean": float(values[0]),
        "low": float(low) if np.isfinite(low) else None,
        "high": float(high) if np.isfinite(high) else None,
    }
