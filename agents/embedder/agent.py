"""The embedder: Query in, Context out (§3.1, joint semantic representation).

Pure but for the encoder that is handed in: admission, topics and offsets are the wiring's business.
"""

from collections.abc import Sequence
from typing import NamedTuple

from agents.embedder.encoder import Encoder, Vectors, encoder_id
from schemas.context import Context
from schemas.query import Origin, Query


class Arrival(NamedTuple):
    """A query with where it lies and when the broker appended it, in ms since the epoch."""

    query: Query
    origin: Origin
    appended_ms: int


def embedded_text(query: Query) -> str:
    """Return the text that stands for a query: its question, the newest message of a conversation first.

    An encoder reads a few hundred tokens from the beginning. Newest first, what is cut off is what was said
    longest ago, and not the question.
    """
    if query.messages is None:
        return query.question
    return "\n\n".join(message.content for message in reversed(query.messages))


def embed(arrivals: Sequence[Arrival], *, encoder: Encoder) -> tuple[Context, ...]:
    """Return the context of each arrival, in their order.

    Args:
        arrivals: One or more; a vector is the same alone as among others.
        encoder: The same that embeds the actions: vectors of two encoders do not mix.

    Raises:
        EncoderError: when the encoder gives no vector; nothing is half done, so all may be tried again.
    """
    vectors = encoder.encode([embedded_text(arrival.query) for arrival in arrivals])
    return tuple(
        Context(
            query=arrival.query,
            embedding=to_bytes(vectors[at : at + 1]),
            origin=arrival.origin,
            encoder=encoder_id(encoder),
            appended_ms=arrival.appended_ms,
        )
        for at, arrival in enumerate(arrivals)
    )


def to_bytes(vectors: Vectors) -> bytes:
    """Return vectors as the wire holds them: little-endian float32."""
    return vectors.astype("<f4").tobytes()
