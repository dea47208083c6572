"""From finished checkpoints to what ships: `models/` with its `family.json`, test questions, and the catalogue.

python -m experiments.mini release                                            # models/ and infra/catalogue/
python -m experiments.mini release --models out/x/models --catalogue out/x/mini.yaml      # somewhere else
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.answers import run
from agents.catalogue.checkpoint import read_architecture
from agents.catalogue.eflops import price
from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Architecture, Catalogue
from experiments.mini.checkpoints import copy_checkpoint, finished
from experiments.mini.corpus import FAMILIES, problems
from experiments.mini.ladder import GENERATORS
from experiments.mini.measures.evaluate import Draft
from experiments.mini.release.cards import card, readme
from experiments.mini.release.criteria import Measured
from experiments.mini.tasks.problem import DELIMITER, SPLITS
from experiments.mini.tasks.programs import inputs_for
from experiments.mini.tokenizer import (
    CHAT_TEMPLATE,
    CONTEXT_TOKENS,
    END,
    STEP,
    make_tokenizer,
    prompt_of,
    token_id,
)
from experiments.mini.training.verifier import GOOD_LABEL, VERIFIERS, verifier_text

# Twice the 99th percentile of reference steps, and the paper's framework.
SAMPLING = {"temperature": 0.8, "step_tokens": 50, "depth_limit": 40}
TEMPLATE = Path("infra/catalogue/mini.yaml")
QUESTIONS = "mini-mixed-test.jsonl"
# Test questions a level, in the proportions of mixed traffic (CRITERIA.md): 300 in all.
TEST = {
    "quick": 90,
    **{f"level_{n}": 24 for n in range(1, 6)},
    "contest": 15,
    **{f"procedure_{n}": 15 for n in range(1, 4)},
    **{"code_2": 8, "code_3": 7, "code_4": 8, "code_6": 7},
}
TEST_SEED = 41
# Tokens of the prompt, steps, tokens a step: one quick answer, and a long search's path.
SHORT, LONG = (30, 2, 6), (150, 15, 15)


@dataclass(frozen=True)
class Reports:
    """What was measured of the family.

    Attributes:
        measured: By `evaluate` and `select`.
        anchors: By model and benchmark.
        again: As `measured`, on the test questions of the second seed.
    """

    measured: Measured
    anchors: Mapping[str, Mapping[str, float]]
    again: Measured = field(default_factory=Measured)


def release(work: Path, models: Path, reports: Reports, *, partial: bool = False) -> list[str]:
    """Write the family that ships; return the names of the models that are not there yet.

    Folders of models that a former `family.json` names and this family does not have are removed.

    Args:
        work: Where finished checkpoints are, if they do not ship already.
        models: The folder that ships.
        reports: For anchors, cards and the README.
        partial: Write what is there, to try it, even where a model is missing.

    Raises:
        FileNotFoundError: naming the missing models, unless `partial`; nothing is written then.
    """
    shapes = (*GENERATORS, *VERIFIERS)
    found = {s.name: folder for s in shapes if (folder := finished(s.name, work)) is not None}
    missing = [shape.name for shape in shapes if shape.name not in found]
    if missing and not partial:
        raise FileNotFoundError(
            f"not trained yet: {', '.join(missing)}; train them with `python -m experiments.mini all`"
        )
    models.mkdir(parents=True, exist_ok=True)
    _remove_former(models, {shape.name for shape in shapes})
    for shape in shapes:
        if shape.name not in found:
            continue
        target = models / shape.name
        copy_checkpoint(found[shape.name], target)
        make_tokenizer().save_pretrained(target)
        (target / "README.md").write_text(
            card(shape, target, reports.measured.evaluation.get(shape.name), reports.measured.selection)
        )
    family = family_file(models, list(found), reports.anchors)
    (models / "family.json").write_text(json.dumps(family, indent=2) + "\n")
    (models / QUESTIONS).write_text("".join(json.dumps(each) + "\n" for each in traffic()))
    (models / "README.md").write_text(readme(models, reports.measured, reports.again))
    return missing


def family_file(
    models: Path, names: Sequence[str], anchors: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Return `family.json`: all that a consumer must know and cannot read from a checkpoint."""

    def entry(name: str) -> dict[str, Any]:
        return {"name": name, "parameters": read_architecture(models / name)["parameters"]}

    return {
        "name": "mini",
        "version": 2,
        "tasks": {family: list(levels) for family, levels in FAMILIES.items()},
        "splits": list(SPLITS),
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
            {**entry(s.name), "anchors": dict(anchors.get(s.name, {}))} for s in GENERATORS if s.name in names
        ],
        "verifiers": [entry(s.name) for s in VERIFIERS if s.name in names],
    }


