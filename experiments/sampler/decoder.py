"""A plain batched forward pass of Qwen2 and Qwen3 checkpoints with keys and values kept between steps.

A batch has prefixes, of different lengths, and rows that each continue one of them: a prefix's keys and values
stand there once, whatever the number of its rows, which attend to it and to their own, and the two parts are
added up (a softmax over parts: the sums of each are weighed by their maxima). `agents.serving` serves models;
this only makes recordings of small ones fast, on a CPU, and is held to transformers and vLLM by tests.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from experiments.sampler.attention import LEAST, View, part
from experiments.sampler.cache import Cache
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


class Decoder:
    """The trunk of one checkpoint, and its head: logits of tokens, or of step labels.

    Args:
        folder: A Hugging Face folder of one safetensors file.
    """

    def __init__(self, folder: Path) -> None:
        self.shape = Shape.read(folder)
        file = folder / "model.safetensors"
        if not file.exists():
            raise CheckpointError(f"{folder}: holds no model.safetensors; save the model there in one file")
        self._w = {name: tensor.float() for name, tensor in load_file(file).items()}
        self.vocabulary, self.width = self._w["model.embed_tokens.weight"].shape
        half = torch.arange(0, self.shape.head_dim, 2).float() / self.shape.head_dim
        self._frequencies = 1.0 / self.shape.theta**half

    def cache(self, prefixes: Sequence[Sequence[Tensor]], prefix_of: Sequence[int], capacity: int) -> Cache:
        """Return a batch's cache from kept pieces.

        Args:
            prefixes: For each prefix its pieces in order, each of shape (layers, 2, kv_heads, tokens, head_dim).
            prefix_of: The prefix of each row.
            capacity: Own columns to begin with.
        """
        s = self.shape
        lengths = [sum(piece.shape[3] for piece in pieces) for pieces in prefixes]
        size = (s.layers, 2, len(prefixes), s.kv_heads, max(lengths, default=0), s.head_dim)
        # Zeros and not what memory holds: a hidden column has no weight, but nothing times NaN is NaN.
        held = torch.zeros(size)
        for row, pieces in enumerate(prefixes):
            at = 0
            for piece in pieces:
                held[:, :, row, :, at : at + piece.shape[3]] = piece
                at += piece.shape[3]
        own = torch.empty(s.layers, 2, len(prefix_of), s.kv_heads, max(capacity, 1), s.head_dim)
        return Cache(
            held,
            torch.tensor(lengths),
            own,
            torch.tensor(prefix_of, dtype=torch.long),
        )

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Return the last hidden states of new tokens, shape (rows, new, hidden), and enter them in the cache.

        Args:
            tokens: Ids, shape (rows, new). Padding at a row's right end is harmless: nothing looks back at it
                within this call, and the caller keeps only a row's own columns.
            cache: Its width grows by `new`.
        """
        s, w = self.shape, self._w
        new = tokens.shape[1]
        cache.reserve(cache.rows, cache.width + new)
        columns = torch.arange(cache.width, cache.width + new)
        places = cache.lengths[cache.prefix_of][:, None] + columns
        turns = places.float()[..., None] * self._frequencies  # (rows, new, d/2)
        cos, sin = (torch.cat([f(turns)] * 2, dim=-1)[:, :, None] for f in (torch.cos, torch.sin))
        view = View.of(cache, new, s.heads // s.kv_heads)
        x = w["model.embed_tokens.weight"][tokens]
        for layer in range(s.layers):
            x = x + self._attend(layer, self._norm(x, f"{layer}.input_layernorm"), cos, sin, view, cache)
            h = self._norm(x, f"{layer}.post_attention_layernorm")
            gated = functional.silu(self._linear(h, f"{layer}.mlp.gate_proj"))
            x = x + self._linear(gated * self._linear(h, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj")
        cache.width += new
        return functional.rms_norm(x, x.shape[-1:], w["model.norm.weight"], s.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return token logits of hidden states; embeddings serve as head where the checkpoint has none."""
        head = self._w.get("lm_head.weight", self._w["model.embed_tokens.weight"])
        return functional.linear(hidden, head)

    def labels(self, hidden: Tensor) -> Tensor:
        """Return probabilities of the labels of a `Qwen2ForProcessRewardModel`."""
        w = self._w
        inner = torch.relu(functional.linear(hidden, w["score.0.weight"], w["score.0.bias"]))
        return functional.linear(inner, w["score.2.weight"], w["score.2.bias"]).softmax(-1)

    def _attend(self, layer: int, h: Tensor, cos: Tensor, sin: Tensor, view: "View", cache: Cache) -> Tensor:
        s = self.shape
        rows, new, _ = h.shape
        end = cache.width + new
        q, k, v = (
            self._linear(h, f"{layer}.self_attn.{n}_proj").view(rows, new, -1, s.head_dim) for n in "qkv"
        )
        if f"model.layers.{layer}.self_attn.q_norm.weight" in self._w:
            q, k = self._norm(q, f"{layer}.self_attn.q_norm"), self._norm(k, f"{layer}.self_attn.k_norm")
        q, k = (t * cos + _rotated(t) * sin for t in (q, k))
        keys, values = cache.values[layer, :, :rows, :, :end]
        keys[:, :, cache.width :] = k.transpose(1, 2)
        values[:, :, cache.width :] = v.transpose(1, 2)
        # Query heads that share keys are stacked as further rows: (rows, kv_heads, new · group, head_dim).
        q = (q / s.head_dim**0.5).view(rows, new, s.kv_heads, -1, s.head_dim).transpose(1, 2).flatten(2, 3)
        own, top, total = part(q, keys, values, view.ahead)
        if cache.prefixes.shape[4]:
            common, top_common, total_common = view.apart(
                *part(
                    view.together(q),
                    view.seen(cache.prefixes[layer, 0]),
                    view.seen(cache.prefixes[layer, 1]),
                    view.beyond,
                )
            )
            most = torch.maximum(top, top_common)
            weight, weight_common = ((t - most).clamp_(min=LEAST).exp_() for t in (top, top_common))
            own = own * weight + common * weight_common
            total = total * weight + total_common * weight_common
        out = (own / total).view(rows, s.kv_heads, new, -1, s.head_dim).transpose(1, 2)
        return self._linear(out.flatten(2), f"{layer}.self_attn.o_proj")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        place = f"model.layers.{name}"
        return functional.linear(x, self._w[f"{place}.weight"], self._w.get(f"{place}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self._w[f"model.layers.{name}.weight"]
        return functional.rms_norm(x, x.shape[-1:], weight, self.shape.eps)


def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], dim=-1)
