"""A chat completion as it is streamed: chunks in, the text as it arrives and finally the reply as a whole out."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from agents.serving.errors import EngineFaultError, EngineReplyError, StreamBrokenError
from agents.serving.http import SHOWN_CHARACTERS

_IN_PIECES = ("content", "refusal", "reasoning", "reasoning_content")
"""Fields of a message whose pieces follow one another; of the others, the last counts."""


class ChunkChoice(Struct):
    """What a chunk adds to a choice."""

    delta: dict[str, Any] | None = None
    finish_reason: str | None = None
    logprobs: dict[str, list[Any] | None] | None = None


class Chunk(Struct):
    """The fields of a chunk that are read; servers send many more."""

    choices: list[ChunkChoice] = []
    usage: dict[str, Any] | None = None
    error: Any = None


class ChatStream:
    """The chunks of one choice, put together into the reply that the server would have sent without `stream`.

    Args:
        path: Named in errors.
        on_text: Called with each piece of the text as it arrives.

    Attributes:
        began: Whether any text has arrived: then the request is not sent again, because its text may differ.
    """

    def __init__(self, path: str, on_text: Callable[[str], None]) -> None:
        self.began = False
        self._path, self._on_text = path, on_text
        self._rest = b""
        self._pieces: dict[str, list[str]] = {}
        self._message: dict[str, Any] = {"role": "assistant"}
        self._calls: list[dict[str, Any]] = []
        self._logprobs: dict[str, list[Any]] = {}
        self._finish: str | None = None
        self._usage: Any = None
        self._error: Any = None

    def take(self, part: bytes) -> None:
        """Read the next bytes of a reply of server-sent events.

        Raises:
            EngineReplyError: an event is no chunk of a chat completion.
        """
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                self._event(data)

    def whole(self) -> dict[str, Any]:
        """Return the reply.

        Raises:
            StreamBrokenError: it ended before its answer did.
            EngineFaultError: the server reported an error after it had begun.
        """
        if self._error is not None:
            said = str(self._error)[:SHOWN_CHARACTERS]
            raise EngineFaultError(f"{self._path}: the server ended its stream with an error: {said}")
        if self._finish is None:
            raise StreamBrokenError(
                f"{self._path}: the stream ended before its answer did; is the server up?"
            )
        joined = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        message = {"content": None, **self._message, **joined}
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"message": message, "finish_reason": self._finish, "logprobs": self._logprobs or None}
        return {"choices": [choice], "usage": self._usage}

    def _event(self, data: bytes) -> None:
        try:
            chunk = msgspec.json.decode(data, type=Chunk)
            text = "".join([self._add(choice) for choice in chunk.choices[:1]])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError, TypeError) as error:
            raise EngineReplyError(f"{self._path}: an event of the stream is no chunk: {error}") from error
        self._usage = chunk.usage or self._usage
        self._error = chunk.error or self._error
        if text:
            self.began = True
            self._on_text(text)

    def _add(self, choice: ChunkChoice) -> str:
        """Add a choice's part of a chunk, and return the text in it."""
        self._finish = choice.finish_reason or self._finish
        for name, values in (choice.logprobs or {}).items():
            self._logprobs.setdefault(name, []).extend(values or ())
        text = ""
        for name, value in (choice.delta or {}).items():
            if name == "tool_calls":
                for call in value or ():
                    self._call(call)
            elif name in _IN_PIECES and value:
                piece = value if isinstance(value, str) else "".join(part.get("text") or "" for part in value)
                self._pieces.setdefault(name, []).append(piece)
                text += piece if name == "content" else ""
            elif value is not None:
                self._message[name] = value
        return text

    def _call(self, delta: dict[str, Any]) -> None:
        """Add to the tool call of an index; without one, a call with an id is a new one."""
        at = delta.get("index")
        if at is None:
            at = len(self._calls) - (not delta.get("id"))
        if not 0 <= at <= len(self._calls):
            raise TypeError(f"tool call {at} comes after {len(self._calls)}")
        if at == len(self._calls):
            self._calls.append({})
        call = self._calls[at]
        for name, value in delta.items():
            if isinstance(value, dict):  # the function, or the custom tool
                said = call.setdefault(name, {})
                for inner, text in value.items():
                    in_pieces = inner in ("arguments", "input") and inner in said
                    said[inner] = said[inner] + (text or "") if in_pieces else text
            elif name != "index" and value is not None:
                call[name] = value
