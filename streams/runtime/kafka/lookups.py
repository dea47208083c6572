"""What a room asks the broker outside its consumer group, with a connection of its own for each question.

These questions are rare, and the room's own consumer reads only what it is assigned.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from aiokafka.errors import KafkaError
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError as ClientError

from streams.runtime.errors import Unavailable
from streams.runtime.kafka.clients import admin, connections, reading
from streams.runtime.records import Group, Record
from streams.settings import Settings


class Lookups:
    """The questions of `streams.runtime.base.Runtime` that need nothing of the room but its settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    async def first_offsets(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        """Ask the broker; see the protocol."""
        return await asyncio.to_thread(self._offsets, topics, KafkaConsumer.beginning_offsets)

    async def end_offsets(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        """Ask the broker; see the protocol."""
        return await asyncio.to_thread(self._offsets, topics, KafkaConsumer.end_offsets)

    def _offsets(
        self,
        topics: Sequence[str],
        which: Callable[[KafkaConsumer, list[TopicPartition]], Mapping[TopicPartition, int]],
    ) -> dict[tuple[str, int], int]:
        with contextlib.closing(connections.consumer(self.settings)) as reader:
            found = which(reader, connections.partitions(reader, topics))
            return {(tp.topic, tp.partition): offset for tp, offset in found.items()}

    async def groups(self, app_ids: Sequence[str]) -> Mapping[str, Group]:
        """Ask the broker; see the protocol."""

        def found() -> dict[str, Group]:
            members = admin.members(self.settings, app_ids)
            lag = admin.lag(self.settings, app_ids)
            return {app_id: Group(waiting, members.get(app_id)) for app_id, waiting in lag.items()}

        try:
            return await asyncio.to_thread(found)
        except (ClientError, connections.BrokerUnreachable) as error:
            raise Unavailable(f"the consumer groups cannot be read: {error}") from error

    async def has_topic(self, topic: str) -> bool:
        """Ask the broker; see the protocol."""

        def found() -> bool:
            with contextlib.closing(connections.consumer(self.settings)) as reader:
                return bool(reader.partitions_for_topic(topic))

        try:
            return await asyncio.to_thread(found)
        except (ClientError, connections.BrokerUnreachable) as error:
            raise Unavailable(f"{topic}: {error}") from error

    async def latest(self, topic: str, begin: int = 0) -> dict[bytes, bytes]:
        """Read the topic; see the protocol."""
        return await reading.latest(self.settings, topic, begin)

    async def find(self, topic: str, key: bytes, since_ms: int, until_ms: int) -> Record | None:
        """Read the topic from that time on; see the protocol."""
        try:
            found = await reading.find(self.settings, topic, key, since_ms, until_ms)
        except (KafkaError, connections.BrokerUnreachable) as error:
            raise Unavailable(f"{topic}: {error}") from error
        if found is None:
            return None
        tp, record = found
        return Record(topic, tp.partition, record.offset, record.timestamp, record.key, record.value)
