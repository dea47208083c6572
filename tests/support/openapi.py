"""docs/openapi.json, made from the gateway's routes, their handlers, and the structs of their bodies."""

import ast
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any, Final, get_args

from starlette.routing import Route

from schemas.answer import Status
from schemas.chat import ChatOptions
from schemas.query import Query
from streams.gateway import request, routes
from streams.gateway.app import Routes
from streams.gateway.auth import ApiKeys
from streams.gateway.messages_api import request as messages
from streams.gateway.responses_api import request as responses
from streams.settings import GatewaySettings
from tests.support.openapi_replies import EVENTS, RECORDS, SCHEMAS, Schema, null_or, parts, ref

GATEWAY: Final = Path("streams/gateway")
OFFICIAL: Final = {
    "chat_api": "https://developers.openai.com/api/reference/resources/chat",
    "responses_api": "https://developers.openai.com/api/reference/resources/responses",
    "messages_api": "https://platform.claude.com/docs/en/api/messages",
}
BODIES: Final = {
    "POST /v1/chat/completions": ("ChatCompletionRequest", "ChatCompletion"),
    "POST /v1/responses": ("ResponseRequest", "ResponseObject"),
    "GET /v1/responses/{id}": ("", "ResponseObject"),
    "POST /v1/messages": ("MessageRequest", "MessageObject"),
    "POST /v1/messages/count_tokens": ("TokenCountRequest", "TokenCount"),
    "POST /v1/decide": ("ChatCompletionRequest", "DecisionPreview"),
    "GET /v1/models": ("", "ModelList"),
    "GET /v1/models/{id}": ("", "ModelEntry"),
    "POST /v1/feedback": ("FeedbackRequest", "FeedbackAccepted"),
    "GET /v1/queries": ("", "QueryList"),
    "GET /v1/queries/{id}": ("", "QueryObject"),
    "GET /v1/queries/{id}/events": ("", ""),
    "GET /v1/now": ("", "Now"),
    "GET /v1/dead-letters": ("", "DeadLetterList"),
    "POST /v1/dead-letters/retry": ("RetryRequest", "Retry"),
    "GET /v1/objectives": ("", "ObjectiveList"),
    "PUT /v1/objectives/{name}": ("ObjectiveRequest", "ObjectiveAccepted"),
    "GET /health/live": ("", "Live"),
    "GET /health/ready": ("", "Ready"),
}
"""The schemas of the request and the response of each operation."""

TAGS: Final = {"chat_api": "OpenAI", "responses_api": "OpenAI", "messages_api": "Anthropic"}
NO_EFFECT: Final = "It is accepted and has no effect."
STREAMS: Final = {
    "chat_api": "With `stream: true`: chunks, at the end one with `finish_reason` and `uniscale`, then `[DONE]`.",
    "responses_api": "With `stream: true`: the API's events; the last, such as `response.completed`, has `uniscale`.",
    "messages_api": "With `stream: true`: the API's events; `message_delta` has `uniscale`.",
}
OF_PAGE: Final = {"foreign_page"}
ALWAYS: Final = {401, 403, 429, 500}
RAISES: Final = {
    r"\banswered\(": {400, 404, 408, 409, 413, 415, 422, 502, 503, 504},
    r"\b(body_of|object_of)\(": {400, 408, 413, 415},
    r"\b(int_param|_filter|invalid|unsupported)\(": {400},
    r"\b(no_model|not_found|question)\(": {404},
    r"\bsubmission\.preview\(": {404, 503},
    r"\b_?visible\(": {404, 410},
    r"\baccess\.feedback\(": {404, 410, 503},
    r"\bappend_again\(": {410, 503},
    r"\bruntime\.send\(": {503},
}
"""The errors that what a handler calls may raise, besides those of `ALWAYS`."""

QUERY: Final = {
    "limit": "The most to return.",
    "tenant": "Queries of this tenant; empty for those without one.",
    "objective": "Name of their objective, or its kind if it has no name.",
    "model": "The model chosen for them.",
    "within_s": "How long ago they were sent at most, in seconds.",
    "status": "How they ended: one or several, with commas between them.",
    "stream": "The response is returned whole.",
    "include_obfuscation": "It is no stream.",
}
FILTERS: Final[dict[str, Schema]] = {
    "within_s": {"type": "integer", "minimum": 1, "maximum": routes._LONGEST_S},
    "status": {"type": "array", "items": {"enum": list(get_args(Status))}},
}
FALSE: Final[Schema] = {"enum": [False]}
HEADERS: Final = {
    "Idempotency-Key": "A name for the request, of 1 to 255 characters: a repeat joins the query of the first.",
    "x-session-id": "The conversation that the request is a turn of, as `session_id` in the body.",
    "x-uniscale-debug": "`true`: headers of the response have policy, reason and propensity as well.",
    "traceparent": "The W3C trace that the query is to be part of.",
}
TOLD: Final = {
    "x-request-id": "The request's id, for the operator.",
    "x-uniscale-query-id": "The query's id.",
    "x-uniscale-model": "The model that runs.",
    "x-uniscale-action": "The configuration that runs.",
    "x-uniscale-ignored": "Fields of the request that have no effect, with commas between them.",
    "x-should-retry": "`false` if a retry is of no use, or would ask again.",
    "retry-after": "Seconds to wait before a retry.",
}
TEXT: Final[Schema] = {"type": "string"}
ABOUT: Final = (
    "UniScale-Streams chooses the model and its configuration for each query; docs/gateway.md explains this interface. "
    "While the deployment has no API key, every request is allowed. Any other path returns 404, and another method 405."
)


