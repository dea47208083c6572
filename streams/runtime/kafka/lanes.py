"""From the fetcher to the handlers: for each partition a lane, in which records wait and are handled in their order.

faust makes an event of each record, puts it into the queue of a stream, and counts references until all who have seen
it acknowledge. Here a record is put into its lane, a task drains the lane for as long as there is something in it,
and what a handler has returned from is handled. A lane has no task while it is empty.

Knows no Kafka: `consumer.py` feeds the lanes and asks them to hold on, to forget and to end.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

Handle = Callable[[Sequence[Any]], Awaitable[None]]


class Watch(Protocol):
    """Who is told what happens in the lanes."""

    busy: int
    moved: int

    def handled(self, partition: Any, records: Sequence[Any]) -> None:
        """Take note that these were handled to their end. Raises what ends the lane."""

    def failed(self, error: Exception) -> None:
        """Take note that a handler raised: its record is not handled, and its lane goes no further."""

    def has_room(self, partition: Any) -> None:
        """Take note that a lane that was full has room again."""


class Lane:
    """One partition: what waits, and the task that handles it, at most `most` records in one call."""

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
        """Add a record; it is handled after all that were added before."""
        self.waiting.append(record)
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._drain())
        if len(self.waiting) >= self.limit:
            self.full = True

    def forget(self) -> None:
        """Let go of what waits: it will come again. What is in hand goes on to its end."""
        self.waiting.clear()
        self.full = False

    def end(self) -> None:
        """Let go of everything: the partition is another's now."""
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
            return  # and the task stays: nothing here goes past what failed
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
        """Let go of what waits in all lanes."""
        for lane in self._lanes.values():
            lane.forget()

    def keep(self, partitions: Iterable[Any]) -> None:
        """End the lanes of all other partitions."""
        for partition in self._lanes.keys() - set(partitions):
            self._lanes.pop(partition).end()
