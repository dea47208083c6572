"""A guard around each handler: it retries, counts failures across restarts, and sends dead letters."""

import asyncio
import contextlib
import logging
import mmap
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.query import Origin
from schemas.record import encode
from streams.log.base import ConsumerRecord, Outgoing, Unavailable
from streams.runtime.errors import Crash, Death, PartialWrite
from streams.runtime.runtime import BatchHandler, Runtime

log = logging.getLogger("streams.runtime.handler_guard")

# Failures are counted per record across restarts; the third sends the record to the dead-letter topic.
#
# An unknown error ends the process before the offset moves, and the next process reads the record again. Without a
# count, a record that always fails would block its query forever. A process that dies abruptly (segmentation fault,
# out of memory, kill -9) cannot count. Records in flight are therefore listed in a file while they are handled, and
# the next process counts the death. Up to 256 records may be in flight when a process dies. Records that were in flight
# at two deaths are suspects. They are divided into three groups, which run one at a time and with nothing else in
# flight. The group in flight at the next death is divided again: among 256 records, the one at fault is alone in flight
# at the eighth death. Only a record that was alone is refused, so no record is refused because of another.

LIMIT = 3

_REFUSED = 256
"""How many guilty records are remembered after being sent to the dead-letter topic."""

# A topic name has at most 249 characters; the partition, offset and append time take at most 45 between them.
_SLOT = 304

# Two groups would need ten deaths; with four, records would be handled for longer with few others in flight.
_SUSPECT_GROUPS = 3


_REASON = 500
"""Maximum number of characters of a failure's reason to keep."""


class KilledProcess(UniscaleError):
    """The process died repeatedly while handling this record. Check the service's log before you retry the record."""


class _Count(msgspec.Struct, omit_defaults=True):
    failures: int = 0  # how many times its handler raised an exception
    reason: str = ""  # of the last failure or death whose reason is known
    deaths: int = 0  # how many processes died with it in flight
    alone: bool = False  # whether nothing else was in flight at the last death
    refused: bool = False  # whether it was found guilty and sent to the dead-letter topic


class Crashes:
    """Failures and deaths counted against one worker's records, in a small file, or in memory if `path` is None."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._counts = self._read()
        self._groups = self._divided()

    def __contains__(self, identity: str) -> bool:
        """Return whether failures or deaths are counted against a record."""
        return identity in self._counts

    def failed(self, identity: str, reason: str = "") -> int:
        """Count one more failure of a record and return the total.

        Args:
            identity: The record's identity.
            reason: What failed.
        """
        count = self._counts.setdefault(identity, _Count())
        count.failures += 1
        count.reason = reason[:_REASON]
        self._write()
        return count.failures

    def died(self, in_flight: Sequence[str], reason: str = "") -> None:
        """Count the death of a process with these records in flight.

        Args:
            in_flight: The records' identities.
            reason: Why the process died, if known.
        """
        for identity in in_flight:
            count = self._counts.setdefault(identity, _Count())
            count.deaths += 1
            count.reason = reason[:_REASON] or count.reason
            count.alone = len(in_flight) == 1
        if in_flight:
            self._write()
        self._groups = self._divided()

    def guilty(self, identity: str) -> int:
        """Return how many processes a record has killed or left unable to continue; 0 unless that is certain."""
        count = self._counts.get(identity)
        if count is None:
            return 0
        if count.failures >= LIMIT:
            return count.failures
        return count.deaths if count.alone and count.deaths >= LIMIT else 0

    def reason(self, identity: str) -> str:
        """Return the reason of a record's last failure or death; empty if unknown."""
        count = self._counts.get(identity)
        return "" if count is None else count.reason

    def group(self, identity: str) -> str:
        """Return a record's group, or "" if it is not a suspect. Only records in the same group run together."""
        return self._groups.get(identity, "")

    def refused(self, identity: str) -> None:
        """Drop the count of a record that was sent to the dead-letter topic, unless the record is guilty.

        A guilty record's offset is not committed yet: if the next record ends the process, the guilty one is
        redelivered, and must not run again.
        """
        if not self.guilty(identity):
            self.forget(identity)
        elif not self._counts[identity].refused:
            self._counts[identity].refused = True
            refused = [each for each, count in self._counts.items() if count.refused]
            for each in refused[:-_REFUSED]:
                del self._counts[each]
            self._write()

    def forget(self, identity: str) -> None:
        """Drop the count of a record that has been handled."""
        if self._counts.pop(identity, None) is not None:
            self._write()

    def _divided(self) -> dict[str, str]:
        """Return the group of each suspect. All members of a group have the same number of deaths."""
        witnesses: dict[int, list[str]] = {}
        for identity, count in sorted(self._counts.items()):
            if count.deaths >= LIMIT - 1 and not count.refused:
                witnesses.setdefault(count.deaths, []).append(identity)
        return {
            identity: f"{deaths} deaths, part {at * _SUSPECT_GROUPS // len(each) + 1}"
            for deaths, each in witnesses.items()
            for at, identity in enumerate(each)
        }

    def _read(self) -> dict[str, _Count]:
        if self.path is None:
            return {}
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, _Count])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}  # no file yet, or one damaged by a machine crash: counting restarts

    def _write(self) -> None:
        if self.path is None:
            return
        temporary = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(self._counts))
            temporary.replace(self.path)
        except OSError as error:  # the disk is full: no record is at fault
            log.warning(
                "%s: is not written (%s): what is counted does not outlast this process", self.path, error
            )


