"""What several commands share: default paths, and where something that belongs to outcomes is kept."""

from pathlib import Path

import click

CATALOGUE = Path("infra/catalogue/mini.yaml")
RECORDING = Path("experiments/data/math.parquet")
PATH = click.Path(path_type=Path)


def beside_of(outcomes: Path, kind: str) -> Path:
    """Return where something that belongs to outcomes is kept.

    >>> beside_of(Path("data/math.parquet"), "latency").as_posix()
    'data/math.latency.json'
    """
    return outcomes.with_name(f"{outcomes.name.split('.')[0]}.{kind}.json")