def page() -> str:
    """Return the whole file."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def document() -> dict[str, Any]:
    """Return the description of the gateway's HTTP interface, as OpenAPI 3.1."""
    paths: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for method, path, handle in operations():
        paths[path.replace(":path}", "}")][method.lower()] = _operation(method, path, handle)
    errors, parameters, headers = _errors(), _headers(HEADERS), _headers(TOLD)
    components = {
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        },
        "parameters": {name: {"name": name, "in": "header", **held} for name, held in parameters.items()},
        "headers": headers,
        "responses": {name: errors[name] for name in sorted(_named(paths, "responses"))},
        "schemas": _schemas([paths, errors]),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "UniScale-Streams gateway", "version": "v1", "description": ABOUT},
        "servers": [{"url": f"http://127.0.0.1:{GatewaySettings().port}"}],
        "paths": paths,
        "components": components,
    }


def operations() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Return method, path and handler of every route of the gateway, without its page."""
    gateway: Any = SimpleNamespace(keys=ApiKeys(), services=())
    for route in Routes(gateway, frozenset())._listed:
        if isinstance(route, Route) and route.path.startswith(("/v1/", "/health/")):
            handle = inspect.getclosurevars(route.endpoint).nonlocals.get("handle", route.endpoint)
            [method] = (route.methods or set()) - {"HEAD"}
            yield method, route.path, handle


def codes() -> dict[int, set[str]]:
    """Return the statuses of the errors that the gateway's code raises, each with the codes that it names there."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for path in sorted(GATEWAY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name("ApiError"), args=[ast.Constant(int(status)), *_], keywords=more):
                    given = {each.arg: each.value for each in more}.get("code")
                    found[status] |= {str(given.value)} if isinstance(given, ast.Constant) else set()
                case ast.Call(func=ast.Name("invalid"), args=[_, _, ast.Constant(str(code))]):
                    found[400].add(code)
    return {status: named - OF_PAGE for status, named in found.items()}


def _operation(method: str, path: str, handle: Callable[..., Any]) -> dict[str, Any]:
    plain = path.replace(":path}", "}")
    asked, replied = BODIES[f"{method} {plain}"]
    source, api = dedent(inspect.getsource(handle)), handle.__module__.split(".")[-2]
    begins, summary = f"{method} {plain}: ", inspect.cleandoc(handle.__doc__ or "").split("\n\n")[0]
    assert summary.startswith(begins), f"{handle.__qualname__}: begin its docstring with `{begins}`"
    summary = summary.removeprefix(begins)
    params = [*_params(path, source)]
    done: dict[str, Any] = {"description": "Server-sent events.", "content": {}}
    if replied:
        done = {"description": SCHEMAS[replied]["description"], "content": _json(replied)}
    else:
        events = {name: ref(kind) for name, kind in EVENTS.items()}
        done["content"]["text/event-stream"] = {"schema": TEXT, "x-events": events}
    if streams := "answered(" in source:
        done["content"]["text/event-stream"] = {"schema": {**TEXT, "description": STREAMS[api]}}
        done["headers"] = _refs("headers", [name for name in TOLD if name.startswith("x-uniscale")])
        params += _refs("parameters", HEADERS).values()
    status = re.search(r"status=(\d+)", source)
    found: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{plain}").strip("_"),
        "tags": ["Probes" if path.startswith("/health") else TAGS.get(api, "UniScale")],
        "summary": summary[:1].upper() + summary[1:],
        **({"externalDocs": {"url": OFFICIAL[api]}} if api in OFFICIAL else {}),
        **({"parameters": params} if params else {}),
        **({"requestBody": {"required": True, "content": _json(asked)}} if asked else {}),
        "responses": {status[1] if status else "200": done},
        "security": [],
    }
    if path.startswith("/v1/"):
        raised = ALWAYS.union(*(each for call, each in RAISES.items() if re.search(call, source)))
        own = "Messages" if api == "messages_api" else ""
        found["responses"] |= {
            str(each): {"$ref": f"#/components/responses/{own}Error{each}"} for each in sorted(raised)
        }
        scopes = ["ask"] if streams else re.findall(r'who\.require\("(\w+)"\)', source)[:1]
        found["security"] = [{"bearer": scopes}, {"x-api-key": scopes}, {}]
    return found