def traffic() -> list[dict[str, Any]]:
    """Return test questions, never recorded ones, in the proportions of mixed traffic, as `produce` reads them."""
    rows = []
    for level, count in TEST.items():
        for problem in problems(level, "test", TEST_SEED, count):
            reference: Any = problem.answer
            if problem.family == "code":
                reference = {"tests": [[value, run(problem.answer, value)] for value in inputs_for(problem)]}
            metadata = {"level": level, "family": problem.family}
            rows.append({"text": problem.question, "reference": reference, "metadata": metadata})
    return rows


def write_catalogue(template: Path, target: Path, verifier: str) -> Catalogue:
    """Write a catalogue with the verifier in use and the range of costs that its models have.

    Args:
        template: A catalogue of the family, whose text is kept but for these lines.
        target: Where it is written; it finds `models/family.json` from there.
        verifier: The one in use.
    """
    text = template.read_text()
    if target.resolve() != template.resolve():
        # The prior is what a recording of the family that ships taught, and knows nothing of another.
        text = re.sub(r"(?m)^prior: .*\n\n", "", text)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_with_lines(text, {"verifier": verifier}))
    low, high = cost_range(load_catalogue(target))
    target.write_text(
        _with_lines(text, {"verifier": verifier, "  low_eflops": _plain(low), "  high_eflops": _plain(high)})
    )
    return load_catalogue(target)


def cost_range(catalogue: Catalogue) -> tuple[float, float]:
    """Return where C̃ is 0 and 1: one quick answer of the smallest model, and 64 long paths of the largest.

    Rounded down and up to 1, 2 or 5 times a power of ten; never a clip.
    """
    verifier = catalogue.verifier_named().architecture
    sizes = sorted((m.architecture for m in catalogue.models), key=lambda each: each.parameters)
    intensity = catalogue.hardware.intensity
    low = _cost(1, *SHORT, sizes[0], verifier, intensity)
    high = _cost(64, *LONG, sizes[-1], verifier, intensity)
    round_ones = [m * 10.0**e for e in range(3, 30) for m in (1, 2, 5)]
    return max(each for each in round_ones if each <= low), min(each for each in round_ones if each >= high)


def _cost(
    paths: int,
    prompt: int,
    steps: int,
    tokens: int,
    generator: Architecture,
    verifier: Architecture,
    intensity: float,
) -> float:
    drafts = [
        Draft(-1 if s == 0 else (s - 1) * paths + p, tokens) for s in range(steps) for p in range(paths)
    ]
    return price(prompt, drafts, generator, verifier, intensity).eflops


def _with_lines(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^{key}: .*$", f"{key}: {value}", text)
        if count != 1:
            raise ValueError(f"the catalogue has {count} lines {key.strip()!r}; it needs one")
    return text


def _plain(value: float) -> str:
    """Write 1, 2 or 5 times a power of ten as YAML reads it.

    >>> _plain(5e8)
    '5.0e+8'
    """
    power = len(f"{value:.0f}") - 1
    return f"{value / 10**power:.1f}e+{power}"


def _remove_former(models: Path, keep: set[str]) -> None:
    file = models / "family.json"
    former = json.loads(file.read_text()) if file.exists() else {}
    for entry in (*former.get("generators", ()), *former.get("verifiers", ())):
        if entry["name"] not in keep and (models / entry["name"]).is_dir():
            shutil.rmtree(models / entry["name"])
