"""Compares the policy with baselines, fixed configurations that answer the same questions.

A baseline has the same question as its query, is pinned to its control's action, and is not learned from
(`Query.learn`), so that accuracy and cost are paired by question. Or its outcome is known from a recording.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.query import Query
from streams.client.events import Timelines

Array = npt.NDArray[np.float64]

DRAWS = 2_000
"""Bootstrap draws per interval."""

LEVEL = (2.5, 97.5)


class Outcome(msgspec.Struct, frozen=True):
    """What came of a question: whether the answer was right, 0 to 1, and what it cost in eFLOPs."""

    correct: float
    cost: float


def baseline_id(query_id: str, action: str) -> str:
    """Return the id of a query's baseline."""
    return f"{query_id}-{action.replace('/', '-')}"


def baseline_for(query: Query, action: str, paired: bool = True) -> Query:
    """Return a query's baseline, which is pinned to an action and names no objective.

    Args:
        query: The query that the policy decides.
        action: The control's action.
        paired: Whether the gateway's page compares the query with this baseline; only one of several may be paired.
    """
    return msgspec.structs.replace(
        query,
        query_id=baseline_id(query.query_id, action),
        pin_action=action,
        learn=False,
        objective=None,
        weights=None,
        mean_cost=None,
        accuracy=None,
        metadata={**query.metadata, "baseline_of": query.query_id} if paired else query.metadata,
    )


class Pair(msgspec.Struct, frozen=True):
    """One question's outcomes for the policy and the control, with costs in eFLOPs."""

    question: str
    correct: float
    control_correct: float
    cost: float
    control_cost: float


def compared(
    timelines: Timelines,
    pairs: Sequence[tuple[str, str]],
    *,
    action: str,
    seed: int,
    recorded: Mapping[str, Outcome] | None = None,
) -> dict[str, Any]:
    """Return the policy's and control's accuracy and mean cost (eFLOPs), and how they differ, with 95 % intervals.

    A failed answer counts as wrong, at its actual cost.

    Args:
        timelines: The timelines of the run's queries.
        pairs: The ids of each query and of its baseline.
        action: The control's action.
        seed: Seed for the bootstrap.
        recorded: The baselines' outcomes by id, if they are from a recording.

    >>> compared(Timelines(), [], action="m/1/1/1", seed=1)["cost_ratio"] is None
    True
    """
    found = []
    for own, other in pairs:
        ours = _outcome(timelines, own)
        theirs = _outcome(timelines, other) if recorded is None else recorded.get(other)
        if ours is not None and theirs is not None:
            query = timelines.by_id[own].query
            text = query.text if query is not None and query.text else own
            found.append(Pair(text, ours.correct, theirs.correct, ours.cost, theirs.cost))
    return _report(found, {"action": action, "recorded": recorded is not None}, seed)


def pool(comparisons: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return comparisons with one control as one; the bootstrap draws a question with its pairs from all runs."""
    pairs = [msgspec.convert(pair, Pair) for each in comparisons for pair in each["pairs"]]
    return _report(pairs, {name: comparisons[0]["control"][name] for name in ("action", "recorded")}, seed=0)


def _report(pairs: Sequence[Pair], control: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the comparison; its intervals are percentiles of a bootstrap over questions."""
    right, control_right, cost, control_cost = (
        np.array([getattr(pair, name) for pair in pairs]) for name in Pair.__struct_fields__[1:]
    )
    report: dict[str, Any] = {
        "policy": _means(right, cost),
        "control": {**control, **_means(control_right, control_cost)},
        "accuracy_difference": None,
        "cost_ratio": None,
        "pairs": [msgspec.to_builtins(pair) for pair in pairs],
    }
    if len(pairs) and control_cost.sum() > 0:
        places = {question: at for at, question in enumerate(dict.fromkeys(p.question for p in pairs))}
        sums = np.zeros((len(places), 4))
        rows = np.stack([right - control_right, np.ones(len(pairs)), cost, control_cost], axis=1)
        np.add.at(sums, [places[pair.question] for pair in pairs], rows)
        drawn = np.random.default_rng(seed).integers(0, len(sums), (DRAWS, len(sums)))
        gained, asked, paid, control_paid = sums[drawn].sum(axis=1).T
        report["accuracy_difference"] = _interval(float((right - control_right).mean()), gained / asked)
        report["cost_ratio"] = _interval(float(cost.sum() / control_cost.sum()), paid / control_paid)
    return report


def sentence(report: Mapping[str, Any]) -> str:
    """Return a comparison in one sentence."""
    difference, ratio = report["accuracy_difference"], report["cost_ratio"]
    if difference is None or ratio is None:
        return "No query and its control were both answered, so there is nothing to compare."
    policy, control = report["policy"], report["control"]
    low, high = (f"{100 * difference[side]:+.1f}" for side in ("low", "high"))
    return (
        f"Accuracy {policy['accuracy']:.0%} against {control['accuracy']:.0%} (difference "
        f"{100 * difference['mean']:+.1f} points, {low} to {high}) at {ratio['mean']:.0%} of the cost "
        f"({ratio['low']:.0%} to {ratio['high']:.0%}) of {opponent(control)}."
    )


def named(action: str, recorded: bool = False) -> str:
    """Return a baseline's action in words, and whether its outcomes are from a recording.

    >>> named("large/1/1/1"), named("large/1/4/2")
    ('one sample of large', 'a search with large (1/4/2)')
    >>> named("large/1/1/1", recorded=True), named("large/1/4/2", recorded=True)
    ('a recorded sample of large', 'a recorded search with large (1/4/2)')
    """
    model, _, search = action.partition("/")
    if search == "1/1/1":
        return f"{'a recorded' if recorded else 'one'} sample of {model}"
    return f"a {'recorded ' * recorded}search with {model} ({search})"


def opponent(control: Mapping[str, Any]) -> str:
    """Return the baseline of a comparison in words."""
    return named(control["action"], control["recorded"])


def _outcome(timelines: Timelines, query_id: str) -> Outcome | None:
    """Return what came of a query; None if its Reward has not closed."""
    timeline = timelines.by_id.get(query_id)
    if timeline is None or timeline.closing is None:
        return None
    return Outcome(float(timeline.closing.correct or 0.0), timeline.eflops or 0.0)


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
