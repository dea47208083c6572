"""Draws PNG figures: regret and efficiency by round, accuracy against cost, four modes, and costs on other fleets."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import orjson
from matplotlib import pyplot as plt

from experiments.frontier import HINDSIGHT
from experiments.loop import DRIFTS, MODES, spaces
from experiments.outcomes import BanditWorld
from experiments.paper import Results, Runs
from experiments.runs import Run, unit_of
from experiments.yardstick import hull

matplotlib.use("Agg")


FEW = 50  # groups with fewer searches are in the table but are not drawn
LETTER, LINE = 6.0, 11.0  # width and height of a label's letters, in pixels
METADATA = {"Software": None}  # omits the software's version, so that the same runs produce the same bytes
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
IN_HINDSIGHT = {
    HINDSIGHT: "--",
    f"{HINDSIGHT}_knowing_family": ":",
    f"{HINDSIGHT}_knowing_level": "-.",
}
COLOURS = {
    name: f"C{at}"
    for at, name in enumerate(("random", "greedy", "mlp", "uniscale", "knn", "ts", "neural_ucb", "terms"))
} | {"oracle": "black", "best_fixed_arm": "grey", "one_hot": "C1", "0": "C1", "1": "C3", "10": "C0"}


def draw(folder: Path, world: BanditWorld, results: Results) -> dict[str, Path]:
    """Draw every figure that there are results for; return the files keyed by figure name."""
    tables, runs, worlds = results.tables, results.runs, spaces(world)
    joint = "uis" if "uis" in worlds else "all"
    drawn: dict[str, Path] = {}

    def file(name: str) -> Path:
        return drawn.setdefault(name, folder / f"{name}.png")

    accuracy_cost(file("accuracy-cost"), worlds[joint], runs, joint)
    pareto(file("pareto"), tables["pareto"], world)
    for name in ("alpha", "semantics"):
        curves(file(name), runs, [(name, mode) for mode in MODES], world)
    for mode in MODES:
        curves(file(f"regret-{mode}"), runs, [(name, mode) for name in tables["main"]], world)
    if "joint_frontier" in tables:
        joint_frontier(file("joint-frontier"), worlds)
    if results.points:
        frontier(file("frontier"), results.points, worlds[joint])
    if "drifts" in tables:
        curves(file("drifts"), runs, [("drifts", drift) for drift in DRIFTS], world)
    if "verifier_scores" in tables:
        score_histogram(file("verifier-scores"), tables["verifier_scores"])
    if "early_exit" in tables:
        early_exit(file("early-exit"), tables["early_exit"])
    return drawn


def curves(path: Path, runs: Runs, panels: Sequence[tuple[str, str]], world: BanditWorld) -> None:
    """Draw one column per panel, with cumulative regret by round above and correct answers against cost below.

    Args:
        path: The PNG.
        runs: The runs, keyed by (name, mode, policy).
        panels: The (name, mode) of each column.
        world: The world, for the unit of cost.
    """
    figure, axes = plt.subplots(2, len(panels), figsize=(3.6 * len(panels) + 1, 6.4), squeeze=False)
    for (name, mode), above, below in zip(panels, axes[0], axes[1], strict=True):
        for policy, of_policy in _of(runs, name, mode).items():
            colour, label = COLOURS.get(policy), f"α = {policy}" if name == "alpha" else policy
            if policy != "oracle":
                _regret(above, label, of_policy, colour)
            right, cost = _cumulative(of_policy, unit_of(world))
            below.plot(cost, right, label=label, color=colour, linewidth=1.2)
        above.axvline(50, color="grey", linewidth=0.8, linestyle=":")
        title = TITLES.get(name, name) if name != "drifts" else "drift"
        above.set(xlabel="round", ylabel="cumulative regret", title=f"{title}\n{TITLES.get(mode, mode)}")
        below.set(xlabel=f"cumulative {_cost_label(world)}", ylabel="cumulative correct answers")
        above.title.set_fontsize(9)
        above.legend(fontsize=7)
        below.legend(fontsize=7)
    _save(figure, path)


def accuracy_cost(path: Path, world: BanditWorld, runs: Runs, name: str) -> None:
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
    labels: list[tuple[str, float, float]] = []
    for mode, marker in markers.items():
        for policy, of_policy in _of(runs, name, mode).items():
            measured = [run.measures(unit) for run in of_policy]
            x, y = (float(np.mean([m[key] for m in measured])) for key in ("eflops", "accuracy"))
            axis.scatter(x, y, marker=marker, color="red", s=40, zorder=3)
            labels.append((policy, x, y))
        axis.scatter([], [], marker=marker, color="red", label=f"policies, {TITLES[mode]}")
    axis.set(xscale="log", xlabel=_cost_label(world), ylabel="accuracy (%)")
    _label(axis, labels)
    axis.set_title("Accuracy and cost of every action; squares: one path; dashed: a model's best", fontsize=9)
    axis.legend(fontsize=7)
    _save(figure, path)


def frontier(path: Path, points: Mapping[str, tuple[list[float], list[float]]], world: BanditWorld) -> None:
    """Draw the cheapest mixes of fixed arms, of each policy's points, and of the ridge in hindsight."""
    unit = unit_of(world)
    figure, axis = plt.subplots(figsize=(7.5, 5))
    for at, (name, (accuracies, costs)) in enumerate(points.items()):
        if name == "fixed_mix_from_history":
            continue
        right, paid = np.array(accuracies), np.array(costs)
        colour, line = COLOURS.get(name, f"C{at}"), "-"
        if name in IN_HINDSIGHT:
            colour, line = "teal", IN_HINDSIGHT[name]
        if name == "arms":
            colour = "black"
            axis.scatter(paid / unit, 100 * right, s=10, color="lightgrey", label="fixed arms")
        else:
            axis.scatter(paid / unit, 100 * right, s=9, color=colour)
        label = "cheapest fixed mix" if name == "arms" else name.replace("_", " ")
        _mixes(axis, right, paid, unit, color=colour, linestyle=line, linewidth=1.3, label=label)
    axis.set(xscale="log", xlabel=_cost_label(world), ylabel="accuracy (%)")
    axis.set_title("Live questions; every line is a policy's cheapest mixes", fontsize=9)
    axis.legend(fontsize=7)
    _save(figure, path)


