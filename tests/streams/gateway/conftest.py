"""Deployments in memory behind real HTTP."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from streams.local.broker import free_port
from streams.services import SERVICES
from streams.settings import Settings
from tests.support.house import House


@pytest.fixture(scope="module")
def house(in_memory: Callable[..., Settings]) -> Iterator[Callable[..., House]]:
    """Start deployments in memory; closed when the module's tests are done."""
    made: list[House] = []

    def start(services: tuple[str, ...] = tuple(SERVICES), **fields: Any) -> House:
        ports = {"gateway_port": free_port(), "decider_port": free_port()}
        made.append(House(in_memory(**{**ports, **fields}), services))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def site(house: Callable[..., House]) -> House:
    """A whole deployment, the same for all tests of a module."""
    return house()


@pytest.fixture(scope="module")
def client(site: House) -> Iterator[httpx.Client]:
    """A client of it without a key."""
    with site.http() as opened:
        yield opened
