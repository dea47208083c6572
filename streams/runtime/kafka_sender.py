"""Writes a process's records, batched across handlers, and its table rows, and waits for both to be delivered."""

import asyncio
import functools
from collections.abc import Callable, Iterable
from typing import Any

import faust

from streams.log.base import Newer, replaces
from streams.log.pacing import Spacing
from streams.log.partitioner import partition_for

# faust recovers tables whose partitions are shared among workers. Tables with a single writer recover without faust
# (`FencedTable`).
#
# faust's `table[key] = value` discards the delivery future, so a row that the broker refused would be lost and the
# offset would be committed anyway. Rows are therefore written by `streams.runtime.table.Table`, which waits for the
# delivery.


class Changelogged(faust.Table[bytes, bytes]):
    """A faust table of bytes in memory, which faust rebuilds from its changelog."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.places: dict[bytes, int] = {}
        """The partition of each row."""
        self.newer: Newer | None = None
        self.late: set[bytes] = set()
        """Keys of rows whose last record was a late write by a worker that had lost the partition."""

    def apply_changelog_batch(self, batch: Iterable[Any]) -> None:
        """Apply recovered rows except late writes, and remember the partition of each row."""
        for event in batch:
            key, value = event.message.key, event.message.value
            if not replaces(self.data.get(key), value, self.newer):
                self.late.add(key)
                continue
            self.late.discard(key)
            super().apply_changelog_batch([event])
            self.places[key] = event.message.partition


# All handlers share one producer, so their records share requests, and each batch in a request is acknowledged once.
#
# aiokafka's `send` takes about 30 µs per record because it builds sets of all partitions, hashes the key in Python,
# and creates a future for each record. Here records wait for the next send and go into one batch per partition, and a
# call returns when the batches containing its records are acknowledged. A partition has only one batch in flight at a
# time, so its records keep their order, even through retries.


class _Call:
    """A call to `send`, with the number of its records that have yet to be acknowledged."""

    __slots__ = ("future", "left")

    def __init__(self, future: "asyncio.Future[None]", left: int) -> None:
        self.future = future
        self.left = left

    def settle(self, error: BaseException | None) -> None:
        self.left -= 1
        if self.future.done():
            return  # one of its records has failed already, or the caller has gone
        if error is not None:
            self.future.set_exception(error)
        elif not self.left:
            self.future.set_result(None)


_Entry = tuple[bytes | None, bytes | None, _Call]


class Sender:
    """Batches records to the broker across handlers.

    Args:
        producer: Returns the connected AIOKafkaProducer, or raises an error if there is none yet.
        pause_s: Seconds between two sends (`Spacing`). Records that did not fit into a full batch follow as soon as
            that batch is acknowledged.
    """

    def __init__(self, producer: Callable[[], Any], pause_s: float) -> None:
        self._producer = producer
        self._spacing = Spacing(pause_s)
        self._waiting: dict[tuple[str, int], list[_Entry]] = {}
        self._under_way: set[tuple[str, int]] = set()
        # Topics and partitions whose last batch was full. Their remaining records are sent without a pause.
        self._overfull: set[tuple[str, int]] = set()
        self._moment: asyncio.Handle | None = None
        self._posting: set[asyncio.Task[None]] = set()
        self._partitions: dict[str, int] = {}

    async def send(self, records: Iterable[tuple[str, int | None, bytes | None, bytes | None]]) -> None:
        """Send records and wait for all deliveries.

        Args:
            records: The topic, partition (None to derive it from the key), key and value of each record.

        Raises:
            Exception: whatever the producer raised for one of the records.
        """
        producer = self._producer()
        placed = []
        for topic, partition, key, value in records:
            if partition is None:
                count = self._partitions.get(topic) or await self._count(producer, topic)
                partition = partition_for(key, count)
            placed.append(((topic, partition), key, value))
        if not placed:
            return
        loop = asyncio.get_running_loop()
        call = _Call(loop.create_future(), len(placed))
        for place, key, value in placed:
            self._waiting.setdefault(place, []).append((key, value, call))
        self._soon(loop)
        await call.future

    async def _count(self, producer: Any, topic: str) -> int:
        # Read only once: if a topic grew while in use, later records of a query would go to a different partition.
        count = self._partitions[topic] = len(await producer.partitions_for(topic))
        return count

    def _soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._moment is None:
            wait_s = self._spacing.wait_s(loop.time())
            self._moment = (
                loop.call_later(wait_s, self._flush, loop)
                if wait_s > 0
                else loop.call_soon(self._flush, loop)
            )

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._moment = None
        self._spacing.done(loop.time())
        if ready := [place for place in self._waiting if place not in self._under_way]:
            self._start(ready, loop)

    def _start(self, places: list[tuple[str, int]], loop: asyncio.AbstractEventLoop) -> None:
        self._under_way.update(places)
        task = loop.create_task(self._post(places))
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)

    async def _post(self, places: list[tuple[str, int]]) -> None:
        for place in places:
            self._overfull.discard(place)
            entries = self._waiting.pop(place)
            taken = 0
            try:
                producer = self._producer()
                batch = producer.create_batch()
                for key, value, _ in entries:
                    if batch.append(key=key, value=value, timestamp=None) is None:
                        break
                    taken += 1
                if taken < len(entries):  # the rest goes into the next batch, ahead of later records
                    self._waiting[place] = entries[taken:]
                    self._overfull.add(place)
                topic, partition = place
                acknowledged = await producer.send_batch(batch, topic, partition=partition)
            except Exception as error:
                self._settle(place, entries[: taken or len(entries)], error)
            else:
                acknowledged.add_done_callback(functools.partial(self._delivered, place, entries[:taken]))

    def _delivered(self, place: tuple[str, int], entries: list[_Entry], acknowledged: Any) -> None:
        error = asyncio.CancelledError() if acknowledged.cancelled() else acknowledged.exception()
        self._settle(place, entries, error)

    def _settle(self, place: tuple[str, int], entries: list[_Entry], error: BaseException | None) -> None:
        self._under_way.discard(place)
        for _, _, call in entries:
            call.settle(error)
        if place in self._waiting:
            loop = asyncio.get_running_loop()
            if place in self._overfull:
                self._start([place], loop)
            else:
                self._soon(loop)