def _params(path: str, source: str) -> Iterator[dict[str, Any]]:
    for name, whole in re.findall(r"{(\w+)(:path)?}", path):
        told = {"description": "It may have slashes, encoded or not."} if whole else {}
        yield {"name": name, "in": "path", "required": True, **told, "schema": TEXT}
    found = dict.fromkeys(("stream", "include_obfuscation") if "query_params" in source else (), FALSE)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name("int_param"), args=[_, ast.Constant(str(name)), *bounds]):
                default, most = (eval(ast.unparse(each), vars(routes)) for each in bounds)
                found[name] = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
            case ast.Call(func=ast.Name("_filter"), args=[_, *others]):
                names = [*routes._FILTERS, *(ast.literal_eval(each) for each in others)]
                found = {name: FILTERS.get(name, TEXT) for name in names} | found
    for name, schema in found.items():
        comma = {"style": "form", "explode": False} if schema.get("type") == "array" else {}
        yield {"name": name, "in": "query", "description": QUERY[name], **comma, "schema": schema}


def _errors() -> dict[str, dict[str, Any]]:
    """Return the responses that are errors, in OpenAI's format and in Anthropic's."""
    found = {}
    for status, named in codes().items():
        told = HTTPStatus(status).phrase + (
            f". Among its codes: {', '.join(f'`{code}`' for code in sorted(named))}." if named else "."
        )
        headers = ["x-request-id", "x-should-retry", *(["retry-after"] if status in (429, 503) else [])]
        for own, what in (("", told), ("Messages", f"{HTTPStatus(status).phrase}.")):
            found[f"{own}Error{status}"] = {
                "description": what,
                "headers": _refs("headers", headers),
                "content": _json(f"{own}Error"),
            }
    return found


def _requests() -> dict[str, Schema]:
    """Return the schemas of the bodies in the three protocols: every field that the gateway takes, and no others."""
    chat = parts(request.ChatRequest)
    own, told = chat["ChatRequest"]["properties"], parts(Query)["Query"]["properties"]
    for name, field in chat["Extension"]["properties"].items():
        field |= {key: value for key, value in told.get(name, {}).items() if key == "description"}
    options = parts(ChatOptions)["ChatOptions"]["properties"]
    fields = {name: own[name] for name in own if name in request._OWN}
    fields |= {name: null_or(field) for name, field in options.items()}
    fields |= {
        name: {**field, "description": NO_EFFECT}
        for name, field in parts(request._Ignored)["_Ignored"]["properties"].items()
    }
    fields["reasoning_effort"]["description"] = "Only models of that effort may answer, if any has one."
    fields |= {name: {"enum": list(values)} for name, values in request._REFUSED.items()}
    other = parts(responses.ResponsesRequest, "Responses") | parts(messages.MessagesRequest, "Messages")
    response = other["ResponsesResponsesRequest"]["properties"] | {
        name: fields[name] for name in responses._SAME
    }
    message = (
        other["MessagesMessagesRequest"]["properties"]
        | {name: fields[name] for name in messages._SAME}
        | {name: {"description": NO_EFFECT} for name in messages._IGNORED}
    )
    counted = {name: field for name, field in message.items() if name not in ("max_tokens", "stream")}
    return (
        chat
        | other
        | {
            "ChatCompletionRequest": _body("chat_api", fields, "model", "messages"),
            "ResponseRequest": _body("responses_api", response, "model"),
            "MessageRequest": _body("messages_api", message, "model", "messages", "max_tokens"),
            "TokenCountRequest": _body("messages_api", counted, "model", "messages"),
        }
    )


def _body(api: str, fields: dict[str, Schema], *required: str) -> Schema:
    return {
        "type": "object",
        "description": "The fields that the gateway takes; any other gets 400.",
        "externalDocs": {"url": OFFICIAL[api]},
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


def _schemas(used: Any) -> dict[str, Schema]:
    """Return the schemas that something refers to, directly or through others."""
    known, found = RECORDS | _requests() | SCHEMAS, dict[str, Schema]()
    while missing := _named([used, found], "schemas") - found.keys():
        found |= {name: known[name] for name in missing}
    return dict(sorted(found.items()))


def _named(used: Any, kind: str) -> set[str]:
    return set(re.findall(rf'"#/components/{kind}/([^"]+)"', json.dumps(used)))


def _refs(kind: str, names: Iterable[str]) -> dict[str, Schema]:
    return {name: {"$ref": f"#/components/{kind}/{name}"} for name in names}


def _headers(told: dict[str, str]) -> dict[str, Schema]:
    return {name: {"description": words, "schema": TEXT} for name, words in told.items()}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": ref(name)}}
