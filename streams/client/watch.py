"""Watch topics from now on by kafka-python: who is answered, whose reward is closed, and what was said."""

import time
from collections.abc import Sequence
from typing import Any

from streams.client.ledger import Ledger
from streams.runtime.kafka import connections
from streams.settings import Settings
from streams.topics import Topics


class Watch:
    """A reader at the end of some topics that files what it sees in a ledger.

    Args:
        settings: Where.
        names: The topics.
        tail: Take up to so many records a partition from before now, too.
    """

    def __init__(self, settings: Settings, names: Sequence[str], tail: int = 0) -> None:
        self.topics = Topics(settings)
        self.ledger = Ledger()
        self.answered: set[str] = set()
        self.closed: set[str] = set()
        self._last = time.monotonic()
        self._reader: Any = connections.at_end(settings, names, tail)

    def catch_up(self) -> None:
        """Take everything that is there now."""
        ends = self._reader.end_offsets(list(self._reader.assignment()))
        while any(self._reader.position(tp) < end for tp, end in ends.items()):
            self.poll(200)

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
