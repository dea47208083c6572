"""The published family: vLLM and transformers agree on it, and it does what its card says.

These start vLLM once (about half a minute), so the engines are shared by the module.
"""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.mini.corpus import problems_of
from experiments.mini.evaluate import open_engine, parameters_of, path_means, sampled
from experiments.mini.labels import is_right, split_steps
from experiments.mini.ladder import GENERATORS, VERIFIERS
from experiments.mini.problems import LEVELS, Problem
from experiments.mini.sampling import load_generator, sample
from experiments.mini.tokenizer import make_tokenizer, prompt_of
from experiments.mini.verifier import load_verifier

MODELS = Path(__file__).parents[3] / "models"
MEGABYTE = 1_000_000

Engines = Callable[[str], Any]


@pytest.fixture(scope="module")
def engines() -> Engines:
    opened: dict[str, Any] = {}

    def engine(name: str) -> Any:
        if name not in opened:
            opened[name] = open_engine(MODELS / name, 0, pooling="prm" in name)
        return opened[name]

    return engine


def mixed_problems(count: int, seed: int) -> list[Problem]:
    each = count // len(LEVELS)
    return [problem for level in LEVELS for problem in islice(problems_of(level, "test", seed), each)]


def test_family_file_names_every_model_and_what_a_consumer_must_know() -> None:
    family = json.loads((MODELS / "family.json").read_text())
    assert [entry["name"] for entry in family["generators"]] == [rung.name for rung in GENERATORS]
    assert [entry["name"] for entry in family["verifiers"]] == [rung.name for rung in VERIFIERS]
    for entry in (*family["generators"], *family["verifiers"]):
        assert entry["parameters"] == parameters_of(MODELS / entry["name"])
    assert make_tokenizer().convert_tokens_to_ids(family["step_tag"]) == family["step_tag_id"]
    assert family["prompt"].format(question="Hi") == prompt_of("Hi")
    assert all(entry["anchors"] for entry in family["generators"])


def test_all_weights_together_are_at_most_forty_megabytes() -> None:
    assert sum(file.stat().st_size for file in MODELS.glob("*/model.safetensors")) <= 40 * MEGABYTE


def test_sizes_rise_and_verifiers_stand_between_the_generators_they_should() -> None:
    sizes = [parameters_of(MODELS / rung.name) for rung in GENERATORS]
    assert sizes == sorted(sizes)
    small, large = (parameters_of(MODELS / rung.name) for rung in VERIFIERS)
    assert sizes[0] < small < sizes[1]
    assert sizes[2] < large < sizes[4]


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["mini-120k", "mini-1m"])
def test_vllm_and_transformers_give_the_same_greedy_text(name: str, engines: Engines) -> None:
    torch.set_num_threads(1)
    problems = mixed_problems(50, 21)
    plain = sample(load_generator(MODELS / name), MODELS / name, [p.question for p in problems], 0.0, 0)
    served = [texts[0] for texts in sampled(engines(name), problems, 1, 0.0)]
    assert served == plain


@pytest.mark.vllm
@pytest.mark.parametrize("name", [rung.name for rung in VERIFIERS])
def test_vllm_pooling_scores_equal_a_plain_forward_pass(name: str, engines: Engines) -> None:
    problems = mixed_problems(25, 22)
    pairs = [(p.question, p.solution) for p in problems]
    pairs += [(p.question, p.solution.replace("=", "=1", 1)) for p in problems]
    served = path_means(engines(name), pairs)
    plain = load_verifier(MODELS / name)
    for question, solution in pairs:
        expected = float(np.mean(plain.step_scores(question, split_steps(solution))))
        assert served[question, solution] == pytest.approx(expected, rel=1.5e-2)


@pytest.mark.vllm
def test_odd_text_goes_through_the_generator(engines: Engines) -> None:
    odd = ["", "漢字 émigré \x00", "x" * 900, "What is \\frac{1}{2}$?\r\n"]
    problems = [Problem("math", "level_1", text, (), "0") for text in odd]
    assert len(sampled(engines("mini-120k"), problems, 1, 0.0)) == len(odd)


def test_ten_thousand_characters_go_through_the_generator() -> None:
    model = load_generator(MODELS / "mini-50k")
    assert len(sample(model, MODELS / "mini-50k", ["x" * 10_000], 0.0, 0)) == 1


@pytest.mark.vllm
def test_the_larger_of_two_sizes_is_right_more_often(engines: Engines) -> None:
    problems = mixed_problems(100, 23)
    small, large = (
        sum(
            is_right(p, texts[0])
            for p, texts in zip(problems, sampled(engines(name), problems, 1, 0.0), strict=True)
        )
        for name in ("mini-120k", "mini-1m")
    )
    assert large > small + 10
