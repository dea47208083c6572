"""Topics as lists, behind the seam of the audit, and ways to forge what is on them."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from schemas.record import Record, decode, encode
from schemas.reward import Reward
from streams.audit.reading import Raw, Span
from streams.audit.run import Report, audit
from streams.settings import Settings
from streams.topics import Topics

History = tuple[Settings, dict[tuple[str, int], list[Raw]]]
"""Settings, and the records of a deployment by topic and partition."""


class TopicLists:
    """Topics as lists of records, which the audit reads and a forger changes."""

    def __init__(self, settings: Settings, records: Mapping[tuple[str, int], list[Raw]]) -> None:
        self.settings, self.topics = settings, Topics(settings)
        self.records = {part: list(raws) for part, raws in records.items()}
        self.begins: dict[tuple[str, int], int] = {}

    def spans(self, topics: Iterable[str]) -> dict[tuple[str, int], Span]:
        wanted = list(topics)
        found = {
            part: Span(self.begins.get(part, 0), raws[-1].offset + 1 if raws else 0)
            for part, raws in self.records.items()
            if part[0] in wanted
        }
        return found

    def read(self, part: tuple[str, int], span: Span) -> Iterator[Raw]:
        yield from (raw for raw in self.records[part] if span.begin <= raw.offset < span.end)

    @property
    def learner(self) -> str:
        return self.topics.changelog("decider", "pending")

    @property
    def join(self) -> str:
        return self.topics.changelog("aggregator", "join")

    def append(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        raws = self.records.setdefault((topic, 0), [])
        offset = raws[-1].offset + 1 if raws else 0
        raws.append(Raw(offset, int(time.time() * 1000), key, value))

    def put(self, topic: str, key: str, record: Record) -> None:
        self.append(topic, key.encode(), encode(record))

    def find(self, topic: str, kind: type[Any], query_id: str) -> Any:
        return next(r for r in self.all(topic, kind) if r.query_id == query_id)

    def all(self, topic: str, kind: type[Any]) -> list[Any]:
        return [decode(raw.value, kind) for raw in self.records[topic, 0]]

    def change(self, topic: str, kind: type[Any], query_id: str, /, **fields: Any) -> None:
        """Replace fields of every record of a query in place."""
        raws = self.records[topic, 0]
        for at, raw in enumerate(raws):
            record = decode(raw.value, kind)
            if record.query_id == query_id:
                raws[at] = raw._replace(value=encode(msgspec.structs.replace(record, **fields)))

    def change_kind(self, query_id: str, kind: str, /, **fields: Any) -> None:
        """Replace fields of the one Reward of a kind in place."""
        raws = self.records[self.topics.reward, 0]
        for at, raw in enumerate(raws):
            reward = decode(raw.value, Reward)
            if (reward.query_id, reward.kind) == (query_id, kind):
                raws[at] = raw._replace(value=encode(msgspec.structs.replace(reward, **fields)))

    def cut(self, topic: str, keep: Callable[[Raw], bool]) -> None:
        """Leave records out, as if they had never been."""
        self.records[topic, 0] = [raw for raw in self.records[topic, 0] if keep(raw)]

    def cut_before(self, topic: str, offset: int) -> None:
        """Let retention remove what lies before an offset."""
        self.cut(topic, lambda raw: raw.offset >= offset)
        self.begins[topic, 0] = offset

    def close(self) -> None:
        """Nothing is open."""

    def audit(self, **fields: Any) -> Report:
        return audit(self, self.settings.replace(**fields))
