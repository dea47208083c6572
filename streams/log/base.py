"""The log: its records, start positions and errors, and the protocol that is implemented on Kafka and in memory."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias

import msgspec

from schemas.answer import Answer
from schemas.errors import UniscaleError
from schemas.query import Origin
from schemas.record import encode
from schemas.reward import Due
from schemas.search import SearchStep, Verification


class Unavailable(Exception):
    """Something that a record's handler depends on, such as the broker or an encoder, is unavailable.

    The record is not at fault, so the guard counts no failure; it waits, longer each time, and calls the handler again.
    """


class SendFailed(Unavailable):
    """The broker did not accept a record. The message states the broker's reason."""


class NotAllowed(SendFailed):
    """The broker's access control lists do not allow this process to read or write a topic."""


class UnknownTopic(UniscaleError, LookupError):
    """A topic does not exist. Check the prefix, or run `python -m streams topics create`."""


class ConsumerRecord(msgspec.Struct, frozen=True):
    """One record as the broker delivered it.

    Attributes:
        topic: The record's topic.
        partition: The record's partition.
        offset: The record's position in the partition.
        timestamp_ms: Append time on the broker, ms since the epoch.
        key: The record's key.
        value: The record's value; None for a tombstone.
        epoch: The epoch of the assignment that the record was delivered in; see `Runtime.is_ours`.
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
        """Return the coordinates and append time, for failure counts. In a recreated topic, only coordinates repeat."""
        return f"{self.coordinates}@{self.timestamp_ms}"

    @property
    def origin(self) -> Origin:
        """Return the record's position in the form that other records refer to it."""
        return Origin(topic=self.topic, partition=self.partition, offset=self.offset)


class Outgoing(msgspec.Struct, frozen=True):
    """One record to send. If `partition` is None, the record goes to its key's partition (`partition_for`)."""

    topic: str
    key: bytes | None
    value: bytes
    partition: int | None = None

    @classmethod
    def of(cls, topic: str, record: Answer | Due | SearchStep | Verification) -> Self:
        """Return an encoded record, keyed by its query."""
        return cls(topic, key_of(record.query_id), encode(record))


class ConsumerGroup(msgspec.Struct, frozen=True):
    """A consumer group as the broker sees it.

    Attributes:
        waiting: Number of records the group has yet to handle.
        members: Number of workers in the group; None if the broker does not report it.
    """

    waiting: int = 0
    members: int | None = None


def key_of(query_id: str) -> bytes:
    """Return the key of a query's records."""
    return query_id.encode()


class Since(NamedTuple):
    """A start position: in each partition, the first record appended at or after a given time.

    Attributes:
        at_ms: The time, ms since the epoch.
        least: Read at least this many records before the end of each partition, however old they are.
    """

    at_ms: int
    least: int = 0


Begin: TypeAlias = Literal["beginning", "end"] | int | Since
"""Start position: the beginning, the end, a number of records before the end of each partition, or a time."""


Part: TypeAlias = tuple[str, int]
"""Topic and partition."""

Newer: TypeAlias = Callable[[bytes, bytes], bool]


def replaces(before: bytes | None, value: bytes | None, newer: Newer | None) -> bool:
    """Return whether a row replaces an earlier row with the same key; see `newer` in `Runtime.table`."""
    return not before or not value or newer is None or newer(value, before)


def fold(rows: MutableMapping[bytes, bytes], records: Iterable[ConsumerRecord]) -> None:
    """Update rows by key from the records of a compacted topic. Rows are ordered by their last write."""
    for record in records:
        key = record.key or b""
        rows.pop(key, None)
        if record.value is not None:
            rows[key] = record.value


class Log(Protocol):
    """A deployment's topics, for readers outside the consumer groups. A log commits no offsets.

    There are two implementations, `KafkaLog` and `MemoryLog`; `tests/streams/log` tests both against one contract.
    Programs that do not run in an event loop use `streams.log.blocking`.
    """

    def read(
        self, topics: Sequence[str], begin: int = 0, *, partition: int | None = None, since_ms: int = 0
    ) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
        """Yield the committed records on topics, in batches, up to the end offsets at the time of the call.

        Each partition's records are in order. Reading waits for transactions that were open at that time.

        Args:
            topics: The topics.
            begin: The offset to start from in each partition.
            partition: Read only this partition of each topic.
            since_ms: Skip records appended before this time, ms since the epoch.

        Raises:
            UnknownTopic: a topic does not exist.
        """

    async def tail(
        self, topics: Sequence[str], on_record: Callable[[ConsumerRecord], None], *, begin: Begin
    ) -> None:
        """Pass every record on some topics, present and future, to a callback. Return after the present records.

        Raises:
            UnknownTopic: a topic does not exist.
        """

    async def latest(
        self, topic: str, begin: int = 0, into: MutableMapping[bytes, bytes] | None = None
    ) -> MutableMapping[bytes, bytes]:
        """Return the newest value of each key in a compacted topic, from an offset to the current end.

        Args:
            topic: The topic.
            begin: The offset to start from in each partition.
            into: Mapping to fill and return instead of a new dictionary.

        Raises:
            UnknownTopic: the topic does not exist.
        """

    async def first_offsets(self, topics: Sequence[str]) -> Mapping[Part, int]:
        """Return the oldest offset still available in each partition. Raises Unavailable."""

    async def end_offsets(self, topics: Sequence[str]) -> Mapping[Part, int]:
        """Return the offset that the next record in each partition will get. Raises Unavailable."""

    async def find(self, topic: str, key: bytes, since_ms: int, until_ms: int) -> ConsumerRecord | None:
        """Return the first record with a key that was appended in a time span, or None if there is none.

        Keep the span short: all of it is read, in the partition that this deployment's producers assign the key to.

        Args:
            topic: The topic.
            key: The record's key.
            since_ms: First append time, ms since the epoch.
            until_ms: Last append time, ms since the epoch.

        Raises:
            Unavailable: the broker cannot be read.
        """

    async def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists. Raises Unavailable."""

    async def groups(self, app_ids: Sequence[str]) -> Mapping[str, ConsumerGroup]:
        """Return consumer groups by id, except groups that have never committed an offset. Raises Unavailable."""

    async def at(self, origin: Origin) -> ConsumerRecord | None:
        """Return the record at an origin, or None if it is no longer on its topic.

        Raises:
            Unavailable: the broker cannot be read.
        """

    async def append_again(self, origin: Origin) -> bool:
        """Append a copy of the record at an origin to its topic. Return whether the record was still on the topic.

        Raises:
            NotAllowed: this process may not read or write that topic.
            SendFailed: the broker did not accept the copy.
        """

    async def close(self) -> None:
        """Stop all followers and close the connections."""
