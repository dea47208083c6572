"""What `CRITERIA.md` asks of the family beside what was measured, on two seeds; a miss is called one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.mini.checkpoints import SEED, read_report, report_name
from experiments.mini.ladder import GENERATORS
from experiments.mini.measures.evaluate import architecture, price_ratio_64
from experiments.mini.measures.selection import SAMPLES, default_verifier, gains_of
from experiments.mini.training.verifier import VERIFIERS

Report = Mapping[str, Any]
MEGABYTE = 1_000_000
# Test questions a level that CRITERIA.md asks for; the samples are `SAMPLES`.
QUESTIONS = 100


@dataclass(frozen=True)
class Measured:
    """What was measured on the test questions of one seed, by model: by `evaluate`, and by `select`."""

    evaluation: Report = field(default_factory=dict)
    selection: Report = field(default_factory=dict)

    @classmethod
    def read(cls, work: Path, seed: int = SEED) -> "Measured":
        """Return what is known: as it ships, with what the working folder's reports say instead."""
        return cls(*(read_report(report_name(kind, seed), work) for kind in ("evaluation", "selection")))


@dataclass(frozen=True)
class Row:
    """One criterion; a bound that is None does not bind, and without either the figure is only reported."""

    what: str
    wanted: str
    value: float | None
    least: float | None = None
    most: float | None = None

    @property
    def verdict(self) -> str:
        """Return whether the criterion is met."""
        if self.least is None and self.most is None:
            return ""
        if self.value is None:
            return "not measured"
        enough = self.least is None or self.value >= self.least
        return "met" if enough and (self.most is None or self.value <= self.most) else "**missed**"


def table(models: Path, measured: Measured, again: Measured) -> list[str]:
    """Return the criteria with what was measured, and with what other questions gave.

    Args:
        models: The folder that ships.
        measured: On the seed that everything else rests on.
        again: On the second seed, which changes the drawn questions alone; its columns are left out where nothing
            was measured.
    """
    drawn = list(_on_drawn_questions(measured))
    rows = [*_on_everyday_questions(measured), *drawn, *_on_checkpoints(models, measured)]
    if not (again.evaluation or again.selection):
        lines = [[row.what, row.wanted, _figure(row), row.verdict] for row in rows]
        return ["| what | criterion | measured | |", "|---|---|---:|---|", *map(line, lines)]
    second = {row.what: [_figure(row), row.verdict] for row in _on_drawn_questions(again)}
    lines = [[r.what, r.wanted, _figure(r), r.verdict, *second.get(r.what, ["", ""])] for r in rows]
    seeds = [_one_of(m.evaluation or m.selection, "seed") for m in (measured, again)]
    heads = f"| what | criterion | seed {seeds[0]} | | seed {seeds[1]} | |"
    return [heads, "|---|---|---:|---|---:|---|", *map(line, lines)]


def _on_everyday_questions(measured: Measured) -> Iterator[Row]:
    largest = measured.evaluation.get(GENERATORS[-1].name, {})
    everyday = {kind: percent(at(largest, "everyday", kind, "all")) for kind in ("sealed", "development")}
    yield Row("everyday, sealed, the largest", "at least 75 %", everyday["sealed"], least=75)
    yield Row("everyday, development, the largest", "reported", everyday["development"])


def _on_drawn_questions(measured: Measured) -> Iterator[Row]:
    evaluation, selection = measured.evaluation, measured.selection
    first, last = (evaluation.get(each.name, {}) for each in (GENERATORS[0], GENERATORS[-1]))
    stories = [evaluation[g.name]["families"]["stories"]["all"] for g in GENERATORS if g.name in evaluation]
    rises = [100 * (b - a) for a, b in pairwise(stories)] if len(stories) == len(GENERATORS) else []
    quick = percent(at(first, "families", "quick", "quick"))
    contest = percent(at(first, "families", "stories", "contest"))
    hardest = percent(at(last, "families", "stories", "level_5"))
    yield Row("*quick*, the smallest", "at least 60 %", quick, least=60)
    yield Row("stories, the least rise a rung, points", "at least 5", min(rises, default=None), least=5)
    yield Row("contest, the smallest", "at most 10 %", contest, most=10)
    yield Row("level 5, the largest", "at least 85 %", hardest, least=85)
    for verifier in VERIFIERS:
        gains = sorted(100 * gain for gain in gains_of(verifier.name, selection))
        worst, third = (gains[0], gains[-3]) if len(gains) == len(GENERATORS) else (None, None)
        name = f"best of {SAMPLES} by {verifier.name}"
        yield Row(f"{name}, the least gain, points", "at least 0", worst, least=0)
        yield Row(f"{name}, the third-best gain, points", "at least 8", third, least=8)


