"""Savings and losses from path-aware early exit (§3.3), in our recordings and in a replay on others' step scores.

Our recordings were run with and without early exit. The replay assumes that a problem's paths advance in parallel, one
step at a time, so that the scores determine which paths the product's rule would have stopped and whether the answer
would have changed.
"""

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from agents.search.early_exit import h_max, potential
from experiments.outcomes import Array, Outcomes
from experiments.runs import TERA, summed, tidy
from schemas.forest import Limits

DRAWS = 2_000

PARTS = {
    "compute": "compute_flops",
    "memory": "memory_bytes",
}


def compare(on: Outcomes, off: Outcomes) -> dict[str, Any]:
    """Return savings and losses from early exit over all searches, by the answer's depth without it, and by width.

    Accuracy is in percent, compute in TFLOPs, memory in TB and cost in tera-eFLOPs, each a mean over searches with an
    interval over questions. Changes are ratios of means (differences for accuracy), with bootstrap intervals over
    questions.

    Args:
        on: Outcomes with early exit.
        off: Outcomes without it, for some or all of the same arms and questions. The comparison is restricted to these.
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
    """Return how long searches with several paths continue after their answer is finished: the potential saving.

    Args:
        off: Outcomes without early exit.
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
    steps = o.extra["steps"][:samples]  # sequential steps: the paths in a step are decoded in parallel
    return {"accuracy": 100 * o.correct[:samples], **parts, "eflops": o.cost[:samples] / TERA, "steps": steps}


def _change(on: dict[str, Array], off: dict[str, Array], cells: np.ndarray) -> dict[str, Any]:
    """Return the change over some searches, with bootstrap intervals over their questions."""
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


@dataclass(frozen=True)
class Replayed:
    """The effect of early exit on one problem's paths.

    Attributes:
        steps: Total number of steps of all paths.
        taken: Total number of steps of all paths until each was stopped or finished.
        beyond: Number of steps that the longest path took after the best path was finished.
        ended: Sequential steps until the end of the search, which determine the decoding time.
        longest: Sequential steps until the end of the search without early exit.
        best: Index of the path with the best mean score.
        chosen: Index of the path chosen under early exit.
    """

    steps: int
    taken: int
    ended: int
    longest: int
    beyond: int
    best: int
    chosen: int


def replay(paths: Sequence[Sequence[float]], eta: float = 1.2) -> Replayed:
    """Replay the early-exit rule on the step scores of whole paths.

    Args:
        paths: The step scores of each path, in [0, 1]; no path is empty.
        eta: η in H_max = ⌈η·D_best⌉.

    >>> replay([[0.9, 0.9], [0.1, 0.1, 0.1]])
    Replayed(steps=5, taken=4, ended=2, longest=3, beyond=1, best=0, chosen=0)
    """
    longest = max(map(len, paths))
    limits = Limits(depth_limit=longest, step_tokens=1, eta=eta)
    sums = [list(accumulate(path)) for path in paths]
    living, taken = list(range(len(paths))), 0
    chosen, v_max, depth, ended = -1, -1.0, None, longest
    for j in range(1, longest + 1):
        taken += len(living)
        for at in living:
            if len(paths[at]) == j and (v := sums[at][-1] / j) > v_max:
                chosen, v_max, depth = at, v, j
        limit = h_max(limits, depth)
        living = [
            at
            for at in living
            if len(paths[at]) > j
            and j < limit
            and (chosen < 0 or potential(j, sums[at][j - 1] / j, limit) >= v_max)
        ]
        if not living:
            ended = j
            break
    means = [each[-1] / len(each) for each in sums]
    best = int(np.argmax(means))
    return Replayed(sum(map(len, paths)), taken, ended, longest, longest - len(paths[best]), best, chosen)