def joint_frontier(path: Path, worlds: Mapping[str, BanditWorld]) -> None:
    """Draw Figure 1: routing's frontier through its squares, each model's test-time scaling, and the joint frontier."""
    world = worlds["uis"]
    o, unit = world.outcomes, unit_of(world)
    cost, accuracy = o.cost.mean(axis=(0, 1)), o.correct.mean(axis=(0, 1))
    figure, axis = plt.subplots(figsize=(7.5, 5))
    models = list(dict.fromkeys(arm.model for arm in o.arms))
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(models)))
    for model, shade in zip(models, shades, strict=True):
        at = [i for i, arm in enumerate(o.arms) if arm.model == model]
        axis.scatter(cost[at] / unit, 100 * accuracy[at], s=7, alpha=0.4, color=shade)
        _mixes(axis, accuracy[at], cost[at], unit, color=shade, linestyle="--", label=f"TTS, {model}")
    single = [i for i, arm in enumerate(o.arms) if arm.qp * arm.cp == 1]
    axis.scatter(cost[single] / unit, 100 * accuracy[single], s=45, marker="s", color="C3", zorder=3)
    _mixes(axis, accuracy[single], cost[single], unit, color="C3", label="routing alone")
    _mixes(axis, accuracy, cost, unit, color="black", label="UIS")
    axis.set(xscale="log", xlabel=_cost_label(world), ylabel="accuracy (%)")
    axis.set_title("Cheapest mixes of every space, over all questions", fontsize=9)
    axis.legend(fontsize=7)
    _save(figure, path)