def _on_checkpoints(models: Path, measured: Measured) -> Iterator[Row]:
    bounds = (
        (GENERATORS[0], "the smallest", "about 16 at most", 16),
        (GENERATORS[-1], "the largest", "2.5 at most", 2.5),
    )
    for shape, which, wanted, most in bounds:
        ratio = at(measured.evaluation, shape.name, "price_ratio_64")
        yield Row(f"price of 64 paths over one, generator alone, {which}", wanted, ratio, most=most)
    in_use = default_verifier(measured.selection)
    for shape, _, wanted, most in bounds:
        folders = (models / shape.name, models / in_use)
        there = all((folder / "model.safetensors").exists() for folder in folders)
        ratio = price_ratio_64(*map(architecture, folders)) if there else None
        yield Row(f"the same with {in_use}, {shape.name}", wanted, ratio, most=most)
    weights = sum(file.stat().st_size for file in models.glob("*/model.safetensors")) / MEGABYTE
    yield Row("weights, MB", "at most 60", weights, most=60)


def counts(measured: Measured) -> list[str]:
    """Return on how many questions and samples the tables rest, in a paragraph."""
    greedy, depths, drawn, best, samples = _counts(measured)
    return [
        f"Measured on {greedy} test questions a level (greedy), {depths} a level in {drawn} samples (depths), and",
        f"{best} a level in {samples} samples (one sample, best of {SAMPLES}, verifiers).",
    ]


def deviations(measured: Measured) -> list[str]:
    """Return where fewer questions or samples were measured than `CRITERIA.md` asks for; nothing if none."""
    found = _counts(measured)
    if found == (str(QUESTIONS), str(QUESTIONS), str(SAMPLES), str(QUESTIONS), str(SAMPLES)):
        return []
    greedy, depths, drawn, best, samples = found
    return [
        f"**Deviation**: the criteria ask for {QUESTIONS} test questions a level and {SAMPLES} samples. What stands",
        f"here was measured on {greedy} a level (greedy), on {best} a level with {samples} samples (best of",
        f"{SAMPLES}), and depths on {depths} a level with {drawn} samples, so each level's figure is less",
        "certain than the criteria foresaw.",
        "",
    ]


def number(report: Report, key: str) -> str:
    """Return on how many of something a report rests, in words where it does not say."""
    return str(report.get(key, "an unknown number of"))


def at(report: Any, *keys: str) -> float | None:
    """Return a figure inside a report; None where it is not there."""
    for key in keys:
        report = report.get(key) if isinstance(report, Mapping) else None
    return None if report is None else float(report)


def percent(share: float | None) -> float | None:
    """Return a share in per cent."""
    return None if share is None else 100 * share


def line(cells: list[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def _figure(row: Row) -> str:
    return "–" if row.value is None else f"{row.value:.1f}"


def _counts(measured: Measured) -> tuple[str, str, str, str, str]:
    """Return questions for greedy and depths, samples of depths, questions and samples of best of N."""
    return (
        _one_of(measured.evaluation, "questions"),
        _one_of(measured.evaluation, "depth_questions"),
        _one_of(measured.evaluation, "depth_samples"),
        _one_of(measured.selection, "questions"),
        _one_of(measured.selection, "samples"),
    )


def _one_of(source: Report, key: str) -> str:
    numbers = {number(source[g.name], key) for g in GENERATORS if g.name in source}
    return " or ".join(sorted(numbers)) or "–"
