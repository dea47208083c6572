"""Keyed queues between partitions and handlers. They decide what runs concurrently and which offsets are committed.

One query's records are handled one after another, whichever of the service's topics they come from. Records of
different queries are handled concurrently, even within a partition: partitions spread the work over workers and do
not limit concurrency. A record without a readable query id has its own queue. Topics whose records must be handled in
order are handled in batches, and have one queue for each partition.

Handlers therefore finish out of order. `Offsets` commits up to the lowest open record of a partition and tracks the
handled records above it, which are redelivered after a crash. `WINDOW` limits how many of these there can be.

Both runtimes use this module; it depends on neither.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Protocol

from schemas.record import quick_id
from streams.log.base import ConsumerRecord
from streams.runtime.runtime import Binding

WINDOW = 8
"""Limit on the records delivered from a partition's lowest open record onwards, as a multiple of the concurrency."""


class AbandonedRecord(RuntimeError):
    """A handler was cancelled for an unknown reason. Its record is not handled, and is redelivered after a restart."""


class Offsets:
    """Tracks which records of one partition were delivered, and the offset below which all have been handled.

    >>> offsets = Offsets()
    >>> for offset in (5, 6, 7):
    ...     offsets.delivered(offset)
    >>> offsets.handled(6)
    >>> offsets.take()
    >>> offsets.handled(5)
    >>> offsets.take()
    7
    """

    def __init__(self) -> None:
        self._order: deque[int] = deque()  # from the lowest open record onwards, including handled ones
        self._done: set[int] = set()
        self._newest = -1
        self._next: int | None = None
        self.count = 0
        """Number of records handled so far."""

    def delivered(self, offset: int) -> None:
        """Mark a record as open. This has no effect if the record is already open or handled."""
        if offset > self._newest:
            self._newest = offset
            self._order.append(offset)

    def handled(self, offset: int) -> None:
        """Close a record. This has no effect if the record is already closed, or was not delivered here."""
        order, done = self._order, self._done
        if not order or offset < order[0] or offset > self._newest or offset in done:
            return
        self.count += 1
        done.add(offset)
        while order and order[0] in done:
            done.remove(order[0])
            self._next = order.popleft() + 1

    def start(self, committed: int) -> None:
        """Start at the group's committed offset: every earlier record has been handled, here or elsewhere."""
        while self._order and self._order[0] < committed:
            self._done.discard(self._order.popleft())
        self._newest = max(self._newest, committed - 1)

    @property
    def next(self) -> int:
        """The lowest offset the next record can have: one past the newest delivered, or the start offset."""
        return self._newest + 1

    @property
    def open(self) -> int:
        """Number of records delivered but not yet handled."""
        return len(self._order) - len(self._done)

    @property
    def span(self) -> int:
        """Number of records delivered from the lowest open record onwards, whether handled or not."""
        return len(self._order)

    @property
    def moved(self) -> bool:
        """Whether there is an offset to commit."""
        return self._next is not None

    def take(self) -> int | None:
        """Return the offset to commit, or None if it has not advanced since the last call."""
        offset, self._next = self._next, None
        return offset


class Watch(Protocol):
    """Receives the queues' events."""

    def handled(self, records: Sequence[ConsumerRecord]) -> None:
        """Mark records as handled."""

    def failed(self, error: Exception) -> None:
        """Note that a handler raised an error. Its record stays open, and later records of its queue stay unhandled."""


class _Open:
    """A handler call in progress."""

    __slots__ = ("began_s", "moved", "records", "task")

    def __init__(self, records: Sequence[ConsumerRecord], task: "asyncio.Task[None]", began_s: float) -> None:
        self.records = records
        self.task = task
        self.began_s = began_s
        self.moved = False


