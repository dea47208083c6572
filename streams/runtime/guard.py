"""The guard around each handler: counts failures, retries, and sends a record to the dead-letter topic.

The guard ends no process itself: it raises `Crash` where the room must not continue. Exceptions fall into three kinds:

    UniscaleError   the record is at fault: dead letter at once
    Unavailable     the broker or an encoder is at fault: not counted; the guard waits and calls the handler again
    anything else   the cause is unknown: the failure is counted and the room crashes, so that a fresh process tries
                    again; after the third failure the record goes to the dead-letter topic: at once, or, if the
                    process cannot go on (`Torn`), from the next one
"""

import asyncio
import logging
from collections.abc import Sequence

from schemas.base import encode
from schemas.errors import UniscaleError
from schemas.query import Origin
from streams.runtime.base import BatchHandler, Runtime
from streams.runtime.crashes import LIMIT, Crashes, InFlight, KilledProcess
from streams.runtime.errors import Crash, Torn, Unavailable
from streams.runtime.letters import answer_of, letter_of
from streams.runtime.records import Outgoing, Record, key_of
from streams.runtime.turns import Turns

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
