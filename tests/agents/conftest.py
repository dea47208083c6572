"""What tests of the policies ask for: a world."""

import pytest

from tests.support.worlds import World


@pytest.fixture
def world() -> World:
    return World()
