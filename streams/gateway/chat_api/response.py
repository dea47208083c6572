"""Chat completions and their chunks, in OpenAI's format."""

from collections.abc import Sequence
from typing import Any

from agents.catalogue.cost_model import CostModel
from schemas.answer import Answer
from schemas.decision import Decision
from streams.gateway.answer_details import details, fingerprint, finish_reason, model_of, priced_usage
from streams.gateway.sse import event
from streams.gateway.upstream_message import message_of, raw_logprobs


def completion(
    answer: Answer,
    decision: Decision | None,
    cost_model: CostModel,
    created: int,
    total_s: float,
    ignored: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a chat completion. The Answer must have a text; see `of_answer`.

    Args:
        answer: The Answer.
        decision: Its Decision, if known.
        cost_model: Cost model of the current catalogue.
        created: When the request arrived, in seconds since the epoch.
        total_s: Seconds from the request's arrival to now.
        ignored: Names of the request's unsupported fields.
    """
    texts = [one.text for one in answer.answers] or [answer.text or ""]
    return {
        "id": answer.query_id,
        "object": "chat.completion",
        "created": created,
        "model": model_of(answer),
        "system_fingerprint": fingerprint(decision),
        "choices": [
            {
                "index": at,
                "message": {
                    "role": "assistant",
                    "refusal": None,
                    **message_of(answer),
                    "content": content_of(answer, text),
                },
                "logprobs": raw_logprobs(answer),
                "finish_reason": finish_reason(answer),
            }
            for at, text in enumerate(texts)
        ],
        "usage": priced_usage(answer, decision, cost_model),
        "uniscale": {**details(answer, decision, cost_model, total_s), "ignored": list(ignored)},
    }


def content_of(answer: Answer, text: str) -> str | None:
    """Return a message's content: the text, or None if an upstream returned no content, as it may with tool calls."""
    upstream = answer.upstream
    return None if not text and upstream is not None and upstream.message.get("content") is None else text


def chunk(
    query_id: str,
    created: int,
    model: str,
    fingerprint: str | None,
    *,
    delta: dict[str, Any] | None = None,
    finish: str | None = None,
    logprobs: Any = None,
    **more: Any,
) -> bytes:
    """Return one `chat.completion.chunk` as a server-sent event. An empty delta is the heartbeat of a stream."""
    body = {
        "id": query_id,
        "object": "chat.completion.chunk",
        "created": created,
        "model": model,
        "system_fingerprint": fingerprint,
        "choices": [{"index": 0, "delta": delta or {}, "logprobs": logprobs, "finish_reason": finish}],
        **more,
    }
    return event(body)
