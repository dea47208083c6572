"""Sampled solutions of the family with exact step labels: what the process reward models learn from."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec
from tqdm import tqdm

from experiments.mini.corpus import MIXTURE, problems_of
from experiments.mini.judging import Labelled
from experiments.mini.labels import split_steps, step_labels
from experiments.mini.sampling import load_generator, sample

TEMPERATURES = (0.7, 0.85, 1.0)
# Another seed than the generators' corpus: a verifier judges questions that the generators did not learn by heart.
SEED_OFFSET = 1_000


def sampled_solutions(work: Path, generator: str, each: int, seed: int) -> list[Labelled]:
    """Return `each` labelled solutions of one generator a temperature, sampled once and kept under `work/solutions`."""
    file = work / "solutions" / f"{generator}-{each}-{seed}.jsonl"
    if file.exists():
        return msgspec.json.decode(
            b"[" + b",".join(file.read_bytes().splitlines()) + b"]", type=list[Labelled]
        )
    model = load_generator(work / generator)
    found: list[Labelled] = []
    for index, temperature in enumerate(TEMPERATURES):
        problems = [
            problem
            for level, share in MIXTURE.items()
            for problem in islice(
                problems_of(level, "train", seed + SEED_OFFSET + index), max(1, round(each * share))
            )
        ]
        title = f"{generator} at {temperature}"
        texts = sample(
            model, work / generator, [p.question for p in problems], temperature, seed, title=title
        )
        for problem, text in zip(problems, texts, strict=True):
            if split_steps(text):
                found.append(Labelled(problem.question, text, tuple(step_labels(problem, text))))
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_bytes(b"\n".join(msgspec.json.encode(each_one) for each_one in found))
    partial.rename(file)
    return found


def training_set(work: Path, generators: Sequence[str], each: int, seed: int) -> list[Labelled]:
    """Return the labelled solutions of all generators, without repetitions."""
    found: dict[tuple[str, str], Labelled] = {}
    for name in tqdm(generators, desc="solutions", unit="generator"):
        for labelled in sampled_solutions(work, name, each, seed):
            found.setdefault((labelled.question, labelled.solution), labelled)
    return list(found.values())
