"""Cost at equal accuracy by family of questions, with and without one model, and whose questions go to that model.

A policy that chooses by the question is compared with the cheapest mix of fixed arms (`yardstick.py`): of all arms, and
of those without the model. Questions go to the model as often as the policy sends them there at the prices whose mix
reaches the target on all questions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.frontier import Player, Table, Terms, most_accurate, tidied
from experiments.outcomes import BanditWorld, OutcomeError
from experiments.runs import Scope
from experiments.yardstick import Array, Points, Yardstick, hull, hulls, interval, least_cost

EVERY = "all"
"""Stands for the questions of all families."""


def families(
    world: BanditWorld, scope: Scope, name: str, player: Player, terms: Terms, model: str
) -> dict[str, Any]:
    """Return what the live questions cost at the targets, by family, and the share of them that goes to a model.

    Args:
        world: The world, with all its arms available.
        scope: How much to run; its `more_seeds` determine the orders.
        name: Name of the row.
        player: The row.
        terms: Terms of the comparison.
        model: The model.

    Returns:
        `accuracy` and `cost` by family: for each target the policy's cost, the ratio to the cheapest mix of `all` arms
        and to that of the arms `without` the model (None where a mix misses the target); `arms`, the accuracy and the
        cost of the model's own arms; `share`, by target and family, with intervals over questions; and `by_price`, from
        the lowest price to the highest, the policy's mean accuracy and cost, and the share of each family.

    Raises:
        OutcomeError: The world has no arms of the model.
    """
    o = world.outcomes
    mine = [arm.model == model for arm in o.arms]
    if not any(mine):
        raise OutcomeError(
            f"{o.name}: no arm is of model {model!r}; name one of {sorted({a.model for a in o.arms})}"
        )
    history, live = terms.split([each.question_id for each in o.questions])
    past, arms = (
        Points(o.correct[:, side].mean(axis=0).T, o.cost[:, side].mean(axis=0).T) for side in (history, live)
    )
    best = most_accurate(past)
    table = Table(world, history, live, best, scope, terms)
    points = _mean(table.played(name, player))
    to_model = _mean(table.played(name, player, of=np.array(mine, float)))
    kinds = {
        side: np.array([o.questions[q].family for q in asked])
        for side, asked in (("live", live), ("past", history))
    }
    found: dict[str, Any] = {"cost": {}, "arms": {}}
    for family in (EVERY, *dict.fromkeys(kinds["live"].tolist())):
        now, before = (
            np.flatnonzero((kinds[side] == family) | (family == EVERY)) for side in ("live", "past")
        )
        yardstick = Yardstick(_of(arms, now), most_accurate(_of(past, before)))
        found["cost"][family] = _costs(yardstick, _of(points, now), [not each for each in mine], o.arms)
        own = _of(arms, now).of(np.flatnonzero(mine).tolist())
        found["arms"][family] = {
            o.arms[arm].arm_id: {
                "accuracy": float(own.accuracy[at].mean()),
                "cost": float(own.cost[at].mean()),
            }
            for at, arm in enumerate(np.flatnonzero(mine))
        }
    found["share"] = _shares(Yardstick(arms, best), points, to_model.accuracy, kinds["live"])
    of = {family: kinds["live"] == family for family in dict.fromkeys(kinds["live"].tolist())}
    rows = (
        {
            "accuracy": float(right.mean()),
            "cost": float(cost.mean()),
            "share": {family: float(sent[own].mean()) for family, own in of.items()},
        }
        for right, cost, sent in zip(points.accuracy, points.cost, to_model.accuracy, strict=True)
    )
    return {
        **{key: tidied(value) for key, value in found.items()},
        "by_price": [tidied(row) for row in rows],
    }


def _mean(orders: Sequence[Points]) -> Points:
    return Points(
        np.mean([each.accuracy for each in orders], axis=0), np.mean([each.cost for each in orders], axis=0)
    )


def _of(points: Points, questions: npt.NDArray[np.intp]) -> Points:
    return Points(points.accuracy[:, questions], points.cost[:, questions])


def _costs(
    yardstick: Yardstick, points: Points, without: Sequence[bool], arms: Sequence[Any]
) -> dict[str, Any]:
    rest = yardstick.arms.of(np.flatnonzero(without).tolist())
    targets = yardstick.aims[:, None] * np.array(yardstick.shares)
    policy, every, other = (
        np.array(
            [least_cost(each, t) for each, t in zip(hulls(mix, yardstick.weights), targets, strict=True)]
        )
        for mix in (points, yardstick.arms, rest)
    )
    with np.errstate(invalid="ignore"):
        against = {"all": policy / every, "without": np.where(np.isfinite(other), policy / other, np.inf)}
    return {
        "questions": points.cost.shape[1],
        "best_on_history": arms[yardstick.best].arm_id,
        "its_accuracy": float(yardstick.aims[0]),
        "at": {
            f"{share:g}": {
                "cost": float(policy[0, k]) if np.isfinite(policy[0, k]) else None,
                **{name: interval(ratios[:, k]) for name, ratios in against.items()},
            }
            for k, share in enumerate(yardstick.shares)
        },
    }


def _shares(yardstick: Yardstick, points: Points, to_model: Array, kinds: Array) -> dict[str, Any]:
    """Return the share of each family's questions that goes to the model, by target."""
    found: dict[str, Any] = {}
    for share in yardstick.shares:
        mix = _mix(points, share * float(yardstick.aims[0]))
        if mix is None:
            found[f"{share:g}"] = None
            continue
        sent = mix @ to_model
        found[f"{share:g}"] = {}
        for family in dict.fromkeys(kinds.tolist()):
            own = sent[kinds == family]
            weights = Yardstick(Points(own[None], own[None]), 0).weights
            found[f"{share:g}"][family] = interval(weights @ own)
    return found


def _mix(points: Points, target: float) -> Array | None:
    """Return the share of each point in the cheapest mix that reaches an accuracy; None if no mix does.

    >>> _mix(Points(np.array([[0.2], [0.1], [0.6]]), np.array([[1.0], [2.0], [3.0]])), 0.5).round(2).tolist()
    [0.25, 0.0, 0.75]
    """
    accuracy, cost = (each.mean(axis=1) for each in (points.accuracy, points.cost))
    corners = [
        int(np.flatnonzero((accuracy == a) & (cost == c))[0])
        for a, c in zip(*hull(accuracy, cost), strict=True)
    ]
    if target > accuracy[corners[-1]]:
        return None
    mix = np.zeros(len(accuracy))
    after = min(int(np.searchsorted(accuracy[corners], target)), len(corners) - 1)
    low, high = corners[max(after - 1, 0)], corners[after]
    part = 1.0 if low == high else (target - accuracy[low]) / (accuracy[high] - accuracy[low])
    mix[low] += 1.0 - part
    mix[high] += part
    return mix
