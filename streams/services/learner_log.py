"""The learner's log on the broker: recovery at startup, and the snapshots that bound the log and memory.

The log is the changelog of the decider's table. Snapshots have their own topic, and each records the log offset it is
complete up to. Startup reads the snapshots, and then the log from the offset of the older of the two that are kept.
The log, not the consumer group, is authoritative. If the committed offset is behind the log, redelivered records are
recognised; if it is ahead, it is rewound, so that the skipped records are read.
"""

import asyncio
import logging
from collections import ChainMap
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Final

from agents.bandit.errors import CorruptState
from agents.decider import snapshot
from agents.decider.decider import Decider
from agents.decider.open_rows import OpenRows
from agents.decider.recovery import Recovered
from agents.decider.repair import shown
from agents.decider.rows import decode_row
from agents.decider.snapshot import BEGINNING, START_KEY, Manifest, manifests, start_of
from streams.log.base import Unavailable
from streams.runtime.errors import PartitionLost
from streams.runtime.runtime import Runtime
from streams.runtime.table import FileRows

log = logging.getLogger("streams.decider")

_DROPPED_AT_ONCE: Final = 1000
_AGAIN_S: Final = 30.0


class LearnerLog:
    """The decider's table, with its recovery and its snapshots.

    Attributes:
        table: Rows by key, in memory: open rows, and those that are not yet in two snapshots.
        snapshot_at: The newest snapshot's sequence number; -1 if there is none.
        retried_offset: Offset of the last AttemptFailed that has been followed by the next Decision, or the Answer.
    """

    def __init__(self, runtime: Runtime, recovered: Callable[[], Awaitable[None]]) -> None:
        self.runtime = runtime
        self.settings = runtime.settings
        self.topic = runtime.topics.snapshot
        self.changelog = runtime.topics.changelog(runtime.service, "pending")
        self.table = runtime.table(
            "pending",
            1,
            source=runtime.topics.context,
            recovered=recovered,
            one_writer=True,
            begins=self._begins,
        )
        self.snapshot_at = -1
        self.retried_offset = -1
        self._reading = self.table.reading  # the recovery that the learner is based on
        self._again_s = 0.0  # earliest time of the next snapshot attempt
        # Snapshot records as read, until folded.
        self._read: MutableMapping[bytes, bytes] | None = None
        self._present: set[bytes] = set()
        self._manifests: dict[int, Manifest] = {}
        # The newest snapshot's open decisions, and the keys of rows written since.
        self._open = OpenRows()
        self._changed: dict[bytes, None] = {}
        # Ended rows that are still in the log, with the sequence number of their last change.
        self._ended: dict[bytes, int] = {}

    @property
    def assigned(self) -> bool:
        """Return whether this worker owns the learner and has read its rows."""
        return bool(self.table.reading)

    @property
    def chunk_bytes(self) -> int:
        """Return the maximum size of a snapshot chunk, in bytes."""
        return min(snapshot.CHUNK_BYTES, self.settings.kafka.max_record_bytes // 2)

    async def recover(self, decider: Decider) -> Recovered:
        """Rebuild a learner from snapshots and rows, and rewind the group's committed offsets if they are ahead.

        Raises:
            CorruptState: The log is incomplete.
            PartitionLost: This worker does not own the learner, or does not own it yet. Without the rows, the learner
                would start from scratch.
        """
        self._reading = self.table.reading
        self._require_current()
        snapshots = await self._snapshots() if self._read is None else self._read
        self._require_current()
        records = self.table.items()
        began_s = self.runtime.monotonic()
        found = await self.runtime.in_thread(lambda: decider.recover(records, snapshots.items()))
        self._require_current()
        fold_s = self.runtime.monotonic() - began_s
        self._open, self._ended = found.open_rows, {}
        held = set(found.open_rows.keys()).difference(key for key, _ in records)
        self._changed = dict.fromkeys(key for key, _ in records)
        self._changed |= dict.fromkeys(key for key in found.carried if key not in held)
        carried = list(found.carried)
        for keys in _slices(carried):
            self._require_current()
            self.table.seed((key, found.carried[key], 0) for key in keys)
            await asyncio.sleep(0)
        self._require_current()
        self._read, self._present = None, set(snapshots)
        # Newer snapshots were refused, so no rows may be deleted from the log because of them.
        whole = manifests(snapshots).items()
        self._manifests = {version: each for version, each in whole if version <= found.snapshot_version}
        self.snapshot_at = found.snapshot_version
        for refused in found.refused:
            log.error("a snapshot was refused: %s", refused)
        for other in snapshot.other_kernels(each for v, each in whole if v == found.snapshot_version):
            log.warning(
                "snapshot %d was computed by %s, and here %s computes: what is learned from now on differs from what "
                "would be learned there in the last bits, and verify-decisions may name such differences. Nothing is "
                "lost. To go on bit for bit, set OPENBLAS_CORETYPE to the kernel of the snapshot, if this processor "
                "can run it",
                found.snapshot_version,
                other,
                snapshot.kernel(),
            )
        log.info(
            "%d records; snapshot %d and %d decisions, %d updates after it folded in %.2f s: "
            "policy version %d, next sequence number %d, %d ended queries remembered",
            len(records) + len(snapshots),
            found.snapshot_version,
            found.folded.decisions,
            found.folded.updates,
            fold_s,
            decider.policy.version,
            decider.seq,
            len(decider.ended),
        )
        if again := sorted(decider.policy.refits.results):
            log.warning(
                "what the policy estimated after %s outcomes was not in the log, or was of another history: it was "
                "estimated again, and is written with the next rewards",
                ", ".join(map(str, again)),
            )
        await self._remove_foreign(found, ChainMap(dict(records), snapshots))
        if decider.seq:
            self._require_current()
            await self._rewind_commits(found)
            await self._report_expired(found)
        self.runtime.metrics.recovery_seconds.labels("fold").set(fold_s)
        self._show()
        return found

    async def begin(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Write the prior that an empty log starts from. Raises the same errors as `write`."""
        await self._post(records)

    async def write(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write rows derived from the recovered state, atomically; None deletes a key.

        Raises:
            PartitionLost: The table has been recovered again since, or is about to be; nothing was written.
            SendFailed: The broker did not accept the rows.
        """
        self._require_current()
        written = [(key, value, 0) for key, value in rows]
        await self.table.put_all(written)
        if self.settings.policy.snapshot_every:
            self._changed.update((key, None) for key, _, _ in written)

    async def _write_snapshots(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write snapshot records atomically. Raises the same errors as `write`."""
        self._require_current()
        await self.table.post(self.topic, records)

    def _require_current(self) -> None:
        if not self._reading or self.table.reading != self._reading:
            raise PartitionLost(f"{self.changelog}: another worker has it, or it is still to be read")

    async def snapshot_when_due(self, decider: Decider) -> None:
        """Write a snapshot once enough has been learned since the last one, then drop rows that are in two snapshots.

        Raises:
            PartitionLost: Another worker owns the learner, or the log is being recovered.
        """
        every = self.settings.policy.snapshot_every
        if (
            not every
            or decider.seq - 1 - self.snapshot_at < every
            or self.runtime.monotonic() < self._again_s
        ):
            return
        try:
            dropped = await self._write(decider)
        except PartitionLost:
            raise
        except Unavailable as error:
            # The rows are complete, so the next attempt writes a full snapshot. Decisions wait during an attempt.
            self._again_s = self.runtime.monotonic() + _AGAIN_S
            log.warning("no snapshot, and none is tried for %.0f s: %s", _AGAIN_S, error)
            return
        self._show()
        log.info("snapshot %d written, %d older records dropped", self.snapshot_at, dropped)

    def _show(self) -> None:
        """Set the gauges for the newest snapshot; a recovered one's age is measured from now."""
        self.runtime.metrics.snapshot_place.set(self.snapshot_at)
        self.runtime.metrics.snapshot_time.set(self.runtime.clock.now_ms() / 1000)

    async def _write(self, decider: Decider) -> int:
        """Write a snapshot, then drop and count obsolete records, in the order given by `agents.decider.snapshot`."""
        topics = self.runtime.topics
        first = await self.runtime.log.first_offsets((topics.query, topics.context, topics.attempt_failed))
        end = (await self.runtime.log.end_offsets((self.changelog,)))[self.changelog, 0]
        changed = self._changed
        # Take the table's own key objects, so that they are shared.
        keys = [key for key in self.table if key in changed or key.startswith(b"\x00")]

        def made() -> tuple[list[tuple[bytes, bytes]], OpenRows, dict[bytes, int]]:
            rows = ((key, value, decode_row(key, value)) for key in keys if (value := self.table.get(key)))
            carried, ended = snapshot.carry(
                rows,
                end,
                decider.ended,
                value=self.table.get,
                open_rows=self._open,
                changed=changed,
                chunk_bytes=self.chunk_bytes,
            )
            queries = {partition: at for (name, partition), at in first.items() if name == topics.query}
            _, crowded = decider.ended.forget(queries, first[topics.context, 0])
            if crowded:
                log.warning(
                    "%d ids of ended queries forgotten to stay within the limit, although their Queries are still on "
                    "the broker: raise remembered_ids (%d), or shorten the retention of %s",
                    crowded,
                    decider.ended.most,
                    topics.query,
                )
            made = decider.snapshot(self.chunk_bytes, carried=carried, present=self._present)
            return made, carried.open_rows, ended

        try:
            records, still_open, ended = await self.runtime.in_thread(made)
        except CorruptState:
            self._require_current()  # the rows have gone with the partition
            raise
        await self._post(records)
        self._open, self._changed, self._ended = still_open, {}, self._ended | ended
        self._manifests |= manifests(dict(records[-1:]))
        self.snapshot_at = decider.seq - 1
        floor = snapshot.floor_of(self._manifests)
        # The row of a failed attempt stays until the next Decision or the Answer has been sent: without the row, a
        # redelivered AttemptFailed belongs to a query that has ended, and nothing is sent.
        unsent = decider.failure_offset > self.retried_offset
        if floor is None or (unsent and decider.failure_offset >= first[topics.attempt_failed, 0]):
            return 0
        old = [key for key, last in self._ended.items() if last <= floor.version]
        for gone in _slices(old):
            await self.write((key, None) for key in gone)
            for key in gone:
                del self._ended[key]
        await self._post([(START_KEY, str(floor.log_offset).encode())])
        left = sorted(snapshot.obsolete(self._present, self._manifests))
        for gone in _slices(left):
            await self._write_snapshots((key, None) for key in gone)
        self._present.difference_update(left)
        self._manifests = {v: m for v, m in self._manifests.items() if v == BEGINNING or v >= floor.version}
        return len(old) + len(left)

    async def _post(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Write snapshot records one by one, because each may be as large as a request can be."""
        for key, value in records:
            await self._write_snapshots([(key, value)])
            self._present.add(key)
        self._read = None  # a recovery that started meanwhile, after a rebalance, has not read these records

    async def _begins(self) -> int:
        """Read the snapshots, and return the log offset to start from."""
        self._read = await self._snapshots()
        start = start_of(self._read)
        end = (await self.runtime.log.end_offsets((self.changelog,)))[self.changelog, 0]
        if start > end:
            raise CorruptState(
                f"{self.changelog}, which {self.topic} says is read from offset {start}",
                f"end {end}",
                "the log that these snapshots stand for",
            )
        return start

    async def _snapshots(self) -> MutableMapping[bytes, bytes]:
        """Read the snapshot records into a file, because they contain every open row."""
        return await self.runtime.log.latest(self.topic, into=FileRows(self.settings.state_path()))

    async def _remove_foreign(self, found: Recovered, values: Mapping[bytes, bytes]) -> None:
        """Restore rows that foreign records replaced, and delete the other foreign records."""
        for topic, keys in zip((self.changelog, self.topic), found.foreign, strict=True):
            for key in keys:
                log.error(
                    "%s: the record under key %s is not the learner's and is deleted; it began with %r. Only the "
                    "decider may write to this topic: see SECURITY.md for its ACLs",
                    topic,
                    shown(key),
                    values[key][:80],
                )
        rows, records = found.foreign
        await self.write((key, found.carried.get(key)) for key in rows)
        await self._write_snapshots((key, None) for key in records)
        self._present.difference_update(records)

    async def _rewind_commits(self, found: Recovered) -> None:
        """Rewind the group's committed offsets to the end of the log, if they are ahead of it."""
        topics = self.runtime.topics
        ends = {
            topics.context: found.next_context,
            topics.reward: found.next_reward,
            topics.attempt_failed: found.next_failure,
        }
        committed = await self.runtime.rewind_commits(ends)
        for topic, offset in committed.items():
            if offset > ends[topic]:
                # Usually these records left no row, and will leave none again.
                log.info(
                    "%s: the group has committed %d, the log ends before %d: reading again from there, as far as "
                    "the records still exist",
                    topic,
                    offset,
                    ends[topic],
                )
        self.retried_offset = committed.get(topics.attempt_failed, 0) - 1

    async def _report_expired(self, found: Recovered) -> None:
        """Log records that retention removed before the learner read them: they are never decided or learned."""
        topics = self.runtime.topics
        first = await self.runtime.log.first_offsets((topics.context, topics.reward))
        for topic, read in ((topics.context, found.next_context), (topics.reward, found.next_reward)):
            # Records that left no row, such as dead letters, count too: the log cannot distinguish them.
            if (lost := first.get((topic, 0), 0) - read) > 0:
                self.runtime.metrics.expired.labels(topic).inc(lost)
                log.error(
                    "%s: up to %d records expired unread (offsets %d to %d): the service was down for longer than the "
                    "topic's retention; their queries were never answered; send them again",
                    topic,
                    lost,
                    read,
                    read + lost - 1,
                )


def _slices(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (keys[at : at + _DROPPED_AT_ONCE] for at in range(0, len(keys), _DROPPED_AT_ONCE))
