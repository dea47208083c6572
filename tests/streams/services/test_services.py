"""The list of services is the only one: what reads, writes, starts and watches derives from it."""

from collections.abc import Callable

import click
import pytest

from schemas.query import Query
from schemas.record import encode
from streams import services
from streams.cli.running import worker
from streams.local.deployment import service_commands
from streams.runtime.base import ConsumerRecord, Input, Outgoing, Runtime, ServiceSpec
from streams.runtime.effects import Effects, Keyed
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.settings import Settings
from streams.topics import Topics


def test_every_topic_is_written_and_read_by_a_service_or_a_client(in_memory: Callable[..., Settings]) -> None:
    topics = Topics(in_memory())
    declared = {t.name.removeprefix(topics.prefix) for t in topics.declared(["<group>"])}
    read = {name for spec in SERVICES.values() for name in spec.inputs}
    written = {name for spec in SERVICES.values() for name in spec.outputs}
    assert read | written <= declared
    by_clients = {"query", "feedback", "control", "cancel.<group>"}
    followed = {"control", "heartbeat"} | {name for spec in SERVICES.values() for name in spec.follows}
    # The learner's snapshots lie beside its log.
    kept = {name for spec in SERVICES.values() for name in spec.state}
    assert kept == {name for name in declared if name.endswith("-changelog")} | {"learner-snapshot"}
    assert declared - written - kept <= by_clients
    assert declared - read - followed - kept == set()


def test_a_service_binds_exactly_the_topics_of_its_spec(in_memory: Callable[..., Settings]) -> None:
    async def main() -> None:
        cluster = Cluster(in_memory(), SERVICES)
        await cluster.up()
        for each in cluster.workers:
            assert {s.topic for s in each.subscriptions} == set(each.spec.reads(cluster.topics, each.group))
        await cluster.close()

    run(main())


def test_the_command_line_the_launcher_and_the_page_name_every_service() -> None:
    (argument,) = (p for p in worker.params if p.name == "service")
    assert isinstance(argument.type, click.Choice)
    assert list(argument.type.choices) == list(SERVICES)
    started = service_commands(["a", "b"])
    names = [
        f"{s.name}.{g}" if g else s.name
        for s in SERVICES.values()
        if not s.optional
        for g in (("a", "b") if s.grouped else ("",))
    ]
    assert sorted(started) == sorted(names)
    drawn = services.__doc__ or ""
    assert [spec.name for spec in SERVICES.values() if not spec.optional and spec.name not in drawn] == []


class Echo(Keyed[None]):
    def __init__(self, topic: str) -> None:
        self.topic = topic

    async def on(self, row: None, message: Query, at: ConsumerRecord) -> Effects[None]:
        return Effects(send=[Outgoing(self.topic, at.key, message.text.encode())])


async def build_echo(runtime: Runtime) -> Echo:
    return Echo(runtime.topics.prefix + "echo")


def test_a_service_is_added_to_a_running_deployment_by_its_spec_alone(
    in_memory: Callable[..., Settings], ask: Callable[..., Query]
) -> None:
    inputs = {"query": Input(Query, "echo")}
    echo = ServiceSpec(name="echo", inputs=inputs, outputs=("echo",), build=build_echo)

    async def main() -> None:
        cluster = Cluster(in_memory(), SERVICES, seed=4)
        await cluster.up()
        for n in range(4):
            cluster.produce(cluster.topics.query, b"q%d" % n, encode(ask(n)))
        await cluster.until(lambda: len(cluster.broker.records(cluster.topics.answer)) >= 2)
        cluster.broker.create("m.echo", 1)
        cluster.services["echo"] = echo
        await cluster.start("echo")
        await cluster.until(
            lambda: (
                len(cluster.broker.records("m.echo"))
                == len(cluster.broker.records(cluster.topics.answer))
                == 4
            )
        )
        await cluster.close()

    run(main())


async def bind_query(runtime: Runtime) -> None:
    async def on_query(record: ConsumerRecord) -> None:
        pass

    runtime.each(runtime.topics.query, on_query, stage="echo")


def test_a_service_that_goes_beyond_its_spec_is_refused(in_memory: Callable[..., Settings]) -> None:
    async def main(spec: ServiceSpec) -> None:
        cluster = Cluster(in_memory(), {"echo": spec})
        await cluster.up()

    inputs = {"answer": Input(Query, "echo")}
    with pytest.raises(ValueError, match="not among the inputs"):
        run(main(ServiceSpec(name="echo", inputs=inputs, outputs=("echo",), build=bind_query)))
