"""One harness for each runtime: start a toy service that dies after so many effects, send to it, read what came out."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from streams.log.base import ConsumerRecord
from streams.settings import Settings
from tests.support.toys import TOYS, asked


class Harness(Protocol):
    """A deployment of one toy service."""

    deaths: int

    def run(
        self, service: str, sent: list[Any], enough: Callable[["Harness"], bool], dies_after: int = 0
    ) -> None:
        """Send records (query, what they ask for) to the service and let it run until there is enough.

        It is restarted whenever it ends. A topic of the service in the place of its first one may precede the query.
        """

    def read(self, topic: str) -> list[ConsumerRecord]:
        """Return what is on a topic, in offset order within each partition."""

    def rows(self) -> dict[bytes, bytes]:
        """Return the counter's table as its changelog has it."""


INPUTS = {"embedder": "query", "aggregator": "answer", "decider": "context"}


def placed(settings: Settings, service: str, sent: list[Any]) -> Iterator[tuple[str, bytes, bytes]]:
    """Return the topic, key and value of each record."""
    for *topic, key, what in sent:
        yield settings.kafka.prefix + (topic[0] if topic else INPUTS[service]), key, asked(key, what)


class InMemory:
    """The toy in the memory runtime; effects run side by side with seeded latencies."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.deaths = 0
        self.log: dict[str, list[ConsumerRecord]] = {}
        self.table: dict[bytes, bytes] = {}

    def run(
        self, service: str, sent: list[Any], enough: Callable[[Harness], bool], dies_after: int = 0
    ) -> None:
        from streams.runtime.memory import run
        from streams.runtime.memory_cluster import Cluster

        async def main() -> None:
            left = iter(range(1, 1 << 30))
            cluster = Cluster(
                self.settings,
                {service: TOYS[service]},
                seed=1,
                dies_after=lambda effect: effect.kind != "commit" and next(left) == dies_after,
            )
            await cluster.up()
            for topic, key, value in placed(self.settings, service, sent):
                cluster.produce(topic, key, value)

            def look() -> bool:
                topics = [t.name for t in cluster.topics.declared(cluster.groups)]
                self.log = {topic: cluster.broker.records(topic) for topic in topics}
                if service == "aggregator":
                    name = cluster.topics.changelog("aggregator", "join")
                    self.table = {
                        key: value
                        for partition in range(self.settings.kafka.join_partitions)
                        for key, value in cluster.broker.changelog(name, partition).items()
                    }
                self.deaths = len(cluster.deaths)
                return enough(self)

            await cluster.until(look)
            await cluster.close()

        run(main())

    def read(self, topic: str) -> list[ConsumerRecord]:
        return self.log[self.settings.kafka.prefix + topic]

    def rows(self) -> dict[bytes, bytes]:
        return self.table


class OnKafka:
    """The toy as a supervised process on a broker."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.deaths = 0

    def run(
        self, service: str, sent: list[Any], enough: Callable[[Harness], bool], dies_after: int = 0
    ) -> None:
        import time

        from streams.local.deployment import Supervisor
        from streams.log import kafka_admin, kafka_clients
        from streams.topics import Topics

        kafka_admin.create(self.settings, Topics(self.settings).declared(["mini"]))
        producer = kafka_clients.producer(self.settings)
        for topic, key, value in placed(self.settings, service, sent):
            producer.send(topic, key=key, value=value)
        producer.flush()
        producer.close()
        root = Path(__file__).parents[2]
        environ = {"PYTHONPATH": str(root), **os.environ, **self.settings.environ()}
        argv = [sys.executable, "-m", "tests.support.toys", service, str(dies_after)]
        with Supervisor({service: argv}, environ=environ, log_path=self.folder / "log") as supervisor:
            deadline = time.monotonic() + 300
            while not enough(self):
                self.deaths = supervisor.services[service].restarts
                assert time.monotonic() < deadline, (self.folder / "log").read_text()[-3000:]
                time.sleep(0.3)

    def read(self, topic: str) -> list[ConsumerRecord]:
        from streams.log.blocking import read_all

        return list(read_all(self.settings, [self.settings.kafka.prefix + topic]))

    def rows(self) -> dict[bytes, bytes]:
        latest = {record.key or b"": record.value for record in self.read("aggregator-join-changelog")}
        return {key: value for key, value in latest.items() if value}
