"""What a log is made of: records, the groups that read them, where reading begins, and what can go wrong."""

from typing import Literal, NamedTuple, Self, TypeAlias

import msgspec

from schemas.answer import Answer
from schemas.errors import UniscaleError
from schemas.query import Origin
from schemas.record import encode
from schemas.reward import Due
from schemas.search import SearchStep, Verification


class Unavailable(Exception):
    """A dependency of a record is unavailable: the broker, an encoder. The record is not at fault.

    The guard counts no failure. It waits, longer each time, and calls the handler again.
    """


class SendFailed(Unavailable):
    """The broker did not accept a record. The message gives its reason."""


class NotAllowed(SendFailed):
    """The broker does not let this process read or write a topic: its access control lists do not say so."""


class UnknownTopic(UniscaleError, LookupError):
    """A topic does not exist. Check the prefix, or run `python -m streams topics create`."""


class ConsumerRecord(msgspec.Struct, frozen=True):
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
        """Return topic/partition/offset, for logs."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def identity(self) -> str:
        """Return coordinates and append time, for failure counts: another log has the same coordinates again."""
        return f"{self.coordinates}@{self.timestamp_ms}"

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

    @classmethod
    def of(cls, topic: str, record: Answer | Due | SearchStep | Verification) -> Self:
        """Return a record under the key of its query."""
        return cls(topic, key_of(record.query_id), encode(record))


class ConsumerGroup(msgspec.Struct, frozen=True):
    """A consumer group as the broker sees it.

    Attributes:
        waiting: Records that are not handled yet.
        members: Its workers; None where the broker does not say.
    """

    waiting: int = 0
    members: int | None = None


def key_of(query_id: str) -> bytes:
    """Return the key of a query's records."""
    return query_id.encode()


class Since(NamedTuple):
    """Where following starts: at the first record of each partition that was appended at a time or later.

    Attributes:
        at_ms: The time, ms since the epoch.
        least: So many records before the end of each partition at least, however old they are.
    """

    at_ms: int
    least: int = 0


Begin: TypeAlias = Literal["beginning", "end"] | int | Since
"""Where following starts: the beginning, the end, so many records before the end of each partition, or a time."""
