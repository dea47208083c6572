"""Errors of the gateway, in the shape OpenAI's clients expect: {"error": {message, type, param, code}}.

A status alone does not say whether a retry is safe. The official clients retry 408, 409, 429 and every 5xx twice,
without an idempotency key: one expired query would become three searches. So every error that has cost a search, and
every error that a retry cannot cure, carries `x-should-retry: false`, which those clients obey.
"""

from typing import Final

import msgspec
import orjson

from schemas.answer import Answer
from schemas.errors import RecordError, UniscaleError

NO_RETRY: Final = {"x-should-retry": "false"}

_TOO_LONG: Final = "PromptTooLongError: "  # how an executor's Answer begins that says so


class ApiError(UniscaleError):
    """A request that gets an error instead of a completion.

    Attributes:
        status: The HTTP status.
        type: OpenAI's class of the error, for instance `invalid_request_error`.
        param: The field at fault, where there is one.
        code: A word a program can compare.
        headers: Headers that go with it.
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
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> bytes:
        """Return the JSON body."""
        return orjson.dumps({"error": self.fields()})

    def fields(self) -> dict[str, str | None]:
        """Return message, type, param and code."""
        return {"message": str(self), "type": self.type, "param": self.param, "code": self.code}


def invalid(param: str | None, message: str, code: str | None = None) -> ApiError:
    """Return a 400 that names the field."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, why: str) -> ApiError:
    """Return the 400 for a field of OpenAI's API that a search cannot honour. Nothing is dropped silently."""
    return ApiError(400, f"{param} is not supported: {why}", param=param, code="unsupported_parameter")


def of_record(error: RecordError) -> ApiError:
    """Return the 400 for a field that no Query can have."""
    param = error.field or None
    return ApiError(400, f"{param}: {error.why}" if param else error.why, param=param, code="invalid_value")


def of_json(error: msgspec.DecodeError) -> ApiError:
    """Return the 400 for a body that is not JSON, or whose types do not fit."""
    what, _, place = str(error).partition(" - at `$")
    missing = what.partition("missing required field `")[2].partition("`")[0]
    param = ".".join(part for part in (place.rstrip("`").lstrip("."), missing) if part) or None
    if isinstance(cause := error.__cause__, RecordError):
        what, param = cause.why, ".".join(part for part in (param, cause.field) if part) or None
    return ApiError(400, f"{param}: {what}" if param else what, param=param, code="invalid_type")


def not_found(what: str, value: str, code: str = "not_found") -> ApiError:
    """Return a 404. Another tenant's id and an unknown id get the same response."""
    return ApiError(
        404, f"{what} {value!r} does not exist, or you have no access to it", param=what, code=code
    )


def no_model(name: str) -> ApiError:
    """Return the 404 for a model name that cannot be used."""
    why = f"model {name[:200]!r} does not exist, or you have no access to it; ask for `auto`, or see GET /v1/models"
    return ApiError(404, why, param="model", code="model_not_found")


def of_answer(answer: Answer) -> ApiError | None:
    """Return the error for an Answer, or None if it has text to return.

    `unfinished` and `budget` are completions that stopped early, with `finish_reason: "length"`; a budget may have left
    no text at all.
    """
    why = answer.error or f"the search ended with status {answer.status}"
    match answer.status:
        case "rejected":
            return ApiError(400, why, code="rejected", headers=dict(NO_RETRY))
        case "failed" if why.startswith(_TOO_LONG):
            return ApiError(
                400, why, param="messages", code="context_length_exceeded", headers=dict(NO_RETRY)
            )
        case "failed":
            return ApiError(502, why, type="api_error", code="search_failed", headers=dict(NO_RETRY))
        case "expired":
            return ApiError(504, why, type="timeout_error", code="expired", headers=dict(NO_RETRY))
        case "cancelled":
            return ApiError(409, why, type="api_error", code="cancelled", headers=dict(NO_RETRY))
    if answer.text is None and not _has_budget(answer):
        # The deadline is the one bound that every search has: it ran out before a path was completed.
        return ApiError(504, why, type="timeout_error", code="expired", headers=dict(NO_RETRY))
    return None


def _has_budget(answer: Answer) -> bool:
    limits = answer.limits
    return limits is not None and (limits.budget_tokens is not None or limits.budget_eflops is not None)
