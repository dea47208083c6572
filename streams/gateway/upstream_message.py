"""What an upstream's message contains besides its text: tool calls, a refusal and log probabilities."""

from typing import Any

import orjson

from schemas.answer import Answer
from schemas.query import Message, ToolCall


def message_of(answer: Answer) -> dict[str, Any]:
    """Return the message as an upstream returned it; empty if the request was not passed through."""
    return {} if answer.upstream is None else answer.upstream.message


def raw_calls(answer: Answer) -> list[Any]:
    """Return the tool calls of an answer, as an upstream returned them."""
    found = message_of(answer).get("tool_calls")
    return found if isinstance(found, list) else []


def calls(answer: Answer) -> tuple[ToolCall, ...]:
    """Return the tool calls of an answer; entries of the upstream that are not tool calls are left out."""
    return tuple(call for each in raw_calls(answer) if (call := ToolCall.of(each)) is not None)


def refusal(answer: Answer) -> str | None:
    """Return why a model refused to answer; None if it did not."""
    found = message_of(answer).get("refusal")
    return found if isinstance(found, str) and found else None


def raw_logprobs(answer: Answer) -> Any:
    """Return the log probabilities of an answer's tokens, as an upstream returned them; None if it returned none."""
    upstream = answer.upstream
    return orjson.loads(upstream.logprobs) if upstream is not None and upstream.logprobs else None


def logprobs(answer: Answer) -> list[dict[str, Any]]:
    """Return the log probabilities of the answer's tokens; empty if there are none."""
    found = raw_logprobs(answer)
    content = found.get("content") if isinstance(found, dict) else None
    return content if isinstance(content, list) else []


def turn(answer: Answer) -> Message:
    """Return an answer as a turn of the conversation."""
    called = calls(answer)
    return Message(role="assistant", content=answer.text or (None if called else ""), tool_calls=called)
