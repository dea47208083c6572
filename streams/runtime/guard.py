"""The guard around each handler: counts failures across restarts, retries, sends a record to the dead letters."""

import asyncio
import contextlib
import logging
import mmap
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.query import Origin
from schemas.record import encode, readable_id
from streams.runtime.base import BatchHandler, Crash, Outgoing, Record, Runtime, Torn, Unavailable, key_of

# Count failures per record across restarts, so that the third sends the record to the dead-letter topic.
#
# An unknown error ends the process before the offset moves, and the next process reads the record again. Without a
# count, a record that always fails would block its partition forever. A process that dies abruptly (segmentation
# fault, out of memory, kill -9) cannot count. Records in flight are therefore noted in a file while they are handled,
# and the next process counts for the one that died.

LIMIT = 3

# A topic's name has 249 characters at most, partition and offset 31 together.
_SLOT = 288
_SLOTS = 1024


_REASON = 500
"""Most characters of a failure's reason that are kept."""


class KilledProcess(UniscaleError):
    """The process died repeatedly while handling this record. Check the room's log before you retry it."""


class Crashes:
    """Failures of one worker by record, kept in a small file, or only in memory when there is no path."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._counts = self._read()

    def of(self, coordinates: str) -> int:
        """Return how often a record has failed."""
        return self._counts.get(coordinates, (0, ""))[0]

    def reason(self, coordinates: str) -> str:
        """Return what the last failure at a record was; empty if its process could not say."""
        return self._counts.get(coordinates, (0, ""))[1]

    def add(self, coordinates: str, reason: str = "") -> int:
        """Count one more failure at a record and return how many there are now.

        Args:
            coordinates: The record's.
            reason: What failed; empty where the process died of it.
        """
        count = self.of(coordinates) + 1
        self._counts[coordinates] = count, reason[:_REASON]
        self._write()
        return count

    def forget(self, coordinates: str) -> None:
        """Drop the count of a record that was handled or sent to the dead-letter topic."""
        if self._counts.pop(coordinates, None) is not None:
            self._write()

    def _read(self) -> dict[str, tuple[int, str]]:
        if self.path is None:
            return {}
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, tuple[int, str]])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}  # none yet, or torn by a crash of the machine: counting starts again

    def _write(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(self._counts))
        temporary.replace(self.path)


class InFlight(Protocol):
    """The records being handled, as the guard notes them."""

    left: list[str]

    def holding(self, coordinates: Iterable[str]) -> AbstractContextManager[None]:
        """Keep records noted while they are handled."""


class InFlightFile:
    """Records in flight, in a memory-mapped file that outlives the process: one slot each, never synced.

    Pages handed to the kernel survive the process but not the machine. Losing a count with the machine does no harm.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.truncate(_SLOT * _SLOTS)
            self._slots = mmap.mmap(file.fileno(), _SLOT * _SLOTS)
        self._free = list(range(_SLOTS))
        self.left = self.coordinates
        """Coordinates of the records in flight when the previous process died; empty after an orderly exit."""
        self.clear()

    @property
    def held(self) -> int:
        """Number of records in flight."""
        return _SLOTS - len(self._free)

    @property
    def coordinates(self) -> list[str]:
        """Coordinates of the records in flight."""
        slots = (self._slots[at : at + _SLOT] for at in range(0, _SLOT * _SLOTS, _SLOT))
        return [slot.rstrip(b"\0").decode(errors="replace") for slot in slots if slot[0]]

    @contextlib.contextmanager
    def holding(self, coordinates: Iterable[str]) -> Iterator[None]:
        """Keep records in the file while they are handled; only the death of the process leaves them there."""
        slots = []
        for each in coordinates:
            if not self._free:
                break  # more at once than any room handles; these go uncounted
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
        """Empty the file: the process is exiting deliberately, so the records in flight are not to blame."""
        self._slots[:] = bytes(_SLOT * _SLOTS)


# Run many handlers at once, or one alone: a suspect record is handled with nothing else in flight.
#
# If the process dies again, the file of records in flight then names only the culprit.


