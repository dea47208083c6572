"""Options that several commands share, and the paths of files that accompany a table of outcomes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any] | click.Command)

CATALOGUE = Path("infra/catalogue/mini.yaml")
RECORDING = Path("experiments/data/math.parquet")
TRAFFIC = Path("experiments/data/mixed.parquet")
PATH = click.Path(path_type=Path)

mapping = click.option(
    "--mapping", type=PATH, help="File that names the columns (experiments/outcomes/foreign.py)."
)
catalogue = click.option(
    "--catalogue", type=PATH, default=CATALOGUE, show_default=True, help="The models and verifiers."
)
jobs = click.option("--jobs", type=click.IntRange(min=1), help="Processes; default: one per core.")
cache = click.option(
    "--cache",
    type=PATH,
    default=Path("out/vectors"),
    show_default=True,
    help="Folder that caches embeddings.",
)


def outcomes(default: Path) -> Callable[[F], F]:
    """Return the option `--outcomes`, which a command takes as `source`."""
    return click.option(
        "--outcomes", "source", type=PATH, default=default, show_default=True,
        help="A recording, or any CSV, JSONL or Parquet file together with --mapping.",
    )  # fmt: skip


def beside_of(outcomes: Path, kind: str) -> Path:
    """Return the path of a file of some kind that accompanies a table of outcomes.

    >>> beside_of(Path("data/math.parquet"), "latency").as_posix()
    'data/math.latency.json'
    """
    return outcomes.with_name(f"{outcomes.name.split('.')[0]}.{kind}.json")