def _mixes(axis: Any, accuracy: np.ndarray, cost: np.ndarray, unit: float, **style: Any) -> None:
    """Draw the cheapest mixes of points. They are straight lines in cost, and so curves on a logarithmic axis."""
    right, paid = hull(accuracy, cost)
    fine = np.geomspace(paid[0], paid[-1], 200) if len(paid) > 1 else paid
    axis.plot(fine / unit, 100 * np.interp(fine, paid, right), **{"linewidth": 1.3, **style})


def pareto(path: Path, table: Mapping[str, Any], world: BanditWorld) -> None:
    """Draw the accuracy and cost of every policy in the four modes, with one marker per mode."""
    figure, axis = plt.subplots(figsize=(8.0, 4.5))
    markers = dict(zip(table, "ov^s", strict=True))
    for policy in dict.fromkeys(policy for policies in table.values() for policy in policies):
        of_policy = {m: table[m][policy] for m in table if policy in table[m]}
        points = [(each["eflops"]["mean"], each["accuracy"]["mean"]) for each in of_policy.values()]
        axis.plot(
            *zip(*points, strict=True), label=policy.replace("_", " "), color=COLOURS.get(policy), linewidth=1
        )
        for (x, y), marker in zip(points, map(markers.get, of_policy), strict=True):
            axis.scatter(x, y, marker=marker, color=COLOURS.get(policy), s=30)
    for mode, marker in markers.items():
        axis.scatter([], [], marker=marker, color="grey", label=mode.replace("_", "-"))
    axis.set(xscale="log", xlabel=_cost_label(world), ylabel="accuracy (%)", title="Four reward modes")
    # Outside the axes, because every corner inside contains points.
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    _save(figure, path)


def score_histogram(path: Path, table: Mapping[str, Any]) -> None:
    """Draw the distributions of path scores for right and wrong answers."""
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
    """Draw the changes in cost and accuracy due to early exit, by depth and by width."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8))
    for axis, by, label in (
        (axes[0], "by_depth", f"steps of the answer without early exit ({FEW} searches or more)"),
        (axes[1], "by_width", "paths (QP · CP)"),
    ):
        drawn = {level: row for level, row in table[by].items() if row["searches"] >= FEW}
        x = np.arange(len(drawn))
        for measure, colour, name in (
            ("eflops_percent", "C0", "cost (%)"),
            ("accuracy_points", "C3", "accuracy (points)"),
        ):
            rows = [row[measure] for row in drawn.values()]
            mean = np.array([row["mean"] for row in rows])
            spread = np.array([[row["mean"] - row["low"], row["high"] - row["mean"]] for row in rows]).T
            axis.errorbar(
                x, mean, yerr=np.maximum(spread, 0), marker="o", color=colour, label=name, capsize=2
            )
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_xticks(x, list(drawn))
        axis.set(xlabel=label, ylabel="change by early exit")
        axis.legend(fontsize=8)
    _save(figure, path)


FLEETS: Mapping[str, str] = {
    "reasoning_gym_hard": "ten models,\n96 kinds of reasoning tasks",
    "paretobandit_val": "four hosted models,\nprices in USD",
    "mixed-2": "six small models\nin seven searches each",
    "zeroeval_gsm": "41 models, GSM8K:\nnothing to save",
}
"""Descriptions of the other fleets' tables, in drawing order."""

ROWS: Mapping[str, tuple[str, str, str]] = {
    "default_with_prior": ("UniScale-Streams with a third of the questions as history", "#1660a8", "o"),
    "ridge_from_history": ("a ridge regression on the same history that never learns again", "#b4541a", "s"),
    "default": ("UniScale-Streams without history", "#1660a8", "D"),
}
"""The rows to draw from each table's frontier: description, colour and marker (hollow for rows without history)."""

OPEN, COLUMN, RIGHT = 1.08, 1.13, 1.5
"""Positions on the axis where unbounded intervals are cut off, figures are printed, and the axis ends."""


