"""Model cards and the tables of `models/README.md`, from what was measured; a figure that is not there is a dash."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.catalogue.checkpoint import read_architecture
from experiments.mini.checkpoints import RECORD
from experiments.mini.corpus import FAMILIES, MIXTURE
from experiments.mini.ladder import GENERATORS, Rung
from experiments.mini.release import criteria
from experiments.mini.release.criteria import Measured, at, line, number
from experiments.mini.training.verifier import VERIFIERS, Judge

Report = Mapping[str, Any]
TEXT = Path(__file__).parent / "models.md"
TABLES = "<!-- tables -->"
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


def readme(models: Path, measured: Measured, again: Measured) -> str:
    """Return the family's page: the text beside this file with its tables.

    Args:
        models: The folder that ships.
        measured: What all tables rest on.
        again: The same on the test questions of another seed, for the criteria.
    """
    tables = [
        *_ladder(measured),
        "",
        *criteria.counts(measured),
        "",
        *_verifiers(measured.selection),
        "",
        "## Against the criteria",
        "",
        *criteria.deviations(measured),
        *criteria.table(models, measured, again),
    ]
    return TEXT.read_text().replace(TABLES, "\n".join(tables))


def _ladder(measured: Measured) -> list[str]:
    evaluation, selection = measured.evaluation, measured.selection
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
    lines = [line(heads), line(["---", *["---:"] * (len(heads) - 1)])]
    for shape in GENERATORS:
        report, chosen = evaluation.get(shape.name, {}), selection.get(shape.name, {})
        flat = {level: share for each in report.get("families", {}).values() for level, share in each.items()}
        values = [
            *(flat.get(level) for level in LEVELS),
            at(report, "everyday", "development", "all"),
            at(report, "everyday", "sealed", "all"),
            report.get("svamp"),
            report.get("gsm8k"),
            chosen.get("one_sample"),
            *(chosen.get(f"best_of_16_{v.name}") for v in VERIFIERS),
        ]
        lines.append(line([shape.name, *("–" if v is None else f"{100 * v:.1f}" for v in values)]))
    return lines


def _verifiers(selection: Report) -> list[str]:
    lines = [
        line(["verifier", "AUROC pooled", "AUROC within a question", "point-biserial"]),
        line(["---", *["---:"] * 3]),
    ]
    for shape in VERIFIERS:
        report = selection.get(shape.name, {})
        values = [report.get(key) for key in ("auroc_pooled", "auroc_within", "point_biserial")]
        lines.append(line([shape.name, *("–" if v is None else f"{v:.3f}" for v in values)]))
    return [*lines, line(["Skywork 1.5B (the paper, App. D.2)", "0.807", "–", "0.506"])]


def _answered(report: Report | None) -> list[str]:
    if not report:
        return []
    families = report["families"]
    stories = ", ".join(f"{families['stories'][f'level_{n}']:.0%}" for n in range(1, 6))
    return [
        f"| greedy, right, {number(report, 'questions')} test questions a level "
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
