"""A deployment in memory while a test runs, and what its log says."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from msgspec import structs

from agents.decider.decider import Decider
from agents.decider.rows import AnyRow, Row, decode_row
from agents.decider.verify import load_replay, mismatches
from agents.encoders import encoder_of
from schemas.answer import Answer
from schemas.control import CatalogueEntry
from schemas.query import Query
from schemas.record import Record, decode, encode
from schemas.reward import Reward
from streams.audit.run import Report
from streams.control_follower import catalogue_of
from streams.gateway.service import GatewayService
from streams.runtime.memory import MemoryRuntime
from streams.runtime.memory_cluster import Cluster
from streams.runtime.runtime import Runtime, ServiceSpec
from streams.services import SERVICES
from streams.services.decider import DeciderService, policy_of
from streams.settings import Settings

R = TypeVar("R", bound=Record)

InMemory = Callable[..., Settings]
"""The fixture `in_memory`: settings with some fields replaced."""
Ask = Callable[..., Query]
"""The fixture `ask`: the query of a number."""
Audit = Callable[[Cluster], Report]
"""The fixtures `audit_of` and `audited`."""


async def _index(runtime: Runtime) -> None:
    """Build a gateway without its HTTP server: it reads every topic into its index."""
    await GatewayService(runtime, 1000).follow()


WITH_GATEWAY = {**SERVICES, "gateway": structs.replace(SERVICES["gateway"], build=_index, optional=False)}


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


def added(name: str) -> CatalogueEntry:
    """Return the entry that adds a model."""
    sizes = {"parameters": 300_000, "layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 16}
    sampling = {"temperature": 1.0, "step_tokens": 64, "depth_limit": 8}
    model = {
        "name": name,
        "architecture": sizes,
        "group": "mini",
        "checkpoint": "none",
        "sampling": sampling,
    }
    return CatalogueEntry(name=name, op="add", model=model)


def change(cluster: Cluster, *entries: CatalogueEntry) -> None:
    """Change the catalogue."""
    for entry in entries:
        cluster.produce(cluster.topics.control, entry.key.encode(), encode(entry))


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


def decider_of(cluster: Cluster) -> Decider:
    """Return what the running decider decides and learns with."""
    service: DeciderService = worker_of(cluster, "decider").built
    assert service.decider is not None
    return service.decider


def learner_log(cluster: Cluster, begin: int = 0) -> dict[bytes, bytes]:
    """Return the rows of the learner's log from an offset on, the last of each key."""
    return cluster.broker.changelog(cluster.topics.changelog("decider", "pending"), 0, begin)


def learner_rows(cluster: Cluster) -> list[Row]:
    """Return the rows of queries in the learner's log."""
    rows = (decode_row(key, value) for key, value in learner_log(cluster).items())
    return [row for row in rows if isinstance(row, Row)]


def snapshots(cluster: Cluster) -> dict[bytes, bytes]:
    """Return the records of the learner's snapshots."""
    return cluster.broker.changelog(cluster.topics.snapshot, 0)


@asynccontextmanager
async def successor(
    cluster: Cluster, services: tuple[str, ...] = ("decider",), settings: Settings | None = None
) -> AsyncIterator[Cluster]:
    """Let another deployment run whose decider finds the log and the snapshots of this one."""
    fresh = Cluster(settings or cluster.settings, {name: SERVICES[name] for name in services})
    for topic in (cluster.topics.changelog("decider", "pending"), cluster.topics.snapshot):
        for record in cluster.broker.records(topic):
            fresh.broker.append(topic, record.key, record.value, 0)
    await fresh.up()
    yield fresh
    await fresh.close()


def recovered(cluster: Cluster) -> Decider:
    """Return a decider as it comes out of the log and the snapshots, without a service around it."""
    settings = cluster.settings
    policy, unit = policy_of(settings, encoder_of(settings.encoder)), catalogue_of(settings).unit
    decider = Decider(policy, seed=settings.policy.seed, unit=unit)
    decider.recover(learner_log(cluster).items(), snapshots(cluster).items())
    return decider


def reproduced(cluster: Cluster) -> tuple[list[AnyRow], int]:
    """Hold each decision in the learner's log to what a replay chooses; return the rows and where the replay begins."""
    policy = policy_of(cluster.settings, encoder_of(cluster.settings.encoder))
    rows, after = load_replay(policy, learner_log(cluster) | snapshots(cluster))
    assert list(mismatches(policy, rows, cluster.settings.policy.seed, after)) == []
    return rows, after


async def served(cluster: Cluster, *queries: Query) -> None:
    """Produce queries and run the deployment until their rewards are closed and nothing is in flight."""
    send(cluster, *queries)
    ids = {query.query_id for query in queries}
    await cluster.until(lambda: closing(cluster).keys() >= ids and not cluster.busy)
