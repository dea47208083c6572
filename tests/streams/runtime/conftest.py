"""The harness of each runtime."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streams.settings import Settings
from tests.support.harness import Harness, InMemory, OnKafka

EVERYDAY_DEATHS = (5, 9)
"""After how many effects a worker on the embedded broker dies in everyday runs: one case of each test."""


@pytest.hookimpl(tryfirst=True)  # before `-m` looks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the other deaths on the embedded broker to `make test-long`: it takes 6 s to let a member into a group.

    Each is in `make test` in memory, and in `make test-kafka` on Apache Kafka.
    """
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        if given.get("harness") == "embedded" and given.get("dies_after", 5) not in EVERYDAY_DEATHS:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(
    params=[
        "memory",
        pytest.param("embedded", marks=[pytest.mark.broker, pytest.mark.embedded]),
        pytest.param("kafka", marks=[pytest.mark.broker, pytest.mark.kafka("the contract on this broker")]),
    ]
)
def harness(
    request: pytest.FixtureRequest, in_memory: Callable[..., Settings], tmp_path: Path
) -> Iterator[Harness]:
    """A fresh deployment in memory, on the embedded broker, and on Apache Kafka where there is one.

    A test is marked `fields` to set other fields of its settings.
    """
    marked = request.node.get_closest_marker("fields")
    fields = dict(marked.kwargs) if marked else {}
    if request.param == "memory":
        yield InMemory(in_memory(state_dir=str(tmp_path), **fields))
        return
    broker = request.getfixturevalue(f"{request.param}_broker")
    from streams.local.deployment import settings_for

    settings = settings_for(
        in_memory(
            prefix=f"c{uuid.uuid4().hex[:8]}.",
            state_dir=str(tmp_path / "state"),
            commit_interval_s=0.5,
            **fields,
        ),
        broker,
    )
    yield OnKafka(settings, tmp_path)
