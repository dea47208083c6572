"""The log on Kafka. aiokafka reads it without a consumer group, and only committed records."""

import asyncio
import contextlib
import logging
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError as KafkaError
from aiokafka.errors import TopicAuthorizationFailedError
from kafka.errors import KafkaError as ClientError
from kafka.errors import TopicAuthorizationFailedError as ClientNotAllowed

from schemas.query import Origin
from streams.log import kafka_admin, kafka_clients
from streams.log.base import (
    Begin,
    ConsumerGroup,
    ConsumerRecord,
    NotAllowed,
    Part,
    SendFailed,
    Since,
    Unavailable,
    UnknownTopic,
    fold,
)
from streams.log.kafka_clients import BrokerStalled, BrokerUnreachable
from streams.log.pacing import pace_fetches
from streams.log.partitioner import partition_for
from streams.settings import Settings, SettingsError

# `stop` stops an aiokafka client without waiting for its connections to close. Over TLS, aiokafka's own `stop` waits
# for the broker to acknowledge the close. Some acknowledgements never come, and the transport gives up only after 30
# seconds, which is longer than a rebalance may take and gains nothing.

log = logging.getLogger("streams.kafka")

_CLOSE_S: Final = 2.0

_closing: set[asyncio.Task[Any]] = set()


async def stop(client: Any, patience_s: float = _CLOSE_S) -> None:
    """Stop an aiokafka consumer or producer; after `patience_s` seconds, return and let it finish in the background."""
    task = asyncio.create_task(client.stop())
    _closing.add(task)
    task.add_done_callback(_ended)
    await asyncio.wait({task}, timeout=patience_s)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        raise error


def _ended(task: asyncio.Task[Any]) -> None:
    _closing.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("closing a connection failed: %r", error)


# Readers have no consumer group: partitions are assigned manually, nothing is committed, and every reader sees every
# record.

# A transaction marker has an offset but is never delivered, so the last poll may wait in vain. Its timeout is short.
_POLL_MS = 50
_TAIL_MS = 1000
_SEND_S = 30.0

PATIENCE_S: Final = 30.0
"""How long a blocking reader waits for records that should be there, in seconds."""


