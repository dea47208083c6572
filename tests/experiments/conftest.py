"""Checkpoints of a few thousand random weights over thirty characters: their drafts end often, in every way."""

import json
from pathlib import Path

import pytest

from tests.support.checkpoints import character_tokenizer, save_generator, save_reward_model

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHARACTERS = list("\n 0123456789abcdox{}\\")
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|step|>"]
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a catalogue of one generator and two reward models."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = character_tokenizer(CHARACTERS, [("\n", "\n")], SPECIAL, TEMPLATE)
    save_generator(folder / "models" / "tiny", 0, tokenizer, SHAPE)
    ends = SHAPE | {"eos_token_id": tokenizer.eos_token_id}
    for seed, name in enumerate(("prm-a", "prm-b"), 1):
        save_reward_model(folder / "models" / name, seed, tokenizer, ends, "Qwen2ForProcessRewardModel")
    family = {
        "context_tokens": 200,
        "delimiter": "\n\n",
        "step_tag": "<|step|>",
        "step_tag_id": tokenizer.convert_tokens_to_ids("<|step|>"),
        "good_label": 1,
        "sampling": {"temperature": 1.0, "step_tokens": 10, "depth_limit": 5},
        "generators": [{"name": "tiny"}],
        "verifiers": [{"name": "prm-a"}, {"name": "prm-b"}],
    }
    (folder / "models" / "family.json").write_text(json.dumps(family))
    (folder / "tiny.yaml").write_text(
        "name: tiny\nhardware: {name: any, intensity: 156}\nverifier: prm-a\n"
        "cost_range: {low: 1.0e+6, high: 1.0e+9}\nfamily: models/family.json\n"
        "defaults:\n  models: {engine: {dtype: float32}}\n"
        "  verifiers: {engine: {dtype: float32, context_tokens: 200}}\n"
    )
    return folder