def fleets(path: Path, tables: Mapping[str, Any]) -> None:
    """Draw each row's cost ratio on each table, with intervals; 1 is the cheapest mix of fixed configurations."""
    named = [name for name in FLEETS if name in tables]
    figure, axis = plt.subplots(figsize=(9, 0.6 + 1.05 * len(named)))
    axis.axvline(1, color="black", linewidth=0.9)
    for at, table in enumerate(named):
        for below, (row, (_, colour, mark)) in enumerate(ROWS.items()):
            if (told := tables[table]["frontier"].get(row)) is None:
                continue
            y = at + 0.25 * (below - 1)
            style: dict[str, Any] = {
                "color": colour,
                "markerfacecolor": "white" if row == "default" else colour,
            }
            found = told["mean_cost_ratio"]
            if found is not None:
                low, high = found["low"], found["high"]
                axis.plot([low, OPEN if high is None else high], [y, y], color=colour, linewidth=1.8)
                axis.plot(found["mean"], y, mark, markersize=7, **style)
                if high is None:
                    axis.plot(OPEN, y, ">", color=colour, markersize=5)
            axis.plot(COLUMN, y, mark, markersize=5, **style)
            axis.text(COLUMN + 0.02, y, _paid(told), color=colour, fontsize=9, va="center")
    for label, colour, mark in ROWS.values():
        fill = "white" if mark == "D" else colour
        axis.plot([], [], mark, color=colour, markerfacecolor=fill, markersize=7, label=label)
    axis.set(ylim=(len(named) - 0.5, -0.55), xlim=(0.25, RIGHT), yticks=range(len(named)))
    axis.set_yticklabels([FLEETS[name] for name in named])
    axis.tick_params(axis="y", length=0)
    axis.set_xticks([0.4, 0.6, 0.8, 1.0])
    axis.set_xlabel("cost for the same accuracy; 1 is the cheapest mix of fixed configurations", loc="left")
    axis.spines[["top", "right", "left"]].set_visible(False)
    for between in range(1, len(named)):
        axis.axhline(between - 0.5, color="#dddddd", linewidth=0.8)
    axis.legend(loc="lower left", bbox_to_anchor=(-0.3, 1.0), fontsize=9, frameon=False)
    _save(figure, path, digest_of(tables))


def _paid(row: Mapping[str, Any]) -> str:
    """Return a row's mean cost ratio with its interval, or the targets that it does not reach."""
    if (found := row["mean_cost_ratio"]) is None:
        return f"never reaches {' and '.join(f'{100 * float(q):g}' for q in row['unreached'])} %"
    ends = ("∞" if found[end] is None else f"{found[end]:.2f}" for end in ("low", "high"))
    return f"{found['mean']:.2f} [{', '.join(ends)}]"


def digest_of(tables: Mapping[str, Any]) -> str:
    """Return the digest of the tables that a picture is drawn from, which is stored in the picture."""
    drawn = {name: tables[name]["frontier"] for name in FLEETS if name in tables}
    return hashlib.sha256(orjson.dumps(drawn, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _label(axis: Any, labels: Sequence[tuple[str, float, float]]) -> None:
    """Label points on the right or left, above or below, wherever there is no other label."""
    taken: list[tuple[float, float, float]] = []
    for name, x, y in dict.fromkeys(labels):
        across, height = axis.transData.transform((x, y))
        width = LETTER * len(name)
        places = [(across + right, height + up) for right in (5, -5 - width) for up in (4, -11, 15)]
        free = [
            (left, low)
            for left, low in places
            if not any(left < b and left + width > a and abs(low - c) < LINE for a, b, c in taken)
        ]
        left, low = (free or places)[0]
        taken.append((left, left + width, low))
        axis.annotate(name, (x, y), xytext=axis.transData.inverted().transform((left, low)), fontsize=7)


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


def _cost_label(world: BanditWorld) -> str:
    return "cost (tera-eFLOPs)" if world.outcomes.unit == "eFLOPs" else f"cost ({world.outcomes.unit})"


def _save(figure: Any, path: Path, description: str | None = None) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={**METADATA, "Description": description})
    plt.close(figure)
