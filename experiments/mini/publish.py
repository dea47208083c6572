"""From working folders to `models/`: the checkpoints, a card each, `family.json`, and the table of the README."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.mini.corpus import MIXTURE, POOL
from experiments.mini.evaluate import parameters_of
from experiments.mini.ladder import GENERATORS, VERIFIERS, Rung, rung
from experiments.mini.problems import CONTEST, DELIMITER, LEVELS, SPLITS
from experiments.mini.programs import LEVELS as CODE_LEVELS
from experiments.mini.tokenizer import (
    CHAT_TEMPLATE,
    CONTEXT_TOKENS,
    END,
    STEP,
    prompt_of,
    token_id,
)
from experiments.mini.verifier import GOOD_LABEL, verifier_text

CHECKPOINT = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
OPTIONAL = ("generation_config.json", "special_tokens_map.json", "training.json")
SAMPLING = {"temperature": 0.8, "step_tokens": 32, "depth_limit": 10}
BEGIN, FINISH = "<!-- evaluation -->", "<!-- /evaluation -->"
# What the paper reports for its verifier on final correctness (App. D.2).
PAPER: dict[str, Any] = {
    "score_right": (0.8818, 0.1830),
    "score_wrong": (0.5961, 0.2934),
    "point_biserial": 0.5061,
    "auroc": 0.8067,
}


def publish(work: Path, models: Path, anchors: Mapping[str, Mapping[str, float]] | None = None) -> None:
    """Copy every trained model from `work` to `models` with its card, and write `family.json`.

    Raises:
        FileNotFoundError: naming the model that is not trained yet and the command that trains it.
    """
    for shape in (*GENERATORS, *VERIFIERS):
        if not (work / shape.name / "training.json").exists():
            raise FileNotFoundError(
                f"{shape.name} is not trained: python -m experiments.mini train {shape.name}"
            )
        target = models / shape.name
        target.mkdir(parents=True, exist_ok=True)
        for file in (*CHECKPOINT, *OPTIONAL):
            if (source := work / shape.name / file).exists():
                shutil.copyfile(source, target / file)
        (target / "README.md").write_text(card(shape, models))
    write_family(models, anchors or {})


def write_family(models: Path, anchors: Mapping[str, Mapping[str, float]]) -> None:
    """Write `family.json`: all that a consumer must know and cannot read from a checkpoint."""
    family = {
        "name": "mini",
        "version": 1,
        "tasks": {"mini-math": [*LEVELS, CONTEST], "mini-code": list(CODE_LEVELS)},
        "splits": {split: {"math": [*LEVELS, CONTEST], "code": list(CODE_LEVELS)} for split in SPLITS},
        "chat_template": CHAT_TEMPLATE,
        "prompt": prompt_of("{question}"),
        "verifier_prompt": verifier_text("{question}", ["{step 1}", "{step 2}"]),
        "delimiter": DELIMITER,
        "stop": [DELIMITER],
        "end_token": END,
        "answer": "\\boxed{...} in the last step",
        "step_tag": STEP,
        "step_tag_id": token_id(STEP),
        "good_label": GOOD_LABEL,
        "context_tokens": CONTEXT_TOKENS,
        "sampling": SAMPLING,
        "generators": [
            {
                "name": r.name,
                "parameters": parameters_of(models / r.name),
                "anchors": dict(anchors.get(r.name, {})),
            }
            for r in GENERATORS
        ],
        "verifiers": [{"name": r.name, "parameters": parameters_of(models / r.name)} for r in VERIFIERS],
    }
    (models / "family.json").write_text(json.dumps(family, indent=2) + "\n")


def card(shape: Rung, models: Path, report: Mapping[str, Any] | None = None) -> str:
    """Return the model card: what it is, what it was trained on and for how long, and what it reaches."""
    training = json.loads((models / shape.name / "training.json").read_text())
    verifier = shape in VERIFIERS
    data = (
        "solutions sampled from all six generators at temperatures 0.7, 0.85 and 1.0, their steps labelled by exact "
        "arithmetic and by running programs"
        if verifier
        else f"a pool of {POOL:,} problems of the train split: "
        + ", ".join(f"{level} {share:.0%}" for level, share in MIXTURE.items())
    )
    lines = [
        "---",
        "license: apache-2.0",
        "language: en",
        f"pipeline_tag: {'token-classification' if verifier else 'text-generation'}",
        "---",
        f"# {shape.name}",
        "",
        f"A {'process reward model' if verifier else 'generator'} of the mini family "
        f"({'Qwen2ForProcessRewardModel' if verifier else 'Qwen3ForCausalLM'}), made by `python -m experiments.mini`.",
        "",
        "| | |",
        "|---|---|",
        f"| parameters | {parameters_of(models / shape.name):,} |",
        f"| shape | hidden {shape.hidden}, {shape.layers} layers, {shape.heads} query and {shape.kv_heads} key-value "
        f"heads of 32, feed-forward {shape.intermediate} |",
        f"| data | {data} |",
        f"| training | {training['steps']:,} steps, seed 0, {training['minutes']:.0f} minutes on one CPU thread; "
        f"loss {training['first_loss']:.3f} → {training['last_loss']:.4f} |",
        *_reached(shape, report),
        "",
        "It knows mini-math and mini-code and nothing else. It is meant for trying, testing and measuring a serving "
        "system, not for use.",
    ]
    return "\n".join(lines) + "\n"


def _reached(shape: Rung, report: Mapping[str, Any] | None) -> list[str]:
    rows = [] if report is None else [*report["generators"], *report["verifiers"]]
    found = next((row for row in rows if row["name"] == shape.name), None)
    if found is None:
        return []
    if shape in VERIFIERS:
        return [
            f"| AUROC on final correctness | {found['auroc_pooled']:.3f} pooled, "
            f"{found['auroc_within']:.3f} within a question |"
        ]
    greedy = found["greedy"]
    levels = ", ".join(f"{greedy[level]:.0%}" for level in LEVELS)
    return [
        f"| greedy accuracy, levels 1 to 5 | {levels}; contest {greedy[CONTEST]:.0%}; all {greedy['all']:.1%} |"
    ]


def write_tables(models: Path, report: Mapping[str, Any]) -> None:
    """Put the evaluation's tables between the marks of `models/README.md`, and each result into its card."""
    readme = models / "README.md"
    text = readme.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(FINISH)
    readme.write_text(head + BEGIN + "\n" + tables(report) + FINISH + tail)
    for row in (*report["generators"], *report["verifiers"]):
        (models / row["name"] / "README.md").write_text(card(rung(row["name"]), models, report))


