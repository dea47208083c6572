"""Build the dead letter of a record, and an Answer if its query would otherwise never get one.

Pure and total: the value may be any bytes at all. A failure here would block the partition forever.
"""

from typing import Literal

import msgspec

from schemas.answer import Answer
from schemas.base import readable_id
from schemas.dead_letter import DeadLetter
from schemas.query import Origin


def letter_of(
    value: bytes | None,
    error: Exception,
    *,
    room: str,
    origin: Origin,
    keep_bytes: int,
    attempts: int = 1,
    query_origin: Origin | None = None,
) -> DeadLetter:
    """Return the dead letter of a record.

    Args:
        value: The record's bytes; they may be anything.
        error: Why it could not be handled.
        room: The room that could not handle it.
        origin: The record's topic, partition and offset.
        keep_bytes: How much of the value is kept, at most.
        attempts: How often it was tried.
        query_origin: Origin of a query refused because its id is taken.
    """
    letter = DeadLetter.of(
        value,
        error,
        room=room,
        origin=origin,
        attempts=attempts,
        query_id=readable_id(value),
        keep_bytes=keep_bytes,
    )
    return msgspec.structs.replace(
        letter,
        reason=_sendable(letter.reason),
        field=_sendable(letter.field),
        query_origin=query_origin,
    )


def answer_of(letter: DeadLetter, status: Literal["rejected", "failed"]) -> Answer | None:
    """Return the Answer for a query whose record became a dead letter, or None if its id cannot be read."""
    if not letter.query_id:
        return None
    return Answer(query_id=letter.query_id, status=status, by=letter.room, error=letter.reason)


def _sendable(text: str) -> str:
    """Return text that UTF-8 can hold: a library's message may quote half a surrogate pair."""
    return text.encode(errors="replace").decode()
