"""Answers as responses: output items, usage, and the events of a stream."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from schemas.answer import Answer
from schemas.chat import ChatOptions
from schemas.query import GATEWAY, Query, ToolCall
from streams.gateway import answer_details, sse
from streams.gateway.errors import ApiError, of_answer
from streams.gateway.request import kept_of
from streams.gateway.upstream_message import calls, logprobs, refusal

ID: Final = "resp_"

# The item for a call, by the tool's type: the prefix of its id, its type, and the field with the model's input.
_CALLS: Final = {
    "function": ("fc", "function_call", "arguments"),
    "custom": ("ctc", "custom_tool_call", "input"),
}


def response(
    query_id: str,
    created: int,
    model: str,
    query: Query | None,
    answer: Answer | None,
    used: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return a response object.

    Args:
        query_id: The response's id.
        created: When the request arrived, in seconds since the epoch.
        model: The model that runs.
        query: The query as in the Decision; None before there is one.
        answer: The Answer; None while the search runs.
        used: The usage, as for a chat completion; None while the search runs.
        more: Further fields, such as `uniscale`, or the `error` of a response that failed.
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
        "usage": usage(used) if used is not None and ended else None,
        **_echo(query),
        **more,
    }


def status(answer: Answer | None, failure: ApiError | None) -> str:
    """Return the status of a response."""
    if answer is None:
        return "in_progress"
    if failure is not None:
        return "cancelled" if answer.status == "cancelled" else "failed"
    return "completed" if _complete(answer) else "incomplete"


def _complete(answer: Answer | None) -> bool:
    return answer is not None and answer_details.finish_reason(answer) != "length"


def error(failure: ApiError) -> dict[str, Any]:
    """Return an error as it appears in a response. OpenAI's codes are a closed list."""
    codes = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
    return {"code": codes.get(failure.status, "server_error"), "message": str(failure)}


def output(answer: Answer) -> list[dict[str, Any]]:
    """Return the output items of an Answer: its text or refusal as a message, then its calls."""
    found = [] if (part := content(answer)) is None else [message(answer.query_id, part, answer)]
    return [*found, *(call_item(answer.query_id, at, call) for at, call in enumerate(calls(answer)))]


def content(answer: Answer) -> dict[str, Any] | None:
    """Return the content part of an Answer; None if it has only calls, or nothing."""
    if (refused := refusal(answer)) is not None:
        return {"type": "refusal", "refusal": refused}
    if answer.text is None or (not answer.text and calls(answer)):
        return None
    return text_part(answer.text, logprobs(answer))


def message(query_id: str, part: dict[str, Any] | None, answer: Answer | None = None) -> dict[str, Any]:
    """Return the output item for a text or a refusal.

    Args:
        query_id: The response's id.
        part: Its content; None when a stream opens the item.
        answer: The Answer; None while the search runs.
    """
    state = "in_progress" if answer is None else "completed" if _complete(answer) else "incomplete"
    return {
        "id": f"msg_{query_id.removeprefix(ID)}",
        "type": "message",
        "status": state,
        "role": "assistant",
        "content": [] if part is None else [part],
    }


def text_part(text: str, probabilities: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the content part of a text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(probabilities)}


def call_item(query_id: str, at: int, call: ToolCall) -> dict[str, Any]:
    """Return the output item of a call; its `call_id` is the upstream's."""
    prefix, kind, says = _CALLS[call.type]
    return {
        "id": f"{prefix}_{query_id.removeprefix(ID)}_{at}",
        "type": kind,
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        says: call.arguments,
    }


def usage(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of a chat completion under this API's names; the cost keeps its name."""
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
        **{name: chat[name] for name in ("cost", "cost_details") if name in chat},
    }


