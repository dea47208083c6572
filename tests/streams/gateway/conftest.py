"""Deployments in memory behind real HTTP."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from streams.local.broker import free_port
from streams.settings import Settings
from tests.support.gateway_deployment import DEPLOYED, Deploy, GatewayDeployment


@pytest.fixture(scope="module")
def deploy(in_memory: Callable[..., Settings]) -> Iterator[Deploy]:
    """Start deployments in memory; closed when the module's tests are done."""
    made: list[GatewayDeployment] = []

    def start(services: tuple[str, ...] = DEPLOYED, **fields: Any) -> GatewayDeployment:
        ports = {"gateway_port": free_port(), "decider_port": free_port()}
        made.append(GatewayDeployment(in_memory(**{**ports, **fields}), services))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def site(deploy: Deploy) -> GatewayDeployment:
    """A whole deployment, the same for all tests of a module."""
    return deploy()


@pytest.fixture(scope="module")
def client(site: GatewayDeployment) -> Iterator[httpx.Client]:
    """A client of it without a key."""
    with site.http() as opened:
        yield opened
