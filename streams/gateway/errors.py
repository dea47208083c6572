"""The gateway's errors: the format that OpenAI's clients expect, and the mapping from exceptions."""

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from schemas.answer import Answer
from schemas.errors import RecordError, UniscaleError
from schemas.record import invalid_field
from streams.log.base import Unavailable

# Errors have the format that OpenAI's clients expect, {"error": {message, type, param, code}}; under `/v1/messages`,
# Anthropic's.
#
# A status alone does not say whether a retry is safe. The official clients retry 408, 409, 429 and every 5xx twice,
# without an idempotency key: one expired query would become three searches. So every error after a search, and every
# error that a retry cannot fix, carries `x-should-retry: false`, which those clients honour.

log = logging.getLogger("streams.gateway")

NO_RETRY: Final = {"x-should-retry": "false"}

_MOST_PARAM: Final = 200
_MOST_MESSAGE: Final = 4000
"""Maximum characters of an error message: field names in a body may be a megabyte long."""

# How the error starts in an Answer from an executor or the embedder. Clients do not see these names.
_TOO_LONG: Final = "PromptTooLongError: "
_BROKEN: Final = "StreamBrokenError: "
_NOT_ADMITTED: Final = "AdmissionRejected: "

_ADMISSION_RETRY_S: Final = 30
"""Seconds for which a model counts as served after its last heartbeat (`streams.services.admission`)."""


class ClientGone(Exception):
    """The client closed its connection."""


class ApiError(UniscaleError):
    """An error response instead of a completion.

    Attributes:
        status: The HTTP status.
        type: OpenAI's error type, for instance `invalid_request_error`.
        param: The field at fault, if any.
        code: Machine-readable code.
        headers: Headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message[:_MOST_MESSAGE])
        self.status = status
        self.type = type
        self.param = None if param is None else param[:_MOST_PARAM]
        self.code = code
        self.headers = headers or {}

    def renamed(self, names: Mapping[str, str]) -> "ApiError":
        """Return the error with the field's name as in the request's protocol; see `own_name`."""
        if self.param is None or (param := own_name(self.param, names)) == self.param:
            return self
        message = str(self)
        if message.startswith(self.param):
            message = param + message.removeprefix(self.param)
        return ApiError(
            self.status, message, type=self.type, param=param, code=self.code, headers=self.headers
        )

    def fields(self) -> dict[str, str | None]:
        """Return message, type, param and code."""
        return {"message": str(self), "type": self.type, "param": self.param, "code": self.code}


def own_name(param: str, names: Mapping[str, str]) -> str:
    """Return the name of a field in the request's protocol.

    Args:
        param: A field of a chat completion request, or a part of one.
        names: The protocol's names for the fields of chat completions. The longest match counts.

    >>> own_name("messages[1].content", {"messages": "input", "messages[1]": "input[0]"})
    'input[0].content'
    """
    for name in sorted(names, key=len, reverse=True):
        if param == name or param.startswith((f"{name}.", f"{name}[")):
            return names[name] + param.removeprefix(name)
    return param


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """Return a 400 that names the field."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, why: str) -> ApiError:
    """Return the 400 for a field of OpenAI's API that a search does not support. Nothing is dropped silently."""
    return ApiError(400, f"{param} is not supported: {why}", param=param, code="unsupported_parameter")


def of_record(error: RecordError, code: str = "invalid_value") -> ApiError:
    """Return the 400 for an invalid field of a Query."""
    param = error.field or None
    return ApiError(400, f"{param}: {error.why}" if param else error.why, param=param, code=code)


def of_json(error: msgspec.ValidationError) -> ApiError:
    """Return the 400 for a body that does not fit its type."""
    return of_record(invalid_field("body", error), code_of(error))


def code_of(error: msgspec.ValidationError) -> str:
    """Return the code of a validation error: only a value of another type, or none, is an `invalid_type`."""
    said = str(error)
    if isinstance(error.__cause__, RecordError):
        return "invalid_value"
    if "unknown field" in said:
        return "unknown_parameter"
    return "invalid_type" if ", got `" in said or "missing required field" in said else "invalid_value"


def not_found(what: str, value: str, code: str = "not_found") -> ApiError:
    """Return a 404. Another tenant's id and an unknown id get the same response."""
    return ApiError(
        404, f"{what} {value!r} does not exist, or you have no access to it", param=what, code=code
    )


def no_model(name: str) -> ApiError:
    """Return the 404 for a model name that cannot be used."""
    why = f"model {name[:200]!r} does not exist, or you have no access to it; ask for `auto`, or see GET /v1/models"
    return ApiError(404, why, param="model", code="model_not_found")


