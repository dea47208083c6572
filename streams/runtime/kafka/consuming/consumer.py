"""Kafka consumer that never commits past an unhandled record. faust's own consumer can.

faust seeks and clears its queues while the fetcher keeps running. Records fetched before a seek can therefore be
delivered after it, records fetched during a pause or at the end of a generation are dropped while the position
advances, and a topic without a committed offset is never seeked at all. Each case ends in a commit past an unhandled
record. So here:

- The consumer records which offset is *due* in each partition and hands over only that one. If the fetcher is past
  it, the consumer seeks back. If the same later record then arrives again, no record lies in between.
- Nothing is handed over between a seek to the committed offsets and the clearing of the queues that follows it.
- An offset is committed only if every record below it has been handled. If a handler skips one, the process ends.

Records go straight into the lanes of their topic (`lanes.py`) and from there to the handlers, without faust's events,
streams, queues and reference counts. The changelogs that faust recovers still go through faust.
"""

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aiokafka.errors import ConsumerStoppedError, IllegalStateError
from faust.exceptions import ConsumerNotStarted
from faust.transport.drivers import aiokafka

from streams.runtime.kafka.consuming.in_loop import InLoop
from streams.runtime.kafka.consuming.lanes import Lane, Lanes
from streams.runtime.kafka.consuming.offsets import Course, Offsets
from streams.runtime.kafka.writing.fence import Fence
from streams.runtime.records import Record

# How long records in flight may continue when a room stops or loses partitions; longer work is repeated elsewhere.
SETTLE_S = 3.0

# How long to wait for records while partitions are assigned and tables recovered: which ones are wanted changes soon.
_MOVING_S = 0.05


