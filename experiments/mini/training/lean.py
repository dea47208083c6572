"""The generators' forward pass for training: Qwen3's arithmetic in few large bf16 products.

A plain function over the parameters of a `Qwen3ForCausalLM`, by their names there, so that what it trains is that
model. Residual stream, norms and the loss are fp32; the inputs of every matrix product are bf16, which a CPU with AMX
multiplies many times faster. Compiled as a whole; `tests/experiments/mini` holds it against transformers' own pass.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from experiments.mini.ladder import HEAD_DIM, ROPE_THETA, Rung

EPSILON = 1e-6
Weights = Mapping[str, Tensor]


def hidden_states(weights: Weights, shape: Rung, tokens: Tensor) -> Tensor:
    """Return the last hidden states (b, t, h), normed, of token ids (b, t) under a causal mask."""
    b, t = tokens.shape
    cos, sin = rotary(t)
    later = torch.ones(t, t, dtype=torch.bool).triu(1)[None, :, None, :]
    x = functional.embedding(tokens, weights["model.embed_tokens.weight"])
    for i in range(shape.layers):
        at = f"model.layers.{i}."

        def w(name: str, at: str = at) -> Tensor:
            return weights[at + name + ".weight"]

        y = norm(x, w("input_layernorm"))
        joint = torch.cat([w("self_attn.q_proj"), w("self_attn.k_proj"), w("self_attn.v_proj")])
        q, k, v = torch.split(product(y, joint), [shape.heads * HEAD_DIM, HEAD_DIM, HEAD_DIM], -1)
        # One cached head: the query heads of all positions are the rows of one product with it.
        q = rotated(norm(q.view(b, t, shape.heads, HEAD_DIM).float(), w("self_attn.q_norm")), cos, sin)
        k = rotated(norm(k.view(b, t, 1, HEAD_DIM).float(), w("self_attn.k_norm")), cos, sin)
        rows = (q * HEAD_DIM**-0.5).bfloat16().view(b, t * shape.heads, HEAD_DIM)
        scores = torch.bmm(rows, k.bfloat16().view(b, t, HEAD_DIM).transpose(1, 2)).float()
        scores = scores.view(b, t, shape.heads, t).masked_fill(later, -torch.inf)
        shares = scores.softmax(-1).bfloat16().view(b, t * shape.heads, t)
        read = torch.bmm(shares, v).view(b, t, shape.heads * HEAD_DIM)
        x = x + product(read, w("self_attn.o_proj")).float()
        y = norm(x, w("post_attention_layernorm"))
        gate, up = product(y, torch.cat([w("mlp.gate_proj"), w("mlp.up_proj")])).chunk(2, -1)
        x = x + product(functional.silu(gate.float()) * up.float(), w("mlp.down_proj")).float()
    return norm(x, weights["model.norm.weight"])


def summed_loss(weights: Weights, shape: Rung, tokens: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
    """Return the summed cross-entropy of `targets` (n,) at the flat positions `rows` (n,) of tokens (b, t)."""
    hidden = hidden_states(weights, shape, tokens).flatten(0, 1).index_select(0, rows)
    logits = product(hidden, weights["model.embed_tokens.weight"]).float()
    return functional.cross_entropy(logits, targets, reduction="sum")


def compiled_loss(shape: Rung, weights: Weights) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return `summed_loss` of one model, compiled once for batches of every size.

    The parameters are closed over: as arguments their shapes would be taken for variable too, which costs most of the
    speed.
    """

    def loss(tokens: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
        return summed_loss(weights, shape, tokens, rows, targets)

    compiled: Callable[[Tensor, Tensor, Tensor], Tensor] = torch.compile(loss, dynamic=True)
    return compiled


def rotary(length: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine (t, 1, head_dim) of the rotary embedding."""
    rates = ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rates).repeat(1, 2)
    return angles.cos()[:, None], angles.sin()[:, None]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return queries or keys (b, t, heads, head_dim) turned by their positions."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return x over its root mean square, times the weight."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x times the transposed weight, multiplied as bf16."""
    return functional.linear(x.bfloat16(), weight.bfloat16())
