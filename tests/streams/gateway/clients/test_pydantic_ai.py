"""Pydantic AI's Anthropic model (Messages) does a task of three tool calls, streamed; only its base URL is changed.

The gateway is strict, so it ignores nothing.
"""

from pathlib import Path

import pytest

from tests.support.client_environments import run_client
from tests.support.gateway_deployment import GatewayDeployment
from tests.support.tool_task import ANSWER, CALLS, RESULTS, TASK, assert_done
from tests.support.upstream import Body

pytestmark = pytest.mark.seconds

PROGRAM = Path(__file__).parent / "programs" / "anthropic_agent.py"


def test_pydantic_ai_does_a_task(site: GatewayDeployment, sent: list[Body]) -> None:
    environ = {"ANTHROPIC_BASE_URL": site.url, "ANTHROPIC_API_KEY": "any"}
    made = run_client("pydantic-ai", PROGRAM, TASK, environ=environ)
    assert (made["text"], made["calls"], made["results"]) == (ANSWER, CALLS, RESULTS)
    requests, given, generated = made["usage"]
    assert (requests, generated) == (4, 6)
    assert given > 0
    assert_done(sent, streamed=True, system="Use the tool.")
    assert {body["max_tokens"] for body in sent} == {64}, "of the entry; the framework asks for 64000"
