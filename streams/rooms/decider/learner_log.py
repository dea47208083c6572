"""The learner's log on the broker: reading it at startup, and the snapshots that keep it short.

The log is the changelog of the decider's table: rows, with a snapshot among them from time to time. The log, not the
consumer group, is authoritative. If the commit is behind the log, redelivered records are recognised; if it is ahead,
it is moved back, so that the skipped records are read.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from agents.decider import snapshot
from agents.decider.agent import Decider
from agents.decider.observations import Row, decode_row
from agents.decider.results import Recovered
from schemas.query import Origin
from streams.runtime.base import Runtime, SendFailed

log = logging.getLogger("streams.decider")


class LearnerLog:
    """The decider's table, with its recovery and its snapshots.

    Attributes:
        table: Rows and snapshots by key, in memory.
        snapshot_at: Sequence number of the newest snapshot; -1 for none.
    """

    def __init__(self, runtime: Runtime, recovered: Callable[[], Awaitable[None]]) -> None:
        self.runtime = runtime
        self.settings = runtime.settings
        self.table = runtime.table(
            "pending", 1, source=runtime.topics.context, recovered=recovered, one_writer=True
        )
        self.snapshot_at = -1

    @property
    def assigned(self) -> bool:
        """Return whether this worker is the learner: another one may hold the partition."""
        return bool(self.runtime.assigned(self.runtime.topics.context))

    @property
    def chunk_bytes(self) -> int:
        """Return the size of a snapshot's chunk."""
        return min(snapshot.CHUNK_BYTES, self.settings.kafka.max_record_bytes // 2)

    async def recover(self, decider: Decider) -> Recovered:
        """Rebuild a learner from the table, and move the group's commit back if it is ahead.

        Raises:
            CorruptState: The log is not whole.
        """
        records = self.table.items()
        began_s = self.runtime.monotonic()
        found = await self.runtime.in_thread(lambda: decider.recover(records))
        fold_s = self.runtime.monotonic() - began_s
        self.snapshot_at = found.snapshot_version
        for refused in found.refused:
            log.error("a snapshot was refused: %s", refused)
        log.info(
            "%d records; snapshot %d and %d decisions, %d updates after it folded in %.2f s: "
            "policy version %d, next sequence number %d",
            len(records), found.snapshot_version, found.folded.decisions, found.folded.updates, fold_s,
            decider.policy.version, decider.seq,
        )  # fmt: skip
        if decider.seq:
            await self._hold_back(found)
            await self._report_expired(found)
        self.runtime.metrics.recovery_seconds.labels("fold").set(fold_s)
        return found

    async def snapshot_when_due(self, decider: Decider) -> None:
        """Write a snapshot once enough has been learned since the last, then drop rows that two of them hold."""
        every = self.settings.policy.snapshot_every
        if not every or decider.seq - 1 - self.snapshot_at < every:
            return
        chunks = await self.runtime.in_thread(lambda: decider.snapshot(self.chunk_bytes))
        try:
            for key, value in chunks:
                await self.table.put(key, value, 0)
            self.snapshot_at = decider.seq - 1
            dropped = await self._obsolete()
            await self.table.drop_all((key, 0) for key in dropped)
        except SendFailed as error:
            # The rows hold everything, so the next attempt writes a complete snapshot.
            log.warning("no snapshot: %s", error)
            return
        self.runtime.metrics.snapshot_place.set(self.snapshot_at)
        self.runtime.metrics.snapshot_time.set(self.runtime.now_ms() / 1000)
        log.info("snapshot %d written, %d older records dropped", self.snapshot_at, len(dropped))

    async def _hold_back(self, found: Recovered) -> None:
        """Read again from the end of the log, if the group has committed further."""
        topics = self.runtime.topics
        ends = {topics.context: found.next_context, topics.reward: found.next_reward}
        for topic, committed in (await self.runtime.hold_back(ends)).items():
            # Usually these are records that left no row, and will again leave none.
            log.info(
                "%s: the group has committed %d, the log ends before %d: reading again from there",
                topic, committed, ends[topic],
            )  # fmt: skip

    async def _report_expired(self, found: Recovered) -> None:
        """Log which records retention removed before the learner read them: they are never decided or learned."""
        topics = self.runtime.topics
        first = await self.runtime.first_offsets((topics.context, topics.reward))
        for topic, read in ((topics.context, found.next_context), (topics.reward, found.next_reward)):
            # Records that left no row, such as dead letters, count too: the log cannot tell them apart.
            if (lost := first.get((topic, 0), 0) - read) > 0:
                self.runtime.metrics.expired.labels(topic).inc(lost)
                log.error(
                    "%s: up to %d records expired unread (offsets %d to %d): the room was down for longer than the "
                    "topic's retention; their queries were never answered; send them again",
                    topic, lost, read, read + lost - 1,
                )  # fmt: skip

    async def _obsolete(self) -> list[bytes]:
        """Return the keys of rows and chunks that neither recovery nor a replay needs any more."""
        topics = self.runtime.topics
        first = await self.runtime.first_offsets((topics.query, topics.context))
        records = self.table.items()
        return await self.runtime.in_thread(lambda: _obsolete(records, first))


def _obsolete(records: Sequence[tuple[bytes, bytes]], first: Mapping[tuple[str, int], int]) -> list[bytes]:
    def replayable(origin: Origin) -> bool:
        return origin.offset >= first.get((origin.topic, origin.partition), 0)

    rows = [decode_row(k, v) for k, v in records if not k.startswith(snapshot.SNAPSHOT_KEY)]
    own = [row for row in rows if isinstance(row, Row)]
    return list(snapshot.obsolete([key for key, _ in records], own, replayable))
