"""Answers as responses: output items, usage, and the events of a stream."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from schemas.answer import Answer
from schemas.query import GATEWAY, Query
from streams.gateway import responses
from streams.gateway.errors import ApiError, of_answer
from streams.gateway.request import kept_of

ID: Final = "resp_"


def response(
    query_id: str, created: int, model: str, query: Query | None, answer: Answer | None, **more: Any
) -> dict[str, Any]:
    """Return a response object.

    Args:
        query_id: Its id.
        created: When the request arrived, in seconds since the epoch.
        model: The model that runs.
        query: The query, as the Decision carries it; None before that.
        answer: The Answer; None while the search runs.
        more: Further fields, such as `uniscale`, or `error` of a response that failed.
    """
    failure = None if answer is None else of_answer(answer)
    ended = answer is not None and failure is None
    return {
        "id": query_id,
        "object": "response",
        "created_at": created,
        "status": status(answer, failure),
        "error": None if failure is None else error(failure),
        "incomplete_details": {"reason": "max_output_tokens"} if ended and not _complete(answer) else None,
        "model": model,
        "output": output(answer) if answer is not None and ended else [],
        "usage": usage(answer) if answer is not None and ended else None,
        **_echo(query),
        **more,
    }


def status(answer: Answer | None, failure: ApiError | None) -> str:
    """Return how far a response is."""
    if answer is None:
        return "in_progress"
    if failure is not None:
        return "cancelled" if answer.status == "cancelled" else "failed"
    return "completed" if _complete(answer) else "incomplete"


def _complete(answer: Answer | None) -> bool:
    return answer is not None and responses.finish_reason(answer) != "length"


def error(failure: ApiError) -> dict[str, Any]:
    """Return an error as a response carries it. OpenAI's codes are a closed list."""
    codes = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
    return {"code": codes.get(failure.status, "server_error"), "message": str(failure)}


def output(answer: Answer) -> list[dict[str, Any]]:
    """Return the output items of an Answer: the text as a message."""
    return [] if answer.text is None else [message(answer.query_id, answer.text, answer)]


def message(query_id: str, text: str | None, answer: Answer | None = None) -> dict[str, Any]:
    """Return the output item of a text.

    Args:
        query_id: The response's id.
        text: The text; None for an item that a stream begins.
        answer: The Answer; None while the search runs.
    """
    state = "in_progress" if answer is None else "completed" if _complete(answer) else "incomplete"
    return {
        "id": f"msg_{query_id.removeprefix(ID)}",
        "type": "message",
        "status": state,
        "role": "assistant",
        "content": [] if text is None else [text_part(text)],
    }


def text_part(text: str) -> dict[str, Any]:
    """Return the content part of a text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def usage(answer: Answer) -> dict[str, Any]:
    """Return the usage under the names of this API; the numbers are those of a chat completion."""
    chat = responses.usage(answer)
    prompt: Mapping[str, int] = chat["prompt_tokens_details"]
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": prompt["cached_tokens"],
            "cache_write_tokens": prompt.get("cache_write_tokens", 0),
        },
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": dict(chat["completion_tokens_details"]),
        "total_tokens": chat["total_tokens"],
    }


def _echo(query: Query | None) -> dict[str, Any]:
    """Return the request's own fields, as the query keeps them."""
    kept = {} if query is None else kept_of(query)
    metadata = {} if query is None else query.metadata
    instructs = query is not None and query.messages is not None and "instructions" in kept
    return {
        "instructions": query.messages[0].text if instructs and query and query.messages else None,
        "max_output_tokens": None if query is None else query.max_tokens,
        "metadata": {
            name: value for name, value in metadata.items() if name != GATEWAY and isinstance(value, str)
        },
        "previous_response_id": kept.get("previous"),
        "store": kept.get("store") != "false",
        "background": False,
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
    }


class Events(Struct):
    """The events of one stream, numbered from 0.

    Attributes:
        query_id: The response's id.
        text: The text so far; None before the first.
    """

    query_id: str
    text: str | None = None
    _sequence: int = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        """Return one event."""
        numbered = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return responses.named_event(kind, numbered)

    def delta(self, text: str) -> list[bytes]:
        """Return the events for more of the text; the first begins its output item."""
        begun = self.begin_text() if self.text is None else []
        self.text = (self.text or "") + text
        return [*begun, self.event("response.output_text.delta", **self._place, delta=text, logprobs=[])]

    def begin_text(self) -> list[bytes]:
        """Return the events that begin the output item of the text."""
        self.text = ""
        return [
            self.event("response.output_item.added", output_index=0, item=message(self.query_id, None)),
            self.event("response.content_part.added", **self._place, part=text_part("")),
        ]

    def end_text(self, answer: Answer) -> list[bytes]:
        """Return the events that end it."""
        text = answer.text or ""
        return [
            self.event("response.output_text.done", **self._place, text=text, logprobs=[]),
            self.event("response.content_part.done", **self._place, part=text_part(text)),
            self.event(
                "response.output_item.done", output_index=0, item=message(self.query_id, text, answer)
            ),
        ]

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": message(self.query_id, None)["id"], "output_index": 0, "content_index": 0}
