"""The ladder: six generators of the Qwen3 architecture and two process reward models of the Qwen2 architecture."""

from dataclasses import dataclass
from typing import Any

from transformers import Qwen2Config, Qwen3Config

from experiments.mini.tokenizer import CONTEXT_TOKENS, END, PAD, make_tokenizer, token_id


@dataclass(frozen=True)
class Rung:
    """One model: its shape and how long it is trained. Head dimension is 32, the least vLLM's CPU attention takes.

    `inherits` names the generator whose layers a verifier's first ones start from; empty: from nothing. `reading` says
    how many of a verifier's layers learn to write solutions, in `reading_steps`; those above compare with them.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    steps: int
    learning_rate: float
    inherits: str = ""
    reading: int = 0
    reading_steps: int = 0


HEAD_DIM = 32
ROPE_THETA = 10_000.0
GENERATORS = (
    Rung("mini-50k", 32, 2, 2, 2, 64, 2200, 1e-2),
    Rung("mini-120k", 48, 3, 2, 1, 128, 1500, 1e-2),
    Rung("mini-250k", 64, 4, 2, 2, 176, 1400, 1e-2),
    Rung("mini-500k", 96, 4, 3, 3, 256, 1300, 8e-3),
    Rung("mini-1m", 128, 5, 4, 2, 352, 1250, 6e-3),
    Rung("mini-2m", 192, 5, 6, 2, 512, 1700, 5e-3),
)
VERIFIERS = (
    Rung("mini-prm-s", 32, 8, 1, 1, 64, 1500, 8e-3, reading=5, reading_steps=1800),
    Rung("mini-prm-l", 96, 6, 3, 3, 256, 800, 4e-3, "mini-500k", reading=4, reading_steps=800),
)


def rung(name: str) -> Rung:
    """Return the rung of a name.

    Raises:
        ValueError: when there is none; the message lists those there are.
    """
    for each in (*GENERATORS, *VERIFIERS):
        if each.name == name:
            return each
    raise ValueError(
        f"no model {name!r} in the family; choose from {[r.name for r in (*GENERATORS, *VERIFIERS)]}"
    )


def generator_config(shape: Rung) -> Qwen3Config:
    """Return the Qwen3 configuration of a generator."""
    return Qwen3Config(**_shared(shape), head_dim=HEAD_DIM, tie_word_embeddings=True)


def verifier_config(shape: Rung) -> Qwen2Config:
    """Return the Qwen2 configuration of a process reward model with two labels (0 wrong, 1 right).

    Raises:
        ValueError: when hidden / heads is not the head dimension, which Qwen2 cannot state apart.
    """
    if shape.hidden != shape.heads * HEAD_DIM:
        raise ValueError(
            f"{shape.name}: hidden {shape.hidden} must be {HEAD_DIM} times its {shape.heads} heads"
        )
    labels: dict[str, Any] = {"id2label": {0: "wrong", 1: "right"}, "label2id": {"wrong": 0, "right": 1}}
    return Qwen2Config(
        **_shared(shape), **labels, tie_word_embeddings=False, architectures=["Qwen2ForProcessRewardModel"]
    )


def _shared(shape: Rung) -> dict[str, Any]:
    tokenizer = make_tokenizer()
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": token_id(END),
        "pad_token_id": token_id(PAD),
        "dtype": "float32",
    }
