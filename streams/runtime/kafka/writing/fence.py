"""One writer per changelog, enforced by the broker: rows are written in transactions under one transactional id.

The worker that is assigned the partition takes over the id. From then on the broker refuses every write of the previous
holder: a process that was suspended past its session and resumes, or a second one with the same name. The rows it had
started to write are aborted, and readers of committed records never see them. An epoch in the rows could not do this:
in a compacted topic, the old writer's late row would replace the valid one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from streams.runtime.errors import Crash
from streams.runtime.kafka.clients import closing
from streams.topics import writer_of

log = logging.getLogger("streams.fence")

Row = tuple[bytes, bytes | None]


class Fence:
    """The right to write one changelog.

    Args:
        topic: The changelog; it has one partition.
        connect: Returns a producer, not started, for a transactional id or for None.
        transactions: Says, once there is a broker, whether it has transactions; where it has none, nothing enforces a
            single writer.
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
        """Take the right from whichever process holds it.

        Raises:
            KafkaError: the broker refused.
        """
        async with self._one_at_a_time:
            await self._drop()
            self._transactions = self._has_transactions()
            if not self._transactions:
                log.warning(
                    "%s: the embedded broker has no transactions: nothing keeps a second process from writing this "
                    "log; run a single decider", self.topic,
                )  # fmt: skip
            producer = self._connect(writer_of(self.topic) if self._transactions else None)
            await producer.start()
            self._producer = producer

    async def release(self) -> None:
        """Give up the right, if this process holds it."""
        async with self._one_at_a_time:
            await self._drop()

    async def write(self, rows: Sequence[Row], topic: str = "") -> None:
        """Write rows, all or none of them, and wait until they are committed.

        Args:
            rows: Keys and values; None deletes a key.
            topic: A topic with one partition that only the holder of the right writes; the default is the changelog.

        Raises:
            Crash: another process holds the right, or it is unknown whether the rows were committed.
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
                # KafkaError, or an AssertionError if aiokafka has already given up the transaction. Only the log tells
                # whether the commit arrived: a restart reads it.
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
            await closing.stop(producer)
