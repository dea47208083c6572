"""Checkpoints of a few thousand random weights over thirty characters: their drafts end often, in every way."""

import json
from pathlib import Path
from typing import Any

import pytest

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
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


def make_tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    characters = list("\n 0123456789abcdox{}\\")
    ids = {token: at for at, token in enumerate([*characters, "\n\n", "<unk>"])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[("\n", "\n")], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|end|>",
        unk_token="<unk>",
        additional_special_tokens=SPECIAL[1:],
    )
    fast.chat_template = TEMPLATE
    return fast


def save_generator(folder: Path, seed: int) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = Qwen3Config(
        **SHAPE,
        vocab_size=len(tokenizer),
        head_dim=32,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_reward_model(folder: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file
    from torch import nn
    from transformers import Qwen2Config, Qwen2Model

    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = Qwen2Config(**SHAPE, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    weights = {f"model.{name}": w.contiguous() for name, w in Qwen2Model(config).state_dict().items()}
    head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    weights |= {f"score.{name}": w.contiguous() for name, w in head.state_dict().items()}
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    described = config.to_dict() | {"architectures": ["Qwen2ForProcessRewardModel"], "num_labels": 2}
    (folder / "config.json").write_text(json.dumps(described))
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a catalogue of one generator and two reward models."""
    folder = tmp_path_factory.mktemp("tiny")
    save_generator(folder / "models" / "tiny", 0)
    save_reward_model(folder / "models" / "prm-a", 1)
    save_reward_model(folder / "models" / "prm-b", 2)
    family = {
        "context_tokens": 200,
        "delimiter": "\n\n",
        "step_tag": "<|step|>",
        "step_tag_id": make_tokenizer().convert_tokens_to_ids("<|step|>"),
        "good_label": 1,
        "sampling": {"temperature": 1.0, "step_tokens": 10, "depth_limit": 5},
        "generators": [{"name": "tiny"}],
        "verifiers": [{"name": "prm-a"}, {"name": "prm-b"}],
    }
    (folder / "models" / "family.json").write_text(json.dumps(family))
    (folder / "tiny.yaml").write_text(
        "name: tiny\nhardware: {name: any, intensity: 156}\nverifier: prm-a\n"
        "cost_range: {low_eflops: 1.0e+6, high_eflops: 1.0e+9}\nfamily: models/family.json\n"
        "defaults:\n  models: {engine: {dtype: float32}}\n"
        "  verifiers: {engine: {dtype: float32, context_tokens: 200}}\n"
    )
    return folder
