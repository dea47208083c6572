"""What a verifier is worth: the best of 16 samples by its path mean against one sample, and its AUROC."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from experiments.mini.checkpoints import SEED, weights_digest
from experiments.mini.corpus import FAMILIES, problems
from experiments.mini.grading import is_right, split_steps
from experiments.mini.ladder import GENERATORS
from experiments.mini.measures.verifier_scores import Judged, measure
from experiments.mini.sampling import load_generator, sample
from experiments.mini.tasks.problem import Problem
from experiments.mini.tokenizer import STEP, token_id
from experiments.mini.training.verifier import (
    GOOD_LABEL,
    VERIFIERS,
    ProcessRewardModel,
    load_verifier,
    verifier_tokens,
)

SAMPLES, TEMPERATURE = 16, 0.8


def selection(
    generators: Mapping[str, Path], verifiers: Mapping[str, Path], each: int, work: Path, seed: int = SEED
) -> dict[str, Any]:
    """Return accuracy of one sample, of any and of the chosen one of 16 by generator, and AUROC by verifier.

    Args:
        generators: Checkpoints by name.
        verifiers: Checkpoints by name.
        each: Test questions a level.
        work: Where samples are kept, by generator and its weights.
        seed: Of the test questions.
    """
    levels = [level for levels in FAMILIES.values() for level in levels]
    asked = [problem for level in levels for problem in problems(level, "test", seed, each)]
    suffix = "" if seed == SEED else f"-{seed}"
    drawn = {
        name: _drawn(folder, asked, work / f"samples-{name}-{weights_digest(folder)}-{each}{suffix}.json")
        for name, folder in generators.items()
    }
    right = {
        name: np.array([[is_right(p, t) for p, t in zip(asked, texts, strict=True)] for texts in rows])
        for name, rows in drawn.items()
    }
    report: dict[str, Any] = {
        name: {
            "seed": seed,
            "questions": each,
            "samples": SAMPLES,
            "weights": weights_digest(generators[name]),
            **_reached(table),
            "families": {
                family: _reached(table[:, [problem.level in levels for problem in asked]])
                for family, levels in FAMILIES.items()
            },
        }
        for name, table in right.items()
    }
    for verifier, folder in verifiers.items():
        model = load_verifier(folder)
        judged: list[Judged] = []
        for name, rows in drawn.items():
            scores = np.array([path_means(model, asked, texts) for texts in rows])
            best = right[name][scores.argmax(0), np.arange(len(asked))]
            report[name][f"best_of_{SAMPLES}_{verifier}"] = float(best.mean())
            judged += [
                Judged(f"{name}/{i}", float(scores[s, i]), bool(right[name][s, i]))
                for s in range(SAMPLES)
                for i in range(len(asked))
            ]
        report[verifier] = measure(judged)
    return report


def default_verifier(selection: Mapping[str, Any]) -> str:
    """Return the verifier in use by the rule of CRITERIA.md; the first one while nothing was measured."""
    gains = {v.name: gains_of(v.name, selection) for v in VERIFIERS}
    if not all(gains.values()):
        return VERIFIERS[0].name
    helps = [
        name
        for name, each in gains.items()
        if min(each) >= 0 and sum(round(gain, 4) >= 0.08 for gain in each) >= 3
    ]
    return helps[0] if helps else max(gains, key=lambda name: sum(gains[name]))


def gains_of(verifier: str, selection: Mapping[str, Any]) -> list[float]:
    """Return what the best of 16 by a verifier gains over one sample, by generator, as far as it was measured."""
    key = f"best_of_{SAMPLES}_{verifier}"
    chosen = [selection[g.name] for g in GENERATORS if key in selection.get(g.name, {})]
    return [report[key] - report["one_sample"] for report in chosen]


def _reached(right: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Return accuracy of one sample and of any, from samples (rows) by questions (columns)."""
    return {"one_sample": float(right.mean()), f"pass_at_{SAMPLES}": float(right.any(0).mean())}


def _drawn(folder: Path, asked: Sequence[Problem], file: Path) -> list[list[str]]:
    if not file.exists():
        model = load_generator(folder)
        questions = [problem.question for problem in asked]
        rows = [sample(model, questions, TEMPERATURE, seed) for seed in range(SAMPLES)]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rows))
    return list(json.loads(file.read_text()))


@torch.inference_mode()
def path_means(
    model: ProcessRewardModel, asked: Sequence[Problem], texts: Sequence[str], batch: int = 128
) -> list[float]:
    """Return the mean step score of one solution a question; 0 for one without a step."""
    steps = [split_steps(text) for text in texts]
    tokens = [verifier_tokens(problem.question, each) for problem, each in zip(asked, steps, strict=True)]
    means = [0.0] * len(texts)
    order = sorted((i for i, each in enumerate(steps) if each), key=lambda i: len(tokens[i]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        width = max(len(tokens[i]) for i in rows)
        padded = torch.tensor([tokens[i] + [0] * (width - len(tokens[i])) for i in rows])
        scores = model.score(model.model(input_ids=padded).last_hidden_state).softmax(-1)[..., GOOD_LABEL]
        for row, i in enumerate(rows):
            means[i] = float(scores[row][padded[row] == token_id(STEP)].mean())
    return means
