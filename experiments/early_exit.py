"""Path-aware early exit replayed on recorded step scores of whole paths, by the product's own rule (§3.3).

The paths of a problem are taken as running side by side, one step each at a time. This needs no model: what
the rule would have stopped, and whether the answer would have changed, follows from the scores alone.
"""

import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agents.executor.control import h_max, potential
from experiments.outcomes import Outcomes
from experiments.tables import TERA, summed
from schemas.forest import Limits


@dataclass(frozen=True)
class Replayed:
    """What early exit does to one problem's paths.

    Attributes:
        steps: All steps, and
        taken: those taken before a path was stopped or done.
        best: The path with the best mean, and
        chosen: the one chosen under early exit.
    """

    steps: int
    taken: int
    best: int
    chosen: int


def replay(paths: Sequence[Sequence[float]], eta: float = 1.2) -> Replayed:
    """Replay the rule on whole paths' step scores.

    Args:
        paths: Step scores of each path, in [0, 1]; none is empty.
        eta: H_max = ⌈η·D_best⌉.

    >>> replay([[0.9, 0.9], [0.1, 0.1, 0.1]])
    Replayed(steps=5, taken=4, best=0, chosen=0)
    """
    longest = max(map(len, paths))
    limits = Limits(depth_limit=longest, step_tokens=1, eta=eta)
    living, taken = list(range(len(paths))), 0
    chosen, v_max, depth = -1, -1.0, None
    for j in range(1, longest + 1):
        taken += len(living)
        for at in living:
            if len(paths[at]) == j and (v := float(np.mean(paths[at]))) > v_max:
                chosen, v_max, depth = at, v, j
        limit = h_max(limits, depth)
        living = [
            at
            for at in living
            if len(paths[at]) > j
            and j < limit
            and (chosen < 0 or potential(j, float(np.mean(paths[at][:j])), limit) >= v_max)
        ]
    means = [float(np.mean(path)) for path in paths]
    return Replayed(sum(map(len, paths)), taken, int(np.argmax(means)), chosen)


def replay_tts_prm(folder: Path, eta: float = 1.2) -> dict[str, dict[str, dict[str, float]]]:
    """Replay early exit on the real scores of `tts_prm`: steps saved and accuracy lost, by configuration."""
    raw = gzip.decompress((folder / "samples.csv.gz").read_bytes()).decode()
    paths: dict[str, dict[str, list[tuple[list[float], float]]]] = {}
    for row in csv.DictReader(io.StringIO(raw)):
        if scores := [float(each) for each in row["step_scores"].split()]:
            of_problem = paths.setdefault(row["config_id"], {}).setdefault(row["unique_id"], [])
            of_problem.append((scores, float(row["correct"])))
    found = {}
    for config, problems in paths.items():
        wide = [drafts for drafts in problems.values() if len(drafts) > 1]
        if not wide:
            continue
        runs = [replay([scores for scores, _ in drafts], eta) for drafts in wide]
        saved = [100 * (1 - run.taken / run.steps) for run in runs]
        lost = [100 * (d[r.best][1] - d[r.chosen][1]) for d, r in zip(wide, runs, strict=True)]
        found[config] = {"steps_saved_percent": summed(saved), "accuracy_lost_points": summed(lost)}
    return found


def compare(on: Outcomes, off: Outcomes) -> dict[str, dict[str, dict[str, float]]]:
    """Return what early exit saved and lost over all searches, and by depth of the answer without it.

    Intervals are over questions. Rows: accuracy in percent, compute in TFLOPs, memory in TB, cost in tera-eFLOPs.
    """
    samples = min(on.samples, off.samples)
    table = {}
    for name, which in (("without", off), ("with", on)):
        parts = {
            "accuracy": 100 * which.correct,
            "compute": which.extra["compute_flops"] / TERA,
            "memory": which.extra["memory_bytes"] / TERA,
            "eflops": which.cost / TERA,
        }
        table[name] = {key: _over_questions(array[:samples]) for key, array in parts.items()}
    change = {
        "accuracy_points": _over_questions(100 * (on.correct[:samples] - off.correct[:samples])),
        "cost_percent": summed([100 * (float(on.cost[:samples].mean() / off.cost[:samples].mean()) - 1)]),
    }
    table["change"] = change
    depth = off.extra["depth"][:samples]
    for level in sorted(set(depth.astype(int).ravel().tolist())):
        cells = depth == level
        table[f"depth_{level}"] = {
            "searches": {
                "mean": float(cells.sum()),
                "std": 0.0,
                "low": float(cells.sum()),
                "high": float(cells.sum()),
            },
            "cost_percent": summed(
                [100 * (on.cost[:samples][cells].sum() / off.cost[:samples][cells].sum() - 1)]
            ),
            "accuracy_points": summed(
                [100 * float((on.correct[:samples] - off.correct[:samples])[cells].mean())]
            ),
        }
    return table


def _over_questions(array: np.ndarray) -> dict[str, float]:
    return summed(array.mean(axis=(0, 2)).tolist())
