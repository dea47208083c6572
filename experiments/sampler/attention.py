"""Attention of rows to prefixes that many of them share, and to their own columns, in two parts that are added up."""

from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.sampler.cache import Cache

HIDDEN = -1e30  # finite: a prefix of nothing must not become NaN
# e to this is nothing beside 1 in float32, and still a normal number: exp takes 20 to 60 times as long to underflow.
LEAST = -80.0
# What copying a prefix's keys and values costs, in rows of scores against it: measured, and only a matter of speed.
COPIED = 16


@dataclass
class View:
    """How rows look at prefixes in one forward pass: in blocks of rows of one prefix, the last places of each empty.

    Attributes:
        count: Blocks.
        wide: Places of a block.
        prefix: Of each block; None where every prefix has one block, in order.
        place: Of each row among blocks · wide places; None where each prefix has its one row, in order.
        beyond: Minus a lot at the columns no prefix has, shape (blocks, 1, 1, columns); None when there are none.
        ahead: Minus a lot at own columns that come later, shape (new · group, width + new); None for one token.
    """

    count: int
    wide: int
    prefix: Tensor | None
    place: Tensor | None
    beyond: Tensor | None
    ahead: Tensor | None

    @classmethod
    def of(cls, cache: Cache, new: int, group: int) -> "View":
        """Return how a batch's rows look at its prefixes.

        Args:
            cache: Of the batch.
            new: Tokens a row in this pass.
            group: Query heads that share keys.
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
            # A prefix's blocks follow each other, and so do the places of its rows.
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
        """Return the keys or values of the blocks' prefixes from those of all, shape (blocks, …)."""
        return prefixes if self.prefix is None else prefixes[self.prefix]

    def together(self, q: Tensor) -> Tensor:
        """Return (blocks, kv_heads, wide · …, head_dim) from (rows, kv_heads, …, head_dim)."""
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
    """Return how many rows a block has: as many as the widest prefix, or fewer where most have few.

    Args:
        rows_of: Rows of each prefix.
        scores: Rows of scores that a row has: its new tokens times the heads that share keys.
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
    """Return a part of a softmax attention: its weighed sum, its largest exponent, its sum of weights."""
    scores = q @ keys.transpose(2, 3)
    if hidden is not None:
        if hidden.dim() == 2:  # one row a new token; heads that share keys stand beside each other
            hidden = hidden.repeat_interleave(scores.shape[2] // len(hidden), 0)
        scores += hidden
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).clamp_(min=LEAST).exp_()
    return weights @ values, top, weights.sum(-1, keepdim=True)
