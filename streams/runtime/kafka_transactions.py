"""Fencing: one writer per changelog, which the broker enforces by the producer epoch of a transactional id (KIP-98)."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.producer import sender
from kafka import TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from schemas.errors import UniscaleError
from streams.log import kafka_admin, kafka_clients
from streams.log.base import Log, fold
from streams.log.kafka import stop
from streams.runtime.errors import Crash
from streams.runtime.table import Begins, FileRows, PlacedRow, Recovered, Table
from streams.settings import Settings
from streams.topics import writer_of

# The broker enforces one writer per changelog: rows are written in transactions under one transactional id. The
# worker that is assigned the partition takes over the id. From then on the broker refuses every write by the previous
# owner, which may be a process that was suspended past its session and resumes, or a second process with the same name.
# The previous owner's unfinished transaction is aborted, and read-committed consumers never see it. An epoch stored in
# the rows could not do this, because in a compacted topic the old writer's late row would replace the valid one.

log = logging.getLogger("streams.fence")

# The broker acknowledges a commit a millisecond or two before the transaction's markers are written, and refuses the
# next transaction until then (KAFKA-5477). aiokafka retries after this pause. With its default of 20 ms, decisions
# waited that long after every batch under load.
sender.BACKOFF_OVERRIDE = 0.002

Row = tuple[bytes, bytes | None]


class Fence:
    """Exclusive write access to one changelog.

    Args:
        topic: The changelog, which has one partition.
        connect: Returns a producer that has not been started, for a transactional id or for None.
        transactions: Returns whether the broker supports transactions; if not, nothing enforces a single writer.
    """

    def __init__(
        self,
        topic: str,
        connect: Callable[[str | None], Any],
        *,
        transactions: Callable[[], bool] = lambda: True,
    ) -> None:
        self.topic = topic
        self._connect = connect
        self._has_transactions = transactions
        self._transactions = True
        self._producer: Any = None
        self._one_at_a_time = asyncio.Lock()

    async def take(self) -> None:
        """Take over write access from whichever process has it.

        Raises:
            KafkaError: the broker refused to give this process write access.
        """
        async with self._one_at_a_time:
            await self._drop()
            self._transactions = self._has_transactions()
            if not self._transactions:
                log.warning(
                    "%s: the embedded broker has no transactions: nothing keeps a second process from writing this "
                    "log; run a single decider",
                    self.topic,
                )
            producer = self._connect(writer_of(self.topic) if self._transactions else None)
            await producer.start()
            self._producer = producer

    async def release(self) -> None:
        """Release write access, if this process has it."""
        async with self._one_at_a_time:
            await self._drop()

    async def write(self, rows: Sequence[Row], topic: str = "") -> None:
        """Write rows atomically and wait until they are committed.

        Args:
            rows: Keys and values; a value of None deletes the key.
            topic: A topic with one partition that only the fence's owner writes; the default is the changelog.

        Raises:
            Crash: another process has taken over write access, or it is unknown whether the rows were committed.
        """
        async with self._one_at_a_time:
            if self._producer is None:
                raise Crash(
                    f"{self.topic}: this process may not write it, because another one owns the partition"
                )
            try:
                if not self._transactions:
                    await self._post(rows, topic)
                    return
                await self._producer.begin_transaction()
                await self._post(rows, topic)
                await self._producer.commit_transaction()
            except Exception as error:
                # KafkaError, or an AssertionError if aiokafka has already abandoned the transaction. Only the log,
                # which is read after a restart, shows whether the commit arrived.
                raise Crash(
                    f"{self.topic}: another process writes it, or a commit is uncertain: {error!r}"
                ) from error

    async def _post(self, rows: Sequence[Row], topic: str = "") -> None:
        rest = list(rows)
        while rest:
            batch, taken = self._producer.create_batch(), 0
            for key, value in rest:
                if batch.append(key=key, value=value, timestamp=None) is None:
                    break
                taken += 1
            await (await self._producer.send_batch(batch, topic or self.topic, partition=0))
            del rest[:taken]

    async def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop(producer)


# A table with a single writer, which recovers from its changelog without faust.
#
# faust assigns the changelog together with the topics of the service but does not read it. faust's own recovery would
# start at the oldest offset, and would wait forever if the last offset belongs to a transaction marker. Here reading
# starts at an offset given by the service, after this process has taken over write access. From then on, no earlier
# writer can commit anything.


class Assignment(Protocol):
    """What a table needs to know about its worker's partitions; implemented by the consumer."""

    moved: int

    async def settled(self) -> int:
        """Wait while partitions are being reassigned, and return the epoch of the assignment."""

    def is_ours(self, epoch: int) -> bool:
        """Return whether no partitions have been reassigned since this epoch."""

    def at_work(self) -> AbstractContextManager[None]:
        """Return a context manager that makes the worker count as busy, so that a rebalance waits briefly."""


