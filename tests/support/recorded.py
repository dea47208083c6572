"""Two models and what they answer, as a catalogue and a recording: searches are deterministic and take no time."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.serving.recorded import RecordedPath, RecordedStep, write_paths
from streams.settings import Settings

CATALOGUE = """
name: recorded
hardware: {name: as an A800, intensity: 156}
verifier: judge
cost_range: {low: 1.0e+9, high: 1.0e+12}
defaults:
  models:
    group: mini
    checkpoint: none
    sampling: {temperature: 1.0, step_tokens: 64, depth_limit: 8}
models:
  - {name: small, architecture: {parameters: 100000, layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16}}
  - {name: large, architecture: {parameters: 900000, layers: 4, query_heads: 8, kv_heads: 4, head_dim: 16}}
verifiers:
  - name: judge
    checkpoint: none
    family: skywork
    architecture: {parameters: 200000, layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16}
"""


def recorded_settings(folder: Path, paths: Sequence[RecordedPath], **fields: Any) -> Settings:
    """Return the settings of a deployment that answers from a recording, whose files are written to a folder."""
    (folder / "catalogue.yaml").write_text(CATALOGUE)
    write_paths(folder / "recording.jsonl", paths)
    files = {"catalogue": "catalogue.yaml", "recorded": "recording.jsonl", "state_dir": "state"}
    defaults: dict[str, Any] = {name: str(folder / file) for name, file in files.items()}
    defaults |= {"encoder": "hashed", "query_partitions": 2, "join_partitions": 2, "group_partitions": 4}
    return Settings().replace(**{**defaults, **fields})


def recorded_in_memory(folder: Path, paths: Sequence[RecordedPath], **fields: Any) -> Settings:
    """Return the settings of a deployment in memory that answers from a recording."""
    small = {"prefix": "m.", "encoder_dimension": 8, "warm_up": 2, "snapshot_every": 0}
    return recorded_settings(folder, paths, **{**small, **fields})


def question(number: int) -> tuple[str, str]:
    """Return a question and its answer."""
    a, b = number % 17 + 2, number % 11 + 3
    return f"What is {a} + {b}, number {number}?", str(a + b)


def recorded_paths(
    questions: int, *, samples: int = 4, steps: tuple[int, int] = (2, 5), seed: int = 7
) -> list[RecordedPath]:
    """Return sampled paths: the large model is right more often, and right paths score higher.

    Args:
        questions: How many questions.
        samples: Paths of each model for each question.
        steps: The least and the most steps of a path.
        seed: Of the draws.
    """
    rng = random.Random(seed)
    return [
        _path(number, model, sample, rng.random() < skill, rng.randint(*steps) - 1, rng)
        for number in range(questions)
        for model, skill in (("small", 0.5), ("large", 0.8))
        for sample in range(samples)
    ]


def _path(
    number: int, model: str, sample: int, right: bool, thoughts: int, rng: random.Random
) -> RecordedPath:
    text, answer = question(number)
    low, high = (0.5, 0.9) if right else (0.1, 0.6)
    steps = [
        RecordedStep(
            text=f"{model} {sample}.{at} thinks.\n\n", tokens=rng.randint(4, 20), score=rng.uniform(low, high)
        )
        for at in range(thoughts)
    ]
    said = answer if right else str(int(answer) + 1)
    end = RecordedStep(
        text=f"So {sample}: \\boxed{{{said}}}", tokens=6, score=0.95 if right else 0.3, finish="eos"
    )
    return RecordedPath(question=text, model=model, path=sample, steps=(*steps, end), prompt_tokens=12)


def write_steps(path: Path, question: str, texts: Sequence[str], tokens: int) -> None:
    """Write a recording in which both models always answer a question in the same steps of so many tokens each."""
    steps = [RecordedStep(text=text, tokens=tokens, score=0.9) for text in texts[:-1]]
    last = RecordedStep(text=texts[-1], tokens=tokens, score=0.9, finish="eos")
    paths = [
        RecordedPath(question=question, model=model, path=0, prompt_tokens=9, steps=(*steps, last))
        for model in ("small", "large")
    ]
    write_paths(path, paths)
