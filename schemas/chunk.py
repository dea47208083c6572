"""AnswerChunk: a piece of an answer's text, sent while it is generated to the gateway whose client streams it."""

import zlib

from schemas.forest import Count
from schemas.record import Record, check_id


class AnswerChunk(Record, frozen=True, kw_only=True, tag="answer-chunk.v1"):
    """A piece of the text of an answer. Key: query_id.

    Chunks may be lost, repeated or late, or come from two runs of a redelivered search. The Answer has the whole text,
    and it alone counts. With `before`, a reader can append only chunks that continue the text it already has.

    Attributes:
        query_id: The query's id.
        attempt: Number of the attempt at the query, 1 for the first.
        offset: Number of characters of the answer before this text.
        before: CRC-32 of the characters before this text, in UTF-8 (`digest`).
        text: The text.
    """

    query_id: str
    attempt: Count = 1
    offset: Count = 0
    before: Count = 0
    text: str

    def __post_init__(self) -> None:
        """Reject an id that cannot be a key."""
        check_id("AnswerChunk", self.query_id)

    def continues(self, text: str) -> str:
        """Return what this chunk adds to the text so far; empty if it adds nothing or continues a different text."""
        if self.offset > len(text) or digest(text[: self.offset]) != self.before:
            return ""
        known = text[self.offset :]
        return self.text[len(known) :] if self.text.startswith(known) else ""


def digest(text: str) -> int:
    """Return the CRC-32 of a text in UTF-8."""
    return zlib.crc32(text.encode())
