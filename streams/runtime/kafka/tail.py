"""Follow topics outside the consumer group: every process sees every record, and commits nothing.

faust has nothing for this. Each record of an agent's topic goes to only one member, and a GlobalTable never finishes
its recovery.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer

from streams.runtime.base import Begin
from streams.runtime.kafka.app import crash
from streams.runtime.kafka.clients import closing, connections
from streams.runtime.kafka.clients.reading import assign, connected, to_ends
from streams.runtime.kafka.consuming import fetching
from streams.runtime.records import Record
from streams.settings import Settings


class Follower:
    """Reads topics from their beginning, their end, or a number of records before the end, and keeps following.

    `start` returns when every record that existed at the start has been passed to `on_record`.
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
        reader, parts = await connected(self.settings, self.topics)
        self._consumer = reader
        fetching.improve(reader._fetcher, embedded=connections.embedded(self.settings))
        ends = await reader.end_offsets(parts)
        starts = ends if self.begin == "end" else await reader.beginning_offsets(parts)
        if isinstance(self.begin, int):
            starts = {tp: max(starts[tp], ends[tp] - self.begin) for tp in parts}
        assign(reader, {tp: starts[tp] for tp in parts})
        async for _, records in to_ends(reader, ends):
            self._show(records)
        self._task = asyncio.get_running_loop().create_task(self._follow(reader))

    async def stop(self) -> None:
        """Stop following."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._consumer:
            await closing.stop(self._consumer)

    def _show(self, records: Sequence[Any]) -> None:
        for r in records:
            self.on_record(Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value))

    async def _follow(self, reader: AIOKafkaConsumer) -> None:
        try:
            while True:
                for records in (await reader.getmany(timeout_ms=1000)).values():
                    self._show(records)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            crash(f"following {', '.join(self.topics)} failed", error)
