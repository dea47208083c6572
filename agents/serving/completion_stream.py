"""A streamed completion of vLLM's `/v1/completions`; see `EventStream`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from agents.serving.engine import OnText, Piece
from agents.serving.event_stream import Chunk, EventStream


class CompletionDelta(Struct):
    """What a chunk adds to a choice."""

    text: str = ""
    token_ids: list[Any] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class CompletionChunk(Chunk):
    """The fields of a chunk that are read; servers send many more."""

    choices: tuple[CompletionDelta, ...] = ()


class CompletionStream(EventStream):
    """The chunks of one choice. Servers other than vLLM send no token ids, so the reply has none either."""

    chunk = CompletionChunk

    def __init__(self, path: str, on_text: OnText) -> None:
        super().__init__(path, on_text)
        self._texts: list[str] = []
        self._token_ids: list[Any] | None = None
        self._end: CompletionDelta | None = None

    def _add(self, chunk: CompletionChunk) -> list[Piece]:
        for choice in chunk.choices[:1]:
            self._texts.append(choice.text)
            if choice.token_ids is not None:
                self._token_ids = self._token_ids or []
                self._token_ids += choice.token_ids
            if choice.finish_reason is not None:
                self._end = choice
            return [choice.text] if choice.text else []
        return []

    def _reply(self) -> dict[str, Any] | None:
        if self._end is None:
            return None
        ended = {"finish_reason": self._end.finish_reason, "stop_reason": self._end.stop_reason}
        return {"choices": [{"text": "".join(self._texts), "token_ids": self._token_ids, **ended}]}
