"""PNG figures of the runs: regret and efficiency by round, the accuracy-cost plane, the Pareto of four modes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt

from experiments.paper import Runs
from experiments.scenarios import MODES
from experiments.tables import Run, unit_of
from experiments.world import World

METADATA = {"Software": None}  # the same runs give the same bytes
TITLES = {
    "tts": "TTS (smallest model)",
    "routing": "Routing (one path)",
    "uis": "UIS",
    "all": "all arms",
    "best_route": "BEST-Route*",
    "semantics": "action semantics",
    "alpha": "exploration factor α",
    "add": "models added",
    "remove": "models removed",
    "q_to_c": "Quality-Priority → Cost-Sensitive",
    "c_to_q": "Cost-Sensitive → Quality-Priority",
    "cost-sensitive": "Cost-Sensitive",
    "quality-priority": "Quality-Priority",
}
COLOURS = {
    name: f"C{at}"
    for at, name in enumerate(("random", "greedy", "mlp", "uniscale", "knn", "ts", "neural_ucb", "terms"))
} | {"oracle": "black", "one_hot": "C1", "0": "C1", "1": "C3", "10": "C0"}  # fmt: skip


def curves(path: Path, runs: Runs, panels: Sequence[tuple[str, str]], world: World) -> None:
    """Draw one column a panel: cumulative regret by round above, correct answers against cost below.

    Args:
        path: The PNG.
        runs: By (name, mode, policy).
        panels: (name, mode) of each column.
        world: For the unit of cost.
    """
    figure, axes = plt.subplots(2, len(panels), figsize=(3.6 * len(panels) + 1, 6.4), squeeze=False)
    for (name, mode), above, below in zip(panels, axes[0], axes[1], strict=True):
        for policy, of_policy in _of(runs, name, mode).items():
            colour = COLOURS.get(policy)
            if policy != "oracle":
                _regret(above, policy, of_policy, colour)
            right, cost = _cumulative(of_policy, unit_of(world))
            below.plot(cost, right, label=policy, color=colour, linewidth=1.2)
        above.axvline(50, color="grey", linewidth=0.8, linestyle=":")
        title = TITLES.get(name, name) if name != "drifts" else "drift"
        above.set(xlabel="round", ylabel="cumulative regret", title=f"{title}\n{TITLES.get(mode, mode)}")
        below.set(xlabel=f"cumulative {_cost_label(world)}", ylabel="cumulative correct answers")
        above.title.set_fontsize(9)
        above.legend(fontsize=7)
        below.legend(fontsize=7)
    _save(figure, path)


def accuracy_cost(path: Path, world: World, runs: Runs, name: str) -> None:
    """Draw Figure 1: routing nodes as squares, each model's test-time scaling as a dashed line, policies as crosses."""
    o, unit = world.outcomes, unit_of(world)
    cost, accuracy = o.cost.mean(axis=(0, 1)) / unit, 100 * o.correct.mean(axis=(0, 1))
    figure, axis = plt.subplots(figsize=(7.5, 5))
    models = list(dict.fromkeys(arm.model for arm in o.arms))
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(models)))
    for model, shade in zip(models, shades, strict=True):
        at = [i for i, arm in enumerate(o.arms) if arm.model == model]
        if len(at) > 1:
            axis.scatter(cost[at], accuracy[at], s=8, alpha=0.45, color=shade)
            line = [i for i in at if _frontier(i, at, cost, accuracy)]
            line.sort(key=lambda i: float(cost[i]))
            axis.plot(cost[line], accuracy[line], linewidth=1, linestyle="--", color=shade)
        single = [i for i in at if o.arms[i].qp * o.arms[i].cp == 1]
        many = len(models) > 12
        axis.scatter(
            cost[single], accuracy[single], s=45, marker="s", color=shade, label=None if many else model
        )
    markers = {MODES[0]: "x", MODES[1]: "+"}
    for mode, marker in markers.items():
        for policy, of_policy in _of(runs, name, mode).items():
            measured = [run.measures(unit) for run in of_policy]
            x, y = (float(np.mean([m[key] for m in measured])) for key in ("eflops", "accuracy"))
            axis.scatter(x, y, marker=marker, color="red", s=40, zorder=3)
            axis.annotate(policy, (x, y), fontsize=7, xytext=(4, 4), textcoords="offset points")
        axis.scatter([], [], marker=marker, color="red", label=f"policies, {TITLES[mode]}")
    axis.set(xscale="log", xlabel=_cost_label(world), ylabel="accuracy (%)")
    axis.set_title("Accuracy and cost of every action; squares: one path; dashed: a model's best", fontsize=9)
    axis.legend(fontsize=7)
    _save(figure, path)


