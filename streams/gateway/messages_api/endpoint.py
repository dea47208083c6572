"""`POST /v1/messages`, whole or as a stream of events, and `POST /v1/messages/count_tokens`."""

import math
from typing import Any, Final

from starlette.responses import Response

from schemas.answer import Answer
from schemas.query import Query, ToolCall
from streams.gateway import answer_details
from streams.gateway.completion_response import CompletionResponse, answered
from streams.gateway.endpoint import Call, body_of, reply
from streams.gateway.errors import ApiError, messages_error
from streams.gateway.messages_api.request import parse
from streams.gateway.messages_api.response import (
    block_delta,
    block_start,
    block_stop,
    event,
    message,
    ping,
    stop,
    usage,
)
from streams.gateway.request import ChatRequest
from streams.gateway.upstream_message import refusal

BYTES_PER_TOKEN: Final = 4
"""Bytes of prose per token in most tokenizers: an estimate, because the gateway has no model's tokenizer."""

TOKENS_PER_MESSAGE: Final = 4
"""Tokens that a chat template adds to each message, for the same estimate."""


async def create(call: Call) -> Response:
    """POST /v1/messages: ask a question in the terms of Anthropic's Messages API.

    Raises:
        ApiError: before any part of the response is sent.
    """
    return await answered(call, _parsed, _MessagesResponse)


def _parsed(call: Call, body: bytes, *, counts: bool = False) -> ChatRequest:
    runtime = call.gateway.runtime
    return parse(
        body,
        beta=call.request.headers.get("anthropic-beta"),
        counts=counts,
        efforts=runtime.control.catalogue.efforts,
        strict=runtime.settings.gateway.strict,
    )


async def count_tokens(call: Call) -> Response:
    """POST /v1/messages/count_tokens: estimate a request's tokens, because no model and so no tokenizer is chosen yet.

    Raises:
        ApiError: 400, 403, 404 or 429 as for the request itself.
    """
    call.who.require("ask")
    asked = _parsed(call, await body_of(call.request), counts=True)
    try:
        asked = call.gateway.submission.honoured(asked, call.who)
        query = call.gateway.submission.question(asked, call.who)
    except ApiError as error:
        raise error.renamed(asked.translated.names) from None
    return reply(
        {
            "input_tokens": estimate(query),
            "uniscale": {
                "method": f"an estimate: a token for {BYTES_PER_TOKEN} bytes of text, calls and tools, "
                f"{TOKENS_PER_MESSAGE} tokens a message, none for images",
                "ignored": list(asked.ignored),
            },
        }
    )


def estimate(query: Query) -> int:
    """Return the approximate number of tokens in a query's prompt, regardless of the model."""
    calls = [call.arguments for message in query.chat for call in message.tool_calls]
    tools = query.options.tools if query.options is not None else ()
    size = sum(len(text.encode()) for text in (query.question, *calls, *map(str, tools)))
    return math.ceil(size / BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE * len(query.chat)


class _MessagesResponse(CompletionResponse):
    """Messages, and streams of their events."""

    _block: tuple[int, int] | None = None
    """The number of the open content block, and that of its call; -1 for the text."""
    _blocks = 0
    """How many content blocks have begun."""

    def body(self, answer: Answer) -> dict[str, Any]:
        made = message(self.admitted.query_id, self.model, answer, self._used(answer))
        return {**made, "uniscale": self.details(answer)}

    def begin(self) -> list[bytes]:
        return [
            event("message_start", message=message(self.admitted.query_id, self.model, None)),
            ping(),
        ]

    def text(self, text: str) -> list[bytes]:
        block = {"type": "text", "text": ""}
        return self._delta(-1, block, {"type": "text_delta", "text": text})

    def called(self, at: int, call: ToolCall, more: str) -> list[bytes]:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        return self._delta(at, block, {"type": "input_json_delta", "partial_json": more})

    def _delta(self, call: int, block: dict[str, Any], delta: dict[str, Any]) -> list[bytes]:
        """Return the events for more of a block; if another block is open, it ends first."""
        begun = []
        if self._block is None or self._block[1] != call:
            begun = self._stop()
            self._block = (self._blocks, call)
            self._blocks += 1
            begun.append(block_start(self._block[0], block))
        return [*begun, block_delta(self._block[0], delta)]

    def _stop(self) -> list[bytes]:
        return [] if self._block is None else [block_stop(self._block[0])]

    def end(self, answer: Answer) -> list[bytes]:
        refused = refusal(answer)
        ended = self.text(refused) if refused is not None else []
        ended += self._stop()
        said = {"delta": stop(answer), "usage": usage(self._used(answer)), "uniscale": self.details(answer)}
        return [*ended, event("message_delta", **said), event("message_stop")]

    def _used(self, answer: Answer) -> dict[str, Any]:
        return answer_details.priced_usage(answer, self.decision, self.cost_model)

    def failed(self, error: ApiError) -> list[bytes]:
        return [event("error", **messages_error(error, self.call.id))]

    def beat(self) -> list[bytes]:
        return [ping()]