class Reader:
    """Reads partitions over its own connection. Create a reader with `open`, and close it.

    Args:
        consumer: A started aiokafka consumer.
        parts: The partitions to read.
        patience_s: How long to wait for records that should be there, in seconds; None for no limit.
    """

    def __init__(
        self, consumer: AIOKafkaConsumer, parts: Sequence[TopicPartition], patience_s: float | None
    ) -> None:
        self.consumer = consumer
        self.parts = parts
        self._patience_s = patience_s

    @classmethod
    async def open(
        cls,
        settings: Settings,
        topics: Sequence[str],
        *,
        partition: int | None = None,
        patience_s: float | None = None,
        listed: bool = True,
        isolation_level: str = "read_committed",
    ) -> Self:
        """Connect a reader. No partitions are assigned yet.

        Args:
            settings: The deployment.
            topics: The topics.
            partition: Read only this partition of each topic.
            patience_s: Seconds without a record after which reading gives up; missing topics are ignored. None waits
                for records without limit, and also waits for topics that have just been created.
            listed: If `patience_s` is given, whether to look the topics up in the list of all topics, because some
                brokers create a missing topic on request. The list lacks topics that this process may not read.
            isolation_level: Kafka's isolation level.

        Raises:
            BrokerUnreachable: no broker answers.
            NotAllowed: this process may not read a topic.
            UnknownTopic: a topic does not exist or, if `patience_s` is given, none of them exists.
        """
        consumer = kafka_clients.follower(settings, isolation_level=isolation_level)
        try:
            await consumer.start()
        except (KafkaError, OSError) as error:
            raise kafka_clients.unreachable(settings, error) from None
        try:
            tries = _TRIES if patience_s is None else 1
            there = topics if patience_s is None or not listed else await consumer.topics()
            found = {
                topic: await _partitions(consumer, topic, tries) if topic in there else [] for topic in topics
            }
            missing = [topic for topic, parts in found.items() if not parts]
            if missing and (patience_s is None or len(missing) == len(found)):
                raise UnknownTopic(
                    f"{missing[0]}: the topic does not exist; run `python -m streams topics create`"
                )
        except BaseException:
            await stop(consumer)
            raise
        wanted = [(topic, p) for topic, parts in found.items() for p in parts if partition in (None, p)]
        return cls(consumer, [TopicPartition(*part) for part in wanted], patience_s)

    async def firsts(self) -> dict[TopicPartition, int]:
        """Return the oldest offset still available in each partition."""
        return dict(await self.consumer.beginning_offsets(self.parts))

    async def ends(self) -> dict[TopicPartition, int]:
        """Return the end offset of each partition."""
        return dict(await self.consumer.end_offsets(self.parts))

    async def begin(self, begin: Begin) -> Mapping[TopicPartition, int]:
        """Seek to the start position and return the current end offsets."""
        ends = await self.ends()
        starts = ends if begin == "end" else await self.firsts()
        if isinstance(begin, int):
            starts = {tp: max(starts[tp], ends[tp] - begin) for tp in self.parts}
        if isinstance(begin, Since):
            found = await self.consumer.offsets_for_times(dict.fromkeys(self.parts, begin.at_ms))
            latest = {tp: max(starts[tp], ends[tp] - begin.least) for tp in self.parts}
            # If every record is older, the embedded broker returns the first one.
            late = {tp: at.offset for tp, at in found.items() if at and at.timestamp >= begin.at_ms}
            starts = {tp: min(latest[tp], late.get(tp, latest[tp])) for tp in self.parts}
        self.seek(starts)
        return ends

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Start fetching at these offsets."""
        if self.consumer.assignment() != set(offsets):
            self.consumer.assign(list(offsets))
        for tp, offset in offsets.items():
            self.consumer.seek(tp, offset)

    async def poll(self, timeout_ms: int = _POLL_MS) -> list[ConsumerRecord]:
        """Return the records that have arrived; wait up to `timeout_ms` for the first."""
        found = await self.consumer.getmany(timeout_ms=timeout_ms)
        return [
            ConsumerRecord(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value)
            for records in found.values()
            for r in records
        ]

    async def to(self, ends: Mapping[TopicPartition, int]) -> AsyncGenerator[list[ConsumerRecord], None]:
        """Yield records until each partition has been read up to its end in `ends`; a few may lie beyond.

        Raises:
            BrokerStalled: no record arrived for longer than `patience_s`.
        """
        behind, last, since_s = set(ends), dict[TopicPartition, int](), time.monotonic()
        while True:
            at = {tp: await self.consumer.position(tp) for tp in behind}
            behind = {tp for tp in behind if at[tp] < ends[tp]}
            if not behind:
                return
            if at != last:
                last, since_s = at, time.monotonic()
            elif self._patience_s is not None and time.monotonic() - since_s > self._patience_s:
                tp = min(behind)
                where = f"{tp.topic}/{tp.partition}: no record after offset {at[tp]} of {ends[tp]}"
                raise BrokerStalled(f"{where}; try again")
            if found := await self.poll():
                yield found

    async def close(self) -> None:
        """Close the connection."""
        await stop(self.consumer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


_TRIES: Final = 20
_TRY_S: Final = 0.25


async def _partitions(consumer: AIOKafkaConsumer, topic: str, tries: int) -> list[int]:
    for left in reversed(range(tries)):
        await consumer._client.add_topic(topic)
        if topic in consumer._client.cluster.unauthorized_topics:
            raise NotAllowed(f"{topic}: this process may not read it; check its access control lists")
        if found := consumer.partitions_for_topic(topic):
            return sorted(found)
        if left:
            await asyncio.sleep(_TRY_S)
    return []


class KafkaLog:
    """The topics on a Kafka broker; `Log` documents each method.

    Each call opens its own connection: calls are rare, and a service's consumer reads only its assignment.

    Args:
        settings: The deployment.
        arrived: Called with the append times of new records that `tail` reads.
        failed: Called when `tail` cannot continue, with a description of what it was reading, and the error.
        patience_s: See `Reader.open`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        arrived: Callable[[int], None] = lambda at_ms: None,
        failed: Callable[[str, Exception], object] = lambda what, error: None,
        patience_s: float | None = None,
    ) -> None:
        self.settings = settings
        self._arrived = arrived
        self._failed = failed
        self._patience_s = patience_s
        self._readers: list[Reader] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._producer: Any = None

    async def open(self, topics: Sequence[str], **how: Any) -> Reader:
        """Return a reader of topics; see `Reader.open`."""
        return await Reader.open(self.settings, topics, patience_s=self._patience_s, **how)

    async def read(
        self, topics: Sequence[str], begin: int = 0, *, partition: int | None = None, since_ms: int = 0
    ) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
        """Yield records up to the current end offsets; see the protocol.

        Args:
            topics: The topics.
            begin: The offset to start from in each partition.
            partition: Read only this partition of each topic.
            since_ms: Skip records appended before this time, ms since the epoch.
        """
        async with await self.open(topics, partition=partition) as reader:
            ends = await self._ends(topics, reader)
            starts = {tp: max(begin, first) for tp, first in (await reader.firsts()).items()}
            if since_ms:
                late = await reader.consumer.offsets_for_times(dict.fromkeys(reader.parts, since_ms))
                starts = {tp: max(at, late[tp].offset if late[tp] else ends[tp]) for tp, at in starts.items()}
            reader.seek(starts)
            async for records in reader.to(ends):
                yield [
                    each
                    for each in records
                    if each.offset < ends[TopicPartition(each.topic, each.partition)]
                    and each.timestamp_ms >= since_ms
                ]

    async def _ends(self, topics: Sequence[str], reader: Reader) -> Mapping[TopicPartition, int]:
        """Return the end offsets of partitions, including the records of open transactions.

        For a read-committed consumer, a partition ends before its oldest open transaction, so a transaction left open
        by a foreign producer would hide every later record. With these end offsets, reading waits until it ends.
        """
        # The reader opens the topics because, without their metadata, the first request would fail and the retry would
        # be slow.
        async with await self.open(topics, isolation_level="read_uncommitted") as other:
            ends: Mapping[TopicPartition, int] = await other.consumer.end_offsets(reader.parts)
            return ends

    async def tail(
        self, topics: Sequence[str], on_record: Callable[[ConsumerRecord], None], *, begin: Begin
    ) -> None:
        """Pass on records as they are appended, until `close`; see the protocol."""
        reader = await self.open(topics)
        self._readers.append(reader)
        pace_fetches(reader.consumer._fetcher, embedded=kafka_clients.embedded(self.settings))
        async for records in reader.to(await reader.begin(begin)):
            for record in records:
                on_record(record)
        self._tasks.append(asyncio.get_running_loop().create_task(self._tail(reader, topics, on_record)))

    async def _tail(
        self, reader: Reader, topics: Sequence[str], on_record: Callable[[ConsumerRecord], None]
    ) -> None:
        try:
            while True:
                if records := await reader.poll(_TAIL_MS):
                    self._arrived(max(record.timestamp_ms for record in records))
                for record in records:
                    on_record(record)
        except Exception as error:
            self._failed(f"following {', '.join(topics)} failed", error)

    async def latest(
        self, topic: str, begin: int = 0, into: MutableMapping[bytes, bytes] | None = None
    ) -> MutableMapping[bytes, bytes]:
        """Read the topic; see the protocol."""
        found = {} if into is None else into
        async for records in self.read([topic], begin):
            fold(found, records)
        return found

    async def first_offsets(self, topics: Sequence[str]) -> Mapping[Part, int]:
        """Ask the broker; see the protocol."""
        return await self._asked("the first offsets", topics, Reader.firsts)

    async def end_offsets(self, topics: Sequence[str]) -> Mapping[Part, int]:
        """Ask the broker; see the protocol."""
        return await self._asked("the end offsets", topics, Reader.ends)

    async def _asked(
        self,
        what: str,
        topics: Sequence[str],
        ask: Callable[[Reader], Awaitable[Mapping[TopicPartition, int]]],
    ) -> Mapping[Part, int]:
        with _unavailable(what):
            async with await Reader.open(self.settings, topics, patience_s=PATIENCE_S) as reader:
                return {(tp.topic, tp.partition): offset for tp, offset in (await ask(reader)).items()}

    async def find(self, topic: str, key: bytes, since_ms: int, until_ms: int) -> ConsumerRecord | None:
        """Read the key's partition, starting at that time; see the protocol."""
        with _unavailable(topic):
            async with await Reader.open(self.settings, [topic], patience_s=PATIENCE_S) as reader:
                tp = reader.parts[partition_for(key, len(reader.parts))]
                if (begin := (await reader.consumer.offsets_for_times({tp: since_ms}))[tp]) is None:
                    return None
                ends = await reader.consumer.end_offsets([tp])
                reader.seek({tp: begin.offset})
                async for records in reader.to(ends):
                    for record in records:
                        if record.timestamp_ms > until_ms:
                            return None
                        # The embedded broker may start before the requested time.
                        if record.key == key and record.timestamp_ms >= since_ms:
                            return record
                return None

    async def topics(self) -> set[str]:
        """Return the names of all topics. Raises BrokerUnreachable."""
        async with await self.open([]) as reader:
            return set(await reader.consumer.topics())

    async def has_topic(self, topic: str) -> bool:
        """Ask the broker; see the protocol."""
        with _unavailable(topic):
            return topic in await self.topics()

    async def groups(self, app_ids: Sequence[str]) -> Mapping[str, ConsumerGroup]:
        """Ask the broker, with kafka-python in a thread; see the protocol."""
        with _unavailable("the consumer groups"):
            return await asyncio.to_thread(kafka_admin.groups, self.settings, app_ids)

    async def at(self, origin: Origin) -> ConsumerRecord | None:
        """Read the record; see the protocol."""
        with _unavailable(str(origin)):
            return await self._at(TopicPartition(origin.topic, origin.partition), origin.offset)

    async def append_again(self, origin: Origin) -> bool:
        """Read the record and send it; see the protocol."""
        tp = TopicPartition(origin.topic, origin.partition)
        try:
            held = await self._at(tp, origin.offset)
            if held is not None:
                await asyncio.to_thread(self._append, held)
            return held is not None
        except UnknownTopic:
            return False
        except (TopicAuthorizationFailedError, ClientNotAllowed) as error:  # reading it, sending it
            raise NotAllowed(f"{origin}: {error}") from error
        except (KafkaError, ClientError, BrokerUnreachable) as error:
            raise SendFailed(f"{origin}: {error}") from error

    async def _at(self, tp: TopicPartition, offset: int) -> ConsumerRecord | None:
        """Return the record at an offset, or None if it is no longer on the topic."""
        async with await Reader.open(
            self.settings, [tp.topic], partition=tp.partition, patience_s=PATIENCE_S, listed=False
        ) as reader:
            if not reader.parts or not (await reader.firsts())[tp] <= offset < (await reader.ends())[tp]:
                return None
            reader.seek({tp: offset})
            async for records in reader.to({tp: offset + 1}):
                return records[0] if records[0].offset == offset else None
            return None

    def _append(self, record: ConsumerRecord) -> None:
        if self._producer is None:
            self._producer = kafka_clients.producer(self.settings)
        self._producer.send(record.topic, key=record.key, value=record.value).get(timeout=_SEND_S)

    async def close(self) -> None:
        """Stop all followers and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for reader in self._readers:
            await reader.close()
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close)


@contextlib.contextmanager
def _unavailable(what: str) -> Iterator[None]:
    """Turn failed requests into Unavailable. Even a TLS error may be temporary, if a certificate is being replaced."""
    try:
        yield
    except (KafkaError, ClientError, BrokerUnreachable, SettingsError) as error:
        raise Unavailable(f"{what}: {error}") from error
