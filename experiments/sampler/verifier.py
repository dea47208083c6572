"""Computes the rows of a process reward model with the lab's forward pass, for the product's `ProcessRewardModel`.

A path is scored step by step, so the rows, keys and values of its earlier steps are cached, and only the new step is
read. Because the model is causal, the rows are the same as if the whole path were read.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.serving.prompts import ChatPrompts
from experiments.sampler.decoder import Decoder, Ids, Kept
from experiments.sampler.engine import Pump

ROWS = 512
SIBLINGS = 8
# Cache size in bytes: an eighth of the machine's memory, but at least 1.5 GB. Paths in flight that do not fit are
# recomputed.
KEPT = max(1_500_000_000, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)


@dataclass(frozen=True)
class Unread:
    """The unread part of a path, `ids` from `known` on, which is scored at `tags`."""

    ids: Ids
    above: Ids | None
    known: int
    tags: tuple[int, ...]


class TorchRows:
    """Class probabilities at step tags; see `RowSource`.

    Args:
        folder: A `Qwen2ForProcessRewardModel` checkpoint.
        tag_id: The token id of its step tag.
        pump: Fills batches from all searches in flight.
        rows: Maximum number of paths per batch.
    """

    def __init__(self, folder: Path, tag_id: int, pump: Pump, rows: int = ROWS) -> None:
        self.rows_each = rows
        self.prompts = ChatPrompts.load(str(folder))
        self._tag_id = tag_id
        self._pump = pump
        self._decoder = Decoder(folder)
        self._kept = Kept(KEPT)
        self._worker = _Batch(self, rows)
        dialogue = [("user", "q")]
        bare = self.prompts.encode(self.prompts.dialogue(dialogue))
        self._header = self.prompts.prompt(dialogue)[len(bare) :]

    async def rows(self, prompts: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Return the rows of each prompt's step tags, shape (tags, labels)."""
        return list(await self._pump.submit(self._worker, [tuple(prompt) for prompt in prompts]))

    async def close(self) -> None:
        """Do nothing: memory is freed with the object."""

    @torch.inference_mode()
    def score(self, prompts: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """Read the unread parts of a batch of prompts, and return the rows of all their tags."""
        tags = [tuple(i for i, token in enumerate(ids) if token == self._tag_id) for ids in prompts]
        roots = [self._root(ids, found) for ids, found in zip(prompts, tags, strict=True)]
        self._read([Unread(root, None, 0, ()) for root in dict.fromkeys(roots) if root])
        paths = [ids[: found[-1] + 1] for ids, found in zip(prompts, tags, strict=True)]
        unread = {
            path: self._unread(path, found, root)
            for path, found, root in zip(paths, tags, roots, strict=True)
            if self._kept.chain(path) is None
        }
        self._read(list(unread.values()))
        return [self._known_rows(path) for path in paths]

    def _root(self, ids: Ids, tags: tuple[int, ...]) -> Ids:
        """Return the prompt before the first step, which all paths of a question share; empty if it is not found."""
        header = self._header
        for at in range(tags[0] - len(header), -1, -1):
            if header and ids[at : at + len(header)] == header:
                return ids[: at + len(header)]
        return ()

    def _unread(self, path: Ids, tags: tuple[int, ...], root: Ids) -> Unread:
        for done in range(len(tags) - 1, 0, -1):
            above = path[: tags[done - 1] + 1]
            if self._kept.chain(above) is not None:
                return Unread(path, above, len(above), tags[done:])
        return Unread(path, root or None, len(root), tags)

    def _read(self, wanted: list[Unread]) -> None:
        """Read the unread parts of paths, and cache them."""
        after: dict[Ids | None, list[Unread]] = {}
        for w in wanted:
            if self._kept.chain(w.ids) is None:
                after.setdefault(w.above, []).append(w)
        # Up to `SIBLINGS` paths share one prefix in a batch; sets of similar size are read together.
        sets = [
            each[begin : begin + SIBLINGS]
            for each in after.values()
            for begin in range(0, len(each), SIBLINGS)
        ]
        for wide in sorted({len(each).bit_length() for each in sets}):
            alike = [each for each in sets if len(each).bit_length() == wide]
            alike.sort(key=lambda each: (each[0].known, len(each[0].ids)))
            most = max(1, self.rows_each >> (wide - 1))
            for begin in range(0, len(alike), most):
                self._read_batch(alike[begin : begin + most])

    def _read_batch(self, sets: list[list[Unread]]) -> None:
        rows = [w for each in sets for w in each]
        longest = max(len(w.ids) - w.known for w in rows)
        prefix_of = [at for at, each in enumerate(sets) for _ in each]
        cache = self._decoder.cache([self._pieces(each[0].above) for each in sets], prefix_of, longest)
        tokens = [[*w.ids[w.known :], *[0] * (longest - len(w.ids) + w.known)] for w in rows]
        hidden = self._decoder.forward(torch.tensor(tokens), cache)
        tags = [(row, tag - w.known) for row, w in enumerate(rows) for tag in w.tags]
        if tags:
            at = torch.tensor(tags)
            labels = self._decoder.labels(hidden[at[:, 0], at[:, 1]]).numpy()
        read = 0
        for row, w in enumerate(rows):
            piece = cache.values[:, :, row, :, : len(w.ids) - w.known].clone()
            found = labels[read : read + len(w.tags)] if w.tags else None
            read += len(w.tags)
            self._kept.keep(w.ids, w.above, piece, found)

    def _pieces(self, above: Ids | None) -> list[Tensor]:
        chain = self._kept.chain(above) if above is not None else []
        assert chain is not None, "an ancestor left while its path was read: keep more"
        return [piece.values for piece in chain]

    def _known_rows(self, path: Ids) -> NDArray[np.float32]:
        chain = self._kept.chain(path)
        assert chain is not None, "read before"
        return np.concatenate([piece.extra for piece in chain if piece.extra is not None])


class _Batch:
    """The batch runner for `TorchRows`. It is separate because `rows` is a batch size here and a method there."""

    def __init__(self, source: TorchRows, rows: int) -> None:
        self.rows = rows
        self._source = source

    def run(self, items: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """Score a batch; see `BatchRunner`."""
        return self._source.score(items)
