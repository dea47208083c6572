"""The family that ships: its files say what its weights are, and its weights do what the cards say."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.catalogue.checkpoint import read_architecture
from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Architecture
from agents.catalogue.search_cost import search_cost
from agents.grading.grade import grade
from experiments.record.table import FACTS, HISTORY, Question, facts, question_set
from schemas.forest import Draft
from streams.demo.run import QUESTIONS

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "models"
FAMILY: dict[str, Any] = json.loads((MODELS / "family.json").read_text())
GENERATORS = [entry["name"] for entry in FAMILY["generators"]]
SMALLEST, LARGEST = GENERATORS[0], GENERATORS[-1]


def solutions(name: str, texts: Sequence[str]) -> list[str]:
    """Return what a generator makes of each text, the most probable token at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODELS / name, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32)
    asked = tokenizer(
        [FAMILY["prompt"].format(question=text) for text in texts], padding=True, return_tensors="pt"
    )
    torch.set_num_threads(1)
    with torch.inference_mode():
        found = model.generate(**asked, max_new_tokens=256, do_sample=False)  # type: ignore[misc]
    made: list[str] = tokenizer.batch_decode(found[:, asked.input_ids.shape[1] :], skip_special_tokens=True)
    return made


def right(name: str, questions: Sequence[Question]) -> int:
    made = solutions(name, [question.text for question in questions])
    return sum(
        grade(text, question.reference, ask=undecided).correct
        for question, text in zip(questions, made, strict=True)
    )


def undecided(rule: str, request: object) -> Any:
    raise AssertionError(f"{request}: these questions are answered with whole numbers")


@pytest.mark.torch
def test_family_file_names_every_model_and_its_prompt() -> None:
    from transformers import AutoTokenizer

    entries = [*FAMILY["generators"], *FAMILY["verifiers"]]
    assert {entry["name"] for entry in entries} == {each.name for each in MODELS.iterdir() if each.is_dir()}
    for entry in entries:
        assert entry["parameters"] == read_architecture(MODELS / entry["name"])["parameters"]
        tokenizer = AutoTokenizer.from_pretrained(MODELS / entry["name"])
        assert tokenizer.convert_tokens_to_ids(FAMILY["step_tag"]) == FAMILY["step_tag_id"]
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
        )
        assert asked == FAMILY["prompt"].format(question="Hi")
    assert all(entry["anchors"] for entry in FAMILY["generators"])


def test_all_weights_together_are_at_most_sixty_megabytes() -> None:
    assert sum(file.stat().st_size for file in MODELS.glob("*/model.safetensors")) <= 60e6


@pytest.mark.parametrize("name", [entry["name"] for entry in (*FAMILY["generators"], *FAMILY["verifiers"])])
def test_every_card_names_the_commit_that_trained_the_model(name: str) -> None:
    assert "at commit 5e71b4c " in (MODELS / name / "README.md").read_text()


def test_cost_range_spans_cheapest_to_dearest_search() -> None:
    catalogue = load_catalogue(ROOT / "infra" / "catalogue" / "mini-six.yaml")
    verifier, intensity = catalogue.verifier_named().architecture, catalogue.hardware.intensity

    def cost(name: str, paths: int, prompt: int, steps: int, tokens: int) -> float:
        model: Architecture = catalogue.model(name).architecture
        drafts = [
            Draft(
                parent=max(step - 1, 0) * paths + path if step else -1,
                depth=step + 1,
                tokens=tokens,
                finish="separator",
                score=1.0,
            )
            for step in range(steps)
            for path in range(paths)
        ]
        return search_cost(prompt, drafts, model, verifier, intensity).eflops

    short, long = cost(SMALLEST, 1, 30, 2, 6), cost(LARGEST, 64, 150, 15, 15)
    # Rounded outwards to 1, 2 or 5 times a power of ten.
    assert short / 2.5 <= catalogue.cost_range.low <= short
    assert long <= catalogue.cost_range.high <= 2.5 * long


def test_demo_questions_have_mixed_shares_and_are_unrecorded() -> None:
    rows = [json.loads(line) for line in (ROOT / QUESTIONS).read_text().splitlines()]
    others, asked = rows[:300], rows[300:]
    levels = [row["metadata"]["level"] for row in others]
    shares = {level: number / sum(HISTORY.values()) for level, number in HISTORY.items()}
    assert {level: levels.count(level) / 300 for level in shares} == pytest.approx(shares, abs=0.005)
    known = {q.text for name in ("math", "code", "mixed", "validation") for q in question_set(name)}
    assert {row["text"] for row in others} & known == set()
    recorded = {fact.question_id for fact in facts()}
    entries = [json.loads(line) for line in FACTS.read_text().splitlines()]
    rest = [entry for entry in entries if entry["id"] not in recorded]
    assert (len(rest), len(asked)) == (305, 100)
    assert asked == [
        {name: entry[name] for name in ("text", "reference", "grader")}
        | {"metadata": {"level": "facts", "family": "facts", "id": entry["id"]}}
        for entry in rest[:100]
    ]


@pytest.mark.torch
def test_smallest_is_right_on_quick_largest_on_stories() -> None:
    asked = question_set("test-23")
    quick = [question for question in asked if question.level == "quick"]
    stories = [question for question in asked if question.level != "quick"]
    assert (len(quick), len(stories)) == (30, 30)
    assert right(SMALLEST, quick) >= 12
    assert right(LARGEST, stories) > right(SMALLEST, stories) + 4
