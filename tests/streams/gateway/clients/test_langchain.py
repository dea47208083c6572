"""LangChain's `ChatOpenAI` with nothing but its base URL changed; the gateway is strict, so it ignores nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.client_environments import run_client
from tests.support.gateway_deployment import GatewayDeployment
from tests.support.tool_task import ANSWER, CALLS, TASK, assert_done
from tests.support.upstream import Body

pytestmark = pytest.mark.seconds

PROGRAM = Path(__file__).parent / "programs" / "chat_openai.py"
QUESTION = "What is 2 + 3? Answer in JSON."


def run(site: GatewayDeployment, scenario: str, question: str) -> Any:
    environ = {"OPENAI_BASE_URL": f"{site.url}/v1", "OPENAI_API_KEY": "any"}
    return run_client("langchain", PROGRAM, scenario, question, environ=environ)


def test_langchain_chats(site: GatewayDeployment, sent: list[Body]) -> None:
    made = run(site, "plain", QUESTION)
    assert made["text"] == "It is 5."
    assert (made["usage"]["input_tokens"], made["usage"]["output_tokens"]) == (12, 3)
    assert made["about"]["model_name"] == "gpt-5-mini"
    assert made["about"]["token_usage"]["cost"] == pytest.approx((12 * 2.0 + 3 * 8.0) / 1e6)
    [body] = sent
    assert body["messages"] == [{"role": "user", "content": QUESTION}]


@pytest.mark.parametrize("scenario", ["tools", "stream"])
def test_langchain_calls_tools_until_it_is_done(
    site: GatewayDeployment, sent: list[Body], scenario: str
) -> None:
    made = run(site, scenario, TASK)
    assert (made["text"], made["calls"]) == (ANSWER, CALLS)
    assert (made["usage"] is None) == (scenario == "stream"), "as docs/gateway.md says"
    assert_done(sent, streamed=scenario == "stream")


@pytest.mark.parametrize("method", ["default", "function_calling", "json_mode"])
def test_langchain_gets_a_structured_output(site: GatewayDeployment, sent: list[Body], method: str) -> None:
    assert run(site, method, QUESTION) == {"class": "Sum", "total": 5}
    [body] = sent
    assert body["messages"] == [{"role": "user", "content": QUESTION}]
    if method == "function_calling":
        assert body["tools"][0]["function"]["parameters"]["required"] == ["total"]
        assert body["tool_choice"] == {"type": "function", "function": {"name": "Sum"}}
        assert body["parallel_tool_calls"] is False
    elif method == "json_mode":
        assert body["response_format"] == {"type": "json_object"}
    else:
        form = body["response_format"]["json_schema"]
        assert (form["name"], form["strict"]) == ("Sum", True)
        assert form["schema"]["required"] == ["total"]
