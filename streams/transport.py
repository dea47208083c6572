"""faust's Kafka consumer, mended where it would lose a record, and shortened where it spends most of its time.

Lost: when a room has got its partitions, faust seeks to the committed offsets and then empties its queues, together
with what the fetcher has brought in between; the next record makes it look as if there had been nothing, and its
offset is committed. So here nothing is handed over between the seek and the emptying, and only an offset is
committed below which every record that was fetched has been handled. A handler that skips one ends the process.

Time: faust hands over each record in a task, beside three more that wait for the end of the service or of the
assignment, and then cancels those three. A record whose stream has room is handed over without waiting for
anything, so that is tried first.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Coroutine, Generator
from inspect import iscoroutine
from types import coroutine
from typing import Any

import faust
from faust.transport.drivers import aiokafka
from mode.services import WaitResults


class SkippedRecord(RuntimeError):
    """A record was fetched and not handled, but a later one of its partition was. Read again after a restart."""


class Offsets:
    """Which records of a partition were fetched, and up to where they are handled. Handling keeps their order."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()
        self._newest = -1
        self.next: int | None = None
        """The offset to commit; None where nothing was handled since the last commit."""

    def fetched(self, offset: int) -> None:
        """Await a record; one that is fetched again is awaited already, or was handled."""
        if offset > self._newest:
            self._newest = offset
            self._open.append(offset)

    def handled(self, offset: int) -> None:
        """Close a record.

        Raises:
            SkippedRecord: one before it is open.
        """
        if not self._open or offset < self._open[0]:
            return  # fetched twice, or of an assignment that is over
        if offset > self._open[0]:
            raise SkippedRecord(f"offset {self._open[0]} was not handled, {offset} was")
        self._open.popleft()
        self.next = offset + 1

    def start(self, committed: int) -> None:
        """Begin where the group has come to: what lies before is handled, here or elsewhere."""
        while self._open and self._open[0] < committed:
            self._open.popleft()
        self._newest = max(self._newest, committed - 1)

    @property
    def open(self) -> int:
        """How many records were fetched and are not handled."""
        return len(self._open)

    def take(self) -> int | None:
        """Return the offset to commit, once."""
        offset, self.next = self.next, None
        return offset


class Consumer(aiokafka.Consumer):
    """faust's consumer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._offsets: defaultdict[Any, Offsets] = defaultdict(Offsets)
        self._may_hand_over = asyncio.Event()
        self._may_hand_over.set()
        self.moved = 0
        """Counts records fetched and records handled: while it stands still, nothing happens here."""

    def handled(self, message: Any) -> None:
        """Take note that a record is handled to its end."""
        self.moved += 1
        self._offsets[message.tp].handled(message.offset)

    async def perform_seek(self) -> None:
        """Seek to the committed offsets, and hand nothing over until the queues have been emptied."""
        self._may_hand_over.clear()
        await super().perform_seek()
        for tp, committed in self._committed_offset.items():
            if committed:
                self._offsets[tp].start(committed)

    def resume_flow(self) -> None:
        """Hand over again: faust has emptied the queues."""
        super().resume_flow()
        self._may_hand_over.set()

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        """Forget partitions that go elsewhere, once what was handled is committed."""
        await super().on_partitions_revoked(revoked)
        for tp in revoked:
            self._offsets.pop(tp, None)

    async def wait_first(self, *awaitables: Any, timeout: Any = None) -> WaitResults:
        """Return as soon as one is done; the first may be done before any is waited for."""
        first, *others = awaitables
        if timeout is not None or not all(map(iscoroutine, awaitables)):
            return await super().wait_first(*awaitables, timeout=timeout)
        if not self._may_hand_over.is_set():
            return await super().wait_first(self._later(first), *others)
        try:
            waited_for = first.send(None)
        except StopIteration as done:
            for other in others:
                other.close()
            return WaitResults([first], [done.value], self.should_stop)
        return await super().wait_first(_go_on(first, waited_for), *others)

    async def _later(self, handing_over: Coroutine[Any, Any, Any]) -> Any:
        try:
            await self._may_hand_over.wait()
        except BaseException:
            handing_over.close()
            raise
        return await handing_over

    @property
    def waited_for(self) -> bool:
        """Whether records are known that are not handled, or partitions are being given out."""
        return self.app.rebalancing or any(offsets.open for offsets in self._offsets.values())

    def _to_message(self, tp: Any, record: Any) -> Any:
        self.moved += 1
        if self.app.topics.acks_enabled_for(tp.topic):
            self._offsets[tp].fetched(record.offset)
        return super()._to_message(tp, record)

    def _new_offset(self, tp: Any) -> int | None:
        # faust's own account goes on; it would never shrink where nothing is committed from it.
        self._acked_index[tp].difference_update(self._acked[tp])
        self._acked[tp].clear()
        self._gap.pop(tp, None)
        return self._offsets[tp].take()


class Transport(aiokafka.Transport):
    """faust's transport, with that consumer."""

    Consumer = Consumer


class App(faust.App):
    """faust's app, with that transport."""

    def _new_transport(self) -> Transport:
        return Transport(self.conf.broker_consumer, self)


async def _go_on(started: Coroutine[Any, Any, Any], waited_for: Any) -> Any:
    """Go on with a coroutine that was started and waits."""
    return await _steps(started, waited_for)


@coroutine
def _steps(started: Coroutine[Any, Any, Any], waited_for: Any) -> Generator[Any, Any, Any]:
    """Pass on what a started coroutine waits for, and back to it what comes of that."""
    try:
        while True:
            try:
                sent = yield waited_for
            except GeneratorExit:
                started.close()
                raise
            except BaseException as error:
                waited_for = started.throw(error)
            else:
                waited_for = started.send(sent)
    except StopIteration as done:
        return done.value