def _echo(query: Query | None) -> dict[str, Any]:
    """Return the request's fields that a response repeats, as the query keeps them."""
    kept = {} if query is None else kept_of(query)
    metadata = {} if query is None else query.metadata
    options = (query.options if query is not None else None) or ChatOptions()
    instructions = query.chat[0].text if query is not None and "instructions" in kept else None
    return {
        "instructions": instructions,
        "max_output_tokens": None if query is None else query.max_tokens,
        "metadata": {
            name: value for name, value in metadata.items() if name != GATEWAY and isinstance(value, str)
        },
        "previous_response_id": kept.get("previous"),
        "store": kept.get("store") != "false",
        "background": False,
        "parallel_tool_calls": options.parallel_tool_calls is not False,
        "tools": [_tool(tool) for tool in options.tools],
        "tool_choice": _flat(options.tool_choice or "auto"),
        "text": {"format": _flat(options.response_format or {"type": "text"})},
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_logprobs": options.top_logprobs,
        "truncation": "disabled",
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = _flat(tool)
    if flat.get("type") == "function":
        return {"parameters": None, "strict": None, **flat}
    return {**flat, "format": _flat(flat.get("format", {"type": "text"}))}


def _flat(nested: Any) -> Any:
    """Return an object of a chat completion request, such as a tool, in this API's form: without an inner object."""
    if isinstance(nested, dict) and isinstance(inner := nested.get(nested.get("type")), dict):
        return {"type": nested["type"], **inner}
    return nested


_BEGUN: Final = {"status": "in_progress"}


class Events(Struct):
    """The events of one stream, numbered from 0. An output item ends when the next one begins.

    Attributes:
        query_id: The response's id.
        text: The text so far; None if there has been none.
    """

    query_id: str
    text: str | None = None
    _text_at: int = 0  # its `output_index`
    _items: int = 0
    _open: tuple[int, ToolCall] | Literal["text"] | None = None
    _sequence: int = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        """Return one event."""
        numbered = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return sse.named_event(kind, numbered)

    def delta(self, text: str) -> list[bytes]:
        """Return the events for more of the text; the first text also begins its output item."""
        begun = self._begin(text_part("")) if self.text is None else []
        self.text = (self.text or "") + text
        return [*begun, self.event("response.output_text.delta", **self._place, delta=text, logprobs=[])]

    def called(self, at: int, call: ToolCall, more: str) -> list[bytes]:
        """Return the events for more of a call's arguments; the first piece also begins its output item.

        Args:
            at: The call's number.
            call: The call with its arguments so far.
            more: The piece.
        """
        item, says = call_item(self.query_id, at, call), _CALLS[call.type][2]
        begun = []
        if more == call.arguments:
            begun = self._ended()
            added = {**item, **_BEGUN, says: ""}
            begun.append(self.event("response.output_item.added", output_index=self._items, item=added))
            self._items += 1
        self._open = (at, call)
        place = {"item_id": item["id"], "output_index": self._items - 1}
        return [*begun, self.event(f"response.{item['type']}_{says}.delta", **place, delta=more)]

    def end(self, answer: Answer) -> list[bytes]:
        """Return the events that end the output items, once all text and calls have been sent."""
        part = content(answer)
        if part is not None and part["type"] == "refusal":
            refused = self._refusal(part["refusal"])
            return [*refused, *self._message_ended(part, answer)]
        begun = [] if part is None or self._items else self._begin(text_part(""))
        return [*begun, *self._ended(answer)]

    def _begin(self, part: dict[str, Any]) -> list[bytes]:
        begun = self._ended()
        self._text_at, self._open = self._items, "text"
        self._items += 1
        item = message(self.query_id, None)
        return [
            *begun,
            self.event("response.output_item.added", output_index=self._text_at, item=item),
            self.event("response.content_part.added", **self._place, part=part),
        ]

    def _refusal(self, said: str) -> list[bytes]:
        return [
            *self._begin({"type": "refusal", "refusal": ""}),
            self.event("response.refusal.delta", **self._place, delta=said),
            self.event("response.refusal.done", **self._place, refusal=said),
        ]

    def _ended(self, answer: Answer | None = None) -> list[bytes]:
        """Return the events that end the open item. Without the Answer, the text is complete because a call follows."""
        match self._open:
            case None:
                return []
            case "text":
                part = text_part(self.text or "", () if answer is None else logprobs(answer))
                done = {"text": part["text"], "logprobs": part["logprobs"]}
                return [
                    self.event("response.output_text.done", **self._place, **done),
                    *self._message_ended(part, answer),
                ]
            case (at, call):
                item, says = call_item(self.query_id, at, call), _CALLS[call.type][2]
                index = self._items - 1
                place = {"item_id": item["id"], "output_index": index}
                return [
                    self.event(f"response.{item['type']}_{says}.done", **place, **{says: call.arguments}),
                    self.event("response.output_item.done", output_index=index, item=item),
                ]

    def _message_ended(self, part: dict[str, Any], answer: Answer | None) -> list[bytes]:
        item = message(self.query_id, part, answer)
        if answer is None:
            item["status"] = "completed"
        return [
            self.event("response.content_part.done", **self._place, part=part),
            self.event("response.output_item.done", output_index=self._text_at, item=item),
        ]

    @property
    def _place(self) -> dict[str, Any]:
        item_id = message(self.query_id, None)["id"]
        return {"item_id": item_id, "output_index": self._text_at, "content_index": 0}
