"""Model cards and the tables of `models/README.md`, from what was measured; a figure that is not there is a dash."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from agents.space.family import read_architecture
from experiments.mini.checkpoints import RECORD
from experiments.mini.corpus import FAMILIES, MIXTURE
from experiments.mini.ladder import GENERATORS, Rung
from experiments.mini.measures.evaluate import architecture, price_ratio_64
from experiments.mini.measures.selection import SAMPLES, default_verifier
from experiments.mini.training.verifier import VERIFIERS, Judge

Report = Mapping[str, Any]
TEXT = Path(__file__).parent / "models.md"
TABLES = "<!-- tables -->"
MEGABYTE = 1_000_000
# Test questions a level that CRITERIA.md asks for; the samples are `SAMPLES`.
QUESTIONS = 100
LEVELS = [level for levels in FAMILIES.values() for level in levels]


def card(shape: Rung | Judge, folder: Path, report: Report | None, selection: Report) -> str:
    """Return a model's card: what it is, what it read and for how long, what it reaches.

    Args:
        shape: Generator or verifier.
        folder: Its checkpoint.
        report: Of a generator, as `evaluate` made it.
        selection: As `select` made it.
    """
    training = json.loads((folder / RECORD).read_text())
    size = read_architecture(folder)
    if isinstance(shape, Judge):
        kind, tag = "process reward model (Qwen2ForProcessRewardModel)", "token-classification"
        data = (
            "solutions sampled from all six generators at three temperatures, their steps labelled by exact arithmetic "
            "and by running programs"
        )
        reached = _judged(shape, selection)
    else:
        kind, tag = "generator (Qwen3ForCausalLM)", "text-generation"
        mixture = ", ".join(f"{level} {share:.0%}" for level, share in MIXTURE.items() if level != "spoken")
        data = (
            f"the train split in these shares: {mixture}; beside it a fifth as many spoken questions, and GSM8K's "
            "training questions, with their own numbers and with others"
        )
        reached = _answered(report)
    lines = [
        "---",
        "license: apache-2.0",
        "language: en",
        f"pipeline_tag: {tag}",
        "---",
        f"# {shape.name}",
        "",
        f"A {kind} of the mini family, made by `python -m experiments.mini`.",
        "",
        "| | |",
        "|---|---|",
        f"| parameters | {size['parameters']:,} |",
        f"| shape | hidden {shape.hidden}, {shape.layers} layers, {size['query_heads']} query heads and "
        f"{size['kv_heads']} cached head of {size['head_dim']}, feed-forward {shape.intermediate} |",
        f"| data | {data} |",
        f"| training | {training['steps']:,} steps, {training['tokens']:,} tokens, seed {training['seed']}, "
        f"{training['minutes']:.0f} minutes on one busy CPU core; loss {training['first_loss']:.2f} → "
        f"{training['last_loss']:.3f} |",
        *reached,
        "",
        "It answers the family's own tasks and some everyday questions, often wrongly. It is meant for trying, "
        "testing and measuring a serving system, not for use.",
    ]
    return "\n".join(lines) + "\n"


def readme(models: Path, evaluation: Report, selection: Report) -> str:
    """Return the family's page: the text beside this file with its tables."""
    tables = [
        *_ladder(evaluation, selection),
        "",
        *counts(evaluation, selection),
        "",
        *_verifiers(selection),
        "",
        "## Against the criteria",
        "",
        *deviations(evaluation, selection),
        *criteria(models, evaluation, selection),
    ]
    return TEXT.read_text().replace(TABLES, "\n".join(tables))


