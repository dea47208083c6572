"""Random requests of the official clients' types: none is an internal error, and no field is dropped silently."""

import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from streams.gateway.errors import ApiError, not_found
from streams.gateway.messages_api.request import parse as parse_messages
from streams.gateway.request import ChatRequest, ModelChoice, parse, to_query
from streams.gateway.responses_api.request import parse as parse_responses
from tests.support.gateway_deployment import QUESTION, GatewayDeployment
from tests.support.typed_dicts import one_field, without


def _unknown(response_id: str) -> Any:
    raise not_found("previous_response_id", response_id)


PROTOCOLS: dict[str, tuple[str, str, str, dict[str, Any], Callable[[bytes], ChatRequest]]] = {
    "chat": (
        "openai.types.chat.completion_create_params", "CompletionCreateParamsBase", "/v1/chat/completions",
        {"messages": QUESTION}, parse,
    ),
    "responses": (
        "openai.types.responses.response_create_params", "ResponseCreateParamsBase", "/v1/responses",
        {"input": QUESTION[0]["content"]}, lambda body: parse_responses(body, _unknown),
    ),
    "messages": (
        "anthropic.types.message_create_params", "MessageCreateParamsBase", "/v1/messages",
        {"messages": QUESTION, "max_tokens": 50}, parse_messages,
    ),
}  # fmt: skip

SILENT = {"id", "status"}
"""Fields of items that only identify them, and so may change nothing."""

NEUTRAL: tuple[Any, ...] = (
    None,
    False,
    "",
    0,
    1,
    True,
    "auto",
    "none",
    "default",
    "disabled",
    "standard",
    "text",
    "message",
)
"""Values without effect, where the API has them as defaults."""


def params_of(protocol: str) -> Any:
    module, name, *_ = PROTOCOLS[protocol]
    return getattr(pytest.importorskip(module), name)


def bodies(protocol: str, seed: int, count: int) -> list[dict[str, Any]]:
    rng, params, base = random.Random(seed), params_of(protocol), PROTOCOLS[protocol][3]
    return [one_field(params, {"model": "large/1/1/1", **base}, rng) for _ in range(count)]


def read(protocol: str, body: dict[str, Any]) -> ChatRequest | ApiError:
    """Return the request, or why it is refused."""
    try:
        request = PROTOCOLS[protocol][4](orjson.dumps(body))
        to_query(request, ModelChoice(), query_id="q-1", tenant=None, kept={})
    except ApiError as error:
        return error
    return request


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_value_is_honoured_named_or_refused(protocol: str) -> None:
    accepted = 0
    for body in bodies(protocol, 1, 400):
        request = read(protocol, body)
        if isinstance(request, ApiError):
            assert request.status in (400, 404)
            assert request.param, body
            continue
        accepted += 1
        named = " ".join(request.ignored)
        for path, value, rest in without(body):
            neutral = isinstance(value, dict | list) or value in NEUTRAL
            kinds = [each for each in (*path, value) if isinstance(each, str)]
            if neutral or path[-1] in SILENT or any(kind in named for kind in kinds):
                continue
            assert read(protocol, rest) != request, f"{path}: {value!r} of {body} leaves no trace"
    assert accepted > 50


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_request_is_an_internal_error(site: GatewayDeployment, protocol: str) -> None:
    path = PROTOCOLS[protocol][2]
    with site.http() as client:
        for body in bodies(protocol, 2, 100):
            answer = client.post(path, json=body)
            assert answer.status_code in (200, 400, 404), (body, answer.text)
