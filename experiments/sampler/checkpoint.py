"""What config.json says of a checkpoint, as far as the plain forward pass covers it."""

import json
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UniscaleError


class CheckpointError(UniscaleError):
    """A checkpoint this forward pass does not cover. Record it with the vLLM engine."""


@dataclass(frozen=True)
class Shape:
    """What of config.json the forward pass needs."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    eos: int

    @classmethod
    def read(cls, folder: Path) -> "Shape":
        """Read config.json.

        Raises:
            CheckpointError: naming the field that is not covered.
        """
        config = json.loads((folder / "config.json").read_text())
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if config.get("model_type") not in ("qwen2", "qwen3"):
            raise CheckpointError(
                f"{folder}, field model_type: {config.get('model_type')!r} is not qwen2 or qwen3"
            )
        if rope.get("rope_type", "default") != "default" or config.get("use_sliding_window"):
            raise CheckpointError(f"{folder}, field rope_parameters or use_sliding_window: only plain rotary")
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            eps=config["rms_norm_eps"],
            theta=rope.get("rope_theta") or config.get("rope_theta", 10_000.0),
            eos=config["eos_token_id"],
        )
