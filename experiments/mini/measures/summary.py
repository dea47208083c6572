"""One report of the whole family, from what `evaluate` and `select` measured of each model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from agents.catalogue.checkpoint import read_architecture
from experiments.mini.checkpoints import MODELS
from experiments.mini.corpus import FAMILIES
from experiments.mini.ladder import GENERATORS
from experiments.mini.measures.evaluate import QWEN3, SKYWORK, price_ratio_64
from experiments.mini.measures.selection import SAMPLES, TEMPERATURE
from experiments.mini.training.verifier import VERIFIERS

Report = Mapping[str, Any]


def summary(evaluation: Report, selection: Report, questions: int, seed: int) -> dict[str, Any]:
    """Return `generators` and `verifiers` one by one, then each measure by generator, as far as it was measured.

    Args:
        evaluation: By generator, as `evaluate` keeps it.
        selection: By generator and verifier, as `select` keeps it.
        questions: Test questions a level of this run; each generator's row has its own.
        seed: Of the test questions.
    """
    measured = {g.name: evaluation[g.name] for g in GENERATORS if g.name in evaluation}
    everyday = ("development", "sealed")
    return {
        "engine": {"name": "torch", "version": torch.__version__},
        "questions": questions,
        "seed": seed,
        "samples": SAMPLES,
        "temperature": TEMPERATURE,
        "generators": [
            _generator(name, report, selection.get(name, {})) for name, report in measured.items()
        ],
        "verifiers": [
            {"name": v.name, "parameters": parameters_of(v.name), **selection[v.name]}
            for v in VERIFIERS
            if v.name in selection
        ],
        "families": {
            family: {name: _mean(each["families"][family]) for name, each in measured.items()}
            for family in FAMILIES
        },
        "everyday": {
            kind: {
                name: each["everyday"][kind] for name, each in measured.items() if kind in each["everyday"]
            }
            for kind in everyday
        },
        **{
            key: {name: each[key] for name, each in measured.items() if key in each}
            for key in ("svamp", "gsm8k", "depths")
        },
        "price_ratio_64": {
            **{name: each["price_ratio_64"] for name, each in measured.items() if "price_ratio_64" in each},
            **{name: price_ratio_64(each, None) for name, each in QWEN3.items()},
            **{f"{name} with Skywork 1.5B": price_ratio_64(each, SKYWORK) for name, each in QWEN3.items()},
        },
    }


def parameters_of(name: str) -> int | None:
    """Return how many weights a model that ships has; None where it is not there."""
    folder = MODELS / name
    return int(read_architecture(folder)["parameters"]) if (folder / "config.json").exists() else None


def _generator(name: str, report: Report, chosen: Report) -> dict[str, Any]:
    stories = report["families"]["stories"]
    row: dict[str, Any] = {
        "name": name,
        "parameters": parameters_of(name),
        "greedy": {level: share for level, share in stories.items() if level != "spoken"},
        "code": {"greedy": _mean(report["families"]["code"]), **chosen.get("families", {}).get("code", {})},
        **{key: report[key] for key in ("questions", "depth_questions", "depth_samples") if key in report},
    }
    for key in ("one_sample", f"pass_at_{SAMPLES}"):
        if key in chosen:
            row[key] = chosen[key]
    best = {v.name: chosen[key] for v in VERIFIERS if (key := f"best_of_{SAMPLES}_{v.name}") in chosen}
    return row | ({f"best_of_{SAMPLES}": best} if best else {})


def _mean(levels: Report) -> float:
    """Return the mean over levels; of stories `all`, the mean over levels 1 to 5."""
    return float(levels["all"] if "all" in levels else np.mean(list(levels.values())))
