"""Follow topics outside faust, in assign mode: every process sees every record, and commits nothing.

Neither an agent (one member gets each record) nor a GlobalTable (endless recovery) does this.
"""

import asyncio
from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams.runtime.base import Begin, Record, UnknownTopic
from streams.runtime.kafka import connections, fetching
from streams.runtime.kafka.app import crash
from streams.settings import Settings


class Follower:
    """Reads topics from their beginning, their end, or a number of records before the end, and keeps following.

    `start` returns when everything that was there at the start has been handed to `on_record`.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Sequence[str],
        on_record: Callable[[Record], None],
        *,
        begin: Begin,
    ) -> None:
        self.settings = settings
        self.topics = list(topics)
        self.on_record = on_record
        self.begin = begin
        self._consumer: AIOKafkaConsumer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, read to the present ends, then keep following in the background.

        Raises:
            BrokerUnreachable: no broker answers.
            UnknownTopic: a topic does not exist.
        """
        reader = self._consumer = connections.follower(self.settings)
        try:
            await reader.start()
        except (KafkaError, OSError) as error:
            raise connections.unreachable(self.settings, error) from None
        fetching.improve(reader._fetcher, sessions=self.settings.kafka.max_batch_bytes > 1)
        parts = []
        for topic in self.topics:
            found = await self._partitions(reader, topic)
            parts += [TopicPartition(topic, p) for p in sorted(found)]
        reader.assign(parts)
        ends = await reader.end_offsets(parts)
        if self.begin == "end":
            for tp in parts:
                reader.seek(tp, ends[tp])
        else:
            starts = await reader.beginning_offsets(parts)
            if isinstance(self.begin, int):
                starts = {tp: max(starts[tp], ends[tp] - self.begin) for tp in parts}
            for tp in parts:
                reader.seek(tp, starts[tp])
            behind = {tp for tp in parts if starts[tp] < ends[tp]}
            while behind:
                await self._poll(reader, 200)
                behind = {tp for tp in behind if await reader.position(tp) < ends[tp]}
        self._task = asyncio.get_running_loop().create_task(self._follow(reader))

    async def stop(self) -> None:
        """Stop following."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._consumer:
            await self._consumer.stop()

    async def _partitions(self, reader: AIOKafkaConsumer, topic: str) -> set[int]:
        for _ in range(20):
            await reader._client.add_topic(topic)
            found = reader.partitions_for_topic(topic)
            if found:
                return set(found)
            await asyncio.sleep(0.25)
        raise UnknownTopic(f"{topic}: the topic does not exist; run `python -m streams topics create`")

    async def _poll(self, reader: AIOKafkaConsumer, timeout_ms: int) -> None:
        for records in (await reader.getmany(timeout_ms=timeout_ms)).values():
            for r in records:
                self.on_record(Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value))

    async def _follow(self, reader: AIOKafkaConsumer) -> None:
        try:
            while True:
                await self._poll(reader, 1000)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            crash(f"following {', '.join(self.topics)} failed", error)
