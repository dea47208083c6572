"""A deployment whose models have the names that a provider gives its own: a client changes nothing but its base URL."""

from collections.abc import Iterator

import pytest

from tests.support.gateway_deployment import GatewayDeployment, before_chat_server
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
    made = before_chat_server(
        tmp_path_factory.mktemp("clients"),
        upstream.url,
        ("gpt-5-mini", "claude-sonnet-4-5"),
        ("tools", "json"),
        gateway_strict=strict,
    )
    yield made
    made.close()


@pytest.fixture
def sent(upstream: Upstream, site: GatewayDeployment) -> list[Body]:
    """What reaches the upstream from now on."""
    with site.http() as client:
        site.until(lambda: client.get("/health/ready").json()["models"]["ready"] == 2)
    upstream.requests.clear()
    return upstream.requests