class Turns:
    """Lets handlers run together or alone. A handler waiting to run alone is not overtaken."""

    def __init__(self) -> None:
        self._running = 0
        self._alone = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._together = _Together(self)

    def together(self) -> AbstractAsyncContextManager[None]:
        """Run beside others."""
        return self._together

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until no other handler runs, and keep others out."""
        async with self._alone:
            await self._idle.wait()
            yield


class _Together:
    """Shared entry and exit, written as a class because it runs for every record."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def __aenter__(self) -> None:
        if self._turns._alone.locked():  # a handler runs alone, or waits to
            async with self._turns._alone:
                self._enter()
        else:
            self._enter()

    def _enter(self) -> None:
        self._turns._running += 1
        self._turns._idle.clear()

    async def __aexit__(self, *_: object) -> None:
        turns = self._turns
        turns._running -= 1
        if not turns._running:
            turns._idle.set()


# Build the dead letter of a record, and an Answer if its query would otherwise never get one.
#
# Pure and total: the value may be any bytes at all. A failure here would block the partition forever.


def letter_of(
    value: bytes | None,
    error: Exception,
    *,
    room: str,
    origin: Origin,
    keep_bytes: int,
    attempts: int = 1,
    query_origin: Origin | None = None,
) -> DeadLetter:
    """Return the dead letter of a record.

    Args:
        value: The record's bytes; they may be anything.
        error: Why it could not be handled.
        room: The room that could not handle it.
        origin: The record's topic, partition and offset.
        keep_bytes: How much of the value is kept, at most.
        attempts: How often it was tried.
        query_origin: Origin of a query refused because its id is taken.
    """
    letter = DeadLetter.of(
        value,
        error,
        room=room,
        origin=origin,
        attempts=attempts,
        query_id=readable_id(value),
        keep_bytes=keep_bytes,
    )
    return msgspec.structs.replace(
        letter,
        reason=_sendable(letter.reason),
        field=_sendable(letter.field),
        query_origin=query_origin,
    )


def answer_of(letter: DeadLetter, status: Literal["rejected", "failed"]) -> Answer | None:
    """Return the Answer for a query whose record became a dead letter, or None if its id cannot be read."""
    if not letter.query_id:
        return None
    return Answer(query_id=letter.query_id, status=status, by=letter.room, error=letter.reason)


def _sendable(text: str) -> str:
    """Return text that UTF-8 can hold: a library's message may quote half a surrogate pair."""
    return text.encode(errors="replace").decode()


# The guard around each handler: counts failures, retries, and sends a record to the dead-letter topic.
#
# The guard ends no process itself: it raises `Crash` where the room must not continue. Exceptions fall into three
# kinds:
#
#     UniscaleError   the record is at fault: dead letter at once
#     Unavailable     the broker or an encoder is at fault: not counted; the guard waits and calls the handler again
#     anything else   the cause is unknown: the failure is counted and the room crashes, so that a fresh process tries
#                     again; after the third failure the record goes to the dead-letter topic: at once, or, if the
#                     process cannot go on (`Torn`), from the next one

