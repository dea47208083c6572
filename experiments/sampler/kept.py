"""Keys and values of living paths, in the pieces they were computed in, so that no prefix is read twice."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Ids = tuple[int, ...]


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
