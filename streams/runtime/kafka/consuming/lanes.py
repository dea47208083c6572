"""Lanes from the fetcher to the handlers: one per partition, in which records wait and are handled in order.

faust wraps each record in an event, puts it into a stream's queue, and counts references until every reader has
acknowledged it. Here a record goes into its lane, and a task drains the lane until it is empty. A record is handled
once its handler has returned. An empty lane has no task.

This module does not depend on Kafka: `consumer.py` fills the lanes and calls them to forget records or to end.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

Handle = Callable[[Sequence[Any]], Awaitable[None]]


class Watch(Protocol):
    """Is notified of what happens in the lanes."""

    busy: int
    moved: int

    def handled(self, partition: Any, records: Sequence[Any]) -> None:
        """Mark records as handled. An exception ends the lane."""

    def failed(self, error: Exception) -> None:
        """Record that a handler raised: its record is not handled, and its lane stops there."""

    def has_room(self, partition: Any) -> None:
        """Record that a full lane has room again."""


class Lane:
    """One partition's waiting records and the task that handles them, at most `most` records per call."""

    __slots__ = ("_handle", "_most", "_watch", "full", "limit", "partition", "task", "waiting")

    def __init__(self, partition: Any, handle: Handle, watch: Watch, *, most: int, limit: int) -> None:
        self.partition = partition
        self.waiting: deque[Any] = deque()
        self.task: asyncio.Task[None] | None = None
        self.limit = limit
        self.full = False
        self._handle = handle
        self._watch = watch
        self._most = most

    def put(self, record: Any) -> None:
        """Add a record; it is handled after all earlier ones."""
        self.waiting.append(record)
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._drain())
        if len(self.waiting) >= self.limit:
            self.full = True

    def forget(self) -> None:
        """Drop the waiting records, which will be redelivered. Records in flight finish."""
        self.waiting.clear()
        self.full = False

    def end(self) -> None:
        """Drop everything: another worker owns the partition now."""
        self.forget()
        if self.task is not None:
            self.task.cancel()

    async def _drain(self) -> None:
        waiting, watch, most = self.waiting, self._watch, self._most
        try:
            while waiting:
                if most == 1:
                    records = (waiting.popleft(),)
                else:
                    records = tuple(waiting.popleft() for _ in range(min(most, len(waiting))))
                watch.busy += len(records)
                try:
                    await self._handle(records)
                finally:
                    watch.busy -= len(records)
                    watch.moved += 1
                watch.handled(self.partition, records)
                if self.full and 2 * len(waiting) <= self.limit:
                    self.full = False
                    watch.has_room(self.partition)
        except Exception as error:
            watch.failed(error)
            return  # self.task stays set, so that nothing in this lane goes past the failed record
        except asyncio.CancelledError:
            self.task = None
            raise
        self.task = None


class Lanes:
    """The lanes of one topic."""

    def __init__(self, handle: Handle, *, most: int = 1, limit: int = 512) -> None:
        self._handle = handle
        self._most = most
        self._limit = limit
        self._lanes: dict[Any, Lane] = {}

    def of(self, partition: Any, watch: Watch) -> Lane:
        """Return the lane of a partition."""
        lane = self._lanes.get(partition)
        if lane is None:
            lane = Lane(partition, self._handle, watch, most=self._most, limit=self._limit)
            self._lanes[partition] = lane
        return lane

    def forget(self) -> None:
        """Drop the waiting records of all lanes."""
        for lane in self._lanes.values():
            lane.forget()

    def keep(self, partitions: Iterable[Any]) -> None:
        """End the lanes of all other partitions."""
        for partition in self._lanes.keys() - set(partitions):
            self._lanes.pop(partition).end()
