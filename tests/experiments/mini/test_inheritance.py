"""What a verifier starts from: a generator's layers, and heads that look back by one token."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Model

from experiments.mini.corpus import problems_of
from experiments.mini.inheritance import inherit, look_back
from experiments.mini.ladder import HEAD_DIM, ROPE_THETA, Rung, verifier_config
from experiments.mini.sampling import load_generator
from experiments.mini.tokenizer import make_tokenizer, prompt_of

GENERATOR = Path(__file__).parents[3] / "models" / "mini-500k"
SHAPE = Rung("of-500k", 96, 6, 3, 3, 256, 1, 1e-3, "mini-500k", reading=4)


def sequences(count: int) -> list[list[int]]:
    tokenizer = make_tokenizer()
    problems = islice(problems_of("level_2", "validation", 0), count)
    return [tokenizer.encode(prompt_of(p.question) + p.solution, add_special_tokens=False) for p in problems]


def test_heads_that_look_back_put_nearly_all_their_weight_on_the_token_before() -> None:
    torch.manual_seed(0)
    config = verifier_config(SHAPE)
    config._attn_implementation = "eager"
    trunk = Qwen2Model(config).eval()
    look_back(trunk.layers[4], HEAD_DIM, ROPE_THETA, size=1.0, seed=0)
    ids = torch.tensor([sequences(1)[0]])
    with torch.inference_mode():
        weights = trunk(input_ids=ids, output_attentions=True).attentions
    before = torch.arange(ids.shape[1] - 1)
    assert float(weights[4][0, :, before + 1, before].mean()) > 0.9
    assert float(weights[3][0, :, before + 1, before].mean()) < 0.2


def test_a_verifier_that_inherits_still_predicts_what_the_generator_predicts() -> None:
    generator = load_generator(GENERATOR)
    trunk = Qwen2Model(verifier_config(SHAPE)).eval()
    inherit(trunk, generator, sequences(50), HEAD_DIM)
    agree = total = 0
    with torch.inference_mode():
        for ids in sequences(70)[50:]:
            tokens = torch.tensor([ids])
            read = trunk(input_ids=tokens, output_hidden_states=True).hidden_states[4]
            told = (trunk.norm(read) @ trunk.embed_tokens.weight.T).argmax(-1)
            wanted = generator(input_ids=tokens).logits.argmax(-1)
            agree += int((told == wanted).sum())
            total += len(ids)
    assert agree / total > 0.7


def test_a_generator_of_another_width_is_refused() -> None:
    trunk = Qwen2Model(verifier_config(Rung("narrow", 32, 5, 1, 1, 64, 1, 1e-3, reading=4)))
    with pytest.raises(ValueError, match="shapes must agree"):
        inherit(trunk, load_generator(GENERATOR), sequences(1), HEAD_DIM)
