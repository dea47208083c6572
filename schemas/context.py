"""A query with its embedding, as the decider takes it."""

import math
import sys
from array import array

from schemas.base import Record
from schemas.errors import InvalidField
from schemas.query import Origin, Query


class Context(Record, frozen=True, kw_only=True, tag="context.v1"):
    """A query with its embedding. Key: policy shard.

    Attributes:
        query: The Query, whole.
        embedding: The unit vector s_q as little-endian float32; base64 on the wire.
        encoder: Name of the encoder that made it: vectors of two encoders do not mix.
        origin: Where the Query lies. The same query_id from another origin is a duplicate.
        appended_ms: Append time of the Query on the broker, ms since the epoch: deadlines count from it.
    """

    query: Query
    embedding: bytes
    origin: Origin
    encoder: str = ""
    appended_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse an embedding that must not reach A."""
        if not self.embedding or len(self.embedding) % 4:
            raise InvalidField(
                "Context", "embedding", f"has {len(self.embedding)} bytes; send 4 a dimension (float32)"
            )
        # A sum of float32 in double precision is finite exactly when every one is.
        if not math.isfinite(sum(self.vector())):
            raise InvalidField("Context", "embedding", "holds NaN or infinity; correct the encoder")

    @property
    def query_id(self) -> str:
        """Return the query's id."""
        return self.query.query_id

    def vector(self) -> "array[float]":
        """Return the embedding as an array of float32, shape (d,)."""
        return unpack(self.embedding)


def pack(vector: "array[float]") -> bytes:
    """Return float32 numbers as little-endian bytes."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return vector.tobytes()


def unpack(embedding: bytes) -> "array[float]":
    """Return little-endian bytes as an array of float32."""
    vector = array("f")
    vector.frombytes(embedding)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector
