"""The learner's log on the broker: what is read from it at the start, and the snapshots that keep it short.

The log is the changelog of the decider's table: rows, and now and then a snapshot among them. It decides what is
learned, never the consumer group: a commit that is behind it brings records again, which are recognised; one that
ran ahead of it is taken back, so that what was skipped is read.
"""

import asyncio
import logging
import time
from typing import Any

from agents.decider import snapshot
from agents.decider.agent import Decider, Recovered
from agents.decider.observations import Row, decode_row
from schemas.query import Origin
from streams.runtime.kafka import connections
from streams.runtime.kafka.app import crash, durable_table
from streams.runtime.plumbing import Plumbing

log = logging.getLogger("streams.decider")


class LearnerLog:
    """The decider's table, with its recovery and its snapshots.

    Attributes:
        table: Rows and snapshots by key, in memory.
        snapshot_at: Place in the order of the newest snapshot; -1 for none.
    """

    def __init__(self, plumbing: Plumbing) -> None:
        self.plumbing = plumbing
        self.settings = plumbing.settings
        self.table = durable_table(plumbing.app, "pending", 1)
        self.snapshot_at = -1
        self._began_s = time.monotonic()
        plumbing.app.on_partitions_assigned.connect(self._on_assigned)

    @property
    def assigned(self) -> bool:
        """Say whether this worker is the shard's learner: another may hold the partition."""
        return self.plumbing.topics.context in {tp.topic for tp in self.plumbing.app.consumer.assignment()}

    async def recover(self, decider: Decider) -> Recovered:
        """Rebuild a learner from the table, and take back what the group committed ahead of it.

        Raises:
            CorruptState: The log is not whole.
        """
        read_s = time.monotonic() - self._began_s
        records = list(self.table.data.items())
        began_s = time.monotonic()
        found = await asyncio.to_thread(decider.recover, records)
        fold_s = time.monotonic() - began_s
        self.snapshot_at = found.snapshot_version
        for refused in found.refused:
            log.error("a snapshot was refused: %s", refused)
        log.info(
            "%d records read in %.2f s; snapshot %d and %d decisions, %d updates after it folded in %.2f s: "
            "policy version %d, next place %d",
            len(records), read_s, found.snapshot_version, found.folded.decisions, found.folded.updates, fold_s,
            decider.policy.version, decider.seq,
        )  # fmt: skip
        if decider.seq:
            await self._hold_back(found)
        seconds = self.plumbing.metrics.recovery_seconds
        seconds.labels("read").set(read_s)
        seconds.labels("fold").set(fold_s)
        return found

    async def snapshot_when_due(self, decider: Decider) -> None:
        """Write a snapshot once enough has been learned since the last, then drop rows that two of them hold."""
        every = self.settings.snapshot_every
        if not every or decider.seq - 1 - self.snapshot_at < every:
            return
        chunk_bytes = min(snapshot.CHUNK_BYTES, self.settings.max_record_bytes // 2)
        for key, value in await asyncio.to_thread(decider.snapshot, chunk_bytes):
            await self.table.put(key, value, 0)
        self.snapshot_at = decider.seq - 1
        dropped = await asyncio.to_thread(self._obsolete)
        await self.table.drop_all((key, 0) for key in dropped)
        self.plumbing.metrics.snapshot_place.set(self.snapshot_at)
        log.info("snapshot %d written, %d older records dropped", self.snapshot_at, len(dropped))

    async def _hold_back(self, found: Recovered) -> None:
        """Commit the log's own offsets where the group's are further on; faust seeks to them next."""
        consumer: Any = self.plumbing.app.consumer
        topics = self.plumbing.topics
        own = {topics.context: found.next_context, topics.reward: found.next_reward}
        committed = await consumer.seek_to_committed()
        ahead = {tp: o for tp, o in committed.items() if tp.topic in own and o and o > own[tp.topic]}
        first = await consumer.earliest_offsets(*ahead) if ahead else {}
        back = {tp: max(own[tp.topic], first.get(tp) or 0) for tp in ahead}
        back = {tp: offset for tp, offset in back.items() if offset < ahead[tp]}
        if not back:
            return
        for tp, offset in back.items():
            # Most often these are records that left no row, and will leave none again.
            log.info(
                "%s/%d: the group has committed %d, the log ends before %d: reading again from there",
                tp.topic, tp.partition, ahead[tp], offset,
            )  # fmt: skip
        if not await consumer._commit(back):
            crash("the group's offsets could not be taken back")

    def _obsolete(self) -> list[bytes]:
        """Return the keys of rows and chunks that neither recovery nor a replay needs any more."""
        topics = self.plumbing.topics
        reader = connections.consumer(self.settings)
        try:
            parts = connections.partitions(reader, (topics.query, topics.context))
            first: dict[tuple[str, int], int] = {
                (tp.topic, tp.partition): o for tp, o in reader.beginning_offsets(parts).items()
            }
        finally:
            reader.close()

        def replayable(origin: Origin) -> bool:
            return origin.offset >= first.get((origin.topic, origin.partition), 0)

        records = list(self.table.data.items())
        rows = [decode_row(k, v) for k, v in records if not k.startswith(snapshot.SNAPSHOT_KEY)]
        own = [row for row in rows if isinstance(row, Row)]
        return list(snapshot.obsolete([key for key, _ in records], own, replayable))

    async def _on_assigned(self, *_: Any, **__: Any) -> None:
        self._began_s = time.monotonic()
