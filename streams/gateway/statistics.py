"""Statistics of the latest queries: rates, choices, and the policy compared with the control group."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from agents.reward.comparison import Cohort, Uplift
from schemas.answer import UNCOUNTED
from streams.gateway.index import Listed

_Z: Final = 1.96
_BUCKETS: Final = 60
_CELLS: Final = 200
_LEAST: Final = 10  # with fewer queries, accuracy is too uncertain to show


def now(listed: Sequence[Listed], group_by: Sequence[str] = ()) -> dict[str, Any]:
    """Return the statistics of the page's first view.

    Args:
        listed: The latest queries, newest first.
        group_by: The metadata keys whose values `Listed.groups` holds.
    """
    arms = {name: [each for each in listed if each.arm == name] for name in ("policy", "control")}
    chosen = arms["policy"]
    return {
        "queries": len(listed),
        "pinned": sum(each.arm is None and each.action is not None for each in listed),
        "statuses": dict(Counter(each.status for each in listed if each.status)),
        "cohorts": {name: cohort(group) for name, group in arms.items()},
        "choices": choices(chosen),
        "group_by": list(group_by),
        "by": {key: groups(chosen, _value(at)) for at, key in enumerate(group_by)}
        | {"objective": groups(chosen, lambda each: each.objective)},
        "crossed": crossed(chosen) if len(group_by) > 1 else [],
        "series": {name: series(group) for name, group in arms.items()},
    }


def uplift(listed: Sequence[Listed], moves: bool = False) -> dict[str, Any]:
    """Return the policy's gain over its control, with anytime-valid confidence intervals.

    The control is the control group; without one, the paired baselines, each compared with its own query.

    Args:
        listed: All known queries. Those not randomly assigned to a cohort are ignored: a pinned query is not the
            policy's choice.
        moves: Whether older queries were dropped. For a sliding window, the intervals are valid for a single look only,
            which the report's sentence then says.
    """
    ended = [each for each in reversed(listed) if each.status is not None and each.status not in UNCOUNTED]
    drawn = [(each, each.cohort == "control") for each in ended if each.randomised]
    control, pairs = "the control group", drawn or _paired(ended)
    found = Uplift()
    for each, is_control in pairs:
        if each.status is not None:
            group: Cohort = "control" if is_control else "policy"
            found.add(group, each.status, correct=each.correct, cost=each.cost)
    if pairs and not drawn:
        actions = {each.action for each, is_control in pairs if is_control}
        control = f"always asking {actions.pop()}" if len(actions) == 1 else "the paired baselines"
    report = found.report(control)
    if moves:
        report["sentence"] += (
            f" Only the latest {len(listed)} queries count, so the intervals hold for one look, "
            "not for all of them."
        )
    return {**report, "moves": moves}


def _paired(ended: Sequence[Listed]) -> list[tuple[Listed, bool]]:
    """Return each ended query with a paired baseline, once, and its ended baselines."""
    by_id = {each.query_id: each for each in ended}
    pairs = [
        (by_id[each.baseline_of], each) for each in ended if each.baseline_of and each.baseline_of in by_id
    ]
    firsts = {first.query_id: first for first, _ in pairs}
    return [*((first, False) for first in firsts.values()), *((each, True) for _, each in pairs)]


def cohort(group: Sequence[Listed]) -> dict[str, Any]:
    """Return the accuracy and the mean cost of a group of queries, with 95 % intervals; each is None if unknown.

    The interval for accuracy is Wilson's; the one for cost is normal.
    """
    graded = [each.correct for each in group if each.correct is not None]
    costs = [each.cost for each in group if each.cost is not None]
    return {
        "queries": len(group),
        "accuracy": _wilson(sum(graded), len(graded)),
        "cost": _mean(costs),
    }


def choices(listed: Sequence[Listed]) -> list[dict[str, Any]]:
    """Return the number of queries of each chosen configuration, with accuracy and mean cost; most frequent first."""
    by_action: defaultdict[str, list[Listed]] = defaultdict(list)
    for each in listed:
        if each.action is not None:
            by_action[each.action].append(each)
    ranked = sorted(by_action.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"action": action, **cohort(group)} for action, group in ranked[:20]]


def groups(listed: Sequence[Listed], of: Callable[[Listed], str | None]) -> list[dict[str, Any]]:
    """Return the choices for each kind of query, with accuracy and mean cost; the most frequent kind first.

    Args:
        listed: The queries.
        of: Returns the kind of a query, or None.
    """
    kinds: defaultdict[str | None, list[Listed]] = defaultdict(list)
    for each in listed:
        if each.action is not None:
            kinds[of(each)].append(each)
    ranked = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0] or ""))
    return [
        {
            "of": kind,
            **cohort(group),
            "choices": [
                {"action": action, "queries": count}
                for action, count in Counter(each.action for each in group).most_common(3)
            ],
        }
        for kind, group in ranked[:20]
    ]


def _value(at: int) -> Callable[[Listed], str | None]:
    return lambda each: each.groups[at]


def crossed(listed: Sequence[Listed]) -> list[dict[str, Any]]:
    """Return the most frequent choice for each pair of values of the first two keys, over queries that have both."""
    kinds: defaultdict[tuple[str, str], list[Listed]] = defaultdict(list)
    for each in listed:
        first, second = each.groups[:2]
        if each.action is not None and first is not None and second is not None:
            kinds[first, second].append(each)
    # Sort first values by frequency, and second values in order, with numbers compared as numbers.
    sizes = Counter(first for (first, _), group in kinds.items() for _ in group)
    ranked = sorted(kinds.items(), key=lambda item: (-sizes[item[0][0]], item[0][0], _ordered(item[0][1])))
    found = []
    for of, group in ranked[:_CELLS]:
        [(action, count)] = Counter(each.action for each in group).most_common(1)
        found.append({"of": of, **cohort(group), "action": action, "share": count / len(group)})
    return found


def _ordered(value: str) -> tuple[float, str]:
    return (float(value) if value.isdecimal() else math.inf, value)


def series(listed: Sequence[Listed]) -> list[dict[str, Any]]:
    """Return accuracy and mean cost over time: at most 60 equal groups of consecutive queries, oldest first."""
    ordered = [each for each in reversed(listed) if each.status is not None]
    size = max(_LEAST, math.ceil(len(ordered) / _BUCKETS))
    found = []
    for start in range(0, len(ordered), size):
        group = ordered[start : start + size]
        graded = [each.correct for each in group if each.correct is not None]
        costs = [each.cost for each in group if each.cost is not None]
        found.append(
            {
                "at": group[-1].created_ms // 1000,
                "queries": len(group),
                "accuracy": sum(graded) / len(graded) if graded else None,
                "cost": sum(costs) / len(costs) if costs else None,
            }
        )
    return found


def _wilson(right: float, n: int) -> dict[str, float] | None:
    if not n:
        return None
    mean = right / n
    centre = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return {"mean": mean, "low": max(0.0, centre - half), "high": min(1.0, centre + half), "n": n}


def _mean(values: Sequence[float]) -> dict[str, float] | None:
    n = len(values)
    if not n:
        return None
    mean = sum(values) / n
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else 0.0
    half = _Z * deviation / math.sqrt(n)
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": n}
