"""Benchmark anchors of the models (App. B.2): greedy accuracy on validation questions, measured once a checkpoint.

Never on test or recorded questions: an anchor describes an action to the policy, and must not carry what the policy
is judged on.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.mini.checkpoints import read_report, weights_digest, write_report
from experiments.mini.corpus import problems
from experiments.mini.grading import is_right
from experiments.mini.sampling import load_generator, sample

SEED = 5
FILE = "anchors.json"
# One anchor a label of the paper's kind: the levels it is measured on.
ANCHORS = {
    "Math_Quick": ("quick",),
    **{f"Math_Level{n}": (f"level_{n}",) for n in range(1, 6)},
    "Math_Contest": ("contest",),
    "Math_Procedures": ("procedure_1", "procedure_2", "procedure_3"),
    "Coding_MiniCode": ("code_2", "code_3", "code_4", "code_6"),
}


def measured(generators: Mapping[str, Path], each: int, work: Path) -> dict[str, dict[str, float]]:
    """Return the anchors of generators in per cent; those of the same weights are measured once.

    Args:
        generators: Checkpoints by name.
        each: Validation questions a level.
        work: Where they are kept.
    """
    kept = read_report(FILE, work)
    found = {}
    for name, folder in generators.items():
        key = f"{name}/{weights_digest(folder)}/{each}"
        if key not in kept:
            kept[key] = anchors(folder, each)
            write_report(FILE, work, kept)
        found[name] = kept[key]
    return found


def anchors(folder: Path, each: int) -> dict[str, float]:
    """Return one generator's anchors."""
    levels = [level for levels in ANCHORS.values() for level in levels]
    asked = [problem for level in levels for problem in problems(level, "validation", SEED, each)]
    texts = sample(load_generator(folder), [problem.question for problem in asked])
    right = [is_right(problem, text) for problem, text in zip(asked, texts, strict=True)]
    return {
        label: round(
            100
            * float(np.mean([ok for problem, ok in zip(asked, right, strict=True) if problem.level in of])),
            1,
        )
        for label, of in ANCHORS.items()
    }