def criteria(models: Path, evaluation: Report, selection: Report) -> list[str]:
    """Return what `CRITERIA.md` asks beside what was measured, a table; a miss is called one."""
    first, last = (evaluation.get(each.name, {}) for each in (GENERATORS[0], GENERATORS[-1]))
    names = [g.name for g in GENERATORS if g.name in evaluation]
    stories = [evaluation[name]["families"]["stories"]["all"] for name in names]
    rises = [100 * (b - a) for a, b in pairwise(stories)]
    weights = sum(file.stat().st_size for file in models.glob("*/model.safetensors")) / MEGABYTE
    rows: list[tuple[str, str, float | None, bool | None]] = []

    def asked(
        what: str, wanted: str, value: float | None, least: float | None, most: float | None = None
    ) -> None:
        met = None if value is None else (least is None or value >= least) and (most is None or value <= most)
        rows.append((what, wanted, value, met))

    sealed = _at(last, "everyday", "sealed", "all")
    asked("everyday, sealed, the largest", "at least 75 %", _percent(sealed), 75)
    asked(
        "everyday, development, the largest",
        "reported",
        _percent(_at(last, "everyday", "development", "all")),
        None,
    )
    asked("*quick*, the smallest", "at least 60 %", _percent(_at(first, "families", "quick", "quick")), 60)
    whole = len(names) == len(GENERATORS)
    asked("stories, the least rise a rung, points", "at least 5", min(rises) if whole and rises else None, 5)
    asked(
        "contest, the smallest",
        "at most 10 %",
        _percent(_at(first, "families", "stories", "contest")),
        None,
        10,
    )
    asked("level 5, the largest", "at least 85 %", _percent(_at(last, "families", "stories", "level_5")), 85)
    asked(
        "price of 64 paths over one, generator alone, the smallest",
        "about 16 at most",
        _at(first, "price_ratio_64"),
        None,
        16,
    )
    asked(
        "price of 64 paths over one, generator alone, the largest",
        "2.5 at most",
        _at(last, "price_ratio_64"),
        None,
        2.5,
    )
    in_use = default_verifier(selection)
    for shape, most in ((GENERATORS[0], 16), (GENERATORS[-1], 2.5)):
        wanted = f"{'about ' if most == 16 else ''}{most} at most"
        folders = (models / shape.name, models / in_use)
        there = all((folder / "model.safetensors").exists() for folder in folders)
        ratio = price_ratio_64(*map(architecture, folders)) if there else None
        asked(f"the same with {in_use}, {shape.name}", wanted, ratio, None, most)
    for verifier in VERIFIERS:
        gains = _gains(selection, verifier.name)
        worst = 100 * min(gains) if len(gains) == len(GENERATORS) else None
        third = 100 * sorted(gains)[-3] if worst is not None else None
        asked(f"best of 16 by {verifier.name}, the least gain, points", "at least 0", worst, 0)
        asked(f"best of 16 by {verifier.name}, the third-best gain, points", "at least 8", third, 8)
    asked("weights, MB", "at most 60", weights, None, 60)
    words = {True: "met", False: "**missed**", None: "not measured"}
    return [
        "| what | criterion | measured | |",
        "|---|---|---:|---|",
        *(
            f"| {what} | {wanted} | {'–' if value is None else f'{value:.1f}'} | "
            f"{'' if wanted == 'reported' else words[met]} |"
            for what, wanted, value, met in rows
        ),
    ]


def counts(evaluation: Report, selection: Report) -> list[str]:
    """Return on how many questions and samples the tables rest, in a paragraph."""
    greedy, depths, drawn, best, samples = _counts(evaluation, selection)
    return [
        f"Measured on {greedy} test questions a level (greedy), {depths} a level in {drawn} samples (depths), and",
        f"{best} a level in {samples} samples (one sample, best of 16, verifiers).",
    ]


def deviations(evaluation: Report, selection: Report) -> list[str]:
    """Return where fewer questions or samples were measured than `CRITERIA.md` asks for; nothing if none."""
    found = _counts(evaluation, selection)
    if found == (str(QUESTIONS), str(QUESTIONS), str(SAMPLES), str(QUESTIONS), str(SAMPLES)):
        return []
    greedy, depths, drawn, best, samples = found
    return [
        f"**Deviation**: the criteria ask for {QUESTIONS} test questions a level and {SAMPLES} samples. What stands",
        f"here was measured on {greedy} a level (greedy), on {best} a level with {samples} samples (best of 16), and",
        f"depths on {depths} a level with {drawn} samples, so each level's figure is less certain than the criteria",
        "foresaw.",
        "",
    ]


