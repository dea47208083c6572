"""The list of services is the only one: what reads, writes, starts and watches derives from it."""

import asyncio
from collections.abc import Sequence

import click
import pytest

from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.query import Query
from streams import services
from streams.cli.running import worker
from streams.local.deployment import service_commands
from streams.log.base import ConsumerRecord, Outgoing, Unavailable
from streams.log.memory import MemoryLog
from streams.runtime.effects import Effects, KeyedService
from streams.runtime.errors import Crash
from streams.runtime.kafka import create_app
from streams.runtime.memory_cluster import Cluster
from streams.runtime.runtime import Input, Runtime, ServiceSpec
from streams.services import SERVICES
from streams.settings import SettingsError
from streams.topics import Topics
from tests.support.cluster import Ask, InMemory, answered, read, running, send


def test_every_topic_has_a_writer_and_a_reader(in_memory: InMemory) -> None:
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


async def test_a_service_binds_exactly_the_topics_of_its_spec(in_memory: InMemory) -> None:
    async with running(in_memory()) as cluster:
        for each in cluster.workers:
            assert {s.topic for s in each.subscriptions} == set(
                each.spec.input_topics(cluster.topics, each.group)
            )


def test_cli_launcher_and_page_name_every_service() -> None:
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


class Echo(KeyedService[None]):
    def __init__(self, topic: str) -> None:
        self.topic = topic

    async def on(self, row: None, message: Query, at: ConsumerRecord) -> Effects[None]:
        return Effects(send=[Outgoing(self.topic, at.key, message.text.encode())])


async def build_echo(runtime: Runtime) -> Echo:
    return Echo(runtime.topics.prefix + "echo")


async def test_service_is_added_by_its_spec_alone(in_memory: InMemory, ask: Ask) -> None:
    inputs = {"query": Input(Query, "echo")}
    echo = ServiceSpec(name="echo", inputs=inputs, outputs=("echo",), build=build_echo)

    async with running(in_memory(), seed=4) as cluster:
        send(cluster, *(ask(n) for n in range(4)))
        await cluster.until(lambda: len(answered(cluster)) >= 2)
        cluster.broker.create("m.echo", 1)
        cluster.services["echo"] = echo
        await cluster.start("echo")
        await cluster.until(lambda: len(cluster.broker.records("m.echo")) == len(answered(cluster)) == 4)


async def bind_query(runtime: Runtime) -> None:
    async def on_query(record: ConsumerRecord) -> None:
        pass

    runtime.each(runtime.topics.query, on_query, stage="echo")


async def test_a_service_that_goes_beyond_its_spec_is_refused(in_memory: InMemory) -> None:
    inputs = {"answer": Input(Query, "echo")}
    spec = ServiceSpec(name="echo", inputs=inputs, outputs=("echo",), build=bind_query)
    with pytest.raises(ValueError, match="not among the inputs"):
        await Cluster(in_memory(), {"echo": spec}).up()


@pytest.mark.parametrize(
    ("error", "ends"), [(Unavailable("no broker answers"), 0), (SettingsError("ssl_cafile: not there"), 2)]
)
async def test_failed_snapshot_refuses_no_record(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch, error: Exception, ends: int
) -> None:
    """What the broker does not say is asked again after 30 s; after any other error the worker is restarted."""
    asked, first_offsets = 0, MemoryLog.first_offsets

    async def failing(self: MemoryLog, topics: Sequence[str]) -> object:
        nonlocal asked
        asked += 1
        if asked <= 2:
            raise error
        return await first_offsets(self, topics)

    monkeypatch.setattr(MemoryLog, "first_offsets", failing)
    async with running(in_memory(policy="contextual", snapshot_every=1)) as cluster:
        for n in range(3):
            send(cluster, ask(n))
            await cluster.until(lambda: not cluster.busy)
            await asyncio.sleep(60.0)
        assert asked > 2
        assert [(each.query_id, each.status) for each in read(cluster, cluster.topics.answer, Answer)] == [
            (f"q{n}", "ok") for n in range(3)
        ]
        assert read(cluster, cluster.topics.dead_letter, DeadLetter) == []
        assert [type(death) for death in cluster.deaths] == [Crash] * ends


def test_idle_worker_stays_in_its_group(in_memory: InMemory) -> None:
    """It fetches nothing. By default it would leave after 1,000 s, not come back, and be ended by its watchdog."""
    assert create_app(in_memory(), "decider").conf.broker_max_poll_interval > 365 * 86_400


def test_faust_ignores_the_environment(in_memory: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    before = create_app(in_memory(), "decider").conf
    monkeypatch.setenv("WEB_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("STREAM_PROCESSING_TIMEOUT", "1")
    conf = create_app(in_memory(), "decider").conf
    assert (conf.web_port, conf.stream_processing_timeout) == (
        before.web_port,
        before.stream_processing_timeout,
    )
