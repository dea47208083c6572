"""The family that ships: what its files say is what its weights are, and it does what its card says."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from agents.catalogue.checkpoint import read_architecture
from agents.catalogue.file import load_catalogue
from experiments.mini.checkpoints import MODELS, REPORTS, SECOND_SEED, SEED
from experiments.mini.corpus import problems
from experiments.mini.grading import is_right
from experiments.mini.ladder import GENERATORS
from experiments.mini.measures.selection import SAMPLES, default_verifier
from experiments.mini.measures.summary import summary
from experiments.mini.release.cards import readme
from experiments.mini.release.criteria import Measured
from experiments.mini.release.models import QUESTIONS, TEST, cost_range
from experiments.mini.sampling import load_generator, sample
from experiments.mini.tasks.problem import split_of
from experiments.mini.tokenizer import make_tokenizer, prompt_of
from experiments.mini.training.verifier import VERIFIERS, verifier_text
from experiments.record.questions import HISTORY
from streams.demo.run import QUESTIONS as ASKED

ROOT = Path(__file__).parents[3]
CATALOGUE = ROOT / "infra" / "catalogue" / "mini.yaml"
MEGABYTE = 1_000_000


def right(name: str, levels: tuple[str, ...], each: int) -> int:
    torch.set_num_threads(1)
    asked = [problem for level in levels for problem in problems(level, "test", 23, each)]
    texts = sample(load_generator(MODELS / name), [problem.question for problem in asked])
    return sum(is_right(problem, text) for problem, text in zip(asked, texts, strict=True))


def test_family_file_names_every_model_and_what_a_consumer_must_know() -> None:
    family = json.loads((MODELS / "family.json").read_text())
    assert [entry["name"] for entry in family["generators"]] == [shape.name for shape in GENERATORS]
    assert [entry["name"] for entry in family["verifiers"]] == [shape.name for shape in VERIFIERS]
    for entry in (*family["generators"], *family["verifiers"]):
        assert entry["parameters"] == read_architecture(MODELS / entry["name"])["parameters"]
    assert make_tokenizer().convert_tokens_to_ids(family["step_tag"]) == family["step_tag_id"]
    assert family["prompt"].format(question="Hi") == prompt_of("Hi")
    assert family["verifier_prompt"] == verifier_text("{question}", ["{step 1}", "{step 2}"])
    assert all(entry["anchors"] for entry in family["generators"])
    assert {folder.name for folder in MODELS.iterdir() if folder.is_dir()} == {
        shape.name for shape in (*GENERATORS, *VERIFIERS)
    }


def test_all_weights_together_are_at_most_sixty_megabytes() -> None:
    assert sum(file.stat().st_size for file in MODELS.glob("*/model.safetensors")) <= 60 * MEGABYTE


def test_catalogue_and_page_are_those_of_the_reports() -> None:
    measured, again = (Measured.read(MODELS / "none", seed) for seed in (SEED, SECOND_SEED))
    catalogue = load_catalogue(CATALOGUE)
    assert catalogue.verifier == default_verifier(measured.selection)
    low, high = cost_range(catalogue)
    assert (catalogue.cost_range.low_eflops, catalogue.cost_range.high_eflops) == (low, high)
    assert (MODELS / "README.md").read_text() == readme(MODELS, measured, again)


def test_the_demo_asks_test_questions_and_none_that_can_be_recorded() -> None:
    assert ROOT / ASKED == MODELS / QUESTIONS
    rows = [json.loads(line) for line in (MODELS / QUESTIONS).read_text().splitlines()]
    assert Counter(row["metadata"]["level"] for row in rows) == TEST
    assert {split_of(row["text"]) for row in rows} == {"test"}
    shares = {level: number / sum(HISTORY.values()) for level, number in HISTORY.items()}
    assert {level: number / len(rows) for level, number in TEST.items()} == pytest.approx(shares, abs=0.005)


def test_the_report_of_the_family_has_every_measure_by_generator() -> None:
    evaluation = json.loads((REPORTS / "evaluation.json").read_text())
    code = {"one_sample": 0.3, f"pass_at_{SAMPLES}": 0.9}
    selection = {
        name: {"one_sample": 0.5, f"best_of_{SAMPLES}_mini-prm-s": 0.6, "families": {"code": code}}
        for name in evaluation
    }
    report = summary(evaluation, selection | {"mini-prm-s": {"auroc_pooled": 0.8}}, 20, 11)
    assert [row["name"] for row in report["generators"]] == [
        g.name for g in GENERATORS if g.name in evaluation
    ]
    row = report["generators"][0]
    assert row[f"best_of_{SAMPLES}"] == {"mini-prm-s": 0.6}
    assert row["code"] == {"greedy": report["families"]["code"][row["name"]], **code}
    assert (row["questions"], row["depth_samples"]) == (40, 3)
    (verifier,) = report["verifiers"]
    assert (verifier["name"], verifier["auroc_pooled"]) == ("mini-prm-s", 0.8)
    assert verifier["parameters"] > 0
    for key in ("families", "everyday"):
        assert all(set(each) <= set(evaluation) for each in report[key].values())
    first = GENERATORS[0].name
    levels = [evaluation[first]["families"]["code"][f"code_{n}"] for n in (2, 3, 4, 6)]
    assert report["families"]["code"][first] == pytest.approx(sum(levels) / 4)
    assert set(report["price_ratio_64"]) > {first, "qwen3-0.6b"}


def test_the_smallest_answers_quick_questions_and_the_largest_more_of_the_stories() -> None:
    small, large = GENERATORS[0].name, GENERATORS[-1].name
    assert right(small, ("quick",), 30) >= 12
    stories = ("level_1", "level_2", "level_3")
    assert right(large, stories, 10) > right(small, stories, 10) + 4


def test_odd_text_goes_through_a_generator() -> None:
    odd = ["", "漢字 émigré \x00", "What is \\frac{1}{2}$?\r\n", "x" * 300]
    assert len(sample(load_generator(MODELS / GENERATORS[0].name), odd)) == len(odd)