def _counts(evaluation: Report, selection: Report) -> tuple[str, str, str, str, str]:
    """Return questions for greedy and depths, samples of depths, questions and samples of best of N."""

    def of(source: Report, key: str) -> str:
        numbers = {_number(source[g.name], key) for g in GENERATORS if g.name in source}
        return " or ".join(sorted(numbers)) or "–"

    return (
        of(evaluation, "questions"),
        of(evaluation, "depth_questions"),
        of(evaluation, "depth_samples"),
        of(selection, "questions"),
        of(selection, "samples"),
    )


def _number(report: Report, key: str) -> str:
    return str(report.get(key, "an unknown number of"))


def _ladder(evaluation: Report, selection: Report) -> list[str]:
    heads = [
        "model",
        *LEVELS,
        "everyday, development",
        "everyday, sealed",
        "SVAMP",
        "GSM8K",
        "one sample",
        *(f"best of 16, {v.name}" for v in VERIFIERS),
    ]
    lines = [_row(heads), _row(["---", *["---:"] * (len(heads) - 1)])]
    for shape in GENERATORS:
        report, chosen = evaluation.get(shape.name, {}), selection.get(shape.name, {})
        flat = {level: share for each in report.get("families", {}).values() for level, share in each.items()}
        values = [
            *(flat.get(level) for level in LEVELS),
            _at(report, "everyday", "development", "all"),
            _at(report, "everyday", "sealed", "all"),
            report.get("svamp"),
            report.get("gsm8k"),
            chosen.get("one_sample"),
            *(chosen.get(f"best_of_16_{v.name}") for v in VERIFIERS),
        ]
        lines.append(_row([shape.name, *("–" if v is None else f"{100 * v:.1f}" for v in values)]))
    return lines


def _verifiers(selection: Report) -> list[str]:
    lines = [
        _row(["verifier", "AUROC pooled", "AUROC within a question", "point-biserial"]),
        _row(["---", *["---:"] * 3]),
    ]
    for shape in VERIFIERS:
        report = selection.get(shape.name, {})
        values = [report.get(key) for key in ("auroc_pooled", "auroc_within", "point_biserial")]
        lines.append(_row([shape.name, *("–" if v is None else f"{v:.3f}" for v in values)]))
    return [*lines, _row(["Skywork 1.5B (the paper, App. D.2)", "0.807", "–", "0.506"])]


def _answered(report: Report | None) -> list[str]:
    if not report:
        return []
    families = report["families"]
    stories = ", ".join(f"{families['stories'][f'level_{n}']:.0%}" for n in range(1, 6))
    return [
        f"| greedy, right, {_number(report, 'questions')} test questions a level "
        f"| quick {families['quick']['quick']:.0%}; stories, levels 1 to 5: {stories}; contest "
        f"{families['stories']['contest']:.0%} |",
        *(
            f"| everyday questions, {kind} | {report['everyday'][kind]['all']:.1%} |"
            for kind in ("development", "sealed")
            if kind in report["everyday"]
        ),
    ]


def _judged(shape: Judge, selection: Report) -> list[str]:
    report = selection.get(shape.name)
    if not report:
        return []
    return [
        f"| AUROC on final correctness | {report['auroc_pooled']:.3f} pooled, {report['auroc_within']:.3f} within a "
        "question |"
    ]


def _gains(selection: Report, verifier: str) -> list[float]:
    key = f"best_of_16_{verifier}"
    return [s[key] - s["one_sample"] for g in GENERATORS if key in (s := selection.get(g.name, {}))]


def _at(report: Any, *keys: str) -> float | None:
    for key in keys:
        report = report.get(key) if isinstance(report, Mapping) else None
    return None if report is None else float(report)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
