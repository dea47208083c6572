"""The check names what is wrong with a topic, and workers refuse to start on it."""

import asyncio
import uuid
from contextlib import closing

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from schemas.dead_letter import DeadLetter
from streams.local.broker import LocalBroker
from streams.log import kafka_admin, kafka_clients
from streams.runtime.kafka_watchdog import changed_counts
from streams.settings import KafkaSettings, Settings
from streams.topics import Topic, Topics
from tests.support.command_line import streams
from tests.support.deployment import Ask, Deploy

pytestmark = pytest.mark.broker


def fresh(broker: LocalBroker) -> Settings:
    return Settings().replace(
        bootstrap=broker.bootstrap, prefix=f"c{uuid.uuid4().hex[:8]}.", join_partitions=2, group_partitions=2
    )


def wrong(settings: Settings, declared: list[Topic]) -> list[str]:
    """Return what is refused of the broker's topics."""
    with pytest.raises(kafka_admin.TopicsWrong) as refused:
        kafka_admin.require(settings, declared)
    return refused.value.findings


# What Apache Kafka alone keeps or does.
SETTINGS = pytest.mark.kafka("the embedded broker keeps no settings of a topic")
GROWTH = pytest.mark.kafka("the embedded broker cannot add partitions")


def test_topics_that_are_missing_and_wrong_counts_are_each_named(broker: LocalBroker) -> None:
    settings = fresh(broker)
    topics = Topics(settings)
    declared = topics.declared(["g"])
    made = [
        msgspec.structs.replace(t, partitions=3) if t.name == topics.answer else t
        for t in declared
        if t.name != topics.due
    ]
    kafka_admin.create(settings, made)
    findings = wrong(settings, declared)
    assert any(f.startswith(f"{topics.due}: missing") for f in findings)
    assert any(f.startswith(f"{topics.answer}: partitions is 3, must be 2") for f in findings)
    thrice = settings.replace(replication=3)
    found = wrong(thrice, Topics(thrice).declared(["g"]))
    assert any(f.startswith(f"{topics.reward}: replication is 1, must be 3") for f in found), found


@SETTINGS
def test_wrong_retention_compaction_and_size_are_each_named(broker: LocalBroker) -> None:
    settings = fresh(broker)
    topics = Topics(settings)
    declared = topics.declared(["g"])
    broken = {
        topics.reward: {"retention_ms": 1000},
        topics.control: {"compacted": False, "retention_ms": 1000},
        topics.search_step: {"max_bytes": 70_000},
    }
    kafka_admin.create(settings, [msgspec.structs.replace(t, **broken.get(t.name, {})) for t in declared])
    found = wrong(settings, declared)
    for name, setting in (
        (topics.reward, "retention.ms is 1000"),
        (topics.control, "cleanup.policy is delete, must be compact"),
        (topics.search_step, "max.message.bytes is 70000"),
    ):
        assert any(f.startswith(f"{name}: {setting}") for f in found), (name, found)
    assert len(found) == 4  # control is wrong in two settings
    assert any("kafka-configs.sh" in finding for finding in found)


def test_created_topics_and_longer_retention_pass(broker: LocalBroker) -> None:
    settings = fresh(broker)
    declared = Topics(settings).declared(["g"])
    longer = [
        t if t.compacted else msgspec.structs.replace(t, retention_ms=t.retention_ms * 2) for t in declared
    ]
    assert len(kafka_admin.create(settings, longer)) == len(declared)
    assert kafka_admin.require(settings, declared) == []


