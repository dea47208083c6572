"""AnswerChunk: more of an answer's text while it is generated, for the gateway whose client streams it."""

import zlib

from schemas.forest import Count
from schemas.record import Record, check_id


class AnswerChunk(Record, frozen=True, kw_only=True, tag="answer-chunk.v1"):
    """More of the text of an answer. Key: query_id.

    Chunks may be lost, repeated, late, or come from two runs of a search that was redelivered: the Answer has the whole
    text, and only it counts. `before` lets a reader append only what continues the text that it has.

    Attributes:
        query_id: The query's id.
        attempt: Which attempt at the query, 1 for the first.
        offset: Characters of the answer before this text.
        before: CRC-32 of these characters in UTF-8 (`digest`).
        text: The text.
    """

    query_id: str
    attempt: Count = 1
    offset: Count = 0
    before: Count = 0
    text: str

    def __post_init__(self) -> None:
        """Refuse an id that cannot be a key."""
        check_id("AnswerChunk", self.query_id)

    def continues(self, text: str) -> str:
        """Return what it adds to the text so far; empty if it adds nothing, or belongs to another text."""
        if self.offset > len(text) or digest(text[: self.offset]) != self.before:
            return ""
        known = text[self.offset :]
        return self.text[len(known) :] if self.text.startswith(known) else ""


def digest(text: str) -> int:
    """Return the CRC-32 of a text in UTF-8."""
    return zlib.crc32(text.encode())
