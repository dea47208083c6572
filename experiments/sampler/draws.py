"""Tokens from logits and seeds: the numbers a draft draws depend on its seed and its position alone."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.catalogue.models import Sampling

_GOLDEN, _MIX = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def bits(seeds: NDArray[np.uint64], at: int) -> NDArray[np.uint64]:
    """Return the number at a place of each seed's SplitMix64 stream (Steele, Lea and Flood 2014), 64 bits.

    A generator whose numbers can be had in any order, for all drafts of a batch at once.

    Args:
        seeds: Shape (drafts,).
        at: The place, from 0.
    """
    z = seeds + np.uint64(((at + 1) * _GOLDEN) & 0xFFFFFFFFFFFFFFFF)  # arrays wrap around, as they should
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX[1])
    return np.asarray(z ^ (z >> np.uint64(31)))


def uniforms(seeds: NDArray[np.uint64], at: int) -> NDArray[np.float64]:
    """Return u in [0, 1), 53 bits, for the token at a place of each draft; shape (drafts,)."""
    return (bits(seeds, at) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def cumulative(logits: Tensor, sampling: Sampling) -> NDArray[np.float64]:
    """Return each row's cumulative distribution; at temperature 0 all of it stands on the likeliest token.

    Args:
        logits: Shape (rows, vocabulary).
        sampling: Temperature, top_k, top_p.
    """
    if sampling.temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        places = torch.arange(logits.shape[-1])
        return np.asarray((places >= best).double().numpy())
    p = (logits.double() / sampling.temperature).softmax(-1)
    if sampling.top_k or sampling.top_p < 1:
        ranked, order = p.sort(-1, descending=True)
        if sampling.top_k:
            ranked[:, sampling.top_k :] = 0
            ranked = ranked / ranked.sum(-1, keepdim=True)
        # A token stays while those before it hold less than top_p: the first always does.
        ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked >= sampling.top_p, 0)
        p = torch.zeros_like(p).scatter(-1, order, ranked)
    total = p.cumsum(-1)
    return np.asarray((total / total[:, -1:]).numpy())


def draw(table: NDArray[np.float64], rows: NDArray[np.int64], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the token of each draw: where its row's cumulative distribution passes u; shape (draws,).

    One search in the rows laid end to end, row r over [r, r + 1): that costs the twelve last of u's 53 bits
    for four thousand rows, and a search a draw in place of a pass over the vocabulary.

    Args:
        table: From `cumulative`, shape (rows, vocabulary).
        rows: Each draw's row.
        u: In [0, 1).
    """
    size = table.shape[1]
    line = (table + np.arange(len(table))[:, None]).ravel()
    within = np.minimum(rows + u, np.nextafter(rows + 1.0, 0.0))  # the sum may round up to the next row
    return np.asarray(np.searchsorted(line, within, side="right") - rows * size)
