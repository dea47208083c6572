"""A streamed chat completion; see `EventStream`."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from msgspec import Struct

from agents.serving.engine import OnText, Piece
from agents.serving.event_stream import Chunk, EventStream
from schemas.query import ToolCall

_IN_PIECES = ("content", "refusal", "reasoning", "reasoning_content")
"""Fields of a message whose pieces are concatenated; for other fields, the last value counts."""


class ChatDelta(Struct):
    """What a chunk adds to a choice."""

    delta: dict[str, Any] | None = None
    finish_reason: str | None = None
    logprobs: dict[str, list[Any] | None] | None = None


class ChatChunk(Chunk):
    """The fields of a chunk that are read; servers send many more."""

    choices: tuple[ChatDelta, ...] = ()
    usage: dict[str, Any] | None = None


class ChatStream(EventStream):
    """The chunks of one choice, including tool calls and log probabilities."""

    chunk = ChatChunk

    def __init__(self, path: str, on_text: OnText) -> None:
        super().__init__(path, on_text)
        self._pieces: dict[str, list[str]] = {}
        self._message: dict[str, Any] = {"role": "assistant"}
        self._calls: list[dict[str, Any]] = []
        self._logprobs: dict[str, list[Any]] = {}
        self._finish: str | None = None
        self._usage: Any = None

    def _reply(self) -> dict[str, Any] | None:
        if self._finish is None:
            return None
        joined = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        message = {"content": None, **self._message, **joined}
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"message": message, "finish_reason": self._finish, "logprobs": self._logprobs or None}
        return {"choices": [choice], "usage": self._usage}

    def _add(self, chunk: ChatChunk) -> list[Piece]:
        arrived = [piece for choice in chunk.choices[:1] for piece in self._delta(choice)]
        self._usage = chunk.usage or self._usage
        return arrived

    def _delta(self, choice: ChatDelta) -> list[Piece]:
        """Add a choice's part of a chunk, and return the text in it, and all calls so far if it adds to them."""
        self._finish = choice.finish_reason or self._finish
        for name, values in (choice.logprobs or {}).items():
            self._logprobs.setdefault(name, []).extend(values or ())
        text, called = "", False
        for name, value in (choice.delta or {}).items():
            if name == "tool_calls":
                for call in value or ():
                    self._call(call)
                    called = True
            elif name in _IN_PIECES and value:
                piece = value if isinstance(value, str) else "".join(part.get("text") or "" for part in value)
                self._pieces.setdefault(name, []).append(piece)
                text += piece if name == "content" else ""
            elif value is not None:
                self._message[name] = value
        return [*([text] if text else []), *([self._so_far()] if called else [])]

    def _so_far(self) -> tuple[ToolCall, ...]:
        """Return the calls so far, up to the first that still lacks its id or name."""
        found = map(ToolCall.of, self._calls)
        return tuple(takewhile(lambda call: call is not None, found))  # type: ignore[arg-type]

    def _call(self, delta: dict[str, Any]) -> None:
        """Merge a delta into the tool call at its index. If the delta has no index, an id starts a new call."""
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
