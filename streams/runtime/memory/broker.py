"""Topics as lists of records: partitions, offsets, committed offsets, and what the broker refuses."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from streams.runtime.errors import UnknownTopic
from streams.runtime.partitions import partition_for
from streams.runtime.records import Record

BEGAN_MS = 1_700_000_000_000
"""Milliseconds since the epoch at which a broker's clock begins by default."""


class Effect(NamedTuple):
    """One thing a worker did that outlives it.

    Attributes:
        app: The worker's consumer group.
        kind: What it did.
        topic: The topic sent to, the changelog written, or the topic whose offset was committed.
        key: The key of what was sent or written; empty for a commit.
    """

    app: str
    kind: Literal["send", "row", "commit"]
    topic: str
    key: bytes


class _Partition:
    def __init__(self) -> None:
        self.first = 0
        self.records: list[Record] = []
        self.orders: list[int] = []

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class Broker:
    """The log that outlives every worker.

    Args:
        topics: How many partitions each topic has.
        monotonic: Seconds; the broker's clock is this, since `began_ms`.
        began_ms: Milliseconds since the epoch at which the clock begins.

    Attributes:
        committed: Committed offsets by consumer group, topic and partition.
        effects: Everything workers have done, in order.
        refuses: Asked before each send and row; a reason makes it fail.
    """

    def __init__(
        self, topics: Mapping[str, int], monotonic: Callable[[], float], began_ms: int = BEGAN_MS
    ) -> None:
        self._topics = {name: [_Partition() for _ in range(n)] for name, n in topics.items()}
        self._monotonic = monotonic
        self._began_ms = began_ms
        self._order = 0
        self._watchers: list[tuple[object, Callable[[Record], None]]] = []
        self.committed: dict[tuple[str, str, int], int] = {}
        self.effects: list[Effect] = []
        self.refuses: Callable[[str, bytes | None], str] = lambda topic, key: ""

    def now_ms(self) -> int:
        """Return the broker's time."""
        return self._began_ms + int(self._monotonic() * 1000)

    def create(self, name: str, partitions: int) -> None:
        """Create a topic that is not there."""
        self._topics.setdefault(name, [_Partition() for _ in range(partitions)])

    def has(self, topic: str) -> bool:
        """Return whether there is such a topic."""
        return topic in self._topics

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has.

        Raises:
            UnknownTopic: there is no such topic.
        """
        return len(self._of(topic))

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Record:
        """Append a record, to the partition of its key where none is given, and show it to the watchers.

        Its append time is now, unless it was appended to another broker before.
        """
        parts = self._of(topic)
        at = partition_for(key, len(parts)) if partition is None else partition
        now_ms = self.now_ms() if timestamp_ms is None else timestamp_ms
        record = Record(topic, at, parts[at].end, now_ms, key, value)
        parts[at].records.append(record)
        parts[at].orders.append(self._order)
        self._order += 1
        for _, watcher in list(self._watchers):
            watcher(record)
        return record

    def at(self, topic: str, partition: int, offset: int) -> tuple[int, Record] | None:
        """Return the first record at an offset or after it, with its place in the order of all; None at the end."""
        part = self._of(topic)[partition]
        index = max(0, offset - part.first)
        if index >= len(part.records):
            return None
        return part.orders[index], part.records[index]

    def records(self, topic: str) -> list[Record]:
        """Return every record of a topic, partition by partition."""
        return [record for part in self._of(topic) for record in part.records]

    def changelog(self, topic: str, partition: int, begin: int = 0) -> dict[bytes, bytes]:
        """Return the latest value of each key of a compacted partition, from an offset on."""
        rows: dict[bytes, bytes] = {}
        part = self._of(topic)[partition]
        for record in part.records[max(0, begin - part.first) :]:
            key = record.key or b""
            rows.pop(key, None)
            if record.value is not None:
                rows[key] = record.value
        return rows

    def first(self, topic: str, partition: int) -> int:
        """Return the oldest offset still there."""
        return self._of(topic)[partition].first

    def end(self, topic: str, partition: int) -> int:
        """Return the offset that the next record gets."""
        return self._of(topic)[partition].end

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Forget the records before an offset, as retention does."""
        part = self._of(topic)[partition]
        gone = max(0, min(offset, part.end) - part.first)
        del part.records[:gone], part.orders[:gone]
        part.first += gone

    def begin_at(self, topic: str, partition: int, offset: int) -> None:
        """Let an empty partition begin at an offset, as where retention has removed what was before it."""
        part = self._of(topic)[partition]
        if part.records:
            raise ValueError(f"{topic}/{partition}: it has records already")
        part.first = offset

    def watch(self, owner: object, topics: Iterable[str], show: Callable[[Record], None]) -> None:
        """Show every record appended to these topics from now on, until `unwatch`."""
        names = frozenset(topics)

        def one(record: Record) -> None:
            if record.topic in names:
                show(record)

        self._watchers.append((owner, one))

    def unwatch(self, owner: object) -> None:
        """Forget the watchers of an owner that is gone."""
        self._watchers = [each for each in self._watchers if each[0] is not owner]

    def _of(self, topic: str) -> list[_Partition]:
        if topic not in self._topics:
            raise UnknownTopic(f"{topic}: the topic does not exist; create it first")
        return self._topics[topic]
