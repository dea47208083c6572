"""A topic is followed from a time on, as a gateway follows the rewards of a day."""

import asyncio
import time
import uuid

import pytest

from streams.local.broker import LocalBroker
from streams.log import kafka_admin, kafka_clients
from streams.log.base import Begin, Since
from streams.log.blocking import read_all
from streams.log.kafka import KafkaLog
from streams.settings import KafkaSettings, Settings
from streams.topics import Topics

pytestmark = pytest.mark.broker


def test_a_topic_is_followed_from_a_time_on(broker: LocalBroker) -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap=broker.bootstrap, prefix=f"{uuid.uuid4().hex[:8]}."))
    topics = Topics(settings)
    kafka_admin.create(settings, [each for each in topics.declared([]) if each.name == topics.reward])
    producer = kafka_clients.producer(settings)
    for at in range(5):
        producer.send(topics.reward, key=b"k", value=b"%d" % at, timestamp_ms=None).get(10)
        time.sleep(0.02)
    producer.close()
    times = [record.timestamp_ms for record in read_all(settings, [topics.reward])]

    def seen(begin: Begin) -> list[int]:
        """Return what a follower shows of the five records before it starts to wait for more."""
        found: list[int] = []

        async def main() -> None:
            log = KafkaLog(settings)
            await log.tail(
                [topics.reward], lambda record: found.append(int(record.value or b"")), begin=begin
            )
            await log.close()

        asyncio.run(main())
        return found

    assert seen(Since(times[3])) == [3, 4]
    assert seen(Since(0)) == [0, 1, 2, 3, 4]
    assert seen(Since(times[4] + 60_000)) == []
    assert seen(Since(times[4], least=3)) == [2, 3, 4]
    assert seen(Since(times[4] + 60_000, least=9)) == [0, 1, 2, 3, 4]
