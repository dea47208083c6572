"""Paths rendered step by step have the tokens of paths rendered whole."""

from pathlib import Path

import pytest

from agents.catalogue.file import load_catalogue
from agents.catalogue.models import Sampling, VerifierModel
from agents.serving.engine import Continuer, Prefix
from agents.serving.prompts import ChatPrompts
from agents.verifier.formats import StepTagFormat
from experiments.sampler.texts import Reencoding, Stepwise, closes
from schemas.query import Message

ROOT = Path(__file__).parents[3]
MINI = load_catalogue(ROOT / "infra" / "catalogue" / "mini.yaml")
SMALLEST = str(ROOT / MINI.models[0].checkpoint)
QUESTION = "A farm stores 19 potatoes. 3 potatoes spoil. How many are left?"
PATHS = [
    ("spoiled: 19-3=16\n\n",),
    ("spoiled: 19-3=16\n\n", "\\boxed{16}"),
    ("\nspoiled: 19\n\n", "\n\n", " -3=16\n\n", "16"),
    ("cut in the mid", "dle: 19-3\n\n", "<|step|> is no tag\n\n", ""),
]


@pytest.mark.parametrize("steps", PATHS)
@pytest.mark.parametrize("verifier", MINI.verifiers, ids=lambda each: each.name)
def test_verifier_prompts(verifier: VerifierModel, steps: tuple[str, ...]) -> None:
    whole = StepTagFormat(ChatPrompts.load(str(ROOT / verifier.checkpoint)), "<|step|>")
    stepwise = Stepwise(whole)
    for _ in range(2):  # the second is remembered
        assert stepwise.render(QUESTION, steps) == whole.render(QUESTION, steps)


@pytest.mark.parametrize("steps", PATHS)
def test_generator_prompts(steps: tuple[str, ...]) -> None:
    prompts = ChatPrompts.load(SMALLEST)
    sampling = Sampling(temperature=1.0, step_tokens=32, depth_limit=10)
    prefix = Prefix(messages=(Message(role="user", content=QUESTION),), steps=steps)
    whole = Continuer("m", prompts, 1024, remembered=0).plan(prefix, sampling)
    assert Reencoding("m", prompts, 1024, "\n\n").plan(prefix, sampling) == whole


def test_a_delimiter_that_tokens_reach_over_closes_nothing(tiny: Path) -> None:
    assert closes(ChatPrompts.load(SMALLEST), "\n\n")
    assert not closes(ChatPrompts.load(str(tiny / "models" / "tiny")), "\n")
