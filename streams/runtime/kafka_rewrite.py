"""Change the log of a service that is stopped. The command takes the right to write, so one that still runs exits."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence

from aiokafka import AIOKafkaProducer
from kafka import TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from schemas.errors import UniscaleError
from streams.runtime import kafka_admin, kafka_clients
from streams.runtime.kafka_fencing import Fence, Row
from streams.settings import Settings

_AT_ONCE = 500
_LARGE = 65_536


class StillRunning(UniscaleError):
    """The service whose log is to be changed is running. Stop it, wait for its session to end, and try again."""


def require_stopped(settings: Settings, group: str) -> None:
    """Refuse while a consumer group has members.

    Raises:
        StillRunning: it names the members.
    """
    if members := kafka_admin.members(settings, group):
        names = ", ".join(sorted(str(m.get("client_id") or m.get("member_id")) for m in members))
        raise StillRunning(
            f"{group}: {len(members)} running ({names}); stop it, wait {settings.kafka.session_timeout_s:.0f} s for "
            "its session to end, and try again"
        )


def rewrite(settings: Settings, changelog: str, writes: Iterable[tuple[str, Sequence[Row]]]) -> None:
    """Write records to a changelog and to topics that share its writer, in order.

    Args:
        settings: The deployment.
        changelog: The topic whose right to write is taken.
        writes: Topics, each with records (key, value); a value of None deletes the key.
    """
    asyncio.run(_rewrite(settings, changelog, writes))


async def _rewrite(settings: Settings, changelog: str, writes: Iterable[tuple[str, Sequence[Row]]]) -> None:
    def connect(transactional_id: str | None) -> AIOKafkaProducer:
        return kafka_clients.writer(settings, transactional_id)

    fence = Fence(changelog, connect, transactions=lambda: not kafka_clients.embedded(settings))
    await fence.take()
    try:
        for topic, rows in writes:
            for part in _parts(rows):
                await fence.write(part, topic)
    finally:
        await fence.release()


def _parts(rows: Sequence[Row]) -> Iterable[Sequence[Row]]:
    """Divide rows so that each transaction stays small; a chunk of a snapshot ends its transaction."""
    part: list[Row] = []
    for row in rows:
        part.append(row)
        if len(part) >= _AT_ONCE or len(row[1] or b"") > _LARGE:
            yield part
            part = []
    if part:
        yield part


def commit(settings: Settings, group: str, offsets: Mapping[str, int]) -> None:
    """Move the committed offsets of a stopped group forward, for topics with one partition.

    Raises:
        KafkaError: the broker refused a commit.
    """
    with contextlib.closing(kafka_clients.admin(settings)) as client:
        parts = {TopicPartition(topic, 0): offset for topic, offset in offsets.items()}
        known = client.list_group_offsets(group)
        known = known.get(group, known)
        ahead = {
            tp: OffsetAndMetadata(offset, "", -1)
            for tp, offset in parts.items()
            if offset > (known[tp].offset if tp in known else -1)
        }
        for tp, error in client.alter_group_offsets(group, ahead).items() if ahead else ():
            if error.errno:
                raise KafkaError(f"{tp.topic}: the commit of {group} was refused: {error.__name__}")
