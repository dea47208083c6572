"""Follow what happens to queries: every record of some kinds, as it is appended, without committing anything."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from schemas.errors import UniscaleError
from streams.client.events import Event, Kind, event_of, topic_names
from streams.runtime.kafka.clients import connections
from streams.settings import Settings
from streams.topics import Topics

log = logging.getLogger("streams.client")


class Follower:
    """Iterator over the records of some kinds, from now on.

    It has no consumer group, so it takes nothing away from the rooms, and every follower sees every record. Records of
    one query and kind arrive in order; across kinds, the order is that of the broker's responses. Use a follower from
    one thread only.

    Args:
        settings: The deployment.
        kinds: What to follow, for instance `("decision", "step", "answer")`.
        groups: The executor groups, needed for `verification` only.
        tail: Also deliver up to this many earlier records of each partition; -1 delivers everything still kept.
        on_unreadable: Called with the topic/partition/offset of a record that cannot be decoded, and with the error;
            the default logs both. The record is skipped.

    Raises:
        BrokerUnreachable: no broker answers.
        UnknownTopic: none of the topics exists.

    Example:
        with client.follow("answer") as answers:
            for event in answers:
                print(event.query_id, event.record.status)
    """

    def __init__(
        self,
        settings: Settings,
        kinds: Iterable[Kind],
        *,
        groups: Iterable[str] = (),
        tail: int = 0,
        on_unreadable: Callable[[str, UniscaleError], None] | None = None,
    ) -> None:
        self._topics = Topics(settings)
        self._unreadable = on_unreadable or _warn
        self._heard = time.monotonic()
        names = topic_names(self._topics, kinds, groups)
        self._reader: Any = connections.at_end(settings, names, max(tail, 0))
        if tail < 0:
            self._reader.seek_to_beginning(*self._reader.assignment())

    def poll(self, timeout_s: float = 0.5) -> list[Event]:
        """Return the records that have arrived; wait up to `timeout_s` for the first."""
        found: list[Event] = []
        for records in self._reader.poll(timeout_ms=int(timeout_s * 1000)).values():
            for raw in records:
                self._heard = time.monotonic()
                try:
                    event = event_of(self._topics, raw)
                except UniscaleError as error:
                    self._unreadable(f"{raw.topic}/{raw.partition}/{raw.offset}", error)
                    continue
                if event is not None:
                    found.append(event)
        return found

    def catch_up(self) -> Iterator[Event]:
        """Yield everything up to the ends of the topics as they are now."""
        ends = self._reader.end_offsets(list(self._reader.assignment()))
        while any(self._reader.position(tp) < end for tp, end in ends.items()):
            yield from self.poll(0.2)

    def idle_s(self) -> float:
        """Return the seconds since the last record arrived."""
        return time.monotonic() - self._heard

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def __iter__(self) -> Iterator[Event]:
        while True:
            yield from self.poll(1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _warn(where: str, error: UniscaleError) -> None:
    log.warning("%s cannot be read: %s", where, error)
