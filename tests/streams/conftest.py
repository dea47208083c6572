"""A deployment in memory that answers from recordings made here, with the hashed encoder."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.query import Query
from streams.audit.run import Report, audit
from streams.runtime.memory_cluster import Cluster
from streams.settings import Settings
from streams.simulate.judge import InMemoryLog
from tests.support.recorded import question, recorded_in_memory, recorded_paths

QUESTIONS = 12


@pytest.fixture(scope="session")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Settings]:
    """Return the settings of a deployment in memory, with fields replaced."""
    paths = recorded_paths(QUESTIONS, samples=3, steps=(1, 3))
    settings = recorded_in_memory(tmp_path_factory.mktemp("recorded"), paths)
    return lambda **fields: settings.replace(**fields)


@pytest.fixture(scope="session")
def ask() -> Callable[..., Query]:
    """Return the query of a number, with its reference."""

    def query(number: int, **fields: Any) -> Query:
        text, answer = question(number)
        return Query(**{"query_id": f"q{number}", "text": text, "reference": answer, **fields})

    return query


@pytest.fixture(scope="session")
def audit_of() -> Callable[[Cluster], Report]:
    """Return the audit of a cluster, whatever it names."""

    def run(cluster: Cluster) -> Report:
        return audit(InMemoryLog(cluster), cluster.settings, cluster.broker.now_ms())

    return run


@pytest.fixture(scope="session")
def audited(audit_of: Callable[[Cluster], Report]) -> Callable[[Cluster], Report]:
    """Return the audit of a cluster, and refuse a discrepancy."""

    def run(cluster: Cluster) -> Report:
        report = audit_of(cluster)
        assert report.wrong == 0, report.discrepancies
        assert report.queries == sum(report.states.values())
        return report

    return run
