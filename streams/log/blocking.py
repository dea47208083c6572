"""Blocking access to the log, for commands and clients, from any thread or event loop."""

import asyncio
import heapq
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from schemas.query import Origin
from streams.log.base import Begin, ConsumerRecord, Part
from streams.log.kafka import PATIENCE_S, KafkaLog, Reader
from streams.settings import Settings

T = TypeVar("T")


class BlockingLog:
    """A `KafkaLog` in its own thread. Each call blocks until the broker has answered. Call `close`, or use `with`.

    Reading gives up if no record arrives for half a minute, and ignores topics that do not exist.

    Args:
        settings: The deployment.

    Raises:
        BrokerUnreachable: raised on use, if no broker answers.
        UnknownTopic: raised on use, if none of the topics exists.
    """

    def __init__(self, settings: Settings) -> None:
        self._log = KafkaLog(settings, patience_s=PATIENCE_S)
        self._followed: list[Reader] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="log", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the log's thread and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def each(self, batches: AsyncIterator[T]) -> Iterator[T]:
        """Run an asynchronous iterator in the log's thread and yield what it yields."""

        async def following() -> T | None:
            return await anext(batches, None)

        while (batch := self.run(following())) is not None:
            yield batch

    def read(
        self, topics: Iterable[str], begin: int = 0, *, partition: int | None = None, since_ms: int = 0
    ) -> Generator[ConsumerRecord, None, None]:
        """Yield every record now on the topics, in order within each partition; see `KafkaLog.read`."""
        batches = self._log.read(list(topics), begin, partition=partition, since_ms=since_ms)
        try:
            for records in self.each(batches):
                yield from records
        finally:
            self.run(batches.aclose())

    def read_in_time(self, topic: str, since_ms: int, until_ms: int) -> Iterator[ConsumerRecord]:
        """Yield a topic's records that were appended in a time span, in chronological order, using constant memory.

        Partitions are read over separate connections and merged by append time.

        Args:
            topic: The topic.
            since_ms: First append time, ms since the epoch.
            until_ms: End of the span, exclusive, ms since the epoch.
        """
        parts = sorted(at for _, at in self.end_offsets([topic]))
        merged = heapq.merge(
            *(self.read([topic], partition=at, since_ms=since_ms) for at in parts),
            key=lambda record: record.timestamp_ms,
        )
        return (record for record in merged if record.timestamp_ms < until_ms)

    def latest(self, topics: Iterable[str]) -> dict[bytes, bytes]:
        """Return the newest value of each key in compacted topics."""
        found: dict[bytes, bytes] = {}
        for topic in topics:
            self.run(self._log.latest(topic, into=found))
        return found

    def end_offsets(self, topics: Sequence[str]) -> Mapping[Part, int]:
        """Return the end offset of each partition; see `Log.end_offsets`."""
        return self.run(self._log.end_offsets(topics))

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return self.run(self._log.topics())

    def append_again(self, origin: Origin) -> bool:
        """Append a copy of a record; see `Log.append_again`."""
        return self.run(self._log.append_again(origin))

    def follow(self, topics: Iterable[str], begin: Begin = "end") -> "Follower":
        """Return a follower of topics."""

        async def opened() -> Reader:
            reader = await self._log.open(list(topics))
            await reader.begin(begin)
            return reader

        self._followed.append(reader := self.run(opened()))
        return Follower(self, reader)

    def close(self) -> None:
        """Close the connections and end the thread."""
        if not self._loop.is_closed():
            for reader in self._followed:
                self.run(reader.close())
            self.run(self._log.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Follower:
    """Reads records as they are appended. Use a follower from one thread at a time.

    Args:
        log: The log that closes the reader, and in whose thread the reader runs.
        reader: The reader.
    """

    def __init__(self, log: BlockingLog, reader: Reader) -> None:
        self._log = log
        self._reader = reader

    def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        """Return the records that have arrived; wait up to `timeout_s` for the first."""
        return self._log.run(self._reader.poll(int(timeout_s * 1000)))

    def catch_up(self) -> Iterator[list[ConsumerRecord]]:
        """Yield records up to the current ends of the topics."""
        yield from self._log.each(self._reader.to(self._log.run(self._reader.ends())))

    def skip(self) -> None:
        """Skip to the current ends."""
        self._log.run(self._reader.begin("end"))


def read_all(settings: Settings, topics: Iterable[str]) -> Iterator[ConsumerRecord]:
    """Yield every record now on some topics, over a temporary connection; see `BlockingLog.read`."""
    with BlockingLog(settings) as log:
        yield from log.read(topics)


def require_topics(settings: Settings, topics: Iterable[str]) -> None:
    """Raise an error if a topic does not exist. A producer would silently wait for the topic for a minute.

    Raises:
        UnknownTopic: a topic does not exist; the message names the first one.
    """
    with BlockingLog(settings) as log:
        for topic in topics:
            log.follow([topic])


def latest(settings: Settings, topics: Iterable[str]) -> dict[bytes, bytes]:
    """Return the newest value of each key in compacted topics, over a temporary connection."""
    with BlockingLog(settings) as log:
        return log.latest(topics)
