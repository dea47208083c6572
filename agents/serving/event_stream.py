"""A streamed completion: server-sent events in, text and calls as they arrive and finally the whole reply out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from agents.serving.engine import OnText, Piece
from agents.serving.errors import EngineFaultError, EngineReplyError, StreamBrokenError

_SHOWN = 300
"""Maximum number of characters of a server's error message that ours quote."""


class Chunk(Struct):
    """The fields that are read from every kind of chunk."""

    error: Any = None


class EventStream(ABC):
    """The chunks of one completion, put together into the reply that the server would have sent without `stream`.

    Args:
        path: Named in errors.
        on_text: Called with each piece of the text as it arrives, and with the calls of tools whenever they grow.

    Attributes:
        began: Whether any of it has arrived. If so, the request is not sent again, because the new text may differ.
    """

    chunk: ClassVar[type[Chunk]]

    def __init__(self, path: str, on_text: OnText) -> None:
        self.began = False
        self._path, self._on_text = path, on_text
        self._rest = b""
        self._error: Any = None

    def take(self, part: bytes) -> None:
        """Read the next bytes of a reply of server-sent events.

        Raises:
            EngineReplyError: An event is not a chunk of a completion.
        """
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                self._event(data)

    def whole(self) -> dict[str, Any]:
        """Return the reply.

        Raises:
            StreamBrokenError: The stream ended before the completion did.
            EngineFaultError: The server reported an error in the stream.
        """
        if self._error is not None:
            said = str(self._error)[:_SHOWN]
            raise EngineFaultError(f"{self._path}: the server ended its stream with an error: {said}")
        if (reply := self._reply()) is None:
            raise StreamBrokenError(
                f"{self._path}: the stream ended before its answer did; is the server up?"
            )
        return reply

    def _event(self, data: bytes) -> None:
        try:
            chunk = msgspec.json.decode(data, type=self.chunk)
            arrived = self._add(chunk)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError, TypeError) as error:
            raise EngineReplyError(f"{self._path}: an event of the stream is not a chunk: {error}") from error
        self._error = chunk.error or self._error
        for piece in arrived:
            self.began = True
            self._on_text(piece)

    @abstractmethod
    def _add(self, chunk: Any) -> list[Piece]:
        """Add a chunk and return the pieces of the answer that it contains."""

    @abstractmethod
    def _reply(self) -> dict[str, Any] | None:
        """Return the whole reply; None if no chunk marked its end."""
