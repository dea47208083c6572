"""Read single records by topic, partition and offset, and send them again unchanged."""

from types import TracebackType
from typing import Any, Self

from kafka import TopicPartition

from streams.runtime.kafka.clients import connections
from streams.settings import Settings

_SEND_S = 30.0
_POLLS = 20


class Again:
    """Sends records again. Use it as a context manager.

    Raises:
        BrokerUnreachable: no broker answers.
    """

    def __init__(self, settings: Settings) -> None:
        self._reader = connections.consumer(settings)
        self._producer = connections.producer(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._producer.close()
        self._reader.close()

    def send(self, topic: str, partition: int, offset: int) -> bool:
        """Send one record again and wait for its delivery; return False if the topic no longer holds it."""
        record = self._at(TopicPartition(topic, partition), offset)
        if record is None:
            return False
        self._producer.send(record.topic, key=record.key, value=record.value).get(timeout=_SEND_S)
        return True

    def _at(self, tp: TopicPartition, offset: int) -> Any:
        self._reader.assign([tp])
        if not self._reader.beginning_offsets([tp])[tp] <= offset < self._reader.end_offsets([tp])[tp]:
            return None
        self._reader.seek(tp, offset)
        for _ in range(_POLLS):
            for record in self._reader.poll(timeout_ms=500, max_records=1).get(tp, []):
                return record if record.offset == offset else None
        return None
