"""`POST /v1/chat/completions`: OpenAI's chat completions, whole or as a stream of chunks."""

from typing import Any

from starlette.responses import Response

from schemas.answer import Answer
from schemas.query import ToolCall
from schemas.search import SearchStep
from streams.gateway import answer_details, sse
from streams.gateway.chat_api import response
from streams.gateway.completion_response import CompletionResponse, answered
from streams.gateway.endpoint import Call
from streams.gateway.errors import ApiError
from streams.gateway.request import ChatRequest, parse
from streams.gateway.upstream_message import raw_calls, raw_logprobs, refusal


async def chat(call: Call) -> Response:
    """POST /v1/chat/completions: ask a question in the terms of OpenAI's Chat Completions API.

    Raises:
        ApiError: before any part of the response is sent.
    """
    return await answered(call, _parsed, _ChatResponse)


def _parsed(call: Call, body: bytes) -> ChatRequest:
    runtime = call.gateway.runtime
    efforts = runtime.control.catalogue.efforts
    return parse(body, efforts=efforts, strict=runtime.settings.gateway.strict)


def _besides(call: Any) -> dict[str, Any]:
    """Return the fields of an upstream's call besides those of the API, such as a provider's signature."""
    return {
        name: value for name, value in call.items() if name not in ("id", "type", "index", call.get("type"))
    }


class _ChatResponse(CompletionResponse):
    """Completions, and streams of `chat.completion.chunk`."""

    def body(self, answer: Answer) -> dict[str, Any]:
        return response.completion(
            answer, self.decision, self.cost_model, self.admitted.created, self.took_s, self.asked.ignored
        )

    def begin(self) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": "", "refusal": None})]

    def text(self, text: str) -> list[bytes]:
        return [self._chunk({"content": text})]

    def called(self, at: int, call: ToolCall, more: str) -> list[bytes]:
        says = "input" if call.type == "custom" else "arguments"
        delta: dict[str, Any] = {"index": at, call.type: {says: more}}
        if more == call.arguments:
            delta |= {"id": call.id, "type": call.type, call.type: {"name": call.name, says: more}}
        return [self._chunk({"tool_calls": [delta]})]

    def end(self, answer: Answer) -> list[bytes]:
        besides = [(at, more) for at, call in enumerate(raw_calls(answer)) if (more := _besides(call))]
        parts = [self._chunk({"tool_calls": [{"index": at, **more}]}) for at, more in besides]
        if (refused := refusal(answer)) is not None:
            parts.append(self._chunk({"refusal": refused}))
        if (logprobs := raw_logprobs(answer)) is not None:
            parts.append(self._chunk({}, logprobs=logprobs))
        parts.append(self._chunk({}, answer_details.finish_reason(answer), uniscale=self.details(answer)))
        if self._with_usage:
            usage = answer_details.priced_usage(answer, self.decision, self.cost_model)
            parts.append(self._chunk({}, choices=[], usage=usage))
        return [*parts, sse.DONE]

    def failed(self, error: ApiError) -> list[bytes]:
        return [sse.event({"error": error.fields()})]

    def beat(self) -> list[bytes]:
        return [self._chunk({})]

    def progress(self, step: SearchStep) -> list[bytes]:
        forest = step.forest
        progress = {
            "step": forest.step,
            "drafts": len(forest.drafts),
            "live": len({forest.drafts[at].parent for at in forest.pending}),
            "completed": len(forest.completed_paths),
            "best": forest.path_score(forest.best) if forest.best >= 0 else None,
            "tokens": forest.generated_tokens,
        }
        return [self._chunk({}, uniscale={"progress": progress})]

    @property
    def _with_usage(self) -> bool:
        return self.asked.stream_options is not None and bool(self.asked.stream_options.include_usage)

    def _chunk(self, delta: dict[str, object], finish: str | None = None, **more: object) -> bytes:
        if self._with_usage:
            more.setdefault("usage", None)
        return response.chunk(
            self.admitted.query_id,
            self.admitted.created,
            self.model,
            answer_details.fingerprint(self.decision),
            delta=delta,
            finish=finish,
            **more,
        )
