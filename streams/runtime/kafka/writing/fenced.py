"""The table of one writer, which reads its own changelog.

faust assigns the changelog with the topics of the room, and reads nothing of it. Its recovery would begin at the oldest
offset and wait for a last record where the end of a transaction stands, which nobody is given. Here reading begins at
the offset that the room names, once the right to write is taken: what was committed before is then complete.
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
    """The partitions of this worker, as its consumer knows them."""

    moved: int

    async def settled(self) -> int:
        """Wait while partitions are being reassigned, and return the epoch of the assignment."""

    def is_ours(self, epoch: int) -> bool:
        """Return whether this is still the epoch."""

    def at_work(self) -> AbstractContextManager[None]:
        """Count as busy."""


class FencedTable(KafkaTable):
    """A table of one partition that one process alone may write, and reads for itself.

    Args:
        settings: Of the process.
        fence: The right to write it.
        assignment: Says whether the partition is still this worker's, and counts what was read.
        owned: Returns the partitions that this worker owns.
        begins: Returns the offset at which reading begins.
        recovered: Awaited when the rows are there.

    Attributes:
        read_s: How long the last reading took.
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
        """Read the rows and let the room recover, once for each assignment; return when that of now is recovered.

        faust may ask while partitions are being reassigned, and asks again after it, without an end to the first call.

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
        """Read what was committed before now; return False if the partition moved meanwhile."""
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