def replay_tts_prm(folder: Path, eta: float = 1.2) -> dict[str, dict[str, Any]]:
    """Replay early exit on the real scores of `tts_prm`: steps saved, accuracy lost, and steps after the best path."""
    with (folder / "configs.csv").open(encoding="utf-8") as told:
        names = {each["config_id"]: f"{each['model']}, n = {each['n']}" for each in csv.DictReader(told)}
    paths: dict[str, dict[str, list[Drafted]]] = {}
    for config, problem, drafted in _drafted(folder):
        paths.setdefault(config, {}).setdefault(problem, []).append(drafted)
    found = {}
    for config, problems in paths.items():
        wide = [drafts for drafts in problems.values() if len(drafts) > 1]
        if not wide:
            continue
        runs = [replay([scores for scores, _ in drafts], eta) for drafts in wide]
        saved = [100 * (1 - run.taken / run.steps) for run in runs]
        lost = [100 * (d[r.best][1] - d[r.chosen][1]) for d, r in zip(wide, runs, strict=True)]
        found[f"{names.get(config, 'configuration')} ({config})"] = {
            "problems": len(runs),
            "went_on_percent": summed([100.0 * (run.beyond > 0) for run in runs]),
            "steps_beyond": summed([float(run.beyond) for run in runs]),
            "steps_saved_percent": summed(saved),
            "accuracy_lost_points": summed(lost),
        }
    return found


WIDTHS = (1, 2, 4, 16, 64)
TIMES = 10  # draws per problem and width


def replay_wide(folder: Path, eta: float = 1.2) -> dict[str, dict[str, Any]]:
    """Replay searches of W paths, drawn with replacement from all of a problem's scored beam-search paths.

    Sequential positions determine the decoding time, so a search of 64 paths takes as long as its longest path. Steps
    are summed over problems before they are compared, and intervals are from a bootstrap over problems.
    """
    with (folder / "configs.csv").open(encoding="utf-8") as told:
        beams = {each["config_id"] for each in csv.DictReader(told) if each["method"] == "beam_search"}
    paths: dict[str, list[Drafted]] = {}
    for config, problem, drafted in _drafted(folder):
        if config in beams:  # other configurations' scores are not probabilities
            paths.setdefault(problem, []).append(drafted)
    found = {}
    for width in WIDTHS:
        rng = np.random.default_rng(width)
        rows = np.array([_of_width(paths[name], width, rng, eta) for name in sorted(paths)])
        drawn = np.random.default_rng(0).integers(len(rows), size=(DRAWS, len(rows)))
        found[f"{width}"] = {
            "problems": len(rows),
            "steps_one_after_another_percent": _shares(rows[:, 0], rows[:, 1], drawn),
            "all_steps_percent": _shares(rows[:, 2], rows[:, 3], drawn),
            "accuracy_points": summed((100 * rows[:, 4]).tolist()),
        }
    return found


Drafted = tuple[list[float], float]


def _drafted(folder: Path) -> Iterator[tuple[str, str, Drafted]]:
    """Yield (configuration, problem, (step scores, correctness)) for every scored path."""
    raw = gzip.decompress((folder / "samples.csv.gz").read_bytes()).decode()
    for row in csv.DictReader(io.StringIO(raw)):
        if scores := [float(each) for each in row["step_scores"].split()]:
            yield row["config_id"], row["unique_id"], (scores, float(row["correct"]))


def _of_width(drafts: Sequence[Drafted], width: int, rng: np.random.Generator, eta: float) -> Array:
    """Return means over draws: sequential steps and all steps, with and without exit, and the change in correctness."""
    rows = []
    for _ in range(TIMES):
        taken = [drafts[i] for i in rng.integers(len(drafts), size=width)]
        run = replay([scores for scores, _ in taken], eta)
        change = taken[run.chosen][1] - taken[run.best][1]
        rows.append((run.ended, run.longest, run.taken, run.steps, change))
    return np.asarray(np.mean(rows, axis=0))


def _shares(after: Array, before: Array, drawn: np.ndarray) -> dict[str, float]:
    """Return the change in a sum, in percent, with its interval over draws."""

    def change(i: np.ndarray) -> Array:
        return np.asarray(100 * (after[i].sum(axis=-1) / before[i].sum(axis=-1) - 1))

    low, high = np.quantile(change(drawn), [0.025, 0.975])
    return tidy({"mean": float(change(np.arange(len(after)))), "low": low, "high": high})
