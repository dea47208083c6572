"""What every room is given: topics, control, an outbox that waits, and the guard around each handler."""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import faust

from schemas.answer import Answer
from schemas.base import encode
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.query import Origin
from streams.control import Control
from streams.metrics import Metrics
from streams.runtime.crashes import LIMIT, Crashes, InHand, KilledProcess
from streams.runtime.kafka import handlers
from streams.runtime.kafka.app import before_crash, crash
from streams.runtime.kafka.consumer import consumer_of, wait_while
from streams.runtime.kafka.handlers import BatchHandler, Handler, Record
from streams.runtime.kafka.outbox import Outbox, Outgoing
from streams.runtime.turns import Turns
from streams.settings import Settings
from streams.topics import Topics

log = logging.getLogger("streams.runtime.plumbing")


class Plumbing:
    """One process's share of the wiring.

    Attributes:
        outbox: Sends and waits for delivery.
        control: Catalogue, objectives and signs of life.
        answers_for: Whether this room answers a query whose record it had to give up; a hook may say no.
    """

    def __init__(
        self,
        settings: Settings,
        app: faust.App,
        metrics: Metrics,
        *,
        room: str,
        group: str = "",
        instance: str = "0",
    ) -> None:
        self.settings = settings
        self.app = app
        self.metrics = metrics
        self.room = room
        self.group = group
        self.instance = instance
        self.topics = Topics(settings)
        self.outbox = Outbox(app, settings)
        self.control = Control(settings)
        name = self.topics.app_id(room, group)
        self.crashes = Crashes(settings.state_path("crashes", f"{name}.{instance}.json"))
        self.in_hand = InHand(settings.state_path("crashes", f"{name}.{instance}.in-hand"))
        self._count_the_dead()
        before_crash.append(self.in_hand.clear)
        self._turns = Turns()
        self._ending = False
        self._counters = functools.cache(
            lambda topic, stage: (metrics.records.labels(room, topic), metrics.stage.labels(stage))
        )
        # What runs beside faust and is to be stopped with it.
        self.closers: list[Callable[[], Awaitable[None]]] = [self.control.stop]
        self.answers_for: Callable[[str], bool] = lambda query_id: True

    def each(self, topic: str, handle: Handler, *, stage: str) -> None:
        """Bind a handler: one record at a time in each partition."""

        async def guarded(record: Record) -> None:
            await self._unless_ending()
            await self._guard([record], lambda records: handle(records[0]))
            self.done(record, stage)

        handlers.each(self.app, topic, guarded, name=f"{self.room}-{stage}")

    def batches(self, topic: str, handle: BatchHandler, *, stage: str, most: int) -> None:
        """Bind a handler to a topic of one partition: up to `most` records at a time."""

        async def guarded(records: Sequence[Record]) -> None:
            await self._unless_ending()
            await self._guard(records, handle)
            for record in records:
                self.done(record, stage)

        handlers.batches(self.app, topic, guarded, name=f"{self.room}-{stage}", most=most)

    def is_ours(self, record: Record) -> bool:
        """Say whether a record is still this worker's; one that is not comes again, here or elsewhere."""
        return consumer_of(self.app).is_ours(record.epoch)

    async def settle(self, most_s: float) -> None:
        """Take up no further record, and wait until none is in hand, or for so long."""
        self._ending = True
        await wait_while(lambda: self.in_hand.held, most_s)

    async def _unless_ending(self) -> None:
        if self._ending:
            await asyncio.Future()

    def done(self, record: Record, stage: str) -> None:
        """Count a record handled to its end."""
        records, seconds = self._counters(record.topic, stage)
        records.inc()
        if record.timestamp_ms > 0:
            seconds.observe(max(0.0, time.time() - record.timestamp_ms / 1000))

    async def bury(self, record: Record, error: Exception, *, attempts: int = 1, answer: bool = True) -> None:
        """Give a record up: a dead letter, and an Answer where a query would otherwise end in silence.

        Args:
            record: What could not be handled.
            error: Why.
            attempts: How often it was tried.
            answer: False where the query goes on without this record, or has its Answer elsewhere.
        """
        letter = DeadLetter.of(
            record.value, error, room=self.room, origin=origin_of(record), attempts=attempts
        )  # fmt: skip
        log.warning("dead letter %s: %s: %s", letter.key, letter.error, letter.reason)
        outgoing = [Outgoing(self.topics.dead_letter, letter.key.encode(), encode(letter))]
        query_id = letter.query_id
        if answer and query_id and self._ends_a_query(record) and self.answers_for(query_id):
            status = "rejected" if record.topic in (self.topics.query, self.topics.context) else "failed"
            told = Answer(query_id=query_id, status=status, by=self.room, error=letter.reason)  # type: ignore[arg-type]
            outgoing.append(Outgoing(self.topics.answer, query_id.encode(), encode(told)))
        await self.outbox.send_all(outgoing)
        self.metrics.dead_letters.labels(record.topic, letter.error).inc()

    def _ends_a_query(self, record: Record) -> bool:
        return record.topic not in (
            self.topics.answer,
            self.topics.feedback,
            self.topics.due,
            self.topics.reward,
        )

    def _count_the_dead(self) -> None:
        """Count a failure at every record with which the process before this one died."""
        for coordinates in self.in_hand.left:
            count = self.crashes.add(coordinates)
            log.warning("%s: in hand when the process before died, %d of %d", coordinates, count, LIMIT)

    async def _guard(self, records: Sequence[Record], handle: BatchHandler) -> None:
        """Handle records; what fails three times, by an error or by the death of the process, is buried."""
        failed = [self.crashes.of(record.coordinates) for record in records]
        if len(records) > 1 and any(failed):
            # One by one, so that the one at fault is found.
            for record in records:
                await self._guard([record], handle)
            return
        if failed[0] >= LIMIT:
            why = KilledProcess(
                f"{records[0].coordinates}: the process of the {self.room} died {failed[0]} times with this record in "
                "hand (a segmentation fault, no memory left, or a kill); mend the cause, then retry it"
            )
            await self.bury(records[0], why, attempts=failed[0])
            self.crashes.forget(records[0].coordinates)
            return
        turn = self._turns.alone() if failed[0] == LIMIT - 1 else self._turns.together()
        async with turn:
            with self.in_hand.holding([record.coordinates for record in records]):
                await self._try(records, handle)

    async def _try(self, records: Sequence[Record], handle: BatchHandler) -> None:
        first = records[0]
        try:
            await handle(records)
        except asyncio.CancelledError as error:
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                # Nobody ended this handler: what it waited for was given up, and it would end without a word.
                crash(f"{first.coordinates}: what the {self.room} waited for was given up", error)
            raise
        except Exception as error:
            if isinstance(error, UniscaleError) and len(records) == 1:
                await self.bury(first, error)
                self.crashes.forget(first.coordinates)
                return
            counts = [self.crashes.add(record.coordinates) for record in records]
            self.metrics.crashes.labels(first.topic).inc()
            if counts[0] < LIMIT or len(records) > 1:
                crash(f"{first.coordinates}: failure {counts[0]} of {LIMIT} in {self.room}", error)
            await self.bury(first, error, attempts=counts[0])
            self.crashes.forget(first.coordinates)
        else:
            for record in records:
                self.crashes.forget(record.coordinates)


def origin_of(record: Record) -> Origin:
    """Return where a record lies."""
    return Origin(topic=record.topic, partition=record.partition, offset=record.offset)


def key_of(query_id: str) -> bytes:
    """Return the key of a query's records."""
    return query_id.encode()