class InFlight(Protocol):
    """The records in flight, as tracked by the guard."""

    left: list[str]

    @property
    def noted(self) -> list[str]:
        """Identities of the records in flight."""

    def holding(self, identities: Iterable[str]) -> AbstractContextManager[None]:
        """Keep records listed while they are handled."""


class StateDirError(UniscaleError):
    """The file of records in flight cannot be written. Make room in `state_dir`, or set another folder."""


class InFlightFile:
    """Records in flight, in a memory-mapped file that outlives the process. It has one slot per record.

    The file is never synced: written pages survive the process but not a machine crash, after which losing a count is
    harmless.

    Args:
        path: The file.
        slots: How many records the file can list.

    Raises:
        StateDirError: the file cannot be written because the disk is full or permissions are missing.
    """

    def __init__(self, path: Path, slots: int) -> None:
        self._size = _SLOT * slots
        self._empty = bytes(self._size)  # allocated while there is memory
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:
                # Writing to a sparse page on a full disk would kill the process silently (SIGBUS).
                os.posix_fallocate(file.fileno(), 0, self._size)
                file.truncate(self._size)
                self._slots = mmap.mmap(file.fileno(), self._size)
        except OSError as error:
            raise StateDirError(
                f"{path}: its {self._size} bytes cannot be written ({error.strerror}); make room, or set "
                "UNISCALE_STATE_DIR to a folder of this user's on another disk"
            ) from error
        self._free = list(range(slots))
        self._all = slots
        self.left = self.noted
        """Identities of the records in flight when the previous process died; empty after an orderly exit."""
        self.clear()

    @property
    def held(self) -> int:
        """Number of records in flight."""
        return self._all - len(self._free)

    @property
    def noted(self) -> list[str]:
        """Identities of the records in flight."""
        slots = (self._slots[at : at + _SLOT] for at in range(0, self._size, _SLOT))
        return [slot.rstrip(b"\0").decode(errors="replace") for slot in slots if slot[0]]

    @contextlib.contextmanager
    def holding(self, identities: Iterable[str]) -> Iterator[None]:
        """List records in the file while they are handled; only a process death leaves them there."""
        slots = []
        for each in identities:
            if not self._free:
                break  # there are more records than any service handles at once; the rest are not tracked
            slots.append(self._free.pop())
            start = slots[-1] * _SLOT
            self._slots[start : start + _SLOT] = each.encode()[:_SLOT].ljust(_SLOT, b"\0")
        try:
            yield
        finally:
            for slot in slots:
                self._slots[slot * _SLOT] = 0
            self._free += slots

    def clear(self) -> None:
        """Empty the file, because the process exits deliberately and the records in flight are not at fault."""
        self._slots[:] = self._empty


# Suspect groups: handlers of one group run concurrently, but never alongside those of another. Records that are not
# suspects form one group, "". After a process has died twice with the same records in flight, these are divided into
# groups (`Crashes.group`). If the process dies again, the file of records in flight lists only the group that ran.


