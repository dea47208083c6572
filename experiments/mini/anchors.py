"""Benchmark anchors of the mini models (App. B.2): greedy accuracy on validation questions, through vLLM.

Measured on the validation split, never on test or recorded questions: an anchor describes an action to the policy,
and must not carry what the policy is judged on.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from experiments.mini.corpus import problems_of
from experiments.mini.evaluate import open_engine, sampled
from experiments.mini.labels import is_right

SEED = 5
# One anchor a label of the paper's kind: what it stands for, and the levels it is measured on.
ANCHORS = {
    "Math_Level1": ("level_1",),
    "Math_Level2": ("level_2",),
    "Math_Level3": ("level_3",),
    "Math_Level4": ("level_4",),
    "Math_Level5": ("level_5",),
    "Math_Contest": ("contest",),
    "Coding_MiniCode": ("code_2", "code_3", "code_4"),
}


def measure_anchors(models: Path, generators: Sequence[str], each: int) -> dict[str, dict[str, float]]:
    """Return the anchors of every generator in per cent, from `each` validation questions a level."""
    asked = {level: list(islice(problems_of(level, "validation", SEED), each)) for level in _levels()}
    flat = [problem for problems in asked.values() for problem in problems]
    anchors: dict[str, dict[str, float]] = {}
    for name in generators:
        engine = open_engine(models / name, SEED)
        texts = sampled(engine, flat, 1, 0.0)
        right = {
            level: [is_right(p, t[0]) for p, t in zip(flat, texts, strict=True) if p.level == level]
            for level in asked
        }
        anchors[name] = {
            label: round(100 * float(np.mean([ok for level in levels for ok in right[level]])), 1)
            for label, levels in ANCHORS.items()
        }
    return anchors


def _levels() -> list[str]:
    return [level for levels in ANCHORS.values() for level in levels]