def why(answer: Answer) -> str | None:
    """Return why an Answer has no text, without details that clients must not see.

    Messages from an engine or its server are for operators, because they name addresses and models, and quote replies.
    """
    error, report = answer.error, f"report {answer.query_id} to the operator"
    if error is None or answer.status != "failed":
        return error and error.removeprefix(_NOT_ADMITTED)
    if error.startswith(_TOO_LONG):
        return error.removeprefix(_TOO_LONG)
    if _is_refused(answer):
        return f"the model's server refused the request; check tools, formats and parameters, or {report}"
    said = "the model's server broke off the answer" if error.startswith(_BROKEN) else "the search failed"
    return f"{said}; try again, or {report}"


def why_earlier(error: str, query_id: str) -> str:
    """Return why an earlier attempt at a query failed, without details that clients must not see."""
    if error.startswith(_TOO_LONG):
        return error.removeprefix(_TOO_LONG)
    return f"the attempt failed; the operator finds why under {query_id}"


def _is_refused(answer: Answer) -> bool:
    return answer.cause == "refused" and not answer.fault


def of_answer(answer: Answer) -> ApiError | None:
    """Return the error for an Answer, or None if it is a completion.

    `unfinished` and `budget` are completions that stopped early, with `finish_reason: "length"`; with a budget there
    may be no text at all.
    """
    error, said = answer.error or "", why(answer) or f"the search ended with status {answer.status}"
    match answer.status:
        case "rejected" if error.startswith(_NOT_ADMITTED):
            return ApiError(
                429,
                said,
                type="rate_limit_error",
                code="admission_rejected",
                headers={"retry-after": str(_ADMISSION_RETRY_S)},
            )
        case "rejected":
            return ApiError(400, said, code="rejected", headers=dict(NO_RETRY))
        case "failed" if error.startswith(_TOO_LONG):
            return ApiError(
                400, said, param="messages", code="context_length_exceeded", headers=dict(NO_RETRY)
            )
        case "failed" if _is_refused(answer):
            return ApiError(400, said, code="refused", headers=dict(NO_RETRY))
        case "failed" if error.startswith(_BROKEN):
            return ApiError(502, said, type="api_error", code="stream_broken", headers=dict(NO_RETRY))
        case "failed":
            return ApiError(502, said, type="api_error", code="search_failed", headers=dict(NO_RETRY))
        case "expired":
            return ApiError(504, said, type="timeout_error", code="expired", headers=dict(NO_RETRY))
        case "cancelled":
            return ApiError(409, said, type="api_error", code="cancelled", headers=dict(NO_RETRY))
    if answer.text is None and not _has_budget(answer):
        # Without a budget, only the deadline can have ended the search before a path was completed.
        return ApiError(504, said, type="timeout_error", code="expired", headers=dict(NO_RETRY))
    return None


def _has_budget(answer: Answer) -> bool:
    limits = answer.limits
    return limits is not None and (limits.budget_tokens is not None or limits.budget_eflops is not None)


_MESSAGES: Final = "/v1/messages"
"""Path prefix of Anthropic's API, whose clients expect errors in a different format."""

_MESSAGES_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def messages_error(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return an error as Anthropic's clients expect it: the message names the field, because nothing else does."""
    message = str(error) if error.param is None or error.param in str(error) else f"{error.param}: {error}"
    kind = _MESSAGES_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def refusal(error: ApiError, request: Request, request_id: str = "") -> Response:
    """Return the response for an error, in the format of the path's protocol."""
    body: dict[str, Any] = {"error": error.fields()}
    if request.url.path.startswith(_MESSAGES):
        body = messages_error(error, request_id)
    return Response(orjson.dumps(body), error.status, error.headers, "application/json")


def response_to(error: Exception, request: Request, request_id: str) -> Response:
    """Return the response for an exception of a route.

    Args:
        error: The exception. Unexpected ones are logged, and the client gets the request's id.
        request: The request.
        request_id: Its id, in the response's headers and in the log.
    """
    if isinstance(error, ClientGone | ClientDisconnect):
        return Response(status_code=499)
    if isinstance(error, RecordError):  # the request is not a valid record
        error = of_record(error)
    elif isinstance(error, Unavailable):
        # The official clients retry; if the query was stored after all, the retry joins it.
        log.warning("%s %s: %s (%s)", request.method, request.url.path, error, request_id)
        why = f"the broker is not available now; try again, or report {request_id} to the operator"
        error = ApiError(503, why, type="api_error", code="broker_unavailable", headers={"retry-after": "2"})
    elif not isinstance(error, ApiError):
        log.error("%s %s failed (%s)", request.method, request.url.path, request_id, exc_info=error)
        why = f"internal error; report {request_id} to the operator"
        error = ApiError(500, why, type="api_error", code="internal")
    return refusal(error, request, request_id)
