"""Statistics of the latest queries: rates, choices, and the policy compared with the control group."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from agents.reward.comparison import Cohort, Uplift
from schemas.answer import FAILURES, UNCOUNTED
from streams.gateway.index import Listed

_Z: Final = 1.96
_POINTS: Final = 60
_GROUPS: Final = 12
_LEAST: Final = 10  # with fewer queries, accuracy is too uncertain to show

Pairs = Sequence[tuple[Listed, Cohort]]
"""Compared queries, oldest first, each with its group."""


def now(
    listed: Sequence[Listed], group_by: Sequence[str] = (), *, moves: bool = False, paired: bool = False
) -> dict[str, Any]:
    """Return the statistics of the page's first view. All are of the same queries, so no two can disagree.

    Args:
        listed: The queries, newest first. Pinned queries are counted only: they are not the policy's choice.
        group_by: The metadata keys whose values `Listed.groups` holds.
        moves: Whether older queries were dropped. For a sliding window, the intervals are valid for a single look only,
            which the comparison's sentence then says.
        paired: Whether only paired baselines are compared: if the queries are those for which a model was chosen, the
            control group is no random sample of them.
    """
    pairs = _compared(listed, paired)
    chosen = [each for each in listed if each.arm == "policy" and each.status not in UNCOUNTED]
    policy = [each for each, group in pairs if group == "policy"] or chosen[::-1]
    cohorts = {"policy": policy, "control": [each for each, group in pairs if group == "control"]}
    kinds: dict[str, Callable[[Listed], str | None]] = {key: _value(at) for at, key in enumerate(group_by)}
    kinds |= {"session": lambda each: each.session, "objective": lambda each: each.objective}
    return {
        "queries": len(listed),
        "pinned": sum(each.arm is None and each.action is not None for each in listed),
        "statuses": dict(Counter(each.status or "pending" for each in listed)),
        "cohorts": {name: cohort(group) for name, group in cohorts.items()},
        "choices": choices(chosen),
        "by": {name: groups(chosen, of) for name, of in kinds.items()},
        "series": {name: series(group) for name, group in cohorts.items()},
        "uplift": uplift(pairs, len(listed) if moves else None),
    }


def uplift(pairs: Pairs, window: int | None = None) -> dict[str, Any]:
    """Return the policy's gain over its control so far and over time, with anytime-valid confidence intervals.

    Args:
        pairs: The compared queries.
        window: Number of queries in the sliding window; None if it holds all.
    """
    found, over_time, every = Uplift(), list[dict[str, Any]](), math.ceil(len(pairs) / _POINTS)
    control = _named(pairs)
    for count, (each, group) in enumerate(pairs, 1):
        if each.status is not None:
            found.add(group, each.status, correct=each.correct, cost=each.cost)
        if count % every == 0 or count == len(pairs):
            report = found.report(control)
            gains = {name: report[name] for name in ("accuracy_difference", "cost_ratio")}
            over_time.append({"at": each.created_ms / 1000, **gains})
    report = found.report(control)
    if window is not None:
        report["sentence"] += (
            f" Only the latest {window} queries count, so the intervals hold for one look, not for all of them."
        )
    return {**report, "control": control, "moves": window is not None, "over_time": over_time}


def _named(pairs: Pairs) -> str:
    """Return what the policy is compared with. A few others ran another configuration because their first failed."""
    actions = Counter(each.action for each, group in pairs if group == "control")
    [(action, count)] = actions.most_common(1) or [(None, 0)]
    return f"always asking {action}" if action and count > 0.9 * actions.total() else "the control"


def _compared(listed: Sequence[Listed], paired: bool) -> Pairs:
    """Return the queries drawn into a cohort or, without any, those with paired baselines and their baselines."""
    ended = [each for each in reversed(listed) if each.status is not None and each.status not in UNCOUNTED]
    drawn = [] if paired else [each for each in ended if each.randomised]
    if any(each.cohort == "control" for each in drawn):
        return [(each, "control" if each.cohort == "control" else "policy") for each in drawn]
    ids = {each.query_id for each in ended if each.baseline_of is None}
    of = {each.baseline_of for each in ended} & ids
    return [
        (each, "policy" if each.query_id in of else "control")
        for each in ended
        if each.query_id in of or each.baseline_of in of
    ]


def cohort(group: Sequence[Listed]) -> dict[str, Any]:
    """Return the accuracy and the mean cost of a group of queries, with 95 % intervals; each is None if unknown.

    A failed query counts as a wrong answer, as in `Uplift`. The interval for accuracy is Wilson's; the one for cost is
    normal.
    """
    graded = [grade for each in group if (grade := _grade(each)) is not None]
    costs = [each.cost for each in group if each.cost is not None]
    return {
        "queries": len(group),
        "accuracy": _wilson(sum(graded), len(graded)),
        "cost": _mean(costs),
    }


def _grade(each: Listed) -> float | None:
    return 0.0 if each.status in FAILURES else each.correct


def choices(listed: Sequence[Listed]) -> list[dict[str, Any]]:
    """Return the number of queries of each chosen configuration, with accuracy and mean cost; most frequent first."""
    return [
        {"action": action, **cohort(group)} for action, group in _ranked(listed, lambda each: each.action)
    ]


def groups(listed: Sequence[Listed], of: Callable[[Listed], str | None]) -> list[dict[str, Any]]:
    """Return the choices for each kind of query, with accuracy and mean cost; the most frequent twelve kinds.

    Args:
        listed: The queries.
        of: Returns the kind of a query, or None.
    """
    return [
        {
            "of": kind,
            **cohort(group),
            "choices": [
                {"action": action, "queries": count}
                for action, count in Counter(each.action for each in group).most_common()
            ],
        }
        for kind, group in _ranked(listed, of)[:_GROUPS]
    ]


def _ranked(
    listed: Sequence[Listed], of: Callable[[Listed], str | None]
) -> list[tuple[str | None, list[Listed]]]:
    """Return the queries by kind, the most frequent kind first."""
    kinds: defaultdict[str | None, list[Listed]] = defaultdict(list)
    for each in listed:
        kinds[of(each)].append(each)
    return sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0] or ""))


def _value(at: int) -> Callable[[Listed], str | None]:
    return lambda each: each.groups[at]


def series(ordered: Sequence[Listed]) -> list[dict[str, Any]]:
    """Return accuracy and mean cost over time: at most 60 equal groups of consecutive queries, oldest first."""
    ordered = [each for each in ordered if each.status is not None]
    size = max(_LEAST, math.ceil(len(ordered) / _POINTS))
    found = []
    for start in range(0, len(ordered), size):
        group = ordered[start : start + size]
        known = cohort(group)
        means = {name: known[name] and known[name]["mean"] for name in ("accuracy", "cost")}
        found.append({"at": group[-1].created_ms / 1000, "queries": len(group), **means})
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
