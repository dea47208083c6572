"""PNG figures of the runs: regret curves, the accuracy-cost plane, the Pareto of four modes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt

from experiments.tables import Run, unit_of
from experiments.world import World

METADATA = {"Software": None}  # the same runs give the same bytes


def regret_curves(path: Path, runs: Mapping[str, Sequence[Run]], title: str) -> None:
    """Draw cumulative regret by round, mean and range over seeds."""
    figure, axis = plt.subplots(figsize=(6, 4))
    for name, of_policy in runs.items():
        if name == "oracle":
            continue
        curves = np.array([np.cumsum([s.best - s.reward for s in run.steps]) for run in of_policy])
        rounds = np.arange(1, curves.shape[1] + 1)
        (line,) = axis.plot(rounds, curves.mean(axis=0), label=name)
        axis.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), alpha=0.15, color=line.get_color())
    axis.axvline(50, color="grey", linewidth=0.8, linestyle=":")
    axis.set(xlabel="round", ylabel="cumulative regret", title=title)
    axis.legend(fontsize=8)
    _save(figure, path)


def accuracy_cost(path: Path, world: World, runs: Mapping[str, Sequence[Run]], title: str) -> None:
    """Draw every arm's accuracy against its cost, single-path arms ringed, one line a model; policies on top."""
    o, unit = world.outcomes, unit_of(world)
    cost, accuracy = o.cost.mean(axis=(0, 1)) / unit, 100 * o.correct.mean(axis=(0, 1))
    figure, axis = plt.subplots(figsize=(6, 4))
    for model in dict.fromkeys(arm.model for arm in o.arms):
        at = [i for i, arm in enumerate(o.arms) if arm.model == model]
        line = sorted((i for i in at if o.arms[i].cp == 1), key=lambda i: o.arms[i].qp)
        points = axis.scatter(cost[at], accuracy[at], s=9, alpha=0.6, label=model if len(at) > 1 else None)
        axis.plot(cost[line], accuracy[line], linewidth=0.8, color=points.get_facecolor()[0])
    for name, of_policy in runs.items():
        measured = [run.measures(unit) for run in of_policy]
        x, y = np.mean([m["eflops"] for m in measured]), np.mean([m["accuracy"] for m in measured])
        axis.scatter(x, y, marker="x", color="black")
        axis.annotate(name, (float(x), float(y)), fontsize=7, xytext=(3, 3), textcoords="offset points")
    axis.set(xscale="log", xlabel=_cost_label(world), ylabel="accuracy (%)", title=title)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7)
    _save(figure, path)


def pareto(path: Path, table: Mapping[str, Any], world: World) -> None:
    """Draw accuracy against cost of every policy over the four modes."""
    figure, axis = plt.subplots(figsize=(6, 4))
    policies = list(next(iter(table.values())))
    for policy in policies:
        points = [(table[m][policy]["eflops"]["mean"], table[m][policy]["accuracy"]["mean"]) for m in table]
        axis.plot(*zip(*sorted(points), strict=True), marker="o", label=policy)
    axis.set(xscale="log", xlabel=_cost_label(world), ylabel="accuracy (%)", title="Four reward modes")
    axis.legend(fontsize=8)
    _save(figure, path)


def _cost_label(world: World) -> str:
    return (
        "cost (tera-eFLOPs a query)" if world.outcomes.unit == "eFLOPs" else f"cost ({world.outcomes.unit})"
    )


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata=METADATA)
    plt.close(figure)