def test_a_worker_refuses_topics_that_are_wrong(
    broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = fresh(broker)
    topics = Topics(settings)
    declared = topics.declared(["qwen3-0.6b"])
    kafka_admin.create(settings, [t for t in declared if t.name != topics.answer])
    environ = settings.replace(
        catalogue="infra/catalogue/qwen3.yaml", state_dir=str(tmp_path_factory.mktemp("state"))
    ).environ()
    done = streams("worker", "aggregator", env={"PATH": "/usr/bin:/bin", **environ})
    assert done.returncode == 1
    assert f"{topics.answer}: missing; run `python -m streams topics create`" in done.stderr


def test_a_group_that_never_committed_is_left_out(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = fresh(broker)
    assert kafka_admin.groups(settings, ["nobody"]) == {}
    monkeypatch.setattr(kafka_clients, "_BOOTSTRAP_MS", 200)
    with pytest.raises(kafka_clients.BrokerUnreachable):
        kafka_admin.require(Settings(kafka=KafkaSettings(bootstrap="127.0.0.1:1")), [])


@SETTINGS
def test_what_lets_acknowledged_records_be_lost_is_named(broker: LocalBroker) -> None:
    settings = fresh(broker)
    declared = Topics(settings).declared(["g"])
    kafka_admin.create(settings, declared)
    thrice = settings.replace(replication=3)
    found = wrong(thrice, Topics(thrice).declared(["g"]))
    name = Topics(settings).answer
    assert any(f.startswith(f"{name}: min.insync.replicas is 1, must be 2") for f in found), found
    with closing(kafka_clients.admin(settings)) as client:
        careless = {"unclean.leader.election.enable": "true"}
        client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, careless)])
    found = wrong(settings, declared)
    assert [f.partition(";")[0] for f in found if "unclean" in f] == [
        f"{name}: unclean.leader.election.enable is true, must be false"
    ]


@GROWTH
def test_topic_grown_in_use_is_named_with_its_setting(broker: LocalBroker) -> None:
    settings = fresh(broker)
    topics = Topics(settings)
    declared = topics.declared(["g"])
    kafka_admin.create(settings, declared)

    async def changed() -> list[str]:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await producer.start()
        try:
            return await changed_counts(producer.client, declared)
        finally:
            await producer.stop()

    assert asyncio.run(changed()) == []
    with closing(kafka_clients.admin(settings)) as client:
        client.create_partitions({topics.answer: 5, topics.reward: 2})
    (answer, reward) = sorted(asyncio.run(changed()))
    assert answer.startswith(f"{topics.answer}: partitions is 5, must be 2;")
    assert "set UNISCALE_JOIN_PARTITIONS to one count for all topics that share it" in answer
    assert "'Change a partition count'" in answer
    assert reward.startswith(f"{topics.reward}: partitions is 2, must be 1;")
    assert sorted(wrong(settings, declared)) == [answer, reward]


@GROWTH
@pytest.mark.slow
def test_service_stops_and_stays_down_when_a_topic_grows(broker: LocalBroker, deploy: Deploy) -> None:
    loop = deploy(only=("aggregator",))
    with closing(kafka_clients.admin(loop.settings)) as client:
        client.create_partitions({loop.topics.feedback: 3})
    said = f"partition counts have changed: {loop.topics.feedback}: partitions is 3"
    loop.until(lambda: said in loop.log.read_text(), what="the service to notice")
    loop.until(lambda: "topics are not as declared" in loop.log.read_text(), what="its successor to refuse")


@GROWTH
@pytest.mark.slow
def test_partition_counts_are_raised_as_the_manual_says(
    broker: LocalBroker, deploy: Deploy, ask: Ask
) -> None:
    loop = deploy()
    early = [ask(n) for n in range(12)]
    loop.serve(*early)
    loop.settled()  # 1. nothing is pending
    loop.supervisor.stop()  # 2. all services
    counts = {"query_partitions": 3, "join_partitions": 5, "group_partitions": 6}
    settings = loop.settings.replace(**counts)
    grown = {t.name: t.partitions for t in Topics(settings).declared(["mini"]) if t.setting}
    with closing(kafka_clients.admin(settings)) as client:
        client.create_partitions(grown)  # 3. every topic of the three rows
    environ = {**loop.environ, **settings.environ()}
    checked = streams("topics", "check", env=environ)  # 4.
    assert checked.returncode == 0, checked.stdout + checked.stderr
    again = deploy(prefix=settings.kafka.prefix, **counts)
    late = [ask(n) for n in range(12, 24)]
    again.send(*late, early[0])  # 5., and one id a second time, whose Query now lies in another partition
    again.rewarded(query.query_id for query in (*early, *late))
    again.until(lambda: bool(again.raw(again.topics.dead_letter)), what="the duplicate")
    (letter,) = again.read(again.topics.dead_letter, DeadLetter)
    assert (letter.error, letter.query_id) == ("DuplicateQuery", early[0].query_id)
    again.settled()
    used = {record.partition for record in again.raw(again.topics.answer)}
    assert max(used) > 1, "the new partitions are used"
