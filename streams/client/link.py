"""What a Client's connections do: produce records in order and at a pace, and read what arrives from now on."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from schemas.base import encode
from schemas.query import Query
from streams.client.pace import Pace
from streams.runtime.kafka.clients import connections
from streams.settings import Settings
from streams.topics import Topics

SEND_S = 60.0
"""Seconds after which a record that the broker has not confirmed counts as lost."""


class Link:
    """One producer, shared by threads, and the consumers of what arrives; each is connected on first use.

    Args:
        settings: The deployment.
        topics: Its topics.

    Raises:
        BrokerUnreachable: on first use, when no broker answers.
        UnknownTopic: on first use, when the deployment's topics do not exist.
    """

    def __init__(self, settings: Settings, topics: Topics) -> None:
        self.settings = settings
        self.topics = topics
        self._producer: Any = None
        self._readers: dict[bool, Any] = {}
        self._opening = threading.Lock()

    def send(
        self,
        queries: Sequence[Query],
        pace: Pace,
        progress: Callable[[int], None],
        wait: Callable[[float], None],
    ) -> None:
        """Produce queries in order and return when the broker has stored all of them.

        Args:
            queries: What to send. Every record is encoded before the first is sent.
            pace: When each is due.
            progress: Called with the number sent so far.
            wait: Called with the seconds until the next is due.
        """
        values = [(query.query_id.encode(), encode(query)) for query in queries]
        began = time.monotonic()
        pending = []
        for index, (key, value) in enumerate(values):
            while (left_s := pace.due_s(index) - (time.monotonic() - began)) > 0:
                wait(left_s)
            pending.append(self.produce(self.topics.query, key, value))
            progress(index + 1)
        for delivery in pending:
            delivery.get(timeout=SEND_S)

    def produce(self, topic: str, key: bytes, value: bytes) -> Any:
        """Return the future of a record that is on its way; its `get(timeout=SEND_S)` waits for the broker."""
        with self._opening:
            if self._producer is None:
                # A producer waits a minute for a topic that does not exist, and does not say why.
                connections.require_topics(self.settings, [self.topics.query, self.topics.feedback])
                self._producer = connections.producer(self.settings)
            producer = self._producer
        return producer.send(topic, key=key, value=value)

    def at_the_end(self, rewards: bool) -> Any:
        """Return a consumer of the Answers and dead letters, and on request the rewards, that arrive from now on."""
        reader = self._readers.get(rewards)
        if reader is None:
            names = [self.topics.answer, self.topics.dead_letter, *([self.topics.reward] if rewards else [])]
            reader = self._readers[rewards] = connections.at_end(self.settings, names)
            return reader
        parts = list(reader.assignment())
        reader.seek_to_end(*parts)
        for tp in parts:
            reader.position(tp)  # the seek takes effect only when the position is read
        return reader

    def close(self) -> None:
        """Close the connections. Everything sent has been stored by then."""
        with self._opening:
            if self._producer is not None:
                self._producer.close()
            for reader in self._readers.values():
                reader.close()
            self._producer, self._readers = None, {}
