"""A deployment whose models have the names that a provider gives its own: a client changes nothing but its base URL."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from streams.local.broker import free_port
from tests.support.gateway_deployment import DEPLOYED, GatewayDeployment
from tests.support.recorded import recorded_in_memory, recorded_paths
from tests.support.tool_task import says
from tests.support.upstream import Body, Upstream


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    made = Upstream(says=says)
    yield made
    made.close()


@pytest.fixture(scope="module")
def strict() -> bool:
    """Whether the gateway refuses what it would otherwise accept without effect."""
    return True


@pytest.fixture(scope="module")
def site(
    upstream: Upstream, strict: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayDeployment]:
    folder = tmp_path_factory.mktemp("clients")
    entries: list[dict[str, Any]] = [
        {
            "name": name, "verifier": "none", "group": "mini", "price": {"input": 2.0, "output": 8.0},
            "endpoint": {"kind": "chat", "url": f"{upstream.url}/v1", "model": "hosted", "max_output_tokens": 64},
            "capabilities": ["tools", "json"],
        }
        for name in ("gpt-5-mini", "claude-sonnet-4-5")
    ]  # fmt: skip
    settings = recorded_in_memory(
        folder, recorded_paths(1), recorded="", policy="contextual", prior="none", gateway_strict=strict,
        gateway_port=free_port(), decider_port=free_port(),
    )  # fmt: skip
    content = {"name": "hosted", "verifier": "none", "models": entries}
    (folder / "catalogue.yaml").write_text(yaml.safe_dump(content))
    made = GatewayDeployment(settings, DEPLOYED)
    yield made
    made.close()


@pytest.fixture
def sent(upstream: Upstream, site: GatewayDeployment) -> list[Body]:
    """What reaches the upstream from now on."""
    with site.http() as client:
        site.until(lambda: client.get("/health/ready").json()["models"]["ready"] == 2)
    upstream.requests.clear()
    return upstream.requests
