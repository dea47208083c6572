"""What path-aware early exit saved and lost on recordings of ours: the same searches with it and without."""

from typing import Any

import numpy as np

from experiments.outcomes.table import Array, Outcomes
from experiments.trials.runs import TERA, summed, tidy

DRAWS = 2_000

PARTS = {
    "compute": "compute_flops",
    "memory": "memory_bytes",
}


def compare(on: Outcomes, off: Outcomes) -> dict[str, Any]:
    """Return what early exit saved and lost over all searches, by depth of the answer without it, and by width.

    Accuracy in percent, compute in TFLOPs, memory in TB, cost in tera-eFLOPs, each the mean over searches with its
    interval over questions; changes are ratios of means, their intervals by bootstrap over questions.

    Args:
        on: With early exit.
        off: Without, of as many samples or fewer; the arms and questions that were run both ways are compared.
    """
    samples = min(on.samples, off.samples)
    names = [arm.arm_id for arm in on.arms]
    on = on.restrict([names.index(arm.arm_id) for arm in off.arms])
    asked = [question.question_id for question in on.questions]
    on = on.of_questions([asked.index(question.question_id) for question in off.questions])
    with_exit, without = _measured(on, samples), _measured(off, samples)
    table: dict[str, Any] = {
        "overall": {
            "without": {name: _over_questions(array) for name, array in without.items()},
            "with": {name: _over_questions(array) for name, array in with_exit.items()},
        },
        "change": {
            "all searches": _change(with_exit, without, np.ones(without["accuracy"].shape, dtype=bool))
        },
        "by_depth": {},
        "by_width": {},
    }
    depth = off.extra["depth"][:samples].astype(int)
    for level in sorted(set(depth.ravel().tolist())):
        table["by_depth"][f"{level}"] = _change(with_exit, without, depth == level)
    width = np.array([arm.qp * arm.cp for arm in off.arms])
    for paths in sorted(set(width.tolist())):
        cells = np.broadcast_to(width == paths, depth.shape)
        table["by_width"][f"{paths}"] = _change(with_exit, without, cells)
    table["stragglers"] = stragglers(off)
    return table


def stragglers(off: Outcomes) -> dict[str, Any]:
    """Return how long searches of two and more paths go on after their answer is finished: what there is to stop.

    Args:
        off: Without early exit.
    """
    beyond: Array = off.extra["steps"] - off.extra["depth"]
    table: dict[str, Any] = {}
    for name in ("all models", *dict.fromkeys(arm.model for arm in off.arms)):
        wide = [i for i, a in enumerate(off.arms) if a.qp * a.cp > 1 and name in ("all models", a.model)]
        if wide:
            part = beyond[:, :, wide]
            table[name] = {
                "searches": int(part.size),
                "went_on_percent": _over_questions(np.asarray(100.0 * (part > 0))),
                "steps_beyond": _over_questions(part),
            }
    return table


def _measured(o: Outcomes, samples: int) -> dict[str, Array]:
    parts = {name: o.extra[column][:samples] / TERA for name, column in PARTS.items()}
    steps = o.extra["steps"][:samples]  # one after another: all paths of a step are decoded side by side
    return {"accuracy": 100 * o.correct[:samples], **parts, "eflops": o.cost[:samples] / TERA, "steps": steps}


def _change(on: dict[str, Array], off: dict[str, Array], cells: np.ndarray) -> dict[str, Any]:
    """Return the change over some searches; intervals by bootstrap over the questions that have any."""
    count = cells.sum(axis=(0, 2))
    questions = np.flatnonzero(count)
    sums = {
        name: tuple((each[name] * cells).sum(axis=(0, 2))[questions] for each in (on, off)) for name in on
    }
    drawn = np.random.default_rng(0).integers(len(questions), size=(DRAWS, len(questions)))
    found: dict[str, Any] = {"searches": int(count.sum())}
    for name, (after, before) in sums.items():
        lost = name == "accuracy"
        weight = count[questions] if lost else before

        def change(
            i: np.ndarray,
            after: Array = after,
            before: Array = before,
            weight: Array = weight,
            lost: bool = lost,
        ) -> Array:
            factor = 1.0 if lost else 100.0
            return np.asarray(factor * (after[i] - before[i]).sum(axis=-1) / weight[i].sum(axis=-1))

        low, high = np.quantile(change(drawn), [0.025, 0.975])
        mean = float(change(np.arange(len(questions))))
        found[f"{name}_{'points' if lost else 'percent'}"] = tidy({"mean": mean, "low": low, "high": high})
    return found


def _over_questions(array: Array) -> dict[str, float]:
    return summed(array.mean(axis=(0, 2)).tolist())
