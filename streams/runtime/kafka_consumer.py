"""A Kafka consumer that never commits past an unhandled record: fetching, delivery and offset commits."""

import asyncio
import contextlib
import fcntl
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, ConsumerStoppedError, IllegalStateError
from aiokafka.protocol.group import HeartbeatRequest, SyncGroupRequest
from faust.exceptions import ConsumerNotStarted
from faust.transport.drivers import aiokafka
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from kafka.errors import KafkaError
from mode.services import Service
from mode.utils.futures import maybe_async

from schemas.errors import UniscaleError
from streams.log import kafka_admin
from streams.log.base import ConsumerRecord, Unavailable
from streams.log.pacing import pace_fetches
from streams.runtime.errors import PartitionLost
from streams.runtime.kafka_transactions import Fence
from streams.runtime.queues import WINDOW, Offsets, Queues
from streams.runtime.runtime import Binding
from streams.settings import Settings

# Only one process may use an instance name. A second process is refused, or it takes over for good and the first one
# logs why it exits.
#
# Otherwise two processes with the same name would keep taking the partitions from each other, and neither would make
# progress: Kafka treats a static member that joins again as the successor of the first, and aiokafka joins as a new
# member when the broker no longer knows its member id.
#
# - If both processes have the same `state_dir`, the first keeps the name: it holds a lock on a file there until it
#   exits.
# - Otherwise the second takes the name. The first rejoins once under its old member id, which the broker refuses if
#   the name has passed to another member (KIP-345). The first then leaves a mark in its `state_dir` and exits. When it
#   is restarted, it waits until the other process has left the group, and gives up after one session.

log = logging.getLogger("streams.worker")

# FENCED_INSTANCE_ID, which aiokafka does not define.
_FENCED = 82

# No error, and REBALANCE_IN_PROGRESS: the group still knows the member.
_ACCEPTED = (0, 27)


