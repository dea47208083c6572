"""Verifiers: the lean trunk is Qwen2's, training runs and goes on, scores stand one a step."""

from pathlib import Path
from random import Random

import pytest
import torch
from transformers import Qwen2Model, Qwen3ForCausalLM

from experiments.mini.corpus import encoded, problems
from experiments.mini.grading import split_steps
from experiments.mini.ladder import Rung, generator_config, rung
from experiments.mini.measures.selection import path_means
from experiments.mini.sampling import load_generator
from experiments.mini.training.generator import train
from experiments.mini.training.inheritance import inherit, look_back
from experiments.mini.training.judging import NO_LABEL, encode, train_verifier
from experiments.mini.training.labels import step_labels
from experiments.mini.training.lean import norm
from experiments.mini.training.solutions import Labelled
from experiments.mini.training.verifier import (
    VERIFIERS,
    Judge,
    ProcessRewardModel,
    load_verifier,
    trunk_states,
    verifier_config,
)

TINY = Judge("tiny", 32, 3, 64, 2, 4, 4, 5e-3)


def wrong_or_right(count: int) -> list[Labelled]:
    rng, found = Random(0), []
    for problem in problems("level_2", "train", 5, count):
        text = problem.solution
        if rng.random() < 0.5:
            text = text.replace("=", "=1", 1)
        found.append(Labelled(problem.question, text, tuple(step_labels(problem, text))))
    return found


def test_the_lean_trunk_is_that_of_transformers() -> None:
    torch.manual_seed(0)
    shape = VERIFIERS[1]
    model = ProcessRewardModel(verifier_config(shape)).eval()
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each) * 0.05)
        tokens = torch.randint(0, model.config.vocab_size, (2, 30))
        theirs = model.model(input_ids=tokens).last_hidden_state
        weights = dict(model.model.named_parameters())
        ours = norm(trunk_states(weights, shape, tokens)[-1], weights["norm.weight"])
    assert (ours - theirs).abs().mean() < 0.02 * theirs.abs().mean()


def test_labels_stand_at_the_tags_and_marks_at_wrong_digits() -> None:
    for sample in wrong_or_right(30):
        made = encode(sample)
        assert [label for label in made.labels if label != NO_LABEL] == [int(each) for each in sample.labels]
        if not all(sample.labels) and "=" in split_steps(sample.solution)[0]:
            assert 0 in made.marks


def test_a_verifier_trains_and_scores_every_step(tmp_path: Path) -> None:
    pool = encoded(problems("quick", "train", 0, 300))
    train_verifier(TINY, wrong_or_right(60), pool, tmp_path / "tiny", None, rows=16, compiled=False)
    model = load_verifier(tmp_path / "tiny")
    asked = problems("level_2", "test", 5, 4)
    means = path_means(model, asked, [p.solution for p in asked])
    for problem, mean in zip(asked, means, strict=True):
        scores = model.step_scores(problem.question, split_steps(problem.solution))
        assert len(scores) == len(problem.steps)
        assert mean == pytest.approx(sum(scores) / len(scores), abs=1e-4)


def test_a_trunk_begins_as_the_generator_it_inherits_from(tmp_path: Path) -> None:
    shape = Rung("tiny", 64, 2, 2, 64, 30, 5e-3)
    train(shape, encoded(problems("quick", "train", 0, 400)), tmp_path / "tiny", compiled=False)
    generator = load_generator(tmp_path / "tiny")
    trunk = ProcessRewardModel(verifier_config(Judge("v", 64, 3, 64, 2, 1, 1, 1e-3))).model
    tokens = torch.randint(0, 1_000, (4, 20))
    inherit(trunk, generator, tokens.tolist())
    with torch.no_grad():
        theirs = generator.model(input_ids=tokens, output_hidden_states=True).hidden_states[1]
        ours = trunk(input_ids=tokens, output_hidden_states=True).hidden_states[1]
    # The norm of queries and keys is kept in the mean only.
    assert torch.nn.functional.cosine_similarity(theirs.flatten(), ours.flatten(), dim=0) > 0.95


def test_heads_that_look_back_put_nearly_all_their_weight_on_the_token_before() -> None:
    torch.manual_seed(0)
    config = verifier_config(VERIFIERS[1])
    config._attn_implementation = "eager"
    trunk = Qwen2Model(config).eval()
    look_back(trunk.layers[4], size=1.0, seed=0)
    tokens = torch.randint(0, config.vocab_size, (1, 80))
    with torch.inference_mode():
        weights = trunk(input_ids=tokens, output_attentions=True).attentions
    before = torch.arange(tokens.shape[1] - 1)
    assert float(weights[4][0, :, before + 1, before].mean()) > 0.9
    assert float(weights[3][0, :, before + 1, before].mean()) < 0.2


def test_a_generator_of_another_width_is_refused() -> None:
    narrow = Qwen2Model(verifier_config(VERIFIERS[0]))
    generator = Qwen3ForCausalLM(generator_config(rung("mini-500k"))).eval()
    with pytest.raises(ValueError, match="shapes must agree"):
        inherit(narrow, generator, torch.randint(0, 1_000, (1, 20)).tolist())
