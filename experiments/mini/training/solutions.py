"""Sampled solutions of the family with exact step labels: what the process reward models learn from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from experiments.mini.checkpoints import weights_digest
from experiments.mini.corpus import MIXTURE, problems
from experiments.mini.grading import split_steps
from experiments.mini.sampling import load_generator, sample
from experiments.mini.training.labels import step_labels

TEMPERATURES = (0.7, 0.85, 1.0)
# Another seed than the generators' corpus: a verifier judges questions that the generators did not learn by heart.
SEED_OFFSET = 1_000


@dataclass(frozen=True)
class Labelled:
    """One sampled solution: the question, its text, and a label a step."""

    question: str
    solution: str
    labels: tuple[bool, ...]


def sampled_solutions(checkpoint: Path, work: Path, each: int, seed: int) -> list[Labelled]:
    """Return `each` labelled solutions of one generator a temperature, sampled once for its weights.

    They are kept under `work/solutions`.
    """
    file = work / "solutions" / f"{checkpoint.name}-{weights_digest(checkpoint)}-{each}-{seed}.jsonl"
    if file.exists():
        return [msgspec.json.decode(line, type=Labelled) for line in file.read_bytes().splitlines()]
    model = load_generator(checkpoint)
    found: list[Labelled] = []
    for index, temperature in enumerate(TEMPERATURES):
        chosen = [
            problem
            for level, share in MIXTURE.items()
            for problem in problems(level, "train", seed + SEED_OFFSET + index, max(1, round(each * share)))
        ]
        texts = sample(model, [p.question for p in chosen], temperature, seed)
        found += [
            Labelled(problem.question, text, tuple(step_labels(problem, text)))
            for problem, text in zip(chosen, texts, strict=True)
            if split_steps(text)
        ]
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_bytes(b"\n".join(msgspec.json.encode(one) for one in found))
    partial.rename(file)
    return found


def training_set(checkpoints: Sequence[Path], work: Path, each: int, seed: int) -> list[Labelled]:
    """Return the labelled solutions of all generators, without repetitions."""
    found: dict[tuple[str, str], Labelled] = {}
    for checkpoint in checkpoints:
        for labelled in sampled_solutions(checkpoint, work, each, seed):
            found.setdefault((labelled.question, labelled.solution), labelled)
    return list(found.values())
