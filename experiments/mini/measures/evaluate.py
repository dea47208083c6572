"""What a generator reaches: its own families, everyday questions, SVAMP, GSM8K, its depths and its price ratio."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.catalogue.checkpoint import read_architecture
from agents.catalogue.eflops import price
from agents.catalogue.models import Architecture
from experiments.mini.checkpoints import SEED
from experiments.mini.corpus import FAMILIES, problems
from experiments.mini.grading import answer_of, is_right, same_answer, split_steps
from experiments.mini.sampling import sample
from experiments.mini.tasks.problem import Problem

EVERYDAY = Path(__file__).parents[1] / "everyday"
QUESTIONS = Path("../shared/data/questions")
TEMPERATURE = 0.8
# What the plan measured on `tts_prm` (Llama 1B–8B on MATH-500), to stand beside the family's depths.
TTS_PRM = {
    "median": "6-7",
    "p95": "13-25",
    "maximum": "63-144",
    "p95_right": "8-11",
    "p95_wrong": "15-34",
    "differ": "0.81-0.92",
    "ratio": 1.4,
}
# A typical query: tokens of the prompt, steps, tokens of a step.
TYPICAL = (70, 5, 11)
QWEN3 = {
    "qwen3-0.6b": Architecture(parameters=750_000_000, layers=28, query_heads=16, kv_heads=8, head_dim=128),
    "qwen3-14b": Architecture(parameters=14_800_000_000, layers=40, query_heads=40, kv_heads=8, head_dim=128),
}
SKYWORK = Architecture(parameters=1_540_000_000, layers=28, query_heads=12, kv_heads=2, head_dim=128)


def evaluate(
    model: Any, each: int = 100, everyday: Sequence[str] = ("development",), svamp: int = 500, gsm8k: int = 300,
    samples: int = 3, seed: int = SEED,
) -> dict[str, Any]:  # fmt: skip
    """Return `families`, `everyday`, `svamp`, `gsm8k` and `depths` of one generator, and on how much they rest.

    `questions` are a level's, `depth_questions` those a level whose depths were counted, in `depth_samples` samples.
    """
    report: dict[str, Any] = {"seed": seed, "questions": each}
    report["depth_questions"] = each // 4 if samples else 0
    report["depth_samples"] = samples
    report["families"] = families(model, each, seed)
    report["everyday"] = {name: _everyday(model, EVERYDAY / f"{name}.jsonl") for name in everyday}
    report["svamp"] = _outside(model, QUESTIONS / "svamp_first_half.jsonl", svamp)
    report["gsm8k"] = _outside(model, QUESTIONS / "gsm8k_test.jsonl", gsm8k)
    if samples:
        report["depths"] = depths(model, each // 4, samples, seed)
    return report


def carry_sealed(report: dict[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Take over what the sealed everyday questions gave, if they were opened before for the same weights.

    They may be opened once, so a later report without them must not replace the only record of them.

    Args:
        report: A new report, with `weights`; changed in place.
        earlier: The one it replaces.

    Returns:
        False if `earlier` has a result that is lost, because it is of other or unknown weights.
    """
    sealed = earlier.get("everyday", {}).get("sealed")
    if sealed is None or "sealed" in report["everyday"]:
        return True
    if earlier.get("weights") != report["weights"]:
        return False
    report["everyday"]["sealed"] = sealed
    return True


def families(model: Any, each: int, seed: int = SEED) -> dict[str, dict[str, float]]:
    """Return greedy accuracy on test questions by family and level; `all` of stories is the mean of levels 1 to 5."""
    asked: list[Problem] = [
        p for levels in FAMILIES.values() for level in levels for p in problems(level, "test", seed, each)
    ]
    right = [is_right(p, t) for p, t in zip(asked, sample(model, [p.question for p in asked]), strict=True)]
    table = {
        family: {
            level: float(np.mean([ok for p, ok in zip(asked, right, strict=True) if p.level == level]))
            for level in levels
        }
        for family, levels in FAMILIES.items()
    }
    table["stories"]["all"] = float(np.mean([table["stories"][f"level_{i}"] for i in range(1, 6)]))
    return table


def _everyday(model: Any, file: Path) -> dict[str, float]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    right = _right(model, rows, [str(row["answer"]) for row in rows])
    kinds = [f"{row['kind']}_{row['steps']}" for row in rows]
    return {"all": float(np.mean(right))} | {
        kind: float(np.mean([ok for is_, ok in zip(kinds, right, strict=True) if is_ == kind]))
        for kind in sorted(set(kinds))
    }


def _outside(model: Any, file: Path, count: int) -> float | None:
    """Return greedy accuracy on a file of questions; None when the file is not there."""
    if not file.exists():
        return None
    rows = [json.loads(line) for line in file.read_text().splitlines()][:count]
    answers = [row["answer"].rpartition("####")[2].strip().replace(",", "") for row in rows]
    return float(np.mean(_right(model, rows, answers)))


def _right(model: Any, rows: Sequence[Mapping[str, Any]], answers: Sequence[str]) -> list[bool]:
    texts = sample(model, [" ".join(row["question"].split()) for row in rows])
    return [same_answer(answer_of(text), answer) for text, answer in zip(texts, answers, strict=True)]


def depths(model: Any, each: int, samples: int, seed: int = SEED) -> dict[str, Any]:
    """Return the steps of sampled solutions, right and wrong, and how they differ within a question."""
    levels = [level for family in ("quick", "stories", "procedures") for level in FAMILIES[family]]
    asked = [p for level in levels for p in problems(level, "test", seed, each)]
    drawn = [sample(model, [p.question for p in asked], TEMPERATURE, seed) for seed in range(samples)]
    counts = np.array([[len(split_steps(text)) for text in texts] for texts in drawn])
    right = np.array([[is_right(p, t) for p, t in zip(asked, texts, strict=True)] for texts in drawn])
    ratio = counts.max(0) / np.maximum(1, counts.min(0))
    return {
        "median": float(np.median(counts)),
        "p95": float(np.percentile(counts, 95)),
        "maximum": int(counts.max()),
        "p95_right": float(np.percentile(counts[right], 95)) if right.any() else None,
        "p95_wrong": float(np.percentile(counts[~right], 95)) if (~right).any() else None,
        "differ": float(np.mean(counts.max(0) > counts.min(0))),
        "ratio": float(np.median(ratio)),
        "tts_prm": TTS_PRM,
    }


@dataclass(frozen=True)
class Draft:
    """One draft of a typical search, for its price."""

    parent: int
    tokens: int
    score: float | None = 0.5


def price_ratio_64(generator: Architecture, verifier: Architecture | None) -> float:
    """Return the price of 64 single paths over one, for a typical query; the verifier's part left out if None."""

    def cost(paths: int) -> float:
        prompt, steps, tokens = TYPICAL
        score = None if verifier is None else 0.5
        drafts = [
            Draft(-1 if s == 0 else (s - 1) * paths + p, tokens, score)
            for s in range(steps)
            for p in range(paths)
        ]
        return price(prompt, drafts, generator, verifier or generator).eflops

    return cost(64) / cost(1)


def architecture(folder: Path) -> Architecture:
    """Return the numbers of a checkpoint that the price needs."""
    return Architecture(**read_architecture(folder))
