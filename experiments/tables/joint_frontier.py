"""The paper's Figure 1 in figures: what the joint space of model and search gains over either alone.

Each space may mix its configurations at random. Which configurations are mixed is chosen on history and judged on the
live questions: the best of 168 on the questions themselves would be a lucky draw, of six much less of one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.measures.frontier import Points, Yardstick, area, hull, split
from experiments.outcomes.world import World
from experiments.tables.frontier import corners_of, most_accurate, tidied

NAMES: Mapping[str, str] = {"tts": "TTS alone", "routing": "routing alone", "uis": "UIS"}


def joint_frontier(worlds: Mapping[str, World]) -> dict[str, Any]:
    """Return, of each scenario, how far its mixes reach, and what the joint space gains over it.

    `accuracy`: of its configuration that was most accurate on history. `area`: mean accuracy of its cheapest mixes over
    the logarithm of the cost, in percent, from the cheapest configuration to the joint space's most accurate one.
    `uis_gains_points`: the joint space's area less its own, paired by question. `uis_cost_ratio`: what the joint
    space pays for 90, 95 and 98 % of its accuracy, against its own cheapest mix.

    Args:
        worlds: By scenario; `uis`, `routing` and `tts` are wanted.
    """
    if any(name not in worlds for name in NAMES):
        return {}
    history, live = split([each.question_id for each in worlds["uis"].outcomes.questions])
    if not history or not live:
        return {}
    past = {name: points_of(worlds[name], history) for name in NAMES}
    now = {name: points_of(worlds[name], live) for name in NAMES}
    mixes = {name: now[name].of(corners_of(past[name])) for name in NAMES}
    joint = Yardstick(now["uis"], most_accurate(past["uis"]))
    areas = {
        name: np.array(
            [100 * area(hull(a, c), *joint.span) for a, c in zip(*mix.means(joint.weights), strict=True)]
        )
        for name, mix in mixes.items()
    }
    table = {}
    for name in NAMES:
        own = Yardstick(now[name], most_accurate(past[name]))
        table[name] = {
            "configurations": len(now[name].accuracy),
            "accuracy": _interval(100 * own.aims),
            "area": _interval(areas[name]),
            "uis_gains_points": _interval(areas["uis"] - areas[name]) if name != "uis" else None,
            "uis_cost_ratio": own.judge(mixes["uis"])["mean_cost_ratio"] if name != "uis" else None,
        }
    found: dict[str, Any] = tidied(table)
    return found


def points_of(world: World, questions: list[int]) -> Points:
    """Return accuracy and cost of every arm on some questions, means over samples."""
    o = world.outcomes
    return Points(o.correct[:, questions].mean(axis=0).T, o.cost[:, questions].mean(axis=0).T)


def _interval(values: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return {"mean": float(values[0]), "low": float(low), "high": float(high)}
