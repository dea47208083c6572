"""The ladder: six generators of the Qwen3 architecture with one cached head each, and how long each is trained."""

from dataclasses import dataclass
from typing import Any

from transformers import Qwen3Config

from experiments.mini.tokenizer import CONTEXT_TOKENS, END, PAD, make_tokenizer, token_id

# The least that vLLM's attention on CPUs takes.
HEAD_DIM = 32
ROPE_THETA = 10_000.0


@dataclass(frozen=True)
class Rung:
    """One generator: its shape, its training steps of about `BATCH_TOKENS` tokens each, and its learning rate."""

    name: str
    hidden: int
    layers: int
    heads: int
    intermediate: int
    steps: int
    learning_rate: float


# Tokens of one step, read in parts of one length each.
BATCH_TOKENS, PARTS = 8_192, 2
GENERATORS = (
    Rung("mini-100k", 48, 3, 2, 96, 4_000, 8e-3),
    Rung("mini-250k", 64, 4, 3, 160, 1_600, 8e-3),
    Rung("mini-500k", 96, 4, 3, 256, 1_600, 6e-3),
    Rung("mini-1m", 128, 5, 4, 384, 1_800, 6e-3),
    Rung("mini-2m", 192, 5, 6, 512, 2_400, 5e-3),
    Rung("mini-4m", 256, 6, 8, 640, 4_000, 5e-3),
)


def rung(name: str) -> Rung:
    """Return the rung of a name.

    Raises:
        ValueError: when there is none; the message lists those there are.
    """
    for each in GENERATORS:
        if each.name == name:
            return each
    raise ValueError(f"no model {name!r} in the family; choose from {[r.name for r in GENERATORS]}")


def generator_config(shape: Rung) -> Any:
    """Return the Qwen3 configuration of a generator."""
    return Qwen3Config(
        vocab_size=len(make_tokenizer()),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=1,
        head_dim=HEAD_DIM,
        tie_word_embeddings=True,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        initializer_range=0.02,
        bos_token_id=None,
        eos_token_id=token_id(END),
        pad_token_id=token_id(PAD),
        dtype="float32",
    )
