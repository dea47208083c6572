"""Actions as vectors: their descriptions through the encoder that queries go through, once per text.

The optional cache is one file a text, named by encoder and text, so that a change of either is another file
and two processes can share a folder. A file that is not what it should be is computed again.
"""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agents.embedder.encoder import LEAST_NORM, Encoder, Vectors, encoder_id


def embed_actions(encoder: Encoder, descriptions: Sequence[str], cache: Path | None = None) -> Vectors:
    """Return one unit row a description, shape (len(descriptions), dimension), float32.

    Args:
        encoder: The one that embeds the queries.
        descriptions: Texts of actions, App. B.2.
        cache: A folder to keep vectors in; None computes them all.

    Raises:
        EncoderError: when the encoder gives no vector.
        OSError: when the folder cannot be written.
    """
    if cache is None:
        return encoder.encode(descriptions)
    cache.mkdir(parents=True, exist_ok=True)
    files = [cache / _file_name(encoder, text) for text in descriptions]
    known = {file: row for file in set(files) if (row := _read(file, encoder.dimension)) is not None}
    missing = {file: text for file, text in zip(files, descriptions, strict=True) if file not in known}
    for file, row in zip(missing, encoder.encode(list(missing.values())), strict=True):
        _write(file, row)
        known[file] = row
    return np.stack([known[file] for file in files]) if files else encoder.encode([])


def _file_name(encoder: Encoder, text: str) -> str:
    return hashlib.sha256(f"{encoder_id(encoder)}\n{text}".encode()).hexdigest() + ".f32"


def _read(file: Path, dimension: int) -> Vectors | None:
    try:
        row = np.frombuffer(file.read_bytes(), dtype="<f4")
    except (OSError, ValueError):
        return None
    whole = (
        row.shape == (dimension,) and abs(float(np.linalg.norm(row.astype(np.float64))) - 1) < LEAST_NORM * 10
    )
    return row.astype(np.float32) if whole else None


def _write(file: Path, row: Vectors) -> None:
    """Write under another name first: a reader sees the whole vector or none."""
    handle, name = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(handle, "wb") as stream:
        stream.write(row.astype("<f4").tobytes())
    Path(name).replace(file)
