"""The lean forward pass is Qwen3's, and a killed run goes on where it was."""

import json
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from agents.catalogue.models import Architecture
from experiments.mini.checkpoints import MODELS, RECORD
from experiments.mini.corpus import batches, encoded, problems
from experiments.mini.ladder import GENERATORS, HEAD_DIM, Rung, generator_config, rung
from experiments.mini.measures.evaluate import price_ratio_64
from experiments.mini.sampling import load_generator
from experiments.mini.tokenizer import make_tokenizer, prompt_of
from experiments.mini.training.generator import train
from experiments.mini.training.lean import hidden_states
from experiments.mini.training.loop import STATE
from experiments.mini.training.verifier import VERIFIERS, load_verifier

TINY = Rung("tiny", 32, 2, 2, 64, 6, 5e-3)


@pytest.mark.parametrize("name", ["mini-100k", "mini-1m"])
def test_the_lean_pass_is_that_of_transformers(name: str) -> None:
    torch.manual_seed(0)
    shape = rung(name)
    model = Qwen3ForCausalLM(generator_config(shape)).eval()
    with torch.no_grad():
        # Norms that are not one and weights large enough to tell heads apart.
        for each in model.parameters():
            each.add_(torch.randn_like(each) * 0.05)
        tokens = torch.randint(0, len(make_tokenizer()), (3, 40))
        theirs = model.model(input_ids=tokens).last_hidden_state
        ours = hidden_states(dict(model.named_parameters()), shape, tokens)
    # bf16 keeps eight bits of each factor.
    assert (ours - theirs).abs().mean() < 0.02 * theirs.abs().mean()


def test_a_killed_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    pool = encoded(problems("quick", "train", 0, 400))
    whole = train(TINY, pool, tmp_path / "whole", compiled=False)
    assert train(TINY, pool, tmp_path / "killed", stop=3, compiled=False) is None
    assert (tmp_path / "killed" / STATE).exists()
    again = train(TINY, pool, tmp_path / "killed", compiled=False)
    assert whole is not None
    assert again is not None
    assert whole.last_loss == pytest.approx(again.last_loss, abs=1e-6)
    one, two = (load_generator(tmp_path / each).state_dict() for each in ("whole", "killed"))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert json.loads((tmp_path / "killed" / RECORD).read_text())["steps"] == TINY.steps
    assert not (tmp_path / "killed" / STATE).exists()


def test_batches_ask_for_the_solution_and_nothing_else() -> None:
    chosen = problems("level_1", "train", 0, 64)
    pool = encoded(chosen)
    batch = next(batches(pool, 2_000, 0))
    flat = batch.tokens.reshape(-1)
    assert (flat[batch.rows + 1] == batch.targets).all()
    tokenizer = make_tokenizer()
    text = tokenizer.decode(batch.targets)
    assert "\\boxed{" in text
    assert "user" not in text


def test_digits_are_single_tokens_and_any_text_comes_back() -> None:
    tokenizer = make_tokenizer()
    assert len(tokenizer) <= 3_072
    for text in ("17+25=42", "Zoë has 1,000 € – “half” of it?\n", "\\boxed{305}", prompt_of("ok?")):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert all(sum(c.isdigit() for c in tokenizer.decode([i])) <= 1 for i in ids)


def test_wide_searches_cost_what_the_criteria_allow() -> None:
    ratios = []
    for shape in GENERATORS:
        model = Qwen3ForCausalLM(generator_config(shape))
        parameters = sum(p.numel() for p in model.parameters())
        ratios.append(
            price_ratio_64(
                Architecture(
                    parameters=parameters,
                    layers=shape.layers,
                    query_heads=shape.heads,
                    kv_heads=1,
                    head_dim=HEAD_DIM,
                ),
                None,
            )
        )
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] <= 16
    assert ratios[-1] <= 2.5


def test_what_ships_loads_and_was_trained_to_the_end() -> None:
    judges = {judge.name: judge for judge in VERIFIERS}
    folders = [folder for folder in MODELS.glob("mini-*") if folder.is_dir()]
    assert len(folders) == len(GENERATORS) + len(VERIFIERS)
    for folder in folders:
        outcome = json.loads((folder / RECORD).read_text())
        assert outcome["name"] == folder.name
        if folder.name in judges:
            assert outcome["steps"] == judges[folder.name].steps
            load_verifier(folder)
        else:
            assert outcome["steps"] == rung(folder.name).steps
            load_generator(folder)
