"""The raw topics: where they begin and end, and the records in between, one partition after the other.

`Log` is the interface: `BrokerLog` reads from a broker, and a test passes lists. Reading a record takes bounded memory
whatever bytes it holds, and a value that cannot be read is None.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

import orjson
import zstandard
from kafka import KafkaConsumer, TopicPartition

from streams.runtime.kafka.clients import connections
from streams.settings import Settings

MAX_PLAIN: Final = 16 * 1024 * 1024
"""Most bytes of a decompressed zstd frame, twice what the product writes: a hostile frame must not fill the memory."""

# In one record, twice what a room reads: millions of empty lists take seconds each.
_MOST_VALUES: Final = 256 * 1024
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_STALLED_S: Final = 30.0

Part = tuple[str, int]
"""Topic and partition."""


class Raw(NamedTuple):
    """One record as the broker stores it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class Span(NamedTuple):
    """The offsets that a partition holds, from `begin` up to but excluding `end`."""

    begin: int
    end: int


class Log(Protocol):
    """The topics of one deployment, read only."""

    def spans(self, topics: Iterable[str]) -> dict[Part, Span]:
        """Return the offsets that each partition holds now. A topic that does not exist has no partitions."""

    def read(self, part: Part, span: Span) -> Iterator[Raw]:
        """Yield the records of a span in offset order. Compaction may have left gaps."""


class BrokerStalled(LookupError):
    """A partition returned no more records before its end was reached."""


class BrokerLog:
    """The topics on a broker, read by a consumer without a group, so that no other reader is affected.

    It reads committed records only.
    """

    def __init__(self, settings: Settings) -> None:
        self._reader: KafkaConsumer = connections.consumer(
            settings,
            fetch_max_bytes=settings.kafka.max_record_bytes + 65_536,
            max_poll_records=2_000,
        )

    def spans(self, topics: Iterable[str]) -> dict[Part, Span]:
        """Return the offsets that each partition holds now, reading them in the order of the topics."""
        found: dict[Part, Span] = {}
        for topic in topics:
            parts = [TopicPartition(topic, p) for p in sorted(self._reader.partitions_for_topic(topic) or ())]
            if not parts:
                continue
            ends: Mapping[TopicPartition, int] = self._reader.end_offsets(parts)
            begins: Mapping[TopicPartition, int] = self._reader.beginning_offsets(parts)
            found |= {(tp.topic, tp.partition): Span(begins[tp], ends[tp]) for tp in parts}
        return found

    def read(self, part: Part, span: Span) -> Iterator[Raw]:
        """Yield the records of a span.

        Raises:
            BrokerStalled: no record arrived for half a minute.
        """
        if span.begin >= span.end:
            return
        tp = TopicPartition(*part)
        self._reader.assign([tp])
        self._reader.seek(tp, span.begin)
        at, since_s = span.begin, time.monotonic()
        while at < span.end:
            for records in self._reader.poll(timeout_ms=500).values():
                for r in records:
                    if r.offset < span.end:
                        yield Raw(r.offset, r.timestamp, r.key, r.value)
            if (now_at := self._reader.position(tp)) > at:
                at, since_s = now_at, time.monotonic()
            elif time.monotonic() - since_s > _STALLED_S:
                raise BrokerStalled(
                    f"{part[0]}/{part[1]}: no record after offset {at} of {span.end}; try again"
                )

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()


class Plain:
    """Decodes values to plain JSON objects."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor(max_window_size=MAX_PLAIN)

    def __call__(self, value: bytes | None) -> dict[str, Any] | None:
        """Return the JSON object in a value, compressed or not; None for a value that is not an object."""
        if not value:
            return None
        try:
            if value.startswith(_ZSTD_MAGIC):
                if not 0 <= zstandard.frame_content_size(value) <= MAX_PLAIN:
                    return None
                value = self._zstd.decompress(value)
            if _is_crowded(value):
                return None
            found = orjson.loads(value)
        except (orjson.JSONDecodeError, zstandard.ZstdError):
            return None
        return found if isinstance(found, dict) else None


def _is_crowded(value: bytes) -> bool:
    """Return whether a JSON text holds too many values, by its commas and brackets outside strings."""
    marks = (b",", b"[", b"{")
    if sum(map(value.count, marks)) <= _MOST_VALUES:
        return False
    bare = _STRINGS.sub(b"", value)
    return sum(map(bare.count, marks)) > _MOST_VALUES
