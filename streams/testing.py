"""Tools for testing your own service or policy: a deployment in memory, on a virtual clock, without Kafka.

    from streams.testing import run_service

    sent = run_service(SPEC, [answer])
    assert decode(sent["feedback"][0].value, Feedback).correct

`run_service` runs one service alone. `Cluster`, inside `run`, runs any set of services on one broker, and stops, kills
and restarts their workers. Hours of waiting take no time, and a test produces the same result every time.
docs/extending.md has a complete example.
"""

from collections.abc import Sequence
from typing import Any

from schemas.record import encode
from streams.log.base import ConsumerRecord
from streams.log.memory import MemoryBroker
from streams.runtime.memory import MemoryRuntime, run
from streams.runtime.memory_cluster import Cluster
from streams.runtime.runtime import ServiceSpec
from streams.settings import Settings

__all__ = ["run_service", "run", "Cluster", "MemoryBroker", "MemoryRuntime", "Settings"]


def run_service(
    spec: ServiceSpec, records: Sequence[Any], settings: Settings | None = None
) -> dict[str, list[ConsumerRecord]]:
    """Run one service on records until it has handled them; return the records it sent, by unprefixed topic.

    Args:
        spec: The service.
        records: Records about queries, in order; each is appended to the service's input of its kind.
        settings: The deployment's settings; the defaults if None.

    Raises:
        TypeError: The service has no input of a record's kind.
    """

    async def handled() -> dict[str, list[ConsumerRecord]]:
        cluster = Cluster(settings or Settings(), {spec.name: spec})
        await cluster.up()
        inputs = dict(
            zip((each.kind for each in spec.inputs.values()), spec.input_topics(cluster.topics), strict=True)
        )
        for record in records:
            if (topic := inputs.get(type(record))) is None:
                raise TypeError(
                    f"{spec.name} has no input of {type(record).__name__}; name one in its ServiceSpec"
                )
            cluster.produce(topic, record.query_id.encode(), encode(record))
        await cluster.until(lambda: not cluster.busy)
        sent: dict[str, list[ConsumerRecord]] = {}
        for topic in dict.fromkeys(each.topic for each in cluster.broker.effects if each.kind == "send"):
            sent[topic.removeprefix(cluster.topics.prefix)] = cluster.broker.records(topic)
        await cluster.close()
        return sent

    return run(handled())
