"""What the gateway returns, in OpenAI's shape: completions, their chunks, and errors."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import orjson

from agents.reward.outcome import CostModel, UnpricedAnswer, cost_of, cut_eflops
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.errors import RecordError, UniscaleError
from schemas.forest import Draft
from schemas.objective import ObjectiveInForce
from schemas.record import invalid_field
from schemas.reward import Reward
from streams.timeline import Timeline

# Errors of the gateway, in the shape OpenAI's clients expect: {"error": {message, type, param, code}}.
#
# A status alone does not say whether a retry is safe. The official clients retry 408, 409, 429 and every 5xx twice,
# without an idempotency key: one expired query would become three searches. So every error that has cost a search,
# and every error that a retry cannot cure, carries `x-should-retry: false`, which those clients obey.

NO_RETRY: Final = {"x-should-retry": "false"}

_MOST_PARAM: Final = 200
_MOST_MESSAGE: Final = 4000
"""Characters of an error: a body's own field names may have a megabyte."""

# How the Answer of an executor or of the embedder begins that says so.
_TOO_LONG: Final = "PromptTooLongError: "
_NOT_ADMITTED: Final = "AdmissionRejected: "

_ADMISSION_RETRY_S: Final = 30
"""A model counts as served for so long after its last heartbeat (`streams.services.embedder`)."""


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
        super().__init__(message[:_MOST_MESSAGE])
        self.status = status
        self.type = type
        self.param = None if param is None else param[:_MOST_PARAM]
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


def of_record(error: RecordError, code: str = "invalid_value") -> ApiError:
    """Return the 400 for a field that no Query can have."""
    param = error.field or None
    return ApiError(400, f"{param}: {error.why}" if param else error.why, param=param, code=code)


def of_json(error: msgspec.ValidationError) -> ApiError:
    """Return the 400 for a body whose types do not fit."""
    return of_record(invalid_field("body", error), "invalid_type")


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
    """Return why an Answer is none, as a client may know it.

    What an engine or its server said is the operator's: it names addresses and models, and quotes replies.
    """
    if answer.status != "failed" or answer.error is None or answer.error.startswith(_TOO_LONG):
        return answer.error
    kind = answer.error.partition(":")[0]
    named = f"{kind}: " if kind.isidentifier() else ""
    return (
        f"{named}the search failed; the operator reads why with `python -m streams explain {answer.query_id}`"
    )


def of_answer(answer: Answer) -> ApiError | None:
    """Return the error for an Answer, or None if it has text to return.

    `unfinished` and `budget` are completions that stopped early, with `finish_reason: "length"`; a budget may have left
    no text at all.
    """
    said = why(answer) or f"the search ended with status {answer.status}"
    match answer.status:
        case "rejected" if said.startswith(_NOT_ADMITTED):
            return ApiError(
                429,
                said,
                type="rate_limit_error",
                code="admission_rejected",
                headers={"retry-after": str(_ADMISSION_RETRY_S)},
            )
        case "rejected":
            return ApiError(400, said, code="rejected", headers=dict(NO_RETRY))
        case "failed" if said.startswith(_TOO_LONG):
            return ApiError(
                400, said, param="messages", code="context_length_exceeded", headers=dict(NO_RETRY)
            )
        case "failed":
            return ApiError(502, said, type="api_error", code="search_failed", headers=dict(NO_RETRY))
        case "expired":
            return ApiError(504, said, type="timeout_error", code="expired", headers=dict(NO_RETRY))
        case "cancelled":
            return ApiError(409, said, type="api_error", code="cancelled", headers=dict(NO_RETRY))
    if answer.text is None and not _has_budget(answer):
        # The deadline is the one bound that every search has: it ran out before a path was completed.
        return ApiError(504, said, type="timeout_error", code="expired", headers=dict(NO_RETRY))
    return None


def _has_budget(answer: Answer) -> bool:
    limits = answer.limits
    return limits is not None and (limits.budget_tokens is not None or limits.budget_eflops is not None)


# What the gateway returns: completions and their chunks, in OpenAI's shape, with what the search did beside them.

DONE: Final = b"data: [DONE]\n\n"


def picked(record: object, *names: str) -> dict[str, Any]:
    """Return some attributes of a record under their own names.

    >>> picked(1 + 2j, "real", "imag")
    {'real': 1.0, 'imag': 2.0}
    """
    return {name: getattr(record, name) for name in names}


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
        answer: How the query ended.
        decision: What was chosen for it, where it is known.
        cost_model: Of the catalogue in force.
        created: Seconds since the epoch.
        total_s: From the request's arrival to now, in seconds.
        ignored: Names of the request's fields that a search cannot honour.
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
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish_reason(answer),
            }
            for at, text in enumerate(texts)
        ],
        "usage": usage(answer),
        "uniscale": {**details(answer, decision, cost_model, total_s), "ignored": list(ignored)},
    }


