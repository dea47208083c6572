"""The encoder that the settings name."""

import hashlib
from collections.abc import Sequence

import numpy as np

from agents.embedder.encoder import Encoder, Vectors, readable, unit_rows
from streams.settings import Settings


class HashedEncoder:
    """Words hashed to signed coordinates: no model, microseconds a text. For measuring the plumbing alone.

    It knows nothing of meaning: a policy that learns on it learns which words occur.
    """

    name = "hashed-words"
    version = "1"
    truncated = 0

    def __init__(self, dimension: int = 64) -> None:
        self.dimension = dimension

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row a text."""
        rows = np.zeros((len(texts), self.dimension))
        for row, text in zip(rows, texts, strict=True):
            row[0] = 1e-3  # a text of unlucky words must not cancel out
            for word in readable(text).lower().split():
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                at = int.from_bytes(digest[:4], "little") % self.dimension
                row[at] += 1.0 if digest[4] & 1 else -1.0
        return unit_rows(rows, len(texts), self.dimension)


def encoder_of(settings: Settings) -> Encoder:
    """Return the encoder of the settings; queries and actions go through the same one.

    Raises:
        EncoderError: its files are missing.
    """
    if settings.encoder.kind == "hashed":
        return HashedEncoder(settings.encoder.dimension or 64)
    if settings.encoder.kind == "http":
        from agents.embedder.openai_http import HttpEncoder

        return HttpEncoder(
            url=settings.encoder.url,
            model=settings.encoder.model,
            dimension=settings.encoder.dimension,
            api_key=settings.encoder.key or None,
        )
    from agents.embedder.minilm import MiniLM

    return MiniLM()