def tables(report: Mapping[str, Any]) -> str:
    """Return the evaluation as Markdown tables."""
    engine = report["engine"]
    samples = report["samples"]
    names = [row["name"] for row in report["verifiers"]]
    lines = [
        f"Sampled through {engine['name']} {engine['version']}, {report['questions']} test questions "
        f"(seed {report['seed']}); {samples} samples each at temperature {report['temperature']}. Per cent.",
        "",
        _row(["model", "parameters", "L1", "L2", "L3", "L4", "L5", "all", "contest", "one sample", f"pass@{samples}"]
             + [f"best of {samples}, {name}" for name in names] + ["code, one sample"]),
        _row(["---"] + ["---:"] * (11 + len(names))),
    ]  # fmt: skip
    for row in report["generators"]:
        cells = [*(row["greedy"][level] for level in LEVELS), row["greedy"]["all"], row["greedy"][CONTEST]]
        cells += [
            row["one_sample"],
            row[f"pass_at_{samples}"],
            *(row[f"best_of_{samples}"][name] for name in names),
        ]
        cells += [row["code"]["one_sample"]]
        lines.append(_row([row["name"], f"{row['parameters']:,}", *(f"{100 * cell:.1f}" for cell in cells)]))
    lines += [
        "",
        _row(["verifier", "parameters", "AUROC pooled", "AUROC within", "point-biserial", "right", "wrong"]),
        _row(["---"] + ["---:"] * 6),
    ]
    for row in report["verifiers"]:
        spread = [f"{row[key]['mean']:.4f} ± {row[key]['std']:.4f}" for key in ("score_right", "score_wrong")]
        figures = [f"{row[key]:.4f}" for key in ("auroc_pooled", "auroc_within", "point_biserial")]
        lines.append(_row([row["name"], f"{row['parameters']:,}", *figures, *spread]))
    right, wrong = PAPER["score_right"], PAPER["score_wrong"]
    lines.append(
        _row(["Skywork 1.5B (the paper, App. D.2)", "1,540,000,000", f"{PAPER['auroc']:.4f}", "—",
              f"{PAPER['point_biserial']:.4f}", f"{right[0]:.4f} ± {right[1]:.4f}", f"{wrong[0]:.4f} ± {wrong[1]:.4f}"])
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
