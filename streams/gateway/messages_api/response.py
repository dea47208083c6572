"""Answers as messages: content blocks, stop reason, usage, and the events of a stream."""

from collections.abc import Mapping
from typing import Any

import orjson

from schemas.answer import Answer
from schemas.forest import first_stop
from schemas.query import ToolCall
from streams.gateway import sse
from streams.gateway.upstream_message import calls, refusal


def message(
    query_id: str, model: str, answer: Answer | None, used: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a message.

    Args:
        query_id: The message's id.
        model: The model that runs.
        answer: The Answer; None for the message with which a stream begins.
        used: The usage, as for a chat completion; None for that message too.
    """
    return {
        "id": query_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [] if answer is None else content(answer),
        "container": None,
        **(stop(answer) if answer is not None else {"stop_reason": None, "stop_sequence": None}),
        # A stream begins before the prompt is counted; its message_delta has all counts.
        "usage": usage(used) if used is not None else {"input_tokens": 0, "output_tokens": 0},
    }


def content(answer: Answer) -> list[dict[str, Any]]:
    """Return the content blocks of an Answer: its text or refusal, then its calls."""
    text = refusal(answer) or answer.text
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    return [*blocks, *(call_block(call) for call in calls(answer))]


def call_block(call: ToolCall) -> dict[str, Any]:
    """Return a call as a content block. Arguments that are not a JSON object are returned in `unparsed`."""
    try:
        arguments = orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    given = arguments if isinstance(arguments, dict) else {"unparsed": call.arguments}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def stop(answer: Answer) -> dict[str, str | None]:
    """Return why the text ended, and which stop sequence ended it, if known."""
    finish = answer.trace[answer.path[-1]].finish if answer.path else ""
    found = None
    if not answer.complete:
        reason = "model_context_window_exceeded" if finish == "context" else "max_tokens"
    elif refusal(answer) is not None:
        reason = "refusal"
    elif calls(answer):
        reason = "tool_use"
    elif finish == "stop":
        reason, found = "stop_sequence", _sequence(answer)
    else:
        reason = "end_turn"
    return {"stop_reason": reason, "stop_sequence": found}


def _sequence(answer: Answer) -> str | None:
    """Return the stop sequence that ended the text; None if an upstream removed it and did not say which it was."""
    stops = answer.limits.stop if answer.limits is not None else ()
    text = "".join(answer.trace[at].text for at in answer.path)
    if (found := first_stop(text, stops)) is not None:
        return text[slice(*found)]
    return stops[0] if len(stops) == 1 else None


def usage(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of a chat completion under this API's names; the cost keeps its name.

    Unlike in OpenAI's API, `input_tokens` excludes tokens that a cache served or stored.
    """
    prompt, completion = chat["prompt_tokens_details"], chat["completion_tokens_details"]
    read, written = prompt["cached_tokens"], prompt.get("cache_write_tokens", 0)
    return {
        "input_tokens": chat["prompt_tokens"] - read - written,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": completion["reasoning_tokens"]},
        **{name: chat[name] for name in ("cost", "cost_details") if name in chat},
    }


def event(kind: str, **fields: Any) -> bytes:
    """Return one event of a stream."""
    return sse.named_event(kind, {"type": kind, **fields})


def ping() -> bytes:
    """Return a heartbeat."""
    return event("ping")


def block_start(index: int, block: dict[str, Any]) -> bytes:
    """Return the event that starts a content block."""
    return event("content_block_start", index=index, content_block=block)


def block_delta(index: int, delta: dict[str, Any]) -> bytes:
    """Return the event for more of a content block."""
    return event("content_block_delta", index=index, delta=delta)


def block_stop(index: int) -> bytes:
    """Return the event that ends a content block."""
    return event("content_block_stop", index=index)