class Queues:
    """All queues of one worker, and the tasks that handle their records, at most `concurrency` at a time.

    If handlers wait for other queries, up to `WINDOW * concurrency` calls per partition may run at a time, one for each
    delivered record. Calls that have released their slots are not included in either limit.

    Args:
        watch: Receives events.
        concurrency: Maximum number of calls in progress.
    """

    def __init__(self, watch: Watch, concurrency: int) -> None:
        self._watch = watch
        self._concurrency = concurrency
        self._most = concurrency
        self._released = 0
        self._waits = set[tuple[str, int]]()  # partitions whose handlers wait for other queries
        # A key is in `_waiting` while its queue has waiting records or a call in progress, and in `_ready` while it
        # has waiting records but no call.
        self._waiting: dict[Hashable, deque[tuple[Binding, ConsumerRecord]]] = {}
        self._ready: deque[Hashable] = deque()
        self._open: dict[Hashable, _Open] = {}  # in the order in which the calls started
        self._runners: set[asyncio.Task[None]] = set()

    def put(self, binding: Binding, record: ConsumerRecord) -> None:
        """Add a record; it is handled after all earlier records with the same key."""
        if binding.waits and (place := _place(record)) not in self._waits:
            self._waits.add(place)
            self._most = WINDOW * self._concurrency * len(self._waits)
        if binding.ordered:
            key: Hashable = (record.topic, record.partition)
        else:
            key = quick_id(record.value) or (record.topic, record.partition, record.offset)
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque(((binding, record),))
            self._ready.append(key)
            self._start()
        else:
            waiting.append((binding, record))

    @property
    def busy(self) -> int:
        """Number of calls in progress."""
        return len(self._open)

    @property
    def idle(self) -> bool:
        """Whether no record waits and no call is in progress."""
        return not self._waiting

    def oldest(self) -> tuple[ConsumerRecord, float] | None:
        """Return the first record of the longest-running call, and how many seconds the call has run; None if idle."""
        for each in self._open.values():
            return each.records[0], asyncio.get_running_loop().time() - each.began_s
        return None

    @contextlib.contextmanager
    def release_slot(self) -> Iterator[None]:
        """Let another call start while this one waits."""
        self._released += 1
        self._start()
        try:
            yield
        finally:
            self._released -= 1

    def forget(self) -> None:
        """Drop the waiting records, which will be redelivered. Calls in progress continue."""
        self._ready.clear()
        self._waiting = {key: deque() for key in self._waiting if key in self._open}

    def keep(self, partitions: Collection[tuple[str, int]]) -> None:
        """Drop the waiting records of all other partitions, and cancel calls that are handling such records."""
        self._waits.intersection_update(partitions)
        for key, waiting in list(self._waiting.items()):
            kept = [each for each in waiting if _place(each[1]) in partitions]
            self._waiting[key] = deque(kept)
            if not kept and key not in self._open:
                del self._waiting[key]
                self._ready.remove(key)
        for each in list(self._open.values()):
            if not all(_place(record) in partitions for record in each.records):
                each.moved = True
                each.task.cancel()

    @property
    def tasks(self) -> "set[asyncio.Task[None]]":
        """The tasks that are handling records."""
        return set(self._runners)

    def _start(self) -> None:
        if self._ready and len(self._runners) < self._most + self._released:
            task = asyncio.get_running_loop().create_task(self._run())
            self._runners.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._runners.discard(task)
        self._start()

    async def _run(self) -> None:
        """Handle records one after another while any are waiting; a task per record would cost more."""
        while self._ready:
            key = self._ready.popleft()
            waiting = self._waiting[key]
            binding, record = waiting.popleft()
            records = [record]
            while waiting and len(records) < binding.most and waiting[0][0] is binding:
                records.append(waiting.popleft()[1])
            task = asyncio.current_task()
            assert task is not None
            now = self._open[key] = _Open(records, task, asyncio.get_running_loop().time())
            try:
                await binding.handle(records)
                self._watch.handled(records)
            except asyncio.CancelledError:
                if not now.moved:
                    self._watch.failed(AbandonedRecord(f"{record.coordinates}: its handler was cancelled"))
                    raise
            except Exception as error:
                self._watch.failed(error)
                return
            del self._open[key]
            if self._waiting[key]:
                self._ready.append(key)
            else:
                del self._waiting[key]
            if len(self._runners) > self._most + self._released:
                return  # another task started while this one had released its slot
            if now.moved:
                return  # this task was cancelled, whether or not its handler noticed


def _place(record: ConsumerRecord) -> tuple[str, int]:
    return record.topic, record.partition
