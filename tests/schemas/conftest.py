"""Tests of `sample` and `kind` run over every record and every class of one."""

import pytest

from schemas.record import Record
from tests.support.samples import SAMPLES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `sample` over every record, and one that takes `kind` over every class."""
    if "sample" in metafunc.fixturenames:
        names = [f"{type(each).__name__}-{at}" for at, each in enumerate(SAMPLES)]
        metafunc.parametrize("sample", SAMPLES, ids=names)
    if "kind" in metafunc.fixturenames:
        kinds = dict.fromkeys(type(each) for each in SAMPLES)
        metafunc.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


@pytest.fixture
def samples() -> tuple[Record, ...]:
    """Every record."""
    return SAMPLES
