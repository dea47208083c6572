"""Keys and values: of a batch (prefixes once, each row's own columns), and of living paths between batches."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Ids = tuple[int, ...]


@dataclass
class Cache:
    """Keys and values of a batch.

    Attributes:
        prefixes: Shape (layers, 2, prefixes, kv_heads, columns, head_dim), each from column 0 on.
        lengths: Of the prefixes, shape (prefixes,).
        values: The rows' own: shape (layers, 2, at least rows, kv_heads, at least width, head_dim).
        prefix_of: Each row's prefix, shape (rows,).
        width: Own columns in use.
    """

    prefixes: Tensor
    lengths: Tensor
    values: Tensor
    prefix_of: Tensor
    width: int = 0

    @property
    def rows(self) -> int:
        """Return how many rows there are."""
        return len(self.prefix_of)

    def branch(self, above: Sequence[int]) -> list[int]:
        """Let rows go on as others: keep what goes on in one way, copy what goes on in several, drop the rest.

        Only what has to move is copied. Prefixes that no row continues any more leave when they are the half.

        Args:
            above: For each row wanted, which row it continues.

        Returns:
            The place of each row wanted, a permutation of 0 … len(above) - 1.
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
        """Make room for so many rows and own columns."""
        layers, two, held, heads, wide, dim = self.values.shape
        if rows > held or columns > wide:
            held = max(2 * held, rows) if rows > held else held
            wide = max(2 * wide, columns) if columns > wide else wide
            before, used = self.values, self.rows
            self.values = before.new_empty(layers, two, held, heads, wide, dim)
            self.values[:, :, :used, :, : self.width] = before[:, :, :used, :, : self.width]


# Keys and values of living paths, in the pieces they were computed in, so that no prefix is read twice.


@dataclass
class Piece:
    """What a path adds to the one it continues: shape (layers, 2, kv_heads, tokens, head_dim)."""

    above: Ids | None
    values: Tensor
    extra: Any = None


class Kept:
    """Pieces by the token ids of their whole path; the least recently used leave first.

    Args:
        size: Bytes kept over all pieces.
    """

    def __init__(self, size: int = 400_000_000) -> None:
        self._limit = size
        self._held = 0
        self._pieces: OrderedDict[Ids, Piece] = OrderedDict()

    def keep(self, path: Ids, above: Ids | None, values: Tensor, extra: Any = None) -> None:
        """Keep the piece that leads from one path to a longer one."""
        if path in self._pieces:
            return
        self._pieces[path] = Piece(above, values, extra)
        self._held += values.nbytes
        while self._held > self._limit:
            _, gone = self._pieces.popitem(last=False)
            self._held -= gone.values.nbytes

    def chain(self, path: Ids) -> list[Piece] | None:
        """Return a path's pieces from its root, or None when one of them is not kept."""
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
