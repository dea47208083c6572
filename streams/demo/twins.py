"""What the policy is worth: every query against a twin that always takes one configuration of the largest model.

The twin asks the same question, is pinned to the control's action and is not learned from (`Query.learn`), so that
accuracy and cost are compared question by question.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.query import Query
from streams.client import Ledger, Story

Array = npt.NDArray[np.float64]

DRAWS = 2_000
"""Bootstrap draws behind an interval."""

LEVEL = (2.5, 97.5)


def twin_of(query: Query, action: str) -> Query:
    """Return the twin of a query: pinned to an action, without an objective of its own."""
    return msgspec.structs.replace(
        query, query_id=f"{query.query_id}-control", pin_action=action, learn=False, objective=None, weights=None,
        mean_cost=None, accuracy=None, metadata={**query.metadata, "control_of": query.query_id},
    )  # fmt: skip


def compared(ledger: Ledger, pairs: Sequence[tuple[str, str]], *, action: str, seed: int) -> dict[str, Any]:
    """Return accuracy and mean cost (eFLOPs) of policy and control, and how they differ, with 95 % intervals.

    The intervals are percentiles of a bootstrap over questions. An answer that failed counts as wrong, and costs what
    it cost.

    Args:
        ledger: The run's log.
        pairs: The ids of each query and its twin.
        action: The control's.
        seed: Of the bootstrap.

    >>> compared(Ledger(), [], action="m/1/1/1", seed=1)["cost_ratio"] is None
    True
    """
    both = [(ledger.stories[a], ledger.stories[b]) for a, b in pairs if {a, b} <= ledger.stories.keys()]
    done = [(a, b) for a, b in both if a.closing is not None and b.closing is not None]
    (right, cost), (control_right, control_cost) = (
        _outcomes([pair[side] for pair in done]) for side in (0, 1)
    )
    report: dict[str, Any] = {
        "policy": _means(right, cost),
        "control": {"action": action, **_means(control_right, control_cost)},
        "accuracy_difference": None,
        "cost_ratio": None,
    }
    if len(done) and control_cost.sum() > 0:
        drawn = np.random.default_rng(seed).integers(0, len(done), (DRAWS, len(done)))
        differences = (right - control_right)[drawn].mean(axis=1)
        ratios = cost[drawn].sum(axis=1) / control_cost[drawn].sum(axis=1)
        report["accuracy_difference"] = _interval(float((right - control_right).mean()), differences)
        report["cost_ratio"] = _interval(float(cost.sum() / control_cost.sum()), ratios)
    return report


def sentence(report: dict[str, Any]) -> str:
    """Return the comparison in one sentence, whatever came out of it."""
    difference, ratio = report["accuracy_difference"], report["cost_ratio"]
    if difference is None or ratio is None:
        return "No query and its control were both answered, so there is nothing to compare."
    policy, control = report["policy"], report["control"]
    low, high = (f"{100 * difference[side]:+.1f}" for side in ("low", "high"))
    return (
        f"Accuracy {policy['accuracy']:.0%} against {control['accuracy']:.0%} (difference "
        f"{100 * difference['mean']:+.1f} points, {low} to {high}) at {ratio['mean']:.0%} of the cost "
        f"({ratio['low']:.0%} to {ratio['high']:.0%}) of always asking {control['action']}."
    )


def _outcomes(stories: Sequence[Story]) -> tuple[Array, Array]:
    closings = [story.closing for story in stories]
    right = [float(c.correct or 0.0) if c is not None else 0.0 for c in closings]
    cost = [story.eflops or 0.0 for story in stories]
    return np.array(right), np.array(cost)


def _means(right: Array, cost: Array) -> dict[str, Any]:
    known = len(right) > 0
    return {
        "queries": len(right),
        "accuracy": float(right.mean()) if known else None,
        "mean_cost": float(cost.mean()) if known else None,
    }


def _interval(mean: float, draws: Array) -> dict[str, float]:
    low, high = np.percentile(draws, LEVEL)
    return {"mean": mean, "low": float(low), "high": float(high)}