def pareto(path: Path, table: Mapping[str, Any], world: World) -> None:
    """Draw accuracy against cost of every policy over the four modes, a marker a mode."""
    figure, axis = plt.subplots(figsize=(6.5, 4.5))
    for policy in next(iter(table.values())):
        points = [(table[m][policy]["eflops"]["mean"], table[m][policy]["accuracy"]["mean"]) for m in table]
        axis.plot(*zip(*points, strict=True), label=policy, color=COLOURS.get(policy), linewidth=1)
        for (x, y), marker in zip(points, "ov^s", strict=True):
            axis.scatter(x, y, marker=marker, color=COLOURS.get(policy), s=30)
    for mode, marker in zip(table, "ov^s", strict=True):
        axis.scatter([], [], marker=marker, color="grey", label=mode.replace("_", "-"))
    axis.set(xscale="log", xlabel=_cost_label(world), ylabel="accuracy (%)", title="Four reward modes")
    axis.legend(fontsize=7, ncols=2)
    _save(figure, path)


def score_histogram(path: Path, table: Mapping[str, Any]) -> None:
    """Draw the distribution of path scores of right and of wrong answers."""
    figure, axis = plt.subplots(figsize=(6, 3.6))
    for name, colour in (("right", "C0"), ("wrong", "C3")):
        counts = np.array(table["histogram"][name], dtype=float)
        edges = np.linspace(0, 1, len(counts) + 1)
        axis.stairs(
            counts / max(counts.sum(), 1) * len(counts), edges, fill=True, alpha=0.5, color=colour, label=name
        )
    axis.set(xlabel="path score V(y*)", ylabel="density", title="Verifier scores of right and wrong answers")
    axis.legend()
    _save(figure, path)


def early_exit(path: Path, table: Mapping[str, Any]) -> None:
    """Draw what early exit saves of the cost, and its points of accuracy, by depth and by width."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8))
    for axis, by, label in (
        (axes[0], "by_depth", "steps of the answer without early exit"),
        (axes[1], "by_width", "paths (QP · CP)"),
    ):
        x = np.arange(len(table[by]))
        for measure, colour, name in (
            ("eflops_percent", "C0", "cost (%)"),
            ("accuracy_points", "C3", "accuracy (points)"),
        ):
            rows = [row[measure] for row in table[by].values()]
            mean = np.array([row["mean"] for row in rows])
            spread = np.array([[row["mean"] - row["low"], row["high"] - row["mean"]] for row in rows]).T
            axis.errorbar(
                x, mean, yerr=np.maximum(spread, 0), marker="o", color=colour, label=name, capsize=2
            )
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_xticks(x, list(table[by]))
        axis.set(xlabel=label, ylabel="change by early exit")
        axis.legend(fontsize=8)
    _save(figure, path)


def _of(runs: Runs, name: str, mode: str) -> dict[str, Sequence[Run]]:
    return {policy: run for (space, m, policy), run in runs.items() if (space, m) == (name, mode)}


def _regret(axis: Any, policy: str, runs: Sequence[Run], colour: str | None) -> None:
    lines = np.array([np.cumsum([s.best - s.reward for s in run.steps]) for run in runs])
    rounds = np.arange(1, lines.shape[1] + 1)
    axis.plot(rounds, lines.mean(axis=0), label=policy, color=colour, linewidth=1.2)
    axis.fill_between(rounds, lines.min(axis=0), lines.max(axis=0), alpha=0.12, color=colour, linewidth=0)


def _cumulative(runs: Sequence[Run], unit: float) -> tuple[np.ndarray, np.ndarray]:
    right = np.array([np.cumsum([s.correct for s in run.steps]) for run in runs]).mean(axis=0)
    cost = np.array([np.cumsum(np.exp([s.log_cost for s in run.steps])) for run in runs]).mean(axis=0)
    return right, cost / unit


def _frontier(i: int, at: Sequence[int], cost: np.ndarray, accuracy: np.ndarray) -> bool:
    return not any(cost[j] <= cost[i] and accuracy[j] > accuracy[i] for j in at)


def _cost_label(world: World) -> str:
    return "cost (tera-eFLOPs)" if world.outcomes.unit == "eFLOPs" else f"cost ({world.outcomes.unit})"


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata=METADATA)
    plt.close(figure)
