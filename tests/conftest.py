"""What every test may use. Nothing clever: a seeded generator and the place of the repository."""

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator of its own for each test, always seeded alike."""
    return np.random.default_rng(3)


@pytest.fixture
def root() -> Path:
    """The checkout: where `python -m …` starts."""
    return ROOT
