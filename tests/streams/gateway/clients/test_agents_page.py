"""The programs of the page "An agent framework on the gateway" run as they stand there."""

import re
from pathlib import Path

import pytest

from tests.support.client_environments import run_program
from tests.support.gateway_deployment import GatewayDeployment
from tests.support.tool_task import ANSWER, TASK, assert_done
from tests.support.upstream import Body

pytestmark = pytest.mark.seconds

PAGE = Path(__file__).parents[4] / "docs" / "agents.md"

CLIENTS = {
    "openai-agents": lambda url: {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "any"},
    "pydantic-ai": lambda url: {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "any"},
}


def programs() -> dict[str, str]:
    """Return the page's programs, by client."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return dict(zip(CLIENTS, blocks, strict=True))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_program_of_the_page_does_the_task_with_one_model(
    client: str, site: GatewayDeployment, sent: list[Body], tmp_path: Path
) -> None:
    program = tmp_path / "agent.py"
    program.write_text(programs()[client])
    assert TASK in program.read_text()
    environ = {**CLIENTS[client](site.url), "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    said, query_id = run_program(client, program, environ=environ).splitlines()
    assert said == ANSWER
    assert_done(sent, streamed=False, system="Use the tool.")
    with site.http() as http:
        last = http.get(f"/v1/queries/{query_id}").json()
        assert last["decision"]["reason"] == "session"
        turns = http.get("/v1/queries?limit=4").json()["data"]
        assert len({each["action"] for each in turns}) == 1, "the first turn's configuration was kept"
        told = http.post("/v1/feedback", json={"id": query_id, "value": True})
        assert told.status_code == 200, told.text