class SuspectGroups:
    """Runs handlers one group at a time. New handlers of the running group do not overtake a waiting group."""

    def __init__(self) -> None:
        self._group = ""
        self._running = 0
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    async def enter(self, group: str) -> None:
        """Wait until no other group is running. Call `leave` when the handler has finished."""
        if not self._waiting and (group == self._group or not self._running):
            self._group = group
            self._running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((group, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting = deque(each for each in self._waiting if each[1] is not turn)
            else:
                self.leave()  # the handler had been admitted
            raise

    def leave(self) -> None:
        """Leave after a handler has finished. The last to leave admits the group that has waited longest."""
        self._running -= 1
        while not self._running and self._waiting:
            self._group = self._waiting[0][0]
            turns = [turn for group, turn in self._waiting if group == self._group and not turn.done()]
            self._waiting = deque(each for each in self._waiting if each[0] != self._group)
            self._running = len(turns)
            for turn in turns:
                turn.set_result(None)


# A record that cannot be handled becomes a dead letter, with an Answer if its query would otherwise get none.


class Refusal(NamedTuple):
    """A record to send to the dead-letter topic.

    Attributes:
        error: Why the record could not be handled.
        value: The record's value.
        origin: The record's position.
        answer: Whether to send an Answer for the record's query. False if the query continues without this record, or
            gets its Answer elsewhere.
        query_origin: The origin of a query refused because its id is taken; see `DeadLetter`.
        attempts: How many times the record was tried.
    """

    error: Exception
    value: bytes | None
    origin: Origin
    answer: bool = False
    query_origin: Origin | None = None
    attempts: int = 1


async def send_refused(runtime: Runtime, records: Sequence[Outgoing], refused: Sequence[Refusal]) -> None:
    """Send records, and dead letters with the corresponding Answers; count the dead letters."""
    topics = runtime.topics
    out, letters = [*records], list[DeadLetter]()
    for each in refused:
        letter = DeadLetter.of(
            each.value,
            each.error,
            service=runtime.service,
            origin=each.origin,
            attempts=each.attempts,
            query_origin=each.query_origin,
            keep_bytes=runtime.settings.kafka.dead_letter_bytes,
        )
        letters.append(letter)
        log.warning("dead letter %s: %s: %s", letter.key, letter.error, letter.reason)
        out.append(Outgoing(topics.dead_letter, letter.key.encode(), encode(letter)))
        # A query does not end when a record of one of these topics is refused.
        beside = (topics.answer, topics.feedback, topics.due, topics.reward)
        query_id = letter.query_id if each.answer and each.origin.topic not in beside else None
        if query_id and runtime.answers_for(query_id, each.origin):
            early = each.origin.topic in (topics.query, topics.context)
            answer = Answer(
                query_id=query_id,
                status="rejected" if early else "failed",
                by=runtime.service,
                error=getattr(each.error, "instead", "") or letter.reason,
            )
            out.append(Outgoing.of(topics.answer, answer))
    if out:
        await runtime.send(*out)
    for letter in letters:
        runtime.metrics.dead_letters.labels(letter.origin.topic, letter.error).inc()


# The guard itself ends no process: it raises `Crash` where the service must not continue. What it does depends on the
# exception that a handler raises:
#
#     UniscaleError   the record is at fault, and goes to the dead-letter topic at once
#     Unavailable     the broker or an encoder is at fault; not counted, and the guard waits and calls the handler again
#     MemoryError     the process is out of memory: a death, counted against all records in flight (`SuspectGroups`)
#     Death           an engine has died or hangs: a death, counted likewise
#     anything else   the cause is unknown; the failure is counted and the service crashes, so that a fresh process
#                     tries again. After the third failure the record goes to the dead-letter topic, sent by this
#                     process or, if it cannot continue (`PartialWrite`), by the next one

handling: ContextVar[Sequence[ConsumerRecord]] = ContextVar("handling", default=())
"""The current task's records; empty outside handlers. The task has effects only while this worker owns them."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class HandlerGuard:
    """Counts failures and sends dead letters for one worker; both runtimes call their handlers through it."""

    def __init__(self, runtime: Runtime, crashes: Crashes, in_flight: InFlight) -> None:
        self.runtime = runtime
        self.crashes = crashes
        self.in_flight = in_flight
        self._groups = SuspectGroups()
        self._stopping = False
        self._quiet_until = 0.0
        crashes.died(in_flight.left)
        if found := in_flight.left:
            some = ", ".join(found[:8]) + (" …" if len(found) > 8 else "")
            log.warning("in flight when the last process died: %d records (%s)", len(found), some)

    def stop(self) -> None:
        """Start no more records; those in flight continue."""
        self._stopping = True

    async def beside(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task alongside the handlers.

        Raises:
            Death: the task raised it; the death has been counted.
        """
        try:
            await run()
        except Death as death:
            self._count(death)
            raise

    async def call(self, records: Sequence[ConsumerRecord], handle: BatchHandler) -> None:
        """Handle records and return when they are done: handled, or in the dead-letter topic.

        Raises:
            Crash: the service must not continue.
        """
        await self._unless_stopping()
        self.runtime.clock.handled(records[-1].timestamp_ms)
        if len(records) > 1 and any(record.identity in self.crashes for record in records):
            # Handle the records one by one, to find the one at fault.
            for record in records:
                await self.call([record], handle)
            return
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._attempt(records, handle)
                return
            except Unavailable as error:
                self._wait(records[0], pause_s, error)
            await self.runtime.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            await self._unless_stopping()
            if not all(map(self.runtime.is_ours, records)):
                return  # the records are redelivered to the worker that owns the partition now

    async def _refuse(self, record: ConsumerRecord, error: Exception, attempts: int = 1) -> None:
        """Send a record to the dead-letter topic."""
        refused = Refusal(error, record.value, record.origin, answer=True, attempts=attempts)
        try:
            await send_refused(self.runtime, (), [refused])
        except (Unavailable, Crash):
            raise
        except Exception as unexpected:
            raise Crash(f"{record.coordinates}: what refuses it could not be sent") from unexpected
        self.crashes.refused(record.identity)

    def _wait(self, record: ConsumerRecord, pause_s: float, error: Unavailable) -> None:
        self.runtime.metrics.waits.labels(record.topic).inc()
        if (now := self.runtime.monotonic()) >= self._quiet_until:  # hundreds may wait for the same broker
            self._quiet_until = now + pause_s
            log.warning("%s: waiting %.1f s: %s", record.coordinates, pause_s, error)

    async def _unless_stopping(self) -> None:
        if self._stopping:
            await asyncio.Future()

    async def _attempt(self, records: Sequence[ConsumerRecord], handle: BatchHandler) -> None:
        first = records[0]
        handling.set(records)
        if deaths := self.crashes.guilty(first.identity):
            reason = self.crashes.reason(first.identity)
            why = KilledProcess(
                f"{first.coordinates}: the process of the {self.runtime.service} died {deaths} times with this "
                f"record in flight ({reason or 'a segmentation fault, no memory left, or a kill'}); fix the cause, "
                "then retry it"
            )
            await self._refuse(first, why, deaths)
            return
        await self._groups.enter(self.crashes.group(first.identity))
        try:
            with self.in_flight.holding([record.identity for record in records]):
                await self._try(records, handle)
        finally:
            self._groups.leave()

    async def _try(self, records: Sequence[ConsumerRecord], handle: BatchHandler) -> None:
        first = records[0]
        try:
            await handle(records)
        except asyncio.CancelledError as error:
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                # It was not the handler that was cancelled but something it awaited; the task would end silently.
                raise Crash(
                    f"{first.coordinates}: what the {self.runtime.service} waited for was cancelled"
                ) from error
            raise
        except Death as death:
            self._count(death)
            raise
        except (Unavailable, Crash):
            raise
        except MemoryError as error:
            out = self._out_of_memory(first)
            self._count(out)
            raise out from error
        except Exception as error:
            if isinstance(error, UniscaleError) and len(records) == 1:
                await self._refuse(first, error)
                return
            cause = error.__cause__ or error if isinstance(error, PartialWrite) else error
            reason = f"{type(cause).__name__}: {cause}"
            counts = [self.crashes.failed(record.identity, reason) for record in records]
            self.runtime.metrics.crashes.labels(first.topic).inc()
            if counts[0] < LIMIT or len(records) > 1 or isinstance(error, PartialWrite):
                raise Crash(
                    f"{first.coordinates}: failure {counts[0]} of {LIMIT} in the {self.runtime.service}"
                ) from error
            await self._refuse(first, error, counts[0])
        else:
            for record in records:
                self.crashes.forget(record.identity)

    def _count(self, death: Death) -> None:
        """Count a death against all records in flight."""
        if not self._stopping:  # otherwise a death has been counted already: only the first ends a worker
            self.stop()
            self.crashes.died(self.in_flight.noted, str(death.__cause__ or death))

    def _out_of_memory(self, record: ConsumerRecord) -> Death:
        return Death(
            f"{record.coordinates}: no memory left in the {self.runtime.service}, with "
            f"{len(self.in_flight.noted)} records in flight; give its process more, or lower "
            "UNISCALE_CONCURRENCY"
        )
