"""What both logs promise whoever reads them: memory, and a broker."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence

import pytest

from schemas.query import Origin
from streams.local.broker import Kind, LocalBroker
from streams.log import kafka_admin, kafka_clients
from streams.log.base import Begin, ConsumerRecord, Log, Since, UnknownTopic
from streams.log.blocking import BlockingLog
from streams.log.kafka import KafkaLog
from streams.log.memory import MemoryBroker, MemoryLog
from streams.log.partitioner import partition_for
from streams.runtime.memory import run
from streams.settings import KafkaSettings, Settings
from streams.topics import Topics

Put = Callable[[bytes, bytes | None], Awaitable[None]]
Holds = Callable[[Log, str, Put], Awaitable[None]]


async def values(log: Log, topic: str, begin: int = 0) -> list[bytes | None]:
    return [each.value async for records in log.read([topic], begin) for each in records]


async def reads_to_the_end(log: Log, topic: str, put: Put) -> None:
    assert await values(log, topic) == []
    for value in (b"0", b"1", b"2"):
        await put(b"k", value)
    assert await values(log, topic) == [b"0", b"1", b"2"]
    assert await values(log, topic, begin=2) == [b"2"]
    at = partition_for(b"k", 2)
    assert (await log.end_offsets([topic]))[topic, at] == 3
    assert (await log.first_offsets([topic]))[topic, at] == 0
    other = [each async for records in log.read([topic], partition=1 - at) for each in records]
    assert other == []


async def tails(log: Log, topic: str, put: Put) -> None:
    for value in (b"0", b"1", b"2"):
        await put(b"k", value)
        await asyncio.sleep(0.02)
    [times] = [[each.timestamp_ms for each in records] async for records in log.read([topic]) if records]
    seen: dict[str, list[bytes | None]] = {}
    begins: dict[str, Begin] = {
        "beginning": "beginning",
        "end": "end",
        "two": 2,
        "since": Since(times[1]),
        "least": Since(times[2] + 60_000, least=2),
    }
    for name, begin in begins.items():
        seen[name] = []
        await log.tail([topic], lambda record, name=name: seen[name].append(record.value), begin=begin)  # type: ignore[misc]
    present = {"beginning": [b"0", b"1", b"2"], "end": [], "two": [b"1", b"2"], "since": [b"1", b"2"]}
    assert seen == {**present, "least": [b"1", b"2"]}
    await put(b"k", b"3")
    for _ in range(500):
        if all(found[-1:] == [b"3"] for found in seen.values()):
            break
        await asyncio.sleep(0.02)
    assert {name: found[-1] for name, found in seen.items()} == dict.fromkeys(seen, b"3")


async def keeps_the_latest(log: Log, topic: str, put: Put) -> None:
    for key, value in ((b"a", b"0"), (b"b", b"0"), (b"a", b"1"), (b"c", b"0"), (b"c", None)):
        await put(key, value)
    assert await log.latest(topic) == {b"a": b"1", b"b": b"0"}
    into: dict[bytes, bytes] = {b"old": b"x"}
    assert await log.latest(topic, into=into) is into
    assert into.keys() == {b"old", b"a", b"b"}


async def finds_by_key_and_time(log: Log, topic: str, put: Put) -> None:
    await put(b"a", b"0")
    await put(b"b", b"1")
    [record] = [each async for records in log.read([topic]) for each in records if each.key == b"b"]
    at_ms = record.timestamp_ms
    assert await log.find(topic, b"b", at_ms - 1000, at_ms + 1000) == record
    assert await log.find(topic, b"b", at_ms + 60_000, at_ms + 70_000) is None
    assert await log.find(topic, b"c", at_ms - 1000, at_ms + 1000) is None


async def appends_again(log: Log, topic: str, put: Put) -> None:
    await put(b"k", b"0")
    origin = Origin(topic=topic, partition=partition_for(b"k", 2), offset=0)
    assert await log.append_again(origin)
    assert await values(log, topic) == [b"0", b"0"]
    assert not await log.append_again(Origin(topic=topic, partition=origin.partition, offset=9))


async def knows_its_topics(log: Log, topic: str, put: Put) -> None:
    assert (await log.has_topic(topic), await log.has_topic("no such topic")) == (True, False)
    assert await log.groups(["no such group"]) == {}


HOLDS = (reads_to_the_end, tails, keeps_the_latest, finds_by_key_and_time, appends_again, knows_its_topics)


@pytest.mark.parametrize("holds", HOLDS)
def test_in_memory(holds: Holds) -> None:
    async def main() -> None:
        broker = MemoryBroker({"t": 2}, asyncio.get_running_loop().time)

        async def put(key: bytes, value: bytes | None) -> None:
            broker.append("t", key, value)

        log = MemoryLog(broker)
        await holds(log, "t", put)
        await log.close()
        with pytest.raises(UnknownTopic):
            await log.latest("no such topic")

    run(main())


@pytest.fixture(scope="module")
def settings(broker_of: Callable[[Kind], LocalBroker], broker_kind: Kind) -> Settings:
    broker = broker_of(broker_kind)
    return Settings(kafka=KafkaSettings(bootstrap=broker.bootstrap, prefix=f"{uuid.uuid4().hex[:8]}."))


def topic_of(settings: Settings, name: str) -> str:
    """Create a topic of two partitions under a name of its own."""
    [like] = [each for each in Topics(settings).declared([]) if each.name == Topics(settings).reward]
    topic = type(like)(
        **{**{f: getattr(like, f) for f in like.__struct_fields__}, "name": name, "partitions": 2}
    )
    kafka_admin.create(settings, [topic])
    return name


@pytest.mark.broker
@pytest.mark.parametrize("holds", HOLDS)
def test_on_a_broker(settings: Settings, holds: Holds) -> None:
    topic = topic_of(settings, f"{settings.kafka.prefix}{holds.__name__}")
    producer = kafka_clients.producer(settings)

    async def put(key: bytes, value: bytes | None) -> None:
        await asyncio.to_thread(producer.send(topic, key=key, value=value).get, 30)

    async def main() -> None:
        log = KafkaLog(settings)
        try:
            await holds(log, topic, put)
        finally:
            await log.close()

    asyncio.run(main())
    producer.close()


@pytest.mark.broker
def test_a_program_that_waits_reads_follows_and_appends(settings: Settings) -> None:
    topic = topic_of(settings, f"{settings.kafka.prefix}blocking")
    producer = kafka_clients.producer(settings)
    with BlockingLog(settings) as log:
        follower = log.follow([topic])
        sent = [producer.send(topic, key=b"%d" % n, value=b"%d" % n).get(30) for n in range(6)]
        assert sorted(each.value or b"" for each in log.read([topic])) == [b"%d" % n for n in range(6)]
        found: list[ConsumerRecord] = []
        while len(found) < 6:
            found += follower.poll(1.0)
        assert list(follower.catch_up()) == []
        since_ms = sent[2].timestamp
        times = [each.timestamp_ms for each in log.read_in_time(topic, since_ms, sent[-1].timestamp + 1)]
        assert times == sorted(each.timestamp for each in sent if each.timestamp >= since_ms)
        assert log.latest([topic]) == {b"%d" % n: b"%d" % n for n in range(6)}
        assert log.append_again(found[0].origin)
        assert sum(log.end_offsets([topic]).values()) == 7
        follower.skip()
        assert follower.poll(0.2) == []
        first = next(iter(log.read([topic])))  # a reader that is left before its end closes its connection
        assert first.value is not None
        with pytest.raises(UnknownTopic):
            next(log.read(["no-such-topic"]))
    producer.close()


def read_beside_a_loop(settings: Settings, topics: Sequence[str]) -> int:
    with BlockingLog(settings) as log:
        return len(list(log.read(topics)))


@pytest.mark.broker
def test_a_program_that_waits_may_itself_run_in_a_loop(settings: Settings) -> None:
    topic = topic_of(settings, f"{settings.kafka.prefix}loop")

    async def main() -> int:
        return read_beside_a_loop(settings, [topic])  # as a notebook does

    assert asyncio.run(main()) == 0
