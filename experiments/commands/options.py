"""Default paths of the commands, and the paths of files that accompany a table of outcomes."""

from pathlib import Path

import click

CATALOGUE = Path("infra/catalogue/mini.yaml")
RECORDING = Path("experiments/data/math.parquet")
PATH = click.Path(path_type=Path)


def beside_of(outcomes: Path, kind: str) -> Path:
    """Return the path of a file of some kind that accompanies a table of outcomes.

    >>> beside_of(Path("data/math.parquet"), "latency").as_posix()
    'data/math.latency.json'
    """
    return outcomes.with_name(f"{outcomes.name.split('.')[0]}.{kind}.json")
