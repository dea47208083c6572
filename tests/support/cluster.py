"""A deployment in memory while a test runs, and what its log says."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from schemas.answer import Answer
from schemas.query import Query
from schemas.record import Record, decode, encode
from schemas.reward import Reward
from streams.audit.run import Report
from streams.runtime.base import ServiceSpec
from streams.runtime.memory import MemoryRuntime
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.settings import Settings

R = TypeVar("R", bound=Record)

InMemory = Callable[..., Settings]
"""The fixture `in_memory`: settings with some fields replaced."""
Ask = Callable[..., Query]
"""The fixture `ask`: the query of a number."""
Audit = Callable[[Cluster], Report]
"""The fixtures `audit_of` and `audited`."""


@asynccontextmanager
async def running(
    settings: Settings, services: Mapping[str, ServiceSpec] = SERVICES, **how: Any
) -> AsyncIterator[Cluster]:
    """Let a deployment run while the block does; its log can be read afterwards."""
    cluster = Cluster(settings, services, **how)
    await cluster.up()
    yield cluster
    await cluster.close()


def send(cluster: Cluster, *queries: Query) -> None:
    """Produce queries as a client does."""
    for query in queries:
        cluster.produce(cluster.topics.query, query.query_id.encode(), encode(query))


def read(cluster: Cluster, topic: str, kind: type[R]) -> list[R]:
    """Return every record of a topic, decoded."""
    return [decode(record.value, kind) for record in cluster.broker.records(topic)]


def answered(cluster: Cluster) -> set[str]:
    """Return the queries that have an Answer."""
    return {each.query_id for each in read(cluster, cluster.topics.answer, Answer)}


def closing(cluster: Cluster) -> dict[str, Reward]:
    """Return the reward that closed each query, by its id."""
    return {each.query_id: each for each in read(cluster, cluster.topics.reward, Reward) if each.closes}


def worker_of(cluster: Cluster, service: str) -> MemoryRuntime:
    """Return the one worker of a service."""
    (worker,) = (each for each in cluster.workers if each.service == service)
    return worker


async def served(cluster: Cluster, *queries: Query) -> None:
    """Produce queries and run the deployment until their rewards are closed and nothing is in flight."""
    send(cluster, *queries)
    ids = {query.query_id for query in queries}
    await cluster.until(lambda: closing(cluster).keys() >= ids and not cluster.busy)