def chunk(
    query_id: str,
    created: int,
    model: str,
    fingerprint: str | None,
    *,
    delta: dict[str, Any] | None = None,
    finish: str | None = None,
    **more: Any,
) -> bytes:
    """Return one `chat.completion.chunk` as a server-sent event. An empty delta is the heartbeat of a stream."""
    body = {
        "id": query_id,
        "object": "chat.completion.chunk",
        "created": created,
        "model": model,
        "system_fingerprint": fingerprint,
        "choices": [{"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish}],
        **more,
    }
    return event(body)


def event(body: dict[str, Any]) -> bytes:
    """Return a server-sent event without id, name or retry: some clients fail on these."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def usage(answer: Answer) -> dict[str, Any]:
    """Return tokens: `completion_tokens` counts all that were generated, `reasoning_tokens` those not returned."""
    generated = answer.generated_tokens
    # Which drafts the further answers hold is not in the trace.
    returned = generated if answer.answers else sum(answer.trace[at].tokens for at in answer.path)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": answer.prompt_tokens + generated,
        # An Answer counts its prompts once; which of their tokens an engine found in its prefix cache it does not say.
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": generated - returned},
    }


def details(
    answer: Answer, decision: Decision | None, cost_model: CostModel, total_s: float | None
) -> dict[str, Any]:
    """Return the object `uniscale` of a response.

    Args:
        answer: How the query ended.
        decision: What was chosen for it, where it is known.
        cost_model: Of the catalogue in force.
        total_s: How long the whole took, in seconds; None where this is not known.
    """
    timings = picked(answer.spent, "queue_s", "generate_s", "verify_s", "transit_s", "control_s")
    if total_s is not None:
        timings["total_s"] = total_s
    return {
        "action": answer.action.id if answer.action else None,
        "objective": None if decision is None else objective(decision.objective),
        "group": None if decision is None else decision.cohort,
        **picked(answer, "status", "complete", "score", "seq"),
        "scores": [one.score for one in answer.answers],
        "eflops": price(answer, cost_model),
        "timings": {name: round(float(seconds), 4) for name, seconds in timings.items()},
        "error": why(answer),
    }


def objective(in_force: ObjectiveInForce) -> dict[str, Any]:
    """Return an objective as it was in force."""
    weights = {"weights": picked(in_force.weights, "correct", "score", "cost")}
    return (
        {"name": in_force.name, "aim": in_force.kind}
        | picked(in_force, "mean_cost", "accuracy", "price")
        | weights
    )


def price(answer: Answer, cost_model: CostModel) -> dict[str, float] | None:
    """Return what the search cost in eFLOPs, by part; None when nothing was run or its price is not known."""
    try:
        cost = cost_of(answer, cost_model)
    except (UnpricedAnswer, ValueError, ArithmeticError):
        return None  # a foreign trace may hold anything that a schema allows
    if cost is None:
        return None
    return {
        "total": cost.cost,
        "prefill": cost.prefill_eflops,
        "decoding": cost.decoding_eflops,
        "verifier": cost.verifier_eflops,
    }


def cut(answer: Answer, cost_model: CostModel) -> float:
    """Return the most that a step may have cost which the deadline cut, in eFLOPs; 0 where that is not known."""
    try:
        return cut_eflops(answer, cost_model)
    except (UnpricedAnswer, ValueError, ArithmeticError):
        return 0.0


def finish_reason(answer: Answer) -> str:
    """Return `stop` for a completed path (a client's stop text completes it), `length` for one that was cut off."""
    return "stop" if answer.complete else "length"


def fingerprint(decision: Decision | None) -> str | None:
    """Return action@seq: what ran, and the state of the policy that chose it."""
    return None if decision is None else f"{decision.action.id}@{decision.seq}"


def model_of(answer: Answer) -> str:
    """Return the model that ran, never the virtual name in the request."""
    return answer.action.model if answer.action else ""


def headers(decision: Decision | None, query_id: str, request_id: str, *, debug: bool) -> dict[str, str]:
    """Return the headers that say what was chosen; with `debug`, what it was expected to achieve."""
    found = {"x-request-id": request_id, "x-uniscale-query-id": query_id}
    if decision is None:
        return found
    found |= {"x-uniscale-model": decision.action.model, "x-uniscale-action": decision.action.id}
    if debug:
        found |= {
            "x-uniscale-seq": str(decision.seq),
            "x-uniscale-policy": f"{decision.policy.name}@{decision.policy.version}",
            "x-uniscale-reason": decision.reason,
            "x-uniscale-cohort": decision.cohort,
            "x-uniscale-candidates": str(decision.candidates),
        }
        if decision.propensity is not None:
            found["x-uniscale-propensity"] = f"{decision.propensity:.6g}"
    return found


def query_object(timeline: Timeline, cost_model: CostModel) -> dict[str, Any]:
    """Return what is known of one query: `GET /v1/queries/{id}`."""
    decision, answer = timeline.decision, timeline.answer
    found: dict[str, Any] = {
        "id": timeline.query_id,
        "object": "query",
        "status": answer.status if answer else "pending",
    }
    if decision is not None:
        found["decision"] = {
            **picked(decision, "cohort", "reason", "seq", "mean", "width"),
            **picked(decision, "candidates", "propensity", "price_factor"),
            "action": decision.action.id,
            "objective": objective(decision.objective),
            "policy": picked(decision.policy, "name", "version"),
            "runners_up": [picked(each, "action", "mean", "width", "score") for each in decision.runners_up],
        }
    if answer is not None:
        found["answer"] = {
            **picked(answer, "text", "extracted", "complete"),
            "usage": usage(answer),
            **details(answer, decision, cost_model, timeline.total_s),
        }
        found["search"] = drafts(answer.trace, answer.path)
    if timeline.reward is not None:
        found["reward"] = reward(timeline.reward)
    return found


def reward(stage: Reward) -> dict[str, Any]:
    """Return one stage of a query's reward."""
    terms = ("correct", "score", "log_cost", "reward", "graded_by", "missing", "latency_s", "closed_early")
    return picked(stage, "kind", "closes", *terms)


def drafts(trace: Sequence[Draft], path: Sequence[int]) -> list[dict[str, Any]]:
    """Return drafts as the page draws them, a parent before its children.

    Args:
        trace: The drafts.
        path: Indices of the chosen path.
    """
    shown = ("parent", "tree", "depth", "tokens", "score", "fate", "bound", "text")
    return [{"at": at, "chosen": at in path, **picked(draft, *shown)} for at, draft in enumerate(trace)]
