"""Finished checkpoints: from the working folder into the repository, with a small record each."""

import shutil
from pathlib import Path

from experiments.family.ladder import GENERATORS
from experiments.family.train import RECORD
from experiments.family.verifier import VERIFIERS

CHECKPOINTS = Path(__file__).parent / "checkpoints"
FILES = ("config.json", "generation_config.json", "model.safetensors", RECORD)


def finished(name: str, work: Path) -> Path | None:
    """Return the folder of a finished checkpoint: published, else in the working folder; None when there is none."""
    for folder in (CHECKPOINTS / name, work / name):
        if (folder / RECORD).exists() and (folder / "model.safetensors").exists():
            return folder
    return None


def publish(work: Path) -> list[str]:
    """Copy every finished model that is not published yet; return the names copied.

    The tokenizer is one for all and lies beside the package's code, so it is not copied with each.
    """
    copied = []
    for shape in (*GENERATORS, *VERIFIERS):
        source, target = work / shape.name, CHECKPOINTS / shape.name
        if (target / RECORD).exists() or not (source / RECORD).exists():
            continue
        target.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            if (source / file).exists():
                shutil.copyfile(source / file, target / file)
        copied.append(shape.name)
    return copied
