"""Watch topics from now on by kafka-python: who is answered, whose reward is closed, and what was said."""

import time
from collections.abc import Sequence
from typing import Any

from kafka import TopicPartition

from streams import clients
from streams.ledger import Ledger
from streams.settings import Settings
from streams.topics import Topics


class Watch:
    """A reader at the end of some topics that files what it sees in a ledger."""

    def __init__(self, settings: Settings, names: Sequence[str]) -> None:
        self.topics = Topics(settings)
        self.ledger = Ledger()
        self.answered: set[str] = set()
        self.closed: set[str] = set()
        self._last = time.monotonic()
        self._reader: Any = clients.consumer(settings)
        parts = [
            TopicPartition(n, p) for n in names for p in sorted(self._reader.partitions_for_topic(n) or ())
        ]
        if not parts:
            raise LookupError(f"{names[0]}: the topic does not exist; run `python -m streams topics create`")
        self._reader.assign(parts)
        self._reader.seek_to_end(*parts)
        for tp in parts:
            self._reader.position(tp)

    def poll(self, timeout_ms: int) -> int:
        """Take what has come and return how many records that was."""
        taken = 0
        for records in self._reader.poll(timeout_ms=timeout_ms).values():
            for record in records:
                taken += 1
                self.ledger.add(self.topics, record)
        if taken:
            self._last = time.monotonic()
            self.answered = {q for q, s in self.ledger.stories.items() if s.answers}
            self.closed = {q for q, s in self.ledger.stories.items() if s.closing}
        return taken

    def idle_s(self) -> float:
        """Return for how long nothing has come."""
        return time.monotonic() - self._last

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()
