"""What a key has spent, rebuilt from the rewards of the last day where a gateway starts."""

import asyncio

import pytest
from msgspec import structs

from schemas.query import Query
from streams.gateway.service import GatewayService
from streams.runtime.memory_cluster import Cluster
from streams.runtime.runtime import Runtime
from streams.services import SERVICES
from tests.support.cluster import Ask, InMemory, answered, send

HOUR_S = 3600.0


async def test_restarted_gateway_knows_a_days_spending(in_memory: InMemory, ask: Ask) -> None:
    """Its index keeps fewer queries than were answered."""
    gateways: list[GatewayService] = []

    async def build(runtime: Runtime) -> GatewayService:
        gateways.append(GatewayService(runtime, recent=2))
        await gateways[-1].follow()
        return gateways[-1]

    services = {**SERVICES, "gateway": structs.replace(SERVICES["gateway"], build=build, optional=False)}
    cluster = Cluster(in_memory(policy="random", feedback_wait_s=60.0), services, seed=2)
    await cluster.up()

    async def asked(first: int, count: int) -> None:
        metadata = {"gateway": {"key": "0f", "digest": "d"}}
        queries: list[Query] = [
            ask(n % 12, query_id=f"q{n}", metadata=metadata) for n in range(first, first + count)
        ]
        send(cluster, *queries)
        await cluster.until(lambda: answered(cluster) >= {query.query_id for query in queries}, 600)
        await asyncio.sleep(120)  # rewards open for feedback have closed, too

    def spent() -> float:
        return gateways[-1].index.usage.used("0f", cluster.broker.now_ms()).spent

    await asked(0, 10)
    await asyncio.sleep(20 * HOUR_S)
    await asked(10, 20)
    before = spent()
    for restarts in range(2):
        (gateway,) = (worker for worker in cluster.workers if worker.service == "gateway")
        await cluster.stop(gateway)
        await cluster.start("gateway")
        assert len(gateways) == restarts + 2
        assert spent() == pytest.approx(before, rel=1e-9)
    await asyncio.sleep(8 * HOUR_S)
    assert 0 < spent() < before, "the first are more than a day old"
    await cluster.close()
