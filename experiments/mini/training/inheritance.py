"""How a verifier's layers begin: the first ones as a generator's, the first that compares by looking back one token.

Qwen3 normalises queries and keys per head, Qwen2 does not: each head's projection takes over the norm's weight and the
mean of 1/RMS on real sequences. The generator's one key-value head becomes as many equal ones as there are query
heads. Both are a beginning, and training goes on from it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from experiments.mini.ladder import HEAD_DIM, ROPE_THETA

EPSILON = 1e-6
# Size of the constant queries and keys of `look_back`: a distance of 0 or 2 gets e⁻⁶ of the weight of a distance of 1.
PEAK = 7.0
# Size of the copy that `look_back` writes, as a share of the residual stream's.
COPY = 0.7


@torch.no_grad()
def inherit(trunk: nn.Module, generator: Any, sequences: Sequence[Sequence[int]]) -> None:
    """Copy a Qwen3 generator's weights into a Qwen2 trunk of the same width, which may have more layers.

    Args:
        trunk: A Qwen2Model; the biases of the inherited layers become zero.
        generator: A Qwen3ForCausalLM with the same hidden size, query heads and feed-forward.
        sequences: Token ids to measure the size of queries and keys on.

    Raises:
        ValueError: when a weight of the trunk has no counterpart of its shape.
    """
    scales = _inverse_rms(generator, sequences)
    source = generator.model.state_dict()
    for name, target in trunk.state_dict().items():
        layer = name.partition(".self_attn")[0]
        if name.endswith("proj.bias"):
            if f"{layer}.self_attn.q_proj.weight" in source:
                target.zero_()
            continue
        if name not in source and name.startswith("layers."):
            # A layer above the generator's keeps its own random start.
            continue
        weight = source[name].clone() if name in source else None
        for side in ("q", "k", "v"):
            if weight is not None and name.endswith(f"{side}_proj.weight"):
                heads = weight.view(-1, HEAD_DIM, weight.shape[1])
                if side != "v":
                    norm = source[name.replace(f"{side}_proj", f"{side}_norm")]
                    heads = heads * norm[None, :, None] * scales[name][:, None, None]
                copies = target.shape[0] // (heads.shape[0] * HEAD_DIM)
                weight = heads.repeat_interleave(copies, 0).reshape(-1, weight.shape[1])
        if weight is None or weight.shape != target.shape:
            raise ValueError(
                f"{name}: the generator has no weight of shape {tuple(target.shape)}; shapes must agree"
            )
        target.copy_(weight)


@torch.no_grad()
def look_back(layer: Any, size: float, seed: int) -> None:
    """Let every head of a Qwen2 layer begin by reading the token before, whose prediction it then has to compare with.

    A verifier must notice that a token is not what the lower layers expected one position earlier. Finding that
    position by chance takes most of a training run (or never happens in a narrow model), while rotary embeddings can
    state it outright: queries and keys that are constant up to a phase have a product which only depends on the
    distance, and the phase moves its peak to 1. Training is free to change all of it.

    Args:
        layer: A Qwen2DecoderLayer with as many key-value heads as query heads.
        size: Root mean square of the residual stream there: a copy much smaller than what it is added to is unseen.
        seed: Seed of the orthogonal matrix through which the copy is written.
    """
    attention = layer.self_attn
    half = HEAD_DIM // 2
    angles = ROPE_THETA ** (-torch.arange(half) / half)
    query = torch.cat([angles.cos(), -angles.sin()]) * PEAK
    key = torch.cat([torch.ones(half), torch.zeros(half)]) * PEAK
    attention.q_proj.bias.copy_(query.repeat(attention.q_proj.out_features // HEAD_DIM))
    attention.k_proj.bias.copy_(key.repeat(attention.k_proj.out_features // HEAD_DIM))
    generator = torch.Generator().manual_seed(seed)
    nn.init.orthogonal_(attention.v_proj.weight, generator=generator)
    nn.init.orthogonal_(attention.o_proj.weight, gain=COPY * size, generator=generator)


def _inverse_rms(generator: Any, sequences: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Return the mean of 1/RMS of every query and key head, by the name of its projection's weight."""
    sums: dict[str, Tensor] = {}
    tokens = 0
    handles = []
    for name, layer in generator.model.named_modules():
        if name.endswith(("q_proj", "k_proj")):

            def add(_: nn.Module, __: object, out: Tensor, key: str = f"{name}.weight") -> None:
                rms = out.view(-1, out.shape[-1] // HEAD_DIM, HEAD_DIM).pow(2).mean(-1).add(EPSILON).sqrt()
                sums[key] = sums.get(key, torch.zeros(rms.shape[1])) + rms.reciprocal().sum(0)

            handles.append(layer.register_forward_hook(add))
    for ids in sequences:
        generator.model(input_ids=torch.tensor([list(ids)]))
        tokens += len(ids)
    for handle in handles:
        handle.remove()
    return {name: total / tokens for name, total in sums.items()}
