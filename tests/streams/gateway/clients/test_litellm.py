"""LiteLLM's proxy in front of us, with us as a provider of its own kind `openai/`; the gateway is strict."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.support.client_environments import require
from tests.support.gateway_deployment import GatewayDeployment
from tests.support.peer_servers import Proxy, litellm_proxy
from tests.support.tool_task import CALLS, TASK
from tests.support.upstream import Body

pytestmark = pytest.mark.seconds

QUESTION: list[Any] = [{"role": "user", "content": "What is 2 + 3?"}]
COST = (9 * 2.0 + 3 * 8.0) / 1e6
"""Of its answer, at the prices of the catalogue."""


@pytest.fixture(scope="module")
def proxy(site: GatewayDeployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    require("litellm")
    ours = {"model": "openai/auto", "api_base": f"{site.url}/v1", "api_key": "any"}
    with litellm_proxy(tmp_path_factory.mktemp("litellm"), {"ours": ours}) as running:
        yield running


@pytest.fixture(scope="module")
def client(proxy: Proxy) -> Iterator[openai.OpenAI]:
    http: Any = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=proxy.url, api_key="any", http_client=http, max_retries=0) as connected:
        yield connected


def test_litellm_bills_what_we_bill(client: openai.OpenAI, sent: list[Body]) -> None:
    raw = client.chat.completions.with_raw_response.create(model="ours", messages=QUESTION)
    made: Any = raw.parse()
    assert made.choices[0].message.content == "It is 5."
    assert float(raw.headers["x-litellm-response-cost"]) == pytest.approx(COST)
    assert made.usage.cost == pytest.approx(COST)
    assert made.uniscale["action"] == f"{raw.headers['llm_provider-x-uniscale-model']}/1/1/1"
    [body] = sent
    assert body["messages"] == QUESTION


def test_litellm_streams_with_the_cost_last(
    site: GatewayDeployment, proxy: Proxy, client: openai.OpenAI, sent: list[Body]
) -> None:
    usage = {"include_usage": True}
    chunks: list[Any] = list(
        client.chat.completions.create(model="ours", messages=QUESTION, stream=True, stream_options=usage)  # type: ignore[call-overload]
    )
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(deltas) == "It is 5."
    assert chunks[-1].usage.cost == pytest.approx(COST)
    [body] = sent
    assert (body["stream"], body["messages"]) == (True, QUESTION)
    site.until(lambda: any(each["stream"] for each in proxy.served("ours")), "the proxy's log of the stream")
    [billed] = [each["response_cost"] for each in proxy.served("ours") if each["stream"]]
    assert billed == pytest.approx(COST)


@pytest.mark.parametrize("stream", [False, True])
def test_litellm_passes_a_tool_call(client: openai.OpenAI, sent: list[Body], stream: bool) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    turns: Any = [{"role": "user", "content": TASK}]
    asked: Any = {"model": "ours", "messages": turns, "tools": [tool]}
    if stream:
        with client.chat.completions.stream(**asked) as chunks:
            made: Any = chunks.get_final_completion()
    else:
        made = client.chat.completions.create(**asked)
    [choice] = made.choices
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, call.id, json.loads(call.function.arguments)) == (
        "tool_calls",
        "call-0",
        CALLS[0],
    )
    [body] = sent
    assert (body["messages"], body["tools"]) == (turns, [tool])
