"""DeadLetter: a record that could not be handled, kept so that an operator can see why and retry it."""

import hashlib

from schemas.errors import RecordError
from schemas.forest import Count
from schemas.query import Origin
from schemas.record import Record, readable_id

HEAD_BYTES = 4096
"""Maximum number of bytes to keep of a failed value. The whole value remains at its origin."""

MAX_REASON = 2000
"""Maximum number of characters to keep of an error message; a library's error can quote the whole record."""


class DeadLetter(Record, frozen=True, kw_only=True, tag="dead-letter.v1"):
    """A record that could not be handled. Key: origin.

    Attributes:
        service: The service that failed.
        origin: The record's position; `dead-letters retry` reads the record from there.
        error: Name of the error's type.
        reason: The problem and how to fix it.
        field: The field at fault, if any.
        query_id: The record's query, if the id is readable.
        head: The first bytes of the value, 4 KiB unless the deployment sets fewer; base64 on the wire.
        size: Size of the whole value, in bytes.
        sha256: Digest of the whole value, in hex.
        attempts: Number of attempts at handling the record.
        query_origin: Position of the Query, if it was rejected because an earlier query has its id. Such a query gets
            no Answer, because its id belongs to the earlier query's Answer.
    """

    service: str
    origin: Origin
    error: str
    reason: str
    head: bytes
    size: Count
    sha256: str
    field: str = ""
    query_id: str | None = None
    attempts: Count = 1
    query_origin: Origin | None = None

    @classmethod
    def of(
        cls,
        value: bytes | None,
        error: Exception,
        *,
        service: str,
        origin: Origin,
        query_id: str | None = None,
        attempts: int = 1,
        keep_bytes: int = HEAD_BYTES,
        query_origin: Origin | None = None,
    ) -> "DeadLetter":
        """Return the dead letter for a value. Any value is accepted: a failure here would block the partition forever.

        Args:
            value: The whole failed value; any bytes.
            error: The error raised while handling the record.
            service: The service that could not handle it.
            origin: The record's position.
            query_id: The record's query if known; otherwise it is read from the value if possible.
            attempts: Number of attempts at handling the record.
            keep_bytes: Maximum number of bytes of the value to keep.
            query_origin: Position of the Query, if it was rejected because its id is taken.
        """
        data = value or b""
        return cls(
            service=service,
            origin=origin,
            error=type(error).__name__,
            reason=_sendable(str(error)[:MAX_REASON]) or type(error).__name__,
            head=data[: min(keep_bytes, HEAD_BYTES)],
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            field=_sendable(error.field) if isinstance(error, RecordError) else "",
            query_id=query_id or readable_id(value),
            attempts=attempts,
            query_origin=query_origin,
        )

    @property
    def key(self) -> str:
        """Return the origin's topic/partition/offset."""
        return str(self.origin)


def _sendable(text: str) -> str:
    """Return the text in a form that UTF-8 can encode; a library's message may quote half a surrogate pair."""
    return text.encode(errors="replace").decode()
