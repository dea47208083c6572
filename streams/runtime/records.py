"""Records as a runtime delivers and sends them, and the consumer groups for which they wait."""

import msgspec

from schemas.query import Origin


class Record(msgspec.Struct, frozen=True):
    """One record as the broker delivered it.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        offset: Its position in the partition.
        timestamp_ms: Append time on the broker, ms since the epoch.
        key: Its key.
        value: Its bytes; None for a tombstone.
        epoch: The assignment it was delivered under; see `Runtime.is_ours`.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    epoch: int = 0

    @property
    def coordinates(self) -> str:
        """Return topic/partition/offset, for logs and failure counts."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def origin(self) -> Origin:
        """Return the record's position as it travels in other records."""
        return Origin(topic=self.topic, partition=self.partition, offset=self.offset)


class Outgoing(msgspec.Struct, frozen=True):
    """One record to send. Without a partition, its key decides; see `Runtime.partition_for`."""

    topic: str
    key: bytes | None
    value: bytes
    partition: int | None = None


class Group(msgspec.Struct, frozen=True):
    """A consumer group as the broker sees it.

    Attributes:
        waiting: Records that are not handled yet, by topic.
        members: Its workers; None where the broker does not say.
    """

    waiting: dict[str, int]
    members: int | None = None


def key_of(query_id: str) -> bytes:
    """Return the key of a query's records."""
    return query_id.encode()
