"""Checkpoints of random weights, with the architectures we serve, and what plain transformers says about them.

Texts are nonsense; what is tested is that they are the nonsense the weights say.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 256
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|step|>"]
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.2,
}


def make_tokenizer() -> Any:
    """A character-level tokenizer whose blank line is one token, and which merges `ab` and `\\n\\nQ`."""
    characters = ["\n", *(chr(code) for code in range(32, 127))]
    merges = [("\n", "\n"), ("a", "b"), ("\n\n", "Q")]
    return character_tokenizer(characters, merges, SPECIAL, CHAT_TEMPLATE)


def character_tokenizer(
    characters: Sequence[str], merges: Sequence[tuple[str, str]], special: Sequence[str], template: str
) -> Any:
    """A tokenizer of single characters and merged pairs; the first special token ends a message."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    merged = [first + second for first, second in merges]
    ids = {token: at for at, token in enumerate([*characters, *merged, "<unk>"])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(merges), unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=special[0],
        pad_token=special[0],
        unk_token="<unk>",
        additional_special_tokens=list(special[1:]),
    )
    fast.chat_template = template
    return fast


def save_generator(folder: Path, seed: int, tokenizer: Any, shape: Mapping[str, Any]) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        **shape,
        vocab_size=len(tokenizer),
        head_dim=32,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_reward_model(
    folder: Path, seed: int, tokenizer: Any, shape: Mapping[str, Any], architecture: str
) -> None:
    """Save a Qwen2 body with the head of the architecture, under the names its public checkpoints use."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen2Config, Qwen2Model

    torch.manual_seed(seed)
    config = Qwen2Config(**shape, vocab_size=len(tokenizer))
    body = Qwen2Model(config).eval()
    weights = {f"model.{name}": weight.contiguous() for name, weight in body.state_dict().items()}
    head = _head(architecture, shape["hidden_size"])
    weights |= {name: weight.contiguous() for name, weight in head.state_dict().items()}
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    described = config.to_dict() | {
        "architectures": [architecture],
        "num_labels": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(described))
    tokenizer.save_pretrained(folder)


def _head(architecture: str, hidden: int) -> Any:
    from torch import nn

    if architecture == "Qwen2ForPrmModel":
        return nn.ModuleDict({"v_head": nn.ModuleDict({"summary": nn.Linear(hidden, 1)})})
    return nn.ModuleDict({"score": nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))})


class Micro:
    """The micro checkpoints' folders, and what plain transformers says about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def greedy(self, name: str, prompt_ids: Sequence[int], tokens: int) -> list[int]:
        import torch
        from transformers import Qwen3ForCausalLM

        model = Qwen3ForCausalLM.from_pretrained(self.path(name), dtype=torch.float32).eval()
        with torch.no_grad():
            ids = model.generate(
                torch.tensor([list(prompt_ids)]), do_sample=False, max_new_tokens=tokens, pad_token_id=0
            )
        return [int(token) for token in ids[0, len(prompt_ids) :]]

    def rewards(self, name: str, prompt_ids: Sequence[int]) -> Any:
        """Class probabilities of every token, shape (tokens, labels), by a plain forward pass."""
        import torch
        from safetensors.torch import load_file
        from transformers import Qwen2Config, Qwen2Model

        weights = load_file(self.folder / name / "model.safetensors")
        body = Qwen2Model(Qwen2Config.from_pretrained(self.path(name))).eval()
        body.load_state_dict({key[6:]: weight for key, weight in weights.items() if key.startswith("model.")})
        with torch.no_grad():
            hidden = body(torch.tensor([list(prompt_ids)])).last_hidden_state[0]
            if "v_head.summary.weight" in weights:
                values = hidden @ weights["v_head.summary.weight"].T + weights["v_head.summary.bias"]
                return torch.sigmoid(values).numpy()
            inner = torch.relu(hidden @ weights["score.0.weight"].T + weights["score.0.bias"])
            return torch.softmax(inner @ weights["score.2.weight"].T + weights["score.2.bias"], -1).numpy()
