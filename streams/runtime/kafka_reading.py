"""Read topics from an offset to their present ends, with aiokafka in the event loop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams.log.base import UnknownTopic
from streams.runtime import kafka_clients
from streams.settings import Settings

# Stop an aiokafka client without waiting for its connections to be taken down.
#
# Over TLS, aiokafka's `stop` returns once the broker has answered the end of the connection. Some answers never
# come, and the transport gives up after 30 seconds: longer than a rebalance may take, and nothing depends on it.

log = logging.getLogger("streams.kafka")

PATIENCE_S: Final = 2.0

_closing: set[asyncio.Task[Any]] = set()


async def stop(client: Any, patience_s: float = PATIENCE_S) -> None:
    """Stop a consumer or producer of aiokafka; after `patience_s` seconds return, and let it end in the background."""
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


# Read topics from an offset to their present ends, with aiokafka in the event loop.

# A transaction's marker has an offset but is never delivered, so the last poll of a log waits in vain: keep it short.
_POLL_MS = 50


async def read(settings: Settings, topic: str, begin: int = 0) -> AsyncIterator[Sequence[Any]]:
    """Yield the committed records of a topic from an offset up to the ends seen at the start, in batches.

    Raises:
        BrokerUnreachable: no broker answers.
        UnknownTopic: the topic does not exist.
    """
    reader, parts = await connected(settings, [topic])
    try:
        starts, ends = await reader.beginning_offsets(parts), await _ends(settings, topic, parts)
        assign(reader, {tp: max(begin, starts[tp]) for tp in parts})
        async for tp, records in to_ends(reader, ends):
            yield [record for record in records if record.offset < ends[tp]]
    finally:
        await stop(reader)


async def latest(
    settings: Settings, topic: str, begin: int = 0, into: MutableMapping[bytes, bytes] | None = None
) -> MutableMapping[bytes, bytes]:
    """Return the newest value of each key of a compacted topic; see `streams.runtime.runtime.Runtime.latest`.

    Raises:
        BrokerUnreachable: no broker answers.
        UnknownTopic: the topic does not exist.
    """
    found = {} if into is None else into
    async for records in read(settings, topic, begin):
        kafka_clients.apply(found, records)
    return found


async def connected(
    settings: Settings, topics: Sequence[str], isolation_level: str = "read_committed"
) -> tuple[AIOKafkaConsumer, list[TopicPartition]]:
    """Return a connected consumer and the partitions of topics, none of them assigned. The caller stops the consumer.

    Raises:
        BrokerUnreachable: no broker answers.
        UnknownTopic: a topic does not exist.
    """
    reader = kafka_clients.follower(settings, isolation_level=isolation_level)
    try:
        await reader.start()
    except (KafkaError, OSError) as error:
        raise kafka_clients.unreachable(settings, error) from None
    try:
        return reader, [
            TopicPartition(topic, p) for topic in topics for p in await _partitions(reader, topic)
        ]
    except BaseException:
        await stop(reader)
        raise


def assign(reader: AIOKafkaConsumer, offsets: Mapping[TopicPartition, int]) -> None:
    """Start fetching partitions at these offsets."""
    reader.assign(list(offsets))
    for tp, offset in offsets.items():
        reader.seek(tp, offset)


async def to_ends(
    reader: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]
) -> AsyncIterator[tuple[TopicPartition, Sequence[Any]]]:
    """Yield partitions with their next records until each partition has been read to its end."""
    behind = set(ends)
    while behind := {tp for tp in behind if await reader.position(tp) < ends[tp]}:
        for tp, records in (await reader.getmany(timeout_ms=_POLL_MS)).items():
            yield tp, records


async def _ends(
    settings: Settings, topic: str, parts: Sequence[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """Return where partitions end, including transactions that are still open.

    A consumer of committed records gets only those before the oldest open transaction. If a foreign producer leaves one
    open, its end of the log hides every later record. With these ends, reading waits until that transaction ends.
    """
    # Connected with the topic: without it, the first request fails for want of metadata and waits to be repeated.
    reader, _ = await connected(settings, [topic], "read_uncommitted")
    try:
        ends: Mapping[TopicPartition, int] = await reader.end_offsets(parts)
        return ends
    finally:
        await stop(reader)


async def _partitions(reader: AIOKafkaConsumer, topic: str) -> list[int]:
    for _ in range(20):
        await reader._client.add_topic(topic)
        if found := reader.partitions_for_topic(topic):
            return sorted(found)
        await asyncio.sleep(0.25)
    raise UnknownTopic(f"{topic}: the topic does not exist; run `python -m streams topics create`")