def since_boot() -> float:
    """Return the seconds since the machine booted, including the time it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NameInUse(UniscaleError):
    """Another process is using this instance name. Give each process its own `--instance`, or stop one of them."""


class InstanceName:
    """The name of this process in its consumer group.

    Args:
        settings: The process's settings.
        group: The consumer group.
        instance: The value of `--instance`.
    """

    def __init__(self, settings: Settings, group: str, instance: str) -> None:
        self._settings = settings
        self._group = group
        self._instance = instance
        self._lock: IO[bytes] | None = None
        self._mark = settings.state_path("crashes", f"{group}.{instance}.replaced")

    def lock(self) -> None:
        """Reserve the name among processes with this `state_dir`, until this process ends.

        Raises:
            NameInUse: another process has the name.
        """
        path = self._settings.state_path("crashes", f"{self._group}.{self._instance}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("ab")
        try:
            # The lock belongs to the process, so child processes do not keep it alive.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            lock.close()
            raise NameInUse(
                self._told(f"runs with state_dir {Path(self._settings.state_dir).resolve()}")
            ) from None
        except OSError as error:  # a file system without locks
            log.warning("%s: no lock: %s", path, error)
        self._lock = lock

    async def wait(self, pause_s: float = 2.0) -> None:
        """If another process has taken this name, wait until that process has left the group.

        Raises:
            NameInUse: the other process is still a member after one session, so it is alive.
        """
        if not self._mark.exists():
            return
        until = time.monotonic() + self._settings.kafka.session_timeout_s + 10.0
        while host := await asyncio.to_thread(self._holder):
            if time.monotonic() > until:
                raise NameInUse(self._told(f"is a member of the group, on {host}"))
            await asyncio.sleep(pause_s)
        self._mark.unlink(missing_ok=True)

    def replaced(self, crash: Callable[[str], NoReturn]) -> NoReturn:
        """Leave the mark and end this process, because another one has joined under its name."""
        with contextlib.suppress(OSError):
            self._mark.touch()
        crash(self._told("has joined, and has this one's partitions now"))

    def _holder(self) -> str:
        """Return the host of the member with this name; empty if there is none or the broker does not list members."""
        try:
            members = kafka_admin.members(self._settings, self._group)
        except (KafkaError, KeyError) as error:
            log.warning("%s: its members are unknown: %r", self._group, error)
            return ""
        name = f"{self._group}.{self._instance}"
        hosts = [m.get("client_host") for m in members if m.get("group_instance_id") == name]
        return str(hosts[0] or "another host") if hosts else ""

    def _told(self, what: str) -> str:
        return (
            f"instance {self._instance} of {self._group}: another process with this name {what}. Give each process "
            "its own name (`--instance 1`; a second decider is then a standby), or stop one of them"
        )


class MemberSession:
    """Tracks whether this worker may have lost its partitions, which happens after a session without a heartbeat.

    A process does not know if it or its machine has been suspended. When it resumes, its next effect waits until the
    broker has accepted a heartbeat, or has refused it and the partitions have been reassigned.

    Args:
        lasts_s: The session timeout, in seconds.
        clock: Returns the time in seconds, including any time the machine was suspended.
    """

    def __init__(self, lasts_s: float, clock: Callable[[], float] = since_boot) -> None:
        self.clock = clock
        self._lasts_s = lasts_s
        self._heard_s = clock()

    def heard(self, sent_s: float) -> None:
        """Note that the broker accepted a request sent at `sent_s`: a new session began then or later."""
        self._heard_s = max(self._heard_s, sent_s)

    def check(self) -> None:
        """Return if this worker still has its partitions.

        Raises:
            Unavailable: another worker may have them.
        """
        silent_s = self.clock() - self._heard_s
        if silent_s > self._lasts_s:
            raise Unavailable(
                f"the group has accepted no heartbeat for {silent_s:.0f} s, and a session lasts {self._lasts_s:g} s: "
                "another worker may have the partitions"
            )


def track_heartbeats(coordinator: Any, replaced: Callable[[], None], session: MemberSession) -> None:
    """Watch the broker's responses to an aiokafka group coordinator.

    Args:
        coordinator: The aiokafka coordinator.
        replaced: Called when another process has joined under this process's instance name.
        session: Notified of requests that the broker accepts.
    """
    reset, send = coordinator.reset_generation, coordinator._send_req
    asked = ""

    def keep_member_id() -> None:
        nonlocal asked
        member = coordinator.member_id
        reset()
        if member and member != asked:  # only once: a broker that does not know the id assigns a new one
            asked = coordinator.member_id = member

    async def look(request: Any) -> Any:
        sent_s = session.clock()
        response = await send(request)
        code = getattr(response, "error_code", 0)
        if code == _FENCED:
            replaced()
        if isinstance(request, HeartbeatRequest | SyncGroupRequest) and code in _ACCEPTED:
            session.heard(sent_s)
        return response

    coordinator.reset_generation, coordinator._send_req = keep_member_id, look


_ASSIGN_TRIES = 20
_ASSIGN_PAUSE_S = 0.25


def assign_all_topics(coordinator: Any, pause_s: float = _ASSIGN_PAUSE_S) -> None:
    """Make an aiokafka coordinator, as group leader, delay the assignment until it knows the partitions of all topics.

    Normally aiokafka requests metadata once. If that fails, faust leaves out the unknown topics, and no worker handles
    them until the metadata is refreshed, after five minutes. If topics stay unknown for some seconds, they may not
    exist, and the group continues without them.

    Args:
        coordinator: The aiokafka coordinator.
        pause_s: Seconds between two tries.
    """
    assign = coordinator._perform_assignment

    async def complete(response: Any) -> Any:
        for _ in range(_ASSIGN_TRIES):
            assigned = await assign(response)
            if all(
                coordinator._cluster.partitions_for_topic(each) for each in coordinator._group_subscription
            ):
                break
            await asyncio.sleep(pause_s)
            await coordinator._client.force_metadata_update()
        return assigned

    coordinator._perform_assignment = complete


# faust's consumer thread, without the thread.
#
# faust runs aiokafka's consumer in a thread with its own event loop. Every fetch, seek and commit goes through a
# queue and back, waking up the other loop each way, and both threads compete for one interpreter. Here the same
# object lives in the app's event loop, so a call to "the thread" is an ordinary call.
#
# Code that blocks the loop therefore also delays the heartbeats to the group. A batch of the policy blocks the loop for
# a few milliseconds, while a session lasts seconds; anything that takes longer runs in threads.


class InLoop(AIOKafkaConsumerThread):
    """aiokafka's consumer behind the interface that faust's consumer expects, in the app's event loop."""

    wait_for_shutdown = False

    # Start, stop and crash like any other service, without the thread's overrides.
    maybe_start, start, stop = Service.maybe_start, Service.start, Service.stop
    crash = Service.crash  # type: ignore[assignment]  # the argument has another name
    _stopped_set, set_shutdown = Service._stopped_set, Service.set_shutdown
    _stop_children, _stop_futures = Service._stop_children, Service._stop_futures
    _stop_exit_stacks = Service._stop_exit_stacks

    def __init__(self, consumer: Any, *, loop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        super().__init__(consumer, loop=loop, thread_loop=loop, **kwargs)

    async def on_start(self) -> None:
        """Connect."""
        await super().on_start()
        consumer = self._ensure_consumer()
        app: Any = self.app
        pace_fetches(consumer._fetcher, embedded=app.embedded(), moving=lambda: app.rebalancing)
        session = cast("Consumer", self.consumer).session
        track_heartbeats(consumer._coordinator, lambda: app.replaced(), session)
        assign_all_topics(consumer._coordinator)

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return await maybe_async(fun(*args, **kwargs))

    async def cast_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call the function and drop its result."""
        await maybe_async(fun(*args, **kwargs))

    async def commit(self, tps: Mapping[Any, int]) -> bool:
        """Commit offsets. faust would first build a set of the whole assignment for each offset."""
        consumer = self._ensure_consumer()
        try:
            await consumer.commit(
                {TopicPartition(tp.topic, tp.partition): offset for tp, offset in tps.items()}
            )
        except CommitFailedError as error:
            if "already rebalanced" not in str(error):
                await self.crash(error)
            return False
        except Exception as error:
            await self.crash(error)
            return False
        return True

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        """Notify the consumer of revoked partitions."""
        await self.consumer.on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[Any], generation_id: int = 0) -> None:
        """Notify the consumer of assigned partitions."""
        await self.consumer.on_partitions_assigned(assigned, generation_id)

    async def on_stop(self) -> None:
        """Leave the group and close the connections."""
        if self._consumer is not None:
            await self._consumer.stop()


# This consumer never commits past an unhandled record. faust's own consumer can.
#
# faust seeks and clears its queues while the fetcher keeps running. Records fetched before a seek can therefore be
# delivered after it, records fetched during a pause or at the end of a generation are dropped while the position
# advances, and no seek is made at all for a topic without a committed offset. Each case ends in a commit past an
# unhandled record. So here:
#
# - The consumer tracks which offset is *due* in each partition and delivers only the record at that offset. If the
#   fetcher is past it, the consumer seeks back. If the same later record then arrives again, no record lies in between.
# - Nothing is delivered between a seek to the committed offsets and the clearing of the queues that follows the seek.
# - An offset is committed only if every record below it has been handled.
# - A partition pauses while too many of its records lie above its lowest open one.
#
# Records go straight into the queues of their queries (`streams/runtime/queues.py`) and from there to the handlers,
# without faust's events, streams, queues and reference counts. The changelogs that faust recovers still go through
# faust.

# How long to wait for records in flight when a service stops or loses partitions; longer work is redelivered.
SETTLE_S = 3.0

# Poll timeout while partitions are being assigned or tables recovered: the set of active partitions will soon change.
_MOVING_S = 0.05


class PartitionCursor:
    """The position in one partition. It knows which offset is due and whether a gap in the offsets is genuine."""

    def __init__(self, due: int) -> None:
        self.due = due
        self.newest_ms = -1
        """Append time of the newest record delivered to a handler."""
        self._asked_again: tuple[int, int] | None = None

    def follows(self, offset: int, after: int | None) -> bool:
        """Return whether a record is the next to deliver; False if records before it may be missing.

        Compacted records and transaction markers leave genuine gaps. A gap inside a batch is genuine, because a
        batch is fetched whole. A gap before a batch is genuine if the fetcher was sent back to the due offset and
        returned the same record again.

        Args:
            offset: The record's offset, which is not below the due offset.
            after: The offset that was due after the previous record of the same batch; None for the first record.
        """
        if offset > self.due and after != self.due and self._asked_again != (self.due, offset):
            self._asked_again = self.due, offset
            return False
        self.due = offset + 1
        return True


class Consumer(aiokafka.Consumer):
    """faust's consumer, but with our own delivery and offset bookkeeping; see the comment above `SETTLE_S`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._offsets: defaultdict[Any, Offsets] = defaultdict(Offsets)
        self._cursors: dict[Any, PartitionCursor] = {}
        self._bindings: dict[str, Binding] = {}
        app: Any = self.app
        self.queues = Queues(self, app.concurrency)
        # If a poll starts with a span of at most `_full_above`, its records fit in the window.
        self._window = WINDOW * app.concurrency
        self._full_above = self._window - app.conf.broker_max_poll_records
        self._full: set[Any] = set()
        self.fences: dict[str, Fence] = {}
        """Write fences by changelog, for tables with a single writer (`Fence`)."""
        self._may_deliver = asyncio.Event()
        self._may_deliver.set()
        self._epoch = 0
        # Epoch of the last assignment; the current epoch is newer during a rebalance.
        self._assigned_epoch = -1
        self._generation = -1
        self.session = MemberSession(app.conf.broker_session_timeout)
        self._recovering = 0
        self._unsettled = 0
        self.moved = 0
        """Counter that grows as records are delivered, read or handled; while it stands still, there is no progress."""
        self.fetched: set[Any] = set()
        """Partitions with records fetched but not yet delivered."""

    def _new_consumer_thread(self) -> InLoop:
        return InLoop(self, loop=self.loop, beacon=self.beacon)

    def bind(self, topic: str, binding: Binding) -> None:
        """Deliver the records of a topic to this binding's handler."""
        self._bindings[topic] = binding

    @property
    def busy(self) -> int:
        """Number of tasks in progress: table recoveries, and handler calls not waiting for a rebalance."""
        return self._recovering + self.queues.busy - self._unsettled

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Make the consumer count as busy, so that a rebalance waits briefly for this work before partitions move."""
        self._recovering += 1
        try:
            yield
        finally:
            self._recovering -= 1
            self.moved += 1

    def is_ours(self, epoch: int) -> bool:
        """Return whether a record delivered in this epoch still belongs to this worker; if not, it is redelivered."""
        return epoch == self._epoch

    def delivered_until(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Return the offset below which everything was delivered, and the newest record's append time in ms, or -1.

        Returns None while these are unknown, or if another worker has the partition. The offset may be past the newest
        record, because the fetcher skips transaction markers and deleted records.
        """
        tp = TopicPartition(topic, partition)
        if (cursor := self._cursors.get(tp)) is None:
            return None
        position = 0
        # Records fetched during a rebalance may be dropped and fetched again.
        if (
            tp not in self.fetched
            and self.flow_active
            and self._may_deliver.is_set()
            and not self.app.rebalancing
        ):
            with contextlib.suppress(ConsumerNotStarted, AttributeError, KeyError):  # while being assigned
                fetcher = self._thread._ensure_consumer()._subscription.subscription.assignment
                position = fetcher.state_value(tp)._position or 0
        return max(cursor.due, position), cursor.newest_ms

    async def settled(self) -> int:
        """Wait for any rebalance to finish and return the epoch of the assignment."""
        await wait_while(lambda: self._assigned_epoch != self._epoch, math.inf)
        return self._epoch

    async def keep_ours(self, record: ConsumerRecord) -> None:
        """Wait for any rebalance to finish, then return if this worker still owns the record's partition.

        Raises:
            PartitionLost: another worker now owns the partition; the record is redelivered there.
            Unavailable: another worker may own the partition.
        """
        self.session.check()
        if record.epoch == self._epoch:
            return
        self._unsettled += 1
        try:
            await self.settled()
        finally:
            self._unsettled -= 1
        self.session.check()
        if TopicPartition(record.topic, record.partition) not in self.assignment():
            raise PartitionLost(f"{record.coordinates}: its partition has moved to another worker")

    def handled(self, records: Sequence[ConsumerRecord]) -> None:
        """Mark records as handled. This has no effect on records whose partition has moved: they are redelivered."""
        self.moved += 1
        for record in records:
            if record.epoch == self._epoch:
                tp = TopicPartition(record.topic, record.partition)
                offsets = self._offsets[tp]
                offsets.handled(record.offset)
                if tp in self._full and 2 * offsets.span <= self._window:
                    self._full.discard(tp)
                    with contextlib.suppress(
                        IllegalStateError, AssertionError, ConsumerNotStarted
                    ):  # while the partition is being reassigned
                        self._thread._ensure_consumer().resume(tp)
        self._n_acked += len(records)
        if self._commit_every is not None and self._n_acked >= self._commit_every:
            self._n_acked = 0
            self._committing = self.loop.create_task(self.commit())

    def failed(self, error: Exception) -> None:
        """End the process before an offset moves past the record."""
        app: Any = self.app
        app.fail(error)

    async def perform_seek(self) -> None:
        """Seek to the committed offsets, or to the beginning, and deliver nothing until the queues are cleared."""
        self._may_deliver.clear()
        epoch = self._epoch
        for tp in [tp for tp in self._cursors if not self._is_changelog_tp(tp)]:
            del self._cursors[tp]
        found = await self.seek_to_committed()
        ends = await self.highwaters(*found)
        # If the log now ends before the committed offset, reading restarts at the beginning of the log.
        committed = {tp: offset for tp, offset in found.items() if offset and offset <= (ends.get(tp) or 0)}
        new = [tp for tp in found if tp not in committed and not self._is_changelog_tp(tp)]
        if new:
            await self.seek_wait(await self.earliest_offsets(*new))
        if not self.is_ours(epoch):
            return  # the partitions are being revoked, and nothing is delivered without a cursor
        for tp, offset in committed.items():
            self._cursors[tp] = PartitionCursor(offset)
            self._offsets[tp].start(offset)
        self._committed_offset.update(committed)

    async def highwaters(self, *partitions: Any) -> Mapping[Any, int]:
        """Return the partitions' end offsets.

        For tables that recover without faust, return the earliest offsets instead, so that faust finds nothing to
        recover.
        """
        found = dict(await super().highwaters(*partitions))
        if apart := [tp for tp in partitions if tp.topic in self.fences]:
            found |= await self.earliest_offsets(*apart)
        return found

    async def seek_wait(self, partitions: Mapping[Any, int]) -> None:
        """Seek to these offsets. They are due at once, so records fetched before the seek are fetched again."""
        self._cursors.update({tp: PartitionCursor(offset) for tp, offset in partitions.items()})
        await super().seek_wait(partitions)

    def resume_flow(self) -> None:
        """Resume delivery, because faust has cleared the queues."""
        super().resume_flow()
        self._may_deliver.set()

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        """Wait briefly for records in flight, then drop the partitions, which may be assigned to another worker."""
        if revoked:
            self.stop_flow()
            self.app.flow_control.suspend()
            self.app.flow_control.clear()
            self.queues.forget()
            self._full.clear()
        await wait_while(lambda: self.busy, SETTLE_S)
        self._epoch += 1
        self._buffered_partitions.clear()
        await super().on_partitions_revoked(revoked)
        for tp in revoked:
            self._offsets.pop(tp, None)
            self._cursors.pop(tp, None)

    async def on_partitions_assigned(self, assigned: set[Any], generation_id: int = 0) -> None:
        """Stop work on partitions that were assigned to another worker, and acquire or release write fences."""
        # If this worker missed a generation, another worker may have had any partition in the meantime.
        stayed = generation_id - self._generation in (0, 1)
        self._generation = generation_id
        self.queues.keep(assigned if stayed else ())
        topics = {tp.topic for tp in assigned}
        try:
            for fence in self.fences.values():
                await (fence.take() if fence.topic in topics else fence.release())
        except Exception as error:  # aiokafka would log the error and continue
            self.failed(error)
        await super().on_partitions_assigned(assigned, generation_id)
        self._assigned_epoch = self._epoch

    async def _drain_messages(self, fetcher: Any) -> None:
        """Deliver the records returned by the fetcher, until the consumer stops."""
        try:
            while not (self.should_stop or fetcher.should_stop):
                await asyncio.sleep(0)
                if (
                    (moving := self.app.rebalancing)
                    and self.flow_active
                    and not self._get_active_partitions()
                ):
                    await asyncio.sleep(_MOVING_S)  # faust would wait a second
                    continue
                records, active = await self._wait_next_records(_MOVING_S if moving else 1.0)
                self.fetched = set(records or ())
                for tp, batch in (records or {}).items():
                    if not await self._deliver(tp, batch, active) and (cursor := self._cursors.get(tp)):
                        with contextlib.suppress(IllegalStateError, AssertionError):  # if it was revoked
                            await self._thread.seek_wait({tp: cursor.due})
                    self.fetched.discard(tp)
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.app.should_stop:
                raise

    async def _deliver(self, tp: Any, batch: Sequence[Any], active: set[Any] | None) -> bool:
        """Deliver a batch of one partition; return False if part of it must be fetched again."""
        generation = self.app.consumer_generation_id
        if not self._may_deliver.is_set():
            await self._may_deliver.wait()
        if binding := self._bindings.get(tp.topic):
            if self.app.consumer_generation_id != generation:
                return False
            return self._into_queues(tp, binding, batch, active)
        if not self._is_changelog_tp(tp):
            return False  # the topic's agent has not bound its handler yet
        after: int | None = None
        for record in batch:
            if not self._may_deliver.is_set():
                await self._may_deliver.wait()
            cursor = self._cursors.get(tp)
            if (
                cursor is None
                or not self.flow_active
                or self.app.consumer_generation_id != generation
                or not (active is None or tp in active or tp in self._buffered_partitions)
            ):
                return False
            if record.offset < cursor.due:
                continue  # fetched again
            if not cursor.follows(record.offset, after):
                return False
            after = cursor.due
            self.moved += 1
            await self.callback(self._to_message(tp, record))
        return True

    def _into_queues(self, tp: Any, binding: Binding, batch: Sequence[Any], active: set[Any] | None) -> bool:
        """Queue a batch without awaiting, so that the checks made at the start hold for all of its records."""
        cursor = self._cursors.get(tp)
        if (
            cursor is None
            or not self.flow_active
            or not (active is None or tp in active or tp in self._buffered_partitions)
        ):
            return False
        offsets, epoch, (topic, partition) = self._offsets[tp], self._epoch, tp
        after: int | None = None
        for record in batch:
            offset = record.offset
            if offset < cursor.due:
                continue  # fetched again
            if not cursor.follows(offset, after):
                return False
            after = cursor.due
            cursor.newest_ms = record.timestamp or -1
            self.moved += 1
            offsets.delivered(offset)
            self.queues.put(
                binding,
                ConsumerRecord(
                    topic, partition, offset, record.timestamp or 0, record.key, record.value, epoch
                ),
            )
        if offsets.span > self._full_above:
            self._full.add(tp)
            self._thread._ensure_consumer().pause(tp)
        return True

    # Commits follow our own bookkeeping. faust would log a table of the offsets each time, flush a producer that we do
    # not use, and rely on acknowledgements that never happen here.

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[Any]:
        asked = [tp for tp in self._offsets if topics is None or tp in topics or tp.topic in topics]
        return iter([tp for tp in asked if self._offsets[tp].moved])

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
        """Do nothing. faust would check streams, which get no records here; `watch_liveness` detects a stall."""


async def wait_while(busy: Callable[[], int], most_s: float) -> None:
    """Wait until `busy` returns 0, but at most `most_s` seconds."""
    time = asyncio.get_running_loop().time
    until = time() + most_s
    while busy() and time() < until:  # noqa: ASYNC110 - one wait for many handlers
        await asyncio.sleep(0.01)