class FencedTable(Table):
    """A table with one partition that only one process may write, and that recovers without faust.

    Args:
        settings: The process's settings.
        fence: Write access to the changelog.
        log: The log that contains the changelog.
        assignment: The worker's assignment, which also counts the records read.
        owned: Returns the partitions that this worker owns.
        begins: Returns the offset to start reading at; None for the beginning.
        recovered: Awaited when all rows have been read.

    Attributes:
        read_s: How many seconds the last recovery spent reading.
    """

    def __init__(
        self,
        settings: Settings,
        fence: Fence,
        log: Log,
        assignment: Assignment,
        owned: Callable[[], frozenset[int]],
        *,
        begins: Begins | None,
        recovered: Recovered,
    ) -> None:
        async def write(topic: str, rows: Sequence[PlacedRow]) -> None:
            self._writes += 1
            await fence.write([(key, value) for key, value, _ in rows], topic)
            self._writes += 1  # also after the write, in case a recovery began during it

        rows = FileRows(settings.state_path())
        super().__init__(fence.topic, write, owned, settings.kafka.max_record_bytes, rows)
        self.settings = settings
        self.read_s = 0.0
        self._log = log
        self._assignment = assignment
        self._begins = begins
        self._recovered = recovered
        self._recovered_epoch = -1
        self._writes = 0
        self._readings, self._read_in = 0, -1
        self._one_at_a_time = asyncio.Lock()

    @property
    def reading(self) -> int:
        """Count recoveries within the current assignment; see the base class."""
        return self._readings if self._owned() and self._assignment.is_ours(self._read_in) else 0

    async def recover(self) -> None:
        """Read the rows and let the service recover, once per assignment; return when that is done for the current one.

        faust can call this during a rebalance, and again afterwards, without waiting for the first call to return.

        Raises:
            UniscaleError: no broker answers, or the changelog does not exist.
        """
        async with self._one_at_a_time:
            while self._recovered_epoch != (epoch := await self._assignment.settled()):
                if await self._read(epoch):
                    with self._assignment.at_work():
                        await self._recovered()
                    self._recovered_epoch = epoch

    async def _read(self, epoch: int) -> bool:
        """Read all committed rows. Return False if they may be incomplete and must be read again.

        In the meantime the partition may be reassigned, or a handler that started earlier may still write.
        """
        began_s, writes = time.monotonic(), self._writes
        found = FileRows(self.settings.state_path())
        if self._owned():
            begin = 0 if self._begins is None else await self._begins()
            async for records in self._log.read([self.changelog], begin):
                self._assignment.moved += 1
                if not self._assignment.is_ours(epoch):
                    return False
                fold(found, records)
        self.read_s = time.monotonic() - began_s
        if not self._assignment.is_ours(epoch) or self._writes != writes:
            return False
        # Until this point the old rows stay visible, even though another process may have written since: with an empty
        # table, every query would look new.
        self._rows = found
        self._readings, self._read_in = self._readings + 1, epoch
        return True


# Change the log of a stopped service. This takes over write access, so a service that is still running exits.

_AT_ONCE = 500
_LARGE = 65_536


class StillRunning(UniscaleError):
    """The service that owns the log is still running. Stop it, wait for its session to end, and try again."""


def require_stopped(settings: Settings, group: str) -> None:
    """Raise an error if a consumer group has members.

    Raises:
        StillRunning: the group has members, which the message names.
    """
    if members := kafka_admin.members(settings, group):
        names = ", ".join(sorted(str(m.get("client_id") or m.get("member_id")) for m in members))
        raise StillRunning(
            f"{group}: {len(members)} running ({names}); stop it, wait {settings.kafka.session_timeout_s:.0f} s for "
            "its session to end, and try again"
        )


def rewrite(settings: Settings, changelog: str, writes: Iterable[tuple[str, Sequence[Row]]]) -> None:
    """Write records to a changelog and to topics that share its writer, in order.

    Args:
        settings: The deployment.
        changelog: The changelog to take over write access to.
        writes: The topics, each with its records (key, value); a value of None deletes the key.
    """
    asyncio.run(_rewrite(settings, changelog, writes))


async def _rewrite(settings: Settings, changelog: str, writes: Iterable[tuple[str, Sequence[Row]]]) -> None:
    def connect(transactional_id: str | None) -> AIOKafkaProducer:
        return kafka_clients.writer(settings, transactional_id)

    fence = Fence(changelog, connect, transactions=lambda: not kafka_clients.embedded(settings))
    await fence.take()
    try:
        for topic, rows in writes:
            for part in _parts(rows):
                await fence.write(part, topic)
    finally:
        await fence.release()


def _parts(rows: Sequence[Row]) -> Iterable[Sequence[Row]]:
    """Split rows so that each transaction stays small. A large row, such as a snapshot chunk, ends its transaction."""
    part: list[Row] = []
    for row in rows:
        part.append(row)
        if len(part) >= _AT_ONCE or len(row[1] or b"") > _LARGE:
            yield part
            part = []
    if part:
        yield part


def advance_offsets(settings: Settings, group: str, offsets: Mapping[str, int]) -> None:
    """Move the committed offsets of a stopped group forward, for topics with one partition.

    Raises:
        KafkaError: the broker refused a commit.
    """
    with contextlib.closing(kafka_clients.admin(settings)) as client:
        parts = {TopicPartition(topic, 0): offset for topic, offset in offsets.items()}
        known = client.list_group_offsets(group)
        known = known.get(group, known)
        ahead = {
            tp: OffsetAndMetadata(offset, "", -1)
            for tp, offset in parts.items()
            if offset > (known[tp].offset if tp in known else -1)
        }
        for tp, error in client.alter_group_offsets(group, ahead).items() if ahead else ():
            if error.errno:
                raise KafkaError(f"{tp.topic}: the commit of {group} was refused: {error.__name__}")