class Consumer(aiokafka.Consumer):
    """faust's consumer with our own hand-over and offset bookkeeping; see the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._offsets: defaultdict[Any, Offsets] = defaultdict(Offsets)
        self._courses: dict[Any, Course] = {}
        self._lanes: dict[str, Lanes] = {}
        self.fences: dict[str, Fence] = {}
        """By changelog, the right to write it, for tables with a single writer (`writing/fenced.py`)."""
        self._may_hand_over = asyncio.Event()
        self._may_hand_over.set()
        self._epoch = 0
        # The epoch of the last assignment; the present one is newer while partitions are being reassigned.
        self._assigned_epoch = -1
        self.busy = 0
        """Number of tasks in progress: records in flight, tables being recovered."""
        self.moved = 0
        """Counts records handed over or read, and tasks finished: while it does not change, nothing progresses."""

    def _new_consumer_thread(self) -> InLoop:
        return InLoop(self, loop=self.loop, beacon=self.beacon)

    def bind(self, topic: str, lanes: Lanes) -> None:
        """Hand over the records of a topic to these lanes."""
        self._lanes[topic] = lanes

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Count as busy: a rebalance waits briefly for this work to finish before partitions move."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.moved += 1

    def is_ours(self, epoch: int) -> bool:
        """Return whether a record handed over in this epoch still belongs to this worker; if not, it is redelivered."""
        return epoch == self._epoch

    async def settled(self) -> int:
        """Wait while partitions are being reassigned, and return the epoch of the assignment."""
        await wait_while(lambda: self._assigned_epoch != self._epoch, math.inf)
        return self._epoch

    def handled(self, partition: Any, records: Sequence[Any]) -> None:
        """Mark records as handled. This has no effect on records whose partition has moved: they are redelivered.

        Raises:
            SkippedRecord: an earlier record was handed over but not handled.
        """
        for record in records:
            if record.epoch == self._epoch:
                self._offsets[partition].handled(record.offset)
        self._n_acked += len(records)
        if self._commit_every is not None and self._n_acked >= self._commit_every:
            self._n_acked = 0
            self._committing = self.loop.create_task(self.commit())

    def failed(self, error: Exception) -> None:
        """End the process before an offset moves past the record."""
        app: Any = self.app
        app.fail(error)

    def has_room(self, partition: Any) -> None:
        """Resume fetching a partition."""
        with contextlib.suppress(IllegalStateError, AssertionError, ConsumerNotStarted):  # it moves elsewhere
            self._thread._ensure_consumer().resume(partition)

    async def perform_seek(self) -> None:
        """Seek to the committed offsets, or to the beginning, and hand over nothing until the queues are cleared."""
        self._may_hand_over.clear()
        epoch = self._epoch
        for tp in [tp for tp in self._courses if not self._is_changelog_tp(tp)]:
            del self._courses[tp]
        found = await self.seek_to_committed()
        ends = await self.highwaters(*found)
        # If the log now ends before the committed offset, reading restarts at its beginning.
        committed = {tp: offset for tp, offset in found.items() if offset and offset <= (ends.get(tp) or 0)}
        new = [tp for tp in found if tp not in committed and not self._is_changelog_tp(tp)]
        if new:
            await self.seek_wait(await self.earliest_offsets(*new))
        if not self.is_ours(epoch):
            return  # the partitions are moving elsewhere: without a course nothing is handed over
        for tp, offset in committed.items():
            self._courses[tp] = Course(offset)
            self._offsets[tp].start(offset)
        self._committed_offset.update(committed)

    async def highwaters(self, *partitions: Any) -> Mapping[Any, int]:
        """Return where partitions end. For tables that recover by themselves, say that faust has nothing to recover."""
        found = dict(await super().highwaters(*partitions))
        if apart := [tp for tp in partitions if tp.topic in self.fences]:
            found |= await self.earliest_offsets(*apart)
        return found

    async def seek_wait(self, partitions: Mapping[Any, int]) -> None:
        """Seek to these offsets. They count as due at once, so records fetched before the seek are fetched again."""
        self._courses.update({tp: Course(offset) for tp, offset in partitions.items()})
        await super().seek_wait(partitions)

    def resume_flow(self) -> None:
        """Hand over records again: faust has cleared the queues."""
        super().resume_flow()
        self._may_hand_over.set()

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        """Wait briefly for records in flight, then forget partitions that may move to another worker."""
        if revoked:
            self.stop_flow()
            self.app.flow_control.suspend()
            self.app.flow_control.clear()
            for lanes in self._lanes.values():
                lanes.forget()
        await wait_while(lambda: self.busy, SETTLE_S)
        self._epoch += 1
        self._buffered_partitions.clear()
        await super().on_partitions_revoked(revoked)
        for tp in revoked:
            self._offsets.pop(tp, None)
            self._courses.pop(tp, None)

    async def on_partitions_assigned(self, assigned: set[Any], generation_id: int = 0) -> None:
        """Stop work on partitions that have moved to another worker; take or release rights to write."""
        for lanes in self._lanes.values():
            lanes.keep(assigned)
        topics = {tp.topic for tp in assigned}
        try:
            for fence in self.fences.values():
                await (fence.take() if fence.topic in topics else fence.release())
        except Exception as error:  # aiokafka would log it and continue
            self.failed(error)
        await super().on_partitions_assigned(assigned, generation_id)
        self._assigned_epoch = self._epoch

    async def _drain_messages(self, fetcher: Any) -> None:
        """Hand over what the fetcher returns, until it is stopped."""
        try:
            while not (self.should_stop or fetcher.should_stop):
                await asyncio.sleep(0)
                if (
                    (moving := self.app.rebalancing)
                    and self.flow_active
                    and not self._get_active_partitions()
                ):
                    await asyncio.sleep(_MOVING_S)  # faust would look again after a second
                    continue
                records, active = await self._wait_next_records(_MOVING_S if moving else 1.0)
                for tp, batch in (records or {}).items():
                    if not await self._hand_over(tp, batch, active) and (course := self._courses.get(tp)):
                        with contextlib.suppress(IllegalStateError, AssertionError):  # it moves elsewhere
                            await self._thread.seek_wait({tp: course.due})
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.app.should_stop:
                raise

    async def _hand_over(self, tp: Any, batch: Sequence[Any], active: set[Any] | None) -> bool:
        """Hand over a batch of one partition; return False if part of it must be fetched again."""
        generation = self.app.consumer_generation_id
        if not self._may_hand_over.is_set():
            await self._may_hand_over.wait()
        if lanes := self._lanes.get(tp.topic):
            if self.app.consumer_generation_id != generation:
                return False
            return self._into_lane(lanes.of(tp, self), batch, active)
        if not self._is_changelog_tp(tp):
            return False  # its agent has not bound its lanes yet
        after: int | None = None
        for record in batch:
            if not self._may_hand_over.is_set():
                await self._may_hand_over.wait()
            course = self._courses.get(tp)
            if (
                course is None
                or not self.flow_active
                or self.app.consumer_generation_id != generation
                or not (active is None or tp in active or tp in self._buffered_partitions)
            ):
                return False
            if record.offset < course.due:
                continue  # fetched again
            if not course.follows(record.offset, after):
                return False
            after = course.due
            self.moved += 1
            await self.callback(self._to_message(tp, record))
        return True

    def _into_lane(self, lane: Lane, batch: Sequence[Any], active: set[Any] | None) -> bool:
        """Hand over a batch without awaiting in between, so that what holds for its first record holds for all."""
        tp = lane.partition
        course = self._courses.get(tp)
        if (
            course is None
            or not self.flow_active
            or not (active is None or tp in active or tp in self._buffered_partitions)
        ):
            return False
        offsets, epoch, (topic, partition) = self._offsets[tp], self._epoch, tp
        after: int | None = None
        for record in batch:
            offset = record.offset
            if offset < course.due:
                continue  # fetched again
            if not course.follows(offset, after):
                return False
            after = course.due
            self.moved += 1
            offsets.handed_over(offset)
            lane.put(Record(topic, partition, offset, record.timestamp or 0, record.key, record.value, epoch))
        if lane.full:
            self._thread._ensure_consumer().pause(tp)
        return True

    # Commits follow our own bookkeeping. faust would log a table of the offsets each time, flush a producer that holds
    # nothing of ours, and rely on acknowledgements that nobody gives here.

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[Any]:
        asked = [tp for tp in self._offsets if topics is None or tp in topics or tp.topic in topics]
        return iter([tp for tp in asked if self._offsets[tp].next is not None])

    def _new_offset(self, tp: Any) -> int | None:
        return self._offsets[tp].take()

    async def _commit_offsets(self, offsets: Mapping[Any, int], start_new_transaction: bool = True) -> bool:
        assigned = self.assignment()
        ours = {tp: offset for tp, offset in offsets.items() if tp in assigned}
        if not ours or not await self._commit(ours):
            return False
        self._committed_offset.update(ours)
        return True

    async def verify_all_partitions_active(self) -> None:
        """Do nothing: faust would ask streams, which get no records here. `process/watch.py` detects a standstill."""


async def wait_while(busy: Callable[[], int], most_s: float) -> None:
    """Wait until nothing is in flight, at most `most_s` seconds."""
    time = asyncio.get_running_loop().time
    until = time() + most_s
    while busy() and time() < until:  # noqa: ASYNC110 - many handlers, one wait
        await asyncio.sleep(0.01)
