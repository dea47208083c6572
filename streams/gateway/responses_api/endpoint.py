"""`POST /v1/responses`, whole or as a stream of events, and `GET /v1/responses/{id}`."""

from typing import Any

from starlette.responses import Response

from schemas.answer import Answer
from schemas.query import Message, ToolCall
from streams.gateway import answer_details, sse
from streams.gateway.completion_response import CompletionResponse, answered
from streams.gateway.endpoint import Call, reply
from streams.gateway.errors import ApiError, invalid, not_found, of_answer, unsupported
from streams.gateway.request import ChatRequest, kept_of
from streams.gateway.responses_api.request import parse
from streams.gateway.responses_api.response import ID, Events, error, response
from streams.gateway.upstream_message import turn


async def create(call: Call) -> Response:
    """POST /v1/responses: ask a question in the terms of OpenAI's Responses API.

    Raises:
        ApiError: before any part of the response is sent.
    """
    return await answered(call, _parsed, _ResponsesResponse)


def _parsed(call: Call, body: bytes) -> ChatRequest:
    runtime = call.gateway.runtime
    return parse(
        body,
        lambda previous: _conversation(call, previous),
        efforts=runtime.control.catalogue.efforts,
        strict=runtime.settings.gateway.strict,
    )


def _conversation(call: Call, response_id: str) -> tuple[Message, ...]:
    """Return the conversation of an earlier response: its request's messages without the instructions, and its answer.

    Raises:
        ApiError: 404 if the response is not kept; 400 if it has no answer.
    """
    index, field = call.gateway.index, "previous_response_id"
    try:
        call.gateway.access.visible(response_id, call.who)
    except ApiError as refused:
        raise _not_found(response_id) from refused
    decision, answer = index.decision_of(response_id), index.answer_of(response_id)
    if not response_id.startswith(ID):
        raise _not_found(response_id)
    if decision is None or answer is None or of_answer(answer) is not None:
        why = "has no answer" if answer is not None else "has no answer yet; wait for it"
        raise invalid(field, f"{field}: {response_id} {why}", "previous_response_not_completed")
    query = decision.query
    if query.api_key != call.who.key:
        call.who.require("read")
    messages = query.chat[1:] if "instructions" in kept_of(query) else query.chat
    return (*messages, turn(answer))


def _not_found(response_id: str) -> ApiError:
    return ApiError(
        404,
        f"Previous response with id {response_id[:200]!r} not found; send the conversation in `input`",
        param="previous_response_id",
        code="previous_response_not_found",
    )


async def retrieve(call: Call) -> Response:
    """GET /v1/responses/{id}: an earlier response, whole.

    Raises:
        ApiError: 404 for an id that is unknown, belongs to another tenant, or was sent with `store: false`.
    """
    call.who.require("read")
    for name, value in call.request.query_params.items():
        if name not in ("stream", "include_obfuscation") or value.lower() != "false":
            raise unsupported(name, "the response is returned whole; leave it out")
    gateway, query_id = call.gateway, call.request.path_params["id"]
    if not query_id.startswith(ID):
        raise not_found("id", query_id[:200])
    known = gateway.access.visible(query_id, call.who)
    timeline = gateway.index.timeline(query_id)
    decision, answer = timeline.decision, timeline.answer
    more: dict[str, Any] = {}
    if answer is not None:
        cost_model = gateway.runtime.control.cost_model
        more["used"] = answer_details.priced_usage(answer, decision, cost_model)
        more["uniscale"] = answer_details.details(answer, decision, cost_model, timeline.total_s)
    query = None if decision is None else decision.query
    model = "" if decision is None else decision.action.model
    return reply(response(query_id, known.created_ms // 1000, model, query, answer, **more))


class _ResponsesResponse(CompletionResponse):
    """Responses, and streams of their events."""

    def body(self, answer: Answer) -> dict[str, Any]:
        used = answer_details.priced_usage(answer, self.decision, self.cost_model)
        return self._object(answer, used=used, uniscale=self.details(answer))

    def begin(self) -> list[bytes]:
        self._sent = Events(self.admitted.query_id)
        begun = self._object(None)
        return [
            self._sent.event("response.created", response=begun),
            self._sent.event("response.in_progress", response=begun),
        ]

    def text(self, text: str) -> list[bytes]:
        return self._sent.delta(text)

    def called(self, at: int, call: ToolCall, more: str) -> list[bytes]:
        return self._sent.called(at, call, more)

    def end(self, answer: Answer) -> list[bytes]:
        body = self.body(answer)
        return [*self._sent.end(answer), self._sent.event(f"response.{body['status']}", response=body)]

    def failed(self, failure: ApiError) -> list[bytes]:
        body = self._object(None, status="failed", error=error(failure))
        return [self._sent.event("response.failed", response=body)]

    def beat(self) -> list[bytes]:
        return [sse.BEAT]

    def _object(self, answer: Answer | None, **more: Any) -> dict[str, Any]:
        query = None if self.decision is None else self.decision.query
        created = self.admitted.created
        return response(self.admitted.query_id, created, self.model, query, answer, **more)
