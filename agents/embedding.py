"""Text to unit vector: the encoder protocol, action vectors, and Query to Context (§3.1)."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from schemas.errors import UniscaleError
from schemas.query import Origin, Query, QueryContext

# Errors in computing a text's vector.
#
# UniscaleError
# └── EncoderError
#     ├── EncoderFilesError     a model or tokenizer file is missing or is not the pinned one
#     ├── EncoderRefused        the server rejects this text (4xx, or 500 each time) but accepts others: final
#     ├── EncoderUnavailable    the server embeds no text at present, or limits the rate: retrying later may succeed
#     │   └── TextUnanswered    no usable answer to this text, while others are embedded: final after a few tries
#     └── BadEmbedding          the answer is not an embedding of this text: wrong count or dimension, NaN, zero length


class EncoderError(UniscaleError):
    """A text's vector could not be computed."""

    instead = (
        "the encoder gives this text no vector; shorten or change it, or ask the operator, whose log says why"
    )


class EncoderFilesError(EncoderError):
    """A file needed by the encoder is missing or is not the pinned one."""


class EncoderRefused(EncoderError):
    """The server rejected the request permanently."""


class EncoderUnavailable(EncoderError):
    """The server returned no usable answer within the allowed number of attempts."""

    instead = "the encoder does not answer at present; try again later"


class TextUnanswered(EncoderUnavailable):
    """The server failed to answer for this text but embedded another: a load balancer or the text is at fault."""

    instead = "the encoder does not answer to this text; shorten or change it, or try again later"


class BadEmbedding(EncoderError):
    """A text's vector is missing from the reply, has the wrong dimension, or cannot be scaled to unit length."""


# Text to unit vector: the guarantees that every encoder makes.
#
# `minilm.py` runs an encoder in this process, and `HttpEncoder` calls a server. The policy relies on these guarantees:
# rows have unit length (their norm sets the scale of α), all are finite and non-zero, and a text's vector does not
# depend on the other texts in a batch.

Vectors = npt.NDArray[np.float32]

# Replaces text without any visible characters, which some servers reject. Any fixed text would do.
EMPTY_TEXT = "(empty)"
# A sentence encoder's vectors have lengths of about 1 to 10 before scaling. Below this length, the direction is noise.
LEAST_NORM = 1e-6


@runtime_checkable
class Encoder(Protocol):
    """The protocol for encoders, which map texts to unit vectors."""

    @property
    def name(self) -> str:
        """Return the model's name."""
        ...

    @property
    def version(self) -> str:
        """Return the version of the encoder's files or server, if known."""
        ...

    @property
    def dimension(self) -> int:
        """Return the length of a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row per text, shape (len(texts), dimension), float32.

        Raises:
            EncoderError: A vector could not be computed; the subclass determines what to do.
        """
        ...


def encoder_id(encoder: Encoder) -> str:
    """Return the name, version and dimension as one word, which is recorded as a vector's provenance."""
    return f"{encoder.name}@{encoder.version}/{encoder.dimension}"


def readable(text: str) -> str:
    r"""Return the text to encode, which is never blank and always valid UTF-8.

    >>> readable(" \n"), readable("a\ud800b")
    ('(empty)', 'a?b')
    """
    return text.encode("utf-8", "replace").decode() if text.strip() else EMPTY_TEXT


def unit_rows(rows: npt.NDArray[np.floating], count: int, dimension: int) -> Vectors:
    """Return the rows, scaled to unit length.

    Args:
        rows: Vectors computed by an encoder, shape (count, dimension).
        count: Number of texts.
        dimension: Required number of components in each vector.

    Raises:
        BadEmbedding: The shape is wrong, a number is not finite, or a row has no direction.
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


# Actions as vectors: their descriptions are embedded by the encoder that embeds the queries, once per text.
#
# The optional cache has one file per text, named after the encoder and the text, so that a change to either results in
# a different file, and two processes can share a folder. If a file is invalid, its vector is recomputed.


def embed_actions(encoder: Encoder, descriptions: Sequence[str], cache: Path | None = None) -> Vectors:
    """Return one unit row per description, shape (len(descriptions), dimension), float32.

    Args:
        encoder: The encoder that embeds the queries.
        descriptions: Action descriptions (App. B.2).
        cache: A folder for storing vectors; None to compute all of them. Vectors that do not fit on the disk are
            recomputed.

    Raises:
        EncoderError: The encoder could not compute a vector.
    """
    if cache is None:
        return encoder.encode(descriptions)
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
    """Write a vector under a temporary name first, so that readers see all of it or nothing. Ignore a full disk."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(row.astype("<f4").tobytes())
            Path(name).replace(file)
        except OSError:
            Path(name).unlink(missing_ok=True)


# The embedder: Query in, Context out (§3.1, joint semantic representation).
#
# This is pure except for the encoder passed in. Admission, topics and offsets are handled by `streams`.


class ArrivedQuery(NamedTuple):
    """A query, with its topic position and its append time on the broker, in ms since the epoch."""

    query: Query
    origin: Origin
    appended_ms: int


def embedded_text(query: Query) -> str:
    """Return the text to embed for a query: its question, with a conversation's newest message first.

    An encoder reads only the first few hundred tokens. With the newest message first, the oldest messages are cut off
    rather than the question.
    """
    if query.messages is None:
        return query.question
    said = "\n\n".join(message.text for message in reversed(query.messages))
    return said if said.strip() else query.question


def embed(arrivals: Sequence[ArrivedQuery], *, encoder: Encoder) -> tuple[QueryContext, ...]:
    """Return the context for each arrival, in order.

    Args:
        arrivals: One or more queries. A query's vector does not depend on the others.
        encoder: The same encoder that embeds the actions, since vectors from different encoders cannot be combined.

    Raises:
        EncoderError: The encoder could not compute a vector. No state changes, so all arrivals may be retried.
    """
    vectors = encoder.encode([embedded_text(arrival.query) for arrival in arrivals])
    return tuple(
        QueryContext(
            query=arrival.query,
            embedding=to_bytes(vectors[at : at + 1]),
            origin=arrival.origin,
            encoder=encoder_id(encoder),
            appended_ms=arrival.appended_ms,
        )
        for at, arrival in enumerate(arrivals)
    )


def to_bytes(vectors: Vectors) -> bytes:
    """Return the vectors in wire format, which is little-endian float32."""
    return vectors.astype("<f4").tobytes()
