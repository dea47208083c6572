"""A batched forward pass for Qwen2 and Qwen3 checkpoints, with keys and values cached between steps.

A batch has prefixes of different lengths, and rows that each continue one of them. A prefix's keys and values are
stored once, however many rows share it. Attention to the prefix and to a row's own columns is computed separately, and
the two parts are combined by rescaling with their maxima, as in an online softmax. The only purpose is to make
recordings of small models fast on a CPU; models are served by `agents.serving`. Tests compare this module with
transformers and vLLM.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from schemas.errors import UniscaleError

# The keys and values of a batch (prefixes, stored once, and each row's own columns) and of live paths between batches.

Ids = tuple[int, ...]


@dataclass
class Cache:
    """A batch's keys and values.

    Attributes:
        prefixes: Keys and values of the prefixes, shape (layers, 2, prefixes, kv_heads, columns, head_dim).
        lengths: Lengths of the prefixes, shape (prefixes,).
        values: Keys and values of the rows' own columns, shape (layers, 2, at least rows, kv_heads, at least width,
            head_dim).
        prefix_of: Index of each row's prefix, shape (rows,).
        width: Number of own columns in use.
    """

    prefixes: Tensor
    lengths: Tensor
    values: Tensor
    prefix_of: Tensor
    width: int = 0

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.prefix_of)

    def branch(self, above: Sequence[int]) -> list[int]:
        """Replace the rows: those with one continuation stay, those with several are copied, the rest are dropped.

        As little as possible is copied. Unused prefixes are removed once they are half of all prefixes.

        Args:
            above: The row that each new row continues.

        Returns:
            The index of each new row, a permutation of 0 … len(above) - 1.
        """
        size, places, later = len(above), [-1] * len(above), []
        taken: set[int] = set()
        for at, row in enumerate(above):
            if row < size and row not in taken:
                places[at] = row
                taken.add(row)
            else:
                later.append(at)
        free = iter([row for row in range(size) if row not in taken])
        for at in later:
            places[at] = next(free)
        self.reserve(size, self.width)
        if later:
            source = torch.tensor([above[at] for at in later])
            target = torch.tensor([places[at] for at in later])
            used = self.values[..., : self.width, :]
            used[:, :, target] = used[:, :, source]
        order = torch.empty(size, dtype=torch.long)
        order[torch.tensor(places)] = torch.tensor(above)
        self.prefix_of = self.prefix_of[order]
        used, at = torch.unique(self.prefix_of, return_inverse=True)
        if 2 * len(used) <= len(self.lengths):
            self.prefixes, self.lengths, self.prefix_of = self.prefixes[:, :, used], self.lengths[used], at
        return places

    def reserve(self, rows: int, columns: int) -> None:
        """Allocate room for this many rows and own columns."""
        layers, two, held, heads, wide, dim = self.values.shape
        if rows > held or columns > wide:
            held = max(2 * held, rows) if rows > held else held
            wide = max(2 * wide, columns) if columns > wide else wide
            before, used = self.values, self.rows
            self.values = before.new_empty(layers, two, held, heads, wide, dim)
            self.values[:, :, :used, :, : self.width] = before[:, :, :used, :, : self.width]


# Keys and values of live paths, in the pieces they were computed in, so that no prefix is computed again.


@dataclass
class Piece:
    """Keys and values that a path adds to the path it continues, shape (layers, 2, kv_heads, tokens, head_dim)."""

    above: Ids | None
    values: Tensor
    extra: Any = None


class Kept:
    """An LRU cache of pieces, keyed by the token ids of their whole path.

    Args:
        size: Maximum total size of all pieces, in bytes.
    """

    def __init__(self, size: int = 400_000_000) -> None:
        self._limit = size
        self._held = 0
        self._pieces: OrderedDict[Ids, Piece] = OrderedDict()

    def keep(self, path: Ids, above: Ids | None, values: Tensor, extra: Any = None) -> None:
        """Store the piece that extends the path `above` to `path`."""
        if path in self._pieces:
            return
        self._pieces[path] = Piece(above, values, extra)
        self._held += values.nbytes
        while self._held > self._limit:
            _, gone = self._pieces.popitem(last=False)
            self._held -= gone.values.nbytes

    def chain(self, path: Ids) -> list[Piece] | None:
        """Return a path's pieces, starting at its root, or None if one of them is not cached."""
        found = []
        at: Ids | None = path
        while at is not None:
            piece = self._pieces.get(at)
            if piece is None:
                return None
            self._pieces.move_to_end(at)
            found.append(piece)
            at = piece.above
        return found[::-1]


# Attention of rows to shared prefixes and to their own columns, computed in two parts that are then combined.

HIDDEN = -1e30  # finite, because an empty prefix must not yield NaN
# exp of this is negligible in float32 but still a normal number. If it underflows, exp takes 20 to 60 times as long.
LEAST = -80.0
# Measured cost of copying a prefix's keys and values, in rows of attention scores. It affects only speed.
COPIED = 16


