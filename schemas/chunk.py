"""AnswerChunk: a piece of an answer, sent while it is generated to the gateway whose client streams it."""

import zlib
from typing import Literal

from msgspec import Struct, field

from schemas.forest import Count
from schemas.query import ToolCall
from schemas.record import Record, check_id


class CallHead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a tool without its arguments.

    Attributes:
        index: Its number among the answer's calls, from 0.
        id: As in `ToolCall`.
        name: As in `ToolCall`.
        type: As in `ToolCall`.
    """

    index: Count
    id: str
    name: str
    type: Literal["function", "custom"] = "function"


class AnswerChunk(Record, frozen=True, kw_only=True, tag="answer-chunk.v1"):
    """A piece of the text of an answer, or of the arguments of one of its calls. Key: query_id.

    Chunks may be lost, repeated or late, or come from two runs of a redelivered search. The Answer is whole, and it
    alone counts. With `before`, a reader can append only chunks that continue what it already has (`Shown`).

    Attributes:
        query_id: The query's id.
        attempt: Number of the attempt at the query, 1 for the first.
        call: The call that the arguments belong to; None for the answer's text.
        offset: Number of characters of the text, or of the call's arguments, before this piece.
        before: CRC-32 of all that comes before this piece (`digest`): the text, then each call with its arguments.
        text: The piece.
    """

    query_id: str
    attempt: Count = 1
    call: CallHead | None = None
    offset: Count = 0
    before: Count = 0
    text: str

    def __post_init__(self) -> None:
        """Reject an id that cannot be a key."""
        check_id("AnswerChunk", self.query_id)


class Shown(Struct):
    """What is known of an answer that is being generated: its text, then its calls, in order.

    Attributes:
        text: The text so far. It is complete once there is a call.
        calls: The calls so far. All but the last are complete.
    """

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, chunk: AnswerChunk) -> str:
        """Append a chunk and return what it adds; empty if it adds nothing or continues something else."""
        head = chunk.call
        known = self.text if head is None else self._arguments(head)
        if known is None or (head is None and self.calls):
            return ""
        if chunk.offset > len(known) or self.digest(head, known[: chunk.offset]) != chunk.before:
            return ""
        rest = known[chunk.offset :]
        more = chunk.text[len(rest) :] if chunk.text.startswith(rest) else ""
        if head is None:
            self.text += more
        elif more:
            call = ToolCall(id=head.id, name=head.name, type=head.type, arguments=known + more)
            self.calls[head.index :] = [call]
        return more

    def digest(self, head: CallHead | None, known: str) -> int:
        """Return the CRC-32 of what precedes a place in the answer.

        Args:
            head: The call that the place is in; None for a place in the text.
            known: The text, or the call's arguments, before the place.
        """
        if head is None:
            return digest(known)
        earlier = (part for call in self.calls[: head.index] for part in (call.id, call.name, call.arguments))
        return digest(self.text, *earlier, head.id, head.name, known)

    def _arguments(self, head: CallHead) -> str | None:
        """Return the known arguments of a call; None if it is neither the last call nor the next."""
        if head.index == len(self.calls):
            return ""
        if head.index != len(self.calls) - 1:
            return None
        last = self.calls[-1]
        return last.arguments if (last.id, last.name, last.type) == (head.id, head.name, head.type) else None


def digest(*parts: str) -> int:
    """Return the CRC-32 of texts in UTF-8, one after the other."""
    found = 0
    for part in parts:
        found = zlib.crc32(part.encode(), found)
    return found
