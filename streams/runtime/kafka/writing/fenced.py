"""A table with a single writer, which recovers from its changelog without faust.

faust assigns the changelog together with the topics of the room but reads none of it. faust's own recovery would start
at the oldest offset, and would wait forever for a last record whose offset belongs to a transaction's marker. Here
reading starts at the offset that the room names, after this process has taken the right to write. From then on, no
earlier writer can commit anything more.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from streams.runtime.kafka.clients import connections, reading
from streams.runtime.kafka.writing.fence import Fence
from streams.runtime.kafka.writing.table import KafkaTable
from streams.settings import Settings


class Assignment(Protocol):
    """What a table needs to know of its worker's partitions; the consumer implements it."""

    moved: int

    async def settled(self) -> int:
        """Wait while partitions are being reassigned, and return the epoch of the assignment."""

    def is_ours(self, epoch: int) -> bool:
        """Return whether partitions have stayed where they were in this epoch."""

    def at_work(self) -> AbstractContextManager[None]:
        """Count as busy, so that a rebalance waits briefly."""


class FencedTable(KafkaTable):
    """A table of one partition that only one process may write, and that recovers by itself.

    Args:
        settings: Of the process.
        fence: The right to write it.
        assignment: Says whether the partition still belongs to this worker, and counts what was read.
        owned: Returns the partitions that this worker owns.
        begins: Returns the offset at which reading starts.
        recovered: Awaited when all rows have been read.

    Attributes:
        read_s: Seconds that the last recovery spent reading.
    """

    def __init__(
        self,
        settings: Settings,
        fence: Fence,
        assignment: Assignment,
        owned: Callable[[], frozenset[int]],
        *,
        begins: Callable[[], Awaitable[int]],
        recovered: Callable[[], Awaitable[None]],
    ) -> None:
        async def write(topic: str, rows: Sequence[tuple[bytes, bytes | None, int]]) -> None:
            await fence.write([(key, value) for key, value, _ in rows], topic)

        super().__init__(fence.topic, {}, {}, write, owned, settings.kafka.max_record_bytes)
        self.settings = settings
        self.read_s = 0.0
        self._assignment = assignment
        self._begins = begins
        self._recovered = recovered
        self._recovered_epoch = -1
        self._one_at_a_time = asyncio.Lock()

    async def recover(self) -> None:
        """Read the rows and let the room recover, once per assignment; return when the present assignment is recovered.

        faust can call this while partitions are being reassigned, and calls it again afterwards, without waiting for
        the first call to return.

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
        """Read everything that has been committed; return False if the partition moved in the meantime."""
        began_s = time.monotonic()
        found: dict[bytes, bytes] = {}
        self._rows.clear()  # another process may have written since
        self._places.clear()
        if self._owned():
            async for records in reading.read(self.settings, self.changelog, await self._begins()):
                self._assignment.moved += 1
                if not self._assignment.is_ours(epoch):
                    return False
                connections.apply(found, records)
        self.seed((key, value, 0) for key, value in found.items())
        self.read_s = time.monotonic() - began_s
        return self._assignment.is_ours(epoch)