log = logging.getLogger("streams.runtime.guard")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class Guard:
    """Failure counting and dead letters of one worker; both runtimes call their handlers through it."""

    def __init__(self, runtime: Runtime, crashes: Crashes, in_flight: InFlight) -> None:
        self.runtime = runtime
        self.crashes = crashes
        self.in_flight = in_flight
        self._turns = Turns()
        self._stopping = False
        for coordinates in in_flight.left:
            count = crashes.add(coordinates)
            log.warning("%s: in flight when the last process died, %d of %d", coordinates, count, LIMIT)

    def stop(self) -> None:
        """Start no more records; those in flight continue."""
        self._stopping = True

    async def call(self, records: Sequence[Record], handle: BatchHandler) -> None:
        """Handle records, and return when they are done: handled, or in the dead-letter topic.

        Raises:
            Crash: the room must not continue.
        """
        await self._unless_stopping()
        failures = [self.crashes.of(record.coordinates) for record in records]
        if len(records) > 1 and any(failures):
            # One by one, so that the one at fault is found.
            for record in records:
                await self.call([record], handle)
            return
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._attempt(records, handle, failures[0])
                return
            except Unavailable as error:
                first = records[0]
                log.warning("%s: waiting %.1f s: %s", first.coordinates, pause_s, error)
                self.runtime.metrics.waits.labels(first.topic).inc()
            await self.runtime.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            await self._unless_stopping()
            if not all(map(self.runtime.is_ours, records)):
                return  # redelivered to whoever owns the partition now

    async def dead_letter(
        self,
        record: Record,
        error: Exception,
        *,
        attempts: int = 1,
        answer: bool = True,
        query_origin: Origin | None = None,
    ) -> None:
        """Send a record to the dead-letter topic; see `Runtime.dead_letter`."""
        runtime, topics = self.runtime, self.runtime.topics
        letter = letter_of(
            record.value, error, room=runtime.room, origin=record.origin, attempts=attempts,
            query_origin=query_origin, keep_bytes=runtime.settings.kafka.dead_letter_bytes,
        )  # fmt: skip
        log.warning("dead letter %s: %s: %s", letter.key, letter.error, letter.reason)
        outgoing = [Outgoing(topics.dead_letter, letter.key.encode(), encode(letter))]
        # A query does not end with these.
        beside = (topics.answer, topics.feedback, topics.due, topics.reward)
        if answer and letter.query_id and record.topic not in beside and runtime.answers_for(letter.query_id):
            early = record.topic in (topics.query, topics.context)
            reply = answer_of(letter, "rejected" if early else "failed")
            if reply is not None:
                outgoing.append(Outgoing(topics.answer, key_of(reply.query_id), encode(reply)))
        await runtime.send(*outgoing)
        runtime.metrics.dead_letters.labels(record.topic, letter.error).inc()

    async def _unless_stopping(self) -> None:
        if self._stopping:
            await asyncio.Future()

    async def _attempt(self, records: Sequence[Record], handle: BatchHandler, failures: int) -> None:
        first = records[0]
        if failures >= LIMIT:
            reason = self.crashes.reason(first.coordinates)
            why = KilledProcess(
                f"{first.coordinates}: the process of the {self.runtime.room} died {failures} times with this "
                f"record in flight ({reason or 'a segmentation fault, no memory left, or a kill'}); fix the cause, "
                "then retry it"
            )
            await self.dead_letter(first, why, attempts=failures)
            self.crashes.forget(first.coordinates)
            return
        turn = self._turns.alone() if failures == LIMIT - 1 else self._turns.together()
        async with turn:
            with self.in_flight.holding([record.coordinates for record in records]):
                await self._try(records, handle)

    async def _try(self, records: Sequence[Record], handle: BatchHandler) -> None:
        first = records[0]
        try:
            await handle(records)
        except asyncio.CancelledError as error:
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                # Nobody cancelled this handler: what it waited for was, and it would end silently.
                raise Crash(
                    f"{first.coordinates}: what the {self.runtime.room} waited for was cancelled"
                ) from error
            raise
        except (Unavailable, Crash):
            raise
        except Exception as error:
            if isinstance(error, UniscaleError) and len(records) == 1:
                await self.dead_letter(first, error)
                self.crashes.forget(first.coordinates)
                return
            cause = error.__cause__ or error if isinstance(error, Torn) else error
            reason = f"{type(cause).__name__}: {cause}"
            counts = [self.crashes.add(record.coordinates, reason) for record in records]
            self.runtime.metrics.crashes.labels(first.topic).inc()
            if counts[0] < LIMIT or len(records) > 1 or isinstance(error, Torn):
                raise Crash(
                    f"{first.coordinates}: failure {counts[0]} of {LIMIT} in the {self.runtime.room}"
                ) from error
            await self.dead_letter(first, error, attempts=counts[0])
            self.crashes.forget(first.coordinates)
        else:
            for record in records:
                self.crashes.forget(record.coordinates)
