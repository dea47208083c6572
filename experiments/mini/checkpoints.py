"""Where finished models and their reports are: those that ship, and those of a working folder."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

MODELS = Path(__file__).parents[2] / "models"
RECORD = "training.json"  # of a run; written last, so it says that a checkpoint is whole
REPORTS = Path(__file__).parent / "reports"
SEED, SECOND_SEED = 11, 2029  # of the test questions: of all tables, and of the one that repeats the criteria
FILES = ("config.json", "generation_config.json", "model.safetensors", RECORD)


def finished(name: str, work: Path) -> Path | None:
    """Return the folder of a finished checkpoint: the working folder's, else the one that ships; None: neither."""
    for folder in (work / name, MODELS / name):
        if (folder / RECORD).exists() and (folder / "model.safetensors").exists():
            return folder
    return None


def weights_digest(folder: Path) -> str:
    """Return 16 hexadecimal digits that name a checkpoint's weights: what was measured of others is not theirs."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint's own files; its tokenizer and card are written anew with what ships."""
    target.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        if (source / file).exists() and source.resolve() != target.resolve():
            shutil.copyfile(source / file, target / file)


def report_name(kind: str, seed: int) -> str:
    """Return the file of what `kind` measured (evaluation, selection) on the test questions of a seed."""
    return f"{kind}.json" if seed == SEED else f"{kind}-{seed}.json"


def read_report(name: str, work: Path) -> dict[str, Any]:
    """Return a report, by model: as it ships, with what the working folder's says instead."""
    found: dict[str, Any] = {}
    for folder in (REPORTS, work):
        if (folder / name).exists():
            found |= json.loads((folder / name).read_text())
    return found


def keep_reports(work: Path) -> None:
    """Copy a working folder's reports to those that ship: cards and catalogue can be made of them again."""
    seeded = [report_name(kind, seed) for kind in ("evaluation", "selection") for seed in (SEED, SECOND_SEED)]
    for name in (*seeded, "anchors.json"):
        if report := read_report(name, work):
            write_report(name, REPORTS, report)


def write_report(name: str, folder: Path, report: dict[str, Any]) -> None:
    """Write a report."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(report, indent=1) + "\n")