@dataclass
class View:
    """How rows attend to prefixes in one forward pass: in blocks of rows that share a prefix, padded at the end.

    Attributes:
        count: Number of blocks.
        wide: Rows per block.
        prefix: Each block's prefix; None if every prefix has one block, in order.
        place: Each row's position among count · wide positions; None if each prefix has one row, in order.
        beyond: Mask of columns beyond a prefix's length, shape (blocks, 1, 1, columns); None if there are none.
        ahead: Causal mask of own columns, shape (new, width + new); None for a single new token.
    """

    count: int
    wide: int
    prefix: Tensor | None
    place: Tensor | None
    beyond: Tensor | None
    ahead: Tensor | None

    @classmethod
    def of(cls, cache: Cache, new: int, group: int) -> "View":
        """Return a batch's view.

        Args:
            cache: The batch's cache.
            new: Number of new tokens per row in this pass.
            group: Number of query heads per key head.
        """
        prefixes, columns = cache.prefixes.shape[2], cache.prefixes.shape[4]
        count, wide, prefix, place = prefixes, 1, None, None
        if cache.rows != prefixes or not torch.equal(cache.prefix_of, torch.arange(prefixes)):
            order = cache.prefix_of.argsort(stable=True)
            rows_of = torch.bincount(cache.prefix_of, minlength=prefixes)
            wide = _block(rows_of, new * group)
            blocks_of = -(-rows_of // wide)
            begins, first = rows_of.cumsum(0) - rows_of, blocks_of.cumsum(0) - blocks_of
            rank = torch.empty_like(order)
            rank[order] = torch.arange(cache.rows) - begins[cache.prefix_of[order]]
            # A prefix's blocks are adjacent, and so are the positions of its rows.
            place = first[cache.prefix_of] * wide + rank
            count = int(blocks_of.sum())
            if int(blocks_of.min()) != 1 or int(blocks_of.max()) != 1:
                prefix = torch.repeat_interleave(torch.arange(prefixes), blocks_of)
        beyond = None
        if columns and int(cache.lengths.min()) < columns:
            lengths = cache.lengths if prefix is None else cache.lengths[prefix]
            hidden = torch.arange(columns) >= lengths[:, None]
            beyond = hidden.float()[:, None, None] * HIDDEN
        ahead = None
        if new > 1:
            seen = torch.arange(cache.width + new)
            ahead = (seen > seen[cache.width :, None]).float() * HIDDEN
        return cls(count, wide, prefix, place, beyond, ahead)

    def seen(self, prefixes: Tensor) -> Tensor:
        """Return the keys or values of each block's prefix, shape (blocks, …)."""
        return prefixes if self.prefix is None else prefixes[self.prefix]

    def together(self, q: Tensor) -> Tensor:
        """Regroup rows into blocks: (rows, kv_heads, …, head_dim) to (blocks, kv_heads, wide · …, head_dim)."""
        if self.place is None:
            return q
        _, heads, each, dim = q.shape
        spread = q.new_zeros(self.count * self.wide, heads, each, dim)
        spread[self.place] = q
        return spread.view(self.count, self.wide, heads, each, dim).transpose(1, 2).flatten(2, 3)

    def apart(self, *parts: Tensor) -> list[Tensor]:
        """Undo `together`."""
        if self.place is None:
            return list(parts)
        return [
            part.view(self.count, part.shape[1], self.wide, -1, part.shape[3])
            .transpose(1, 2)
            .flatten(0, 1)[self.place]
            for part in parts
        ]


def _block(rows_of: Tensor, scores: int) -> int:
    """Return the number of rows per block: the most rows that any prefix has, or fewer if most prefixes have few.

    Args:
        rows_of: Number of rows for each prefix.
        scores: Rows of attention scores per row: its new tokens times the query heads per key head.
    """
    most = int(rows_of.max())
    one_each = int(rows_of.min()) > 0
    best, least = most, len(rows_of) * most * scores if one_each else None
    wide = 1
    while wide <= most:
        blocks = int((-(-rows_of // wide)).sum())
        cost = blocks * (wide * scores + COPIED)
        if least is None or cost < least:
            best, least = wide, cost
        wide *= 2
    return best


def part(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return part of a softmax attention as its weighted sum, maximum exponent and sum of weights."""
    scores = q @ keys.transpose(2, 3)
    if hidden is not None:
        if hidden.dim() == 2:  # one row per new token; query heads that share keys are adjacent
            hidden = hidden.repeat_interleave(scores.shape[2] // len(hidden), 0)
        scores += hidden
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).clamp_(min=LEAST).exp_()
    return weights @ values, top, weights.sum(-1, keepdim=True)


# The checkpoint, and its forward pass over a batch.


class CheckpointError(UniscaleError):
    """This forward pass does not support the checkpoint. Record it with the vLLM engine."""


@dataclass(frozen=True)
class Shape:
    """The fields of config.json that the forward pass needs."""

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
            CheckpointError: A field is not supported. The message names the field.
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
    """One checkpoint's trunk and its head, which returns token logits or step-label probabilities.

    Args:
        folder: A Hugging Face folder with a single safetensors file.
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
        """Return a batch's cache, assembled from pieces.

        Args:
            prefixes: The pieces of each prefix in order, each of shape (layers, 2, kv_heads, tokens, head_dim).
            prefix_of: The prefix of each row.
            capacity: Initial number of own columns.
        """
        s = self.shape
        lengths = [sum(piece.shape[3] for piece in pieces) for pieces in prefixes]
        size = (s.layers, 2, len(prefixes), s.kv_heads, max(lengths, default=0), s.head_dim)
        # Zeros, not uninitialised memory: a hidden column has weight 0, but 0 times NaN is NaN.
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
        """Return the last hidden states of new tokens, shape (rows, new, hidden), and add the tokens to the cache.

        Args:
            tokens: Token ids, shape (rows, new). Padding at the right end of a row is harmless, because no token
                attends to it within this call, and the caller keeps only the columns of a row's real tokens.
            cache: The batch's cache, whose width grows by `new`.
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
        """Return token logits for hidden states; checkpoints without a head use the embeddings."""
        head = self._w.get("lm_head.weight", self._w["model.embed_tokens.weight"])
        return functional.linear(hidden, head)

    def labels(self, hidden: Tensor) -> Tensor:
        """Return a `Qwen2ForProcessRewardModel`'s label probabilities for hidden states."""
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
