"""The process reward models: shape, input format, forward pass and files.

A checkpoint is what vLLM's `Qwen2ForProcessRewardModel` loads: a Qwen2 trunk (`model.*`) under a two-layer head
(`score.0`, `score.2`) with two labels. The score of a step is the probability of label 1 at its step tag.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen2Config, Qwen2Model

from experiments.mini.checkpoints import RECORD
from experiments.mini.ladder import HEAD_DIM, ROPE_THETA
from experiments.mini.tokenizer import CONTEXT_TOKENS, END, PAD, STEP, make_tokenizer, prompt_of, token_id
from experiments.mini.training.lean import Weights, norm, product, rotary, rotated
from experiments.mini.training.loop import Outcome

GOOD_LABEL = 1


@dataclass(frozen=True)
class Judge:
    """One verifier: `reading` of its layers learn to write solutions in `reading_steps`, those above to compare.

    `inherits` names the generator of the same hidden size whose layers the first ones start from; empty: from nothing.
    """

    name: str
    hidden: int
    layers: int
    intermediate: int
    reading: int
    reading_steps: int
    steps: int
    learning_rate: float
    inherits: str = ""

    @property
    def heads(self) -> int:
        """Heads of 32: Qwen2 has no head dimension of its own in vLLM."""
        return self.hidden // HEAD_DIM


VERIFIERS = (
    Judge("mini-prm-s", 32, 8, 64, 5, 6_000, 3_000, 8e-3),
    Judge("mini-prm-l", 96, 6, 256, 4, 2_400, 2_000, 4e-3, "mini-500k"),
)


class ProcessRewardModel(nn.Module):
    """A Qwen2 trunk with a head of two labels on every token."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.model: Any = Qwen2Model(config)
        self.score = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size), nn.ReLU(), nn.Linear(config.hidden_size, 2)
        )

    @torch.inference_mode()
    def step_scores(self, question: str, steps: Sequence[str]) -> list[float]:
        """Return the probability of the good label at each step's tag."""
        tokens = torch.tensor([verifier_tokens(question, steps)])
        hidden = self.model(input_ids=tokens).last_hidden_state[tokens == token_id(STEP)]
        return [float(p) for p in self.score(hidden).softmax(-1)[:, GOOD_LABEL]]


def verifier_config(shape: Judge) -> Any:
    """Return the Qwen2 configuration of a process reward model with two labels (0 wrong, 1 right)."""
    return Qwen2Config(
        vocab_size=len(make_tokenizer()),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        initializer_range=0.02,
        bos_token_id=None,
        eos_token_id=token_id(END),
        pad_token_id=token_id(PAD),
        dtype="float32",
        id2label={0: "wrong", 1: "right"},
        label2id={"wrong": 0, "right": 1},
        tie_word_embeddings=False,
        architectures=["Qwen2ForProcessRewardModel"],
    )


def trunk_states(weights: Weights, shape: Judge, tokens: Tensor, layers: int | None = None) -> list[Tensor]:
    """Return the residual stream (b, t, h) below every layer and above the last: bf16 products, as `lean`.

    Args:
        weights: Parameters of a Qwen2Model by their names there.
        shape: Its shape.
        tokens: Token ids (b, t), padded at the right.
        layers: How many layers to run; all if None.
    """
    b, t = tokens.shape
    cos, sin = rotary(t)
    later = torch.ones(t, t, dtype=torch.bool).triu(1)
    states = [functional.embedding(tokens, weights["embed_tokens.weight"])]
    for i in range(shape.layers if layers is None else layers):
        at = f"layers.{i}."
        x = states[-1]
        y = norm(x, weights[at + "input_layernorm.weight"])
        q, k, v = (
            product(y, weights[f"{at}self_attn.{side}_proj.weight"]).float()
            + weights[f"{at}self_attn.{side}_proj.bias"]
            for side in "qkv"
        )
        q, k = (rotated(each.view(b, t, shape.heads, HEAD_DIM), cos, sin).transpose(1, 2) for each in (q, k))
        scores = (q * HEAD_DIM**-0.5).bfloat16() @ k.bfloat16().transpose(2, 3)
        shares = scores.float().masked_fill(later, -torch.inf).softmax(-1).bfloat16()
        read = shares @ v.bfloat16().view(b, t, shape.heads, HEAD_DIM).transpose(1, 2)
        x = (
            x
            + product(read.transpose(1, 2).reshape(b, t, -1), weights[at + "self_attn.o_proj.weight"]).float()
        )
        y = norm(x, weights[at + "post_attention_layernorm.weight"])
        gate, up = (product(y, weights[f"{at}mlp.{side}_proj.weight"]).float() for side in ("gate", "up"))
        states.append(x + product(functional.silu(gate) * up, weights[at + "mlp.down_proj.weight"]).float())
    return states


def verifier_text(question: str, steps: Sequence[str]) -> str:
    """Return what a verifier reads: the prompt, then each step without its blank line, each followed by the tag."""
    return prompt_of(question) + "".join(step.rstrip("\n") + STEP for step in steps)


def verifier_tokens(question: str, steps: Sequence[str]) -> list[int]:
    """Return the token ids of `verifier_text`."""
    ids: list[int] = make_tokenizer().encode(verifier_text(question, steps), add_special_tokens=False)
    return ids


def load_verifier(folder: Path) -> ProcessRewardModel:
    """Load a process reward model from its Hugging Face folder."""
    model = ProcessRewardModel(Qwen2Config.from_pretrained(folder, local_files_only=True))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def save_verifier(module: ProcessRewardModel, folder: Path, outcome: Outcome) -> None:
    """Write the verifier as an ordinary Hugging Face folder, with its record, last, beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    module.config.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    weights = {name: value.contiguous() for name, value in module.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / RECORD).write_text(json.dumps(asdict(outcome), indent=2) + "\n")
