"""Send queries at a rate, by kafka-python's idempotent producer."""

import time
from collections.abc import Callable, Sequence

import msgspec

from schemas.base import encode
from schemas.query import Query
from streams.runtime.kafka import connections
from streams.settings import Settings
from streams.topics import Topics


class Pace(msgspec.Struct, frozen=True):
    """How fast: records per second, 0 for as fast as the broker takes them; or the second of each record."""

    per_s: float = 0.0
    at_s: tuple[float, ...] = ()

    def due_s(self, index: int) -> float:
        """Return when record `index` is due, in seconds after the first."""
        if self.at_s:
            return self.at_s[index]
        return index / self.per_s if self.per_s > 0 else 0.0


def send_queries(
    settings: Settings, queries: Sequence[Query], pace: Pace, progress: Callable[[int], None] = lambda n: None
) -> None:
    """Send queries in order and wait until the broker has all of them.

    Raises:
        RecordTooLarge: one does not fit; nothing has been sent then.
        KafkaError: one was refused.
    """
    values = [(query.query_id.encode(), encode(query)) for query in queries]
    extra = {"batch_size": 0} if settings.max_batch_bytes <= 1 else {}
    producer = connections.producer(settings, **extra)
    topic = Topics(settings).query
    try:
        began = time.monotonic()
        pending = []
        for index, (key, value) in enumerate(values):
            wait_s = pace.due_s(index) - (time.monotonic() - began)
            if wait_s > 0:
                time.sleep(wait_s)
            pending.append(producer.send(topic, key=key, value=value))
            if extra:
                pending[-1].get(timeout=30)  # one record a batch
            progress(index + 1)
        for delivery in pending:
            delivery.get(timeout=60)
    finally:
        producer.close()
