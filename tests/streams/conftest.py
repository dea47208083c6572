"""A deployment in memory that answers from recordings made here, with the hashed encoder."""

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.serving.recording import RecordedPath, RecordedStep, write_paths
from schemas.query import Query
from streams.audit import Raw, Report, Span, audit
from streams.runtime.memory import Cluster
from streams.settings import Settings

CATALOGUE = """
name: recorded
hardware: {name: as an A800, intensity: 156}
verifier: judge
cost_range: {low_eflops: 1.0e+9, high_eflops: 1.0e+12}
defaults:
  models:
    group: mini
    checkpoint: none
    sampling: {temperature: 1.0, step_tokens: 64, depth_limit: 6}
models:
  - {name: small, architecture: {parameters: 100000, layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16}}
  - {name: large, architecture: {parameters: 900000, layers: 4, query_heads: 8, kv_heads: 4, head_dim: 16}}
verifiers:
  - name: judge
    checkpoint: none
    family: skywork
    architecture: {parameters: 200000, layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16}
"""

QUESTIONS = 12


def _question(number: int) -> tuple[str, str]:
    a, b = number % 7 + 2, number % 5 + 3
    return f"What is {a} + {b}, number {number % QUESTIONS}?", str(a + b)


def _paths(seed: int = 7) -> list[RecordedPath]:
    rng = random.Random(seed)
    paths = []
    for number in range(QUESTIONS):
        text, answer = _question(number)
        for model, skill in (("small", 0.5), ("large", 0.8)):
            for sample in range(3):
                right = rng.random() < skill
                steps = [
                    RecordedStep(text=f"{model} {sample}.{at}.\n\n", tokens=5, score=rng.uniform(0.2, 0.9))
                    for at in range(rng.randint(0, 2))
                ]
                said = answer if right else str(int(answer) + 1)
                end = RecordedStep(
                    text=f"So {sample}: \\boxed{{{said}}}",
                    tokens=6,
                    score=0.95 if right else 0.3,
                    finish="eos",
                )
                paths.append(
                    RecordedPath(
                        question=text, model=model, path=sample, steps=(*steps, end), prompt_tokens=12
                    )
                )
    return paths


@pytest.fixture(scope="session")
def recorded_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a catalogue and a recording."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "catalogue.yaml").write_text(CATALOGUE)
    write_paths(folder / "recording.jsonl", _paths())
    return folder


@pytest.fixture(scope="session")
def in_memory(recorded_files: Path) -> Callable[..., Settings]:
    """Return the settings of a deployment in memory, with fields replaced."""

    def settings(**fields: Any) -> Settings:
        defaults: dict[str, Any] = {
            "prefix": "m.", "catalogue": str(recorded_files / "catalogue.yaml"),
            "recorded": str(recorded_files / "recording.jsonl"), "state_dir": str(recorded_files / "state"),
            "encoder": "hashed", "encoder_dimension": 8, "query_partitions": 2, "join_partitions": 2,
            "group_partitions": 4, "warm_up": 2, "snapshot_every": 0,
        }  # fmt: skip
        return Settings().replace(**{**defaults, **fields})

    return settings


@pytest.fixture(scope="session")
def ask() -> Callable[..., Query]:
    """Return the query of a number, with its reference."""

    def query(number: int, **fields: Any) -> Query:
        text, answer = _question(number)
        return Query(**{"query_id": f"q{number}", "text": text, "reference": answer, **fields})

    return query


class InMemoryLog:
    """The topics of a cluster in memory, as the audit reads them."""

    def __init__(self, cluster: Cluster) -> None:
        self.broker = cluster.broker

    def spans(self, topics: Iterable[str]) -> dict[tuple[str, int], Span]:
        """Return what each partition holds."""
        return {
            (name, at): Span(self.broker.first(name, at), self.broker.end(name, at))
            for name in topics
            for at in range(self.broker.partitions(name))
        }

    def read(self, part: tuple[str, int], span: Span) -> Iterator[Raw]:
        """Yield the records of a span."""
        for r in self.broker.records(part[0]):
            if r.partition == part[1] and span.begin <= r.offset < span.end:
                yield Raw(r.offset, r.timestamp_ms, r.key, r.value)


@pytest.fixture(scope="session")
def audited() -> Callable[[Cluster], Report]:
    """Return the audit of a cluster, and refuse a discrepancy."""

    def run(cluster: Cluster) -> Report:
        report = audit(InMemoryLog(cluster), cluster.settings, cluster.broker.now_ms())
        assert report.wrong == 0, report.discrepancies
        assert report.queries == sum(report.states.values())
        return report

    return run
