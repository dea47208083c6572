"""OpenAI's Agents SDK (Responses) does a task of three tool calls, streamed; its base URL is all that is changed."""

from pathlib import Path

import pytest

from tests.support.client_environments import run_client
from tests.support.gateway_deployment import GatewayDeployment
from tests.support.tool_task import ANSWER, CALLS, RESULTS, TASK, assert_done
from tests.support.upstream import Body

pytestmark = pytest.mark.seconds

PROGRAM = Path(__file__).parent / "programs" / "openai_agent.py"


@pytest.fixture(scope="module")
def strict() -> bool:
    """It is not: what the framework asks for beyond the task would be refused."""
    return False


def test_openai_agents_does_a_task(site: GatewayDeployment, sent: list[Body]) -> None:
    environ = {
        "OPENAI_BASE_URL": f"{site.url}/v1",
        "OPENAI_API_KEY": "any",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",  # its traces go to OpenAI, whatever the base URL
    }
    made = run_client("openai-agents", PROGRAM, TASK, environ=environ)
    assert (made["text"], made["calls"], made["results"]) == (ANSWER, CALLS, RESULTS)
    requests, given, generated = made["usage"]
    assert (requests, generated) == (4, 6)
    assert given > 0
    assert made["events"].count("response.function_call_arguments.done") == 3
    assert made["events"].count("response.completed") == 4
    assert made["ignored"] == [["text.verbosity"]] * 4, "what docs/gateway.md says of it"
    assert_done(sent, streamed=True, system="Use the tool.")
