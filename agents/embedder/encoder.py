"""Text to unit vector: what an encoder promises, whichever it is.

`minilm.py` runs one here; `openai_http.py` asks a server. Both keep these promises, and the policy relies on
them: rows have unit length (their norm sets the scale of α), none is zero or not finite, and a text has the
same vector alone as among others.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from agents.embedder.errors import BadEmbedding

Vectors = npt.NDArray[np.float32]

# Stands for a text without a single visible character, which some servers refuse. Any fixed text would do.
EMPTY_TEXT = "(empty)"
# A sentence encoder's vectors have lengths around 1 to 10 before they are scaled; below this, direction is
# noise.
LEAST_NORM = 1e-6


@runtime_checkable
class Encoder(Protocol):
    """A Transformer encoder with its identity."""

    @property
    def name(self) -> str:
        """Return which model this is."""
        ...

    @property
    def version(self) -> str:
        """Return which files or server stand behind the name, as far as it is known."""
        ...

    @property
    def dimension(self) -> int:
        """Return the length of a vector."""
        ...

    @property
    def truncated(self) -> int:
        """Return how many texts have been cut to the model's length so far."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row a text, shape (len(texts), dimension), float32.

        Raises:
            EncoderError: see `errors.py` for which.
        """
        ...


def encoder_id(encoder: Encoder) -> str:
    """Return name, version and dimension as one word: what a vector's provenance is recorded as."""
    return f"{encoder.name}@{encoder.version}/{encoder.dimension}"


def readable(text: str) -> str:
    r"""Return the text an encoder is given: never empty, and always encodable as UTF-8.

    >>> readable(" \n"), readable("a\ud800b")
    ('(empty)', 'a?b')
    """
    return text.encode("utf-8", "replace").decode() if text.strip() else EMPTY_TEXT


def unit_rows(rows: npt.NDArray[np.floating], count: int, dimension: int) -> Vectors:
    """Return rows scaled to length one.

    Args:
        rows: What an encoder computed, shape (count, dimension).
        count: How many texts were asked for.
        dimension: The length every vector must have.

    Raises:
        BadEmbedding: on another shape, a number that is not finite, or a row without direction.
    """
    if rows.shape != (count, dimension):
        raise BadEmbedding(
            f"embedding: shape {rows.shape}, expected {(count, dimension)}; set the encoder's dimension"
        )
    wide = rows.astype(np.float64)
    if not np.isfinite(wide).all():
        at = int(np.flatnonzero(~np.isfinite(wide).all(axis=1))[0])
        raise BadEmbedding(f"embedding of text {at}: holds NaN or infinity; check the encoder's precision")
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    if count and norms.min() < LEAST_NORM:
        at = int(norms.argmin())
        raise BadEmbedding(
            f"embedding of text {at}: length {norms.min():.1e} has no direction; check the encoder"
        )
    rows_32: Vectors = (wide / norms).astype(np.float32)
    return rows_32
