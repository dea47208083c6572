"""What a room asks the broker outside its consumer group."""

from collections.abc import Mapping, Sequence

from streams.runtime.memory.broker import Broker
from streams.runtime.partitions import partition_for
from streams.runtime.records import Group, Record
from streams.runtime.spec import RoomSpec
from streams.settings import Settings
from streams.topics import Topics


class Lookups:
    """The questions of `streams.runtime.base.Runtime` that need nothing of the room but what its RoomSpec names."""

    def __init__(self, settings: Settings, broker: Broker, spec: RoomSpec, group: str) -> None:
        self.settings = settings
        self.broker = broker
        self.spec = spec
        self.room = spec.name
        self.group = group
        self.topics = Topics(settings)

    def require_read(self, topic: str) -> None:
        """Refuse to read a topic that the RoomSpec does not name."""
        if topic not in self.spec.looks_at(self.topics, self.group):
            raise ValueError(f"{self.room}: reads {topic}, which its RoomSpec does not name")

    async def first_offsets(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        """Ask the broker; see the protocol."""
        return {(t, p): self.broker.first(t, p) for t in topics for p in range(self.broker.partitions(t))}

    async def end_offsets(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        """Ask the broker; see the protocol."""
        return {(t, p): self.broker.end(t, p) for t in topics for p in range(self.broker.partitions(t))}

    async def groups(self, app_ids: Sequence[str]) -> Mapping[str, Group]:
        """Ask the broker, which knows no members; see the protocol."""
        found: dict[str, Group] = {}
        for (app, topic, partition), offset in self.broker.committed.items():
            if app in app_ids:
                waiting = found.setdefault(app, Group({})).waiting
                waiting[topic] = waiting.get(topic, 0) + self.broker.end(topic, partition) - offset
        return found

    async def has_topic(self, topic: str) -> bool:
        """Ask the broker; see the protocol."""
        return self.broker.has(topic)

    async def latest(self, topic: str, begin: int = 0) -> dict[bytes, bytes]:
        """Read the topic; see the protocol."""
        self.require_read(topic)
        found: dict[bytes, bytes] = {}
        for partition in range(self.broker.partitions(topic)):
            found |= self.broker.changelog(topic, partition, begin)
        return found

    async def find(self, topic: str, key: bytes, since_ms: int, until_ms: int) -> Record | None:
        """Read the key's partition; see the protocol."""
        self.require_read(topic)
        partition = partition_for(key, self.broker.partitions(topic))
        at = self.broker.first(topic, partition)
        while (found := self.broker.at(topic, partition, at)) is not None:
            record = found[1]
            if record.key == key and since_ms <= record.timestamp_ms <= until_ms:
                return record
            at = record.offset + 1
        return None
