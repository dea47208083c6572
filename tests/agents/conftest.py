"""What tests of the policies and of the decider ask for: worlds, shards, objectives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agents.bandit.policy import Objective
from tests.support.shard import Shard
from tests.support.worlds import QUALITY, THRIFT, PlainLinUCB, World


@pytest.fixture(scope="session")
def make_world() -> Callable[..., World]:
    return World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def plain() -> type[PlainLinUCB]:
    return PlainLinUCB


@pytest.fixture(scope="session")
def quality() -> Objective:
    return QUALITY


@pytest.fixture(scope="session")
def thrift() -> Objective:
    return THRIFT


@pytest.fixture(scope="session")
def make_shard() -> Callable[..., Shard]:
    return Shard
