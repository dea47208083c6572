"""The aggregator on Kafka: Decision, Answer, Feedback and Due meet in one table; Rewards and expiry come out.

The rewards are sent before the row is stored: after a crash in between the same record makes the same rewards,
under the same identity. The timer writes no row; what it finds overdue takes the ordered way as a Due record.
"""

import asyncio
import heapq
import logging
import time
from functools import partial
from typing import Self

from agents.aggregator.agent import value
from agents.aggregator.grade import Undecided, ask_later
from agents.aggregator.grading_pool import GradingPool
from agents.aggregator.join import Arrival, Orphan, Turn, Waits, on, to_value
from agents.aggregator.row import Row, Valued, decode_row, dues, encode_row
from schemas.answer import Answer
from schemas.base import MAX_RECORD, MAX_VALUE, decode, encode
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Origin
from schemas.reward import Due, Feedback, Reward
from streams.runtime.kafka.app import crash, durable_table
from streams.runtime.kafka.handlers import Record
from streams.runtime.kafka.outbox import Outgoing
from streams.runtime.plumbing import Plumbing, key_of, origin_of
from streams.topics import SHARD

log = logging.getLogger("streams.aggregator")

# How often the timer looks, and after which time a Due that changed nothing is sent again: its append time may
# have been before the deadline, when this machine's clock runs ahead of the broker's.
_TICK_S = 0.5
_AGAIN_MS = 15_000


class OrphanFeedback(UniscaleError):
    """Feedback for a query that had no Answer in time. Check the query_id, or wait longer."""


class OversizedFeedback(UniscaleError):
    """Feedback that does not fit its query's row. Shorten its metadata and send it again."""


class AggregatorRoom:
    """The join of one deployment."""

    def __init__(self, plumbing: Plumbing) -> None:
        self.plumbing = plumbing
        settings = plumbing.settings
        self.table = durable_table(plumbing.app, "join", settings.join_partitions)
        self.waits = Waits(
            timeout_ms=int(settings.timeout_s * 1000),
            feedback_ms=int(settings.feedback_wait_s * 1000),
            row_bytes=settings.max_record_bytes - (MAX_RECORD - MAX_VALUE),
        )
        self.pool = GradingPool()
        # One record of a partition at a time, whichever of the four topics it comes from.
        self._locks = [asyncio.Lock() for _ in range(settings.join_partitions)]
        self._due: list[tuple[int, str, str, int]] = []
        self.table.on_recover(self._recovered)

    @classmethod
    async def build(cls, plumbing: Plumbing) -> Self:
        """Make the room and start its timer."""
        room = cls(plumbing)
        asyncio.get_running_loop().create_task(room._tick())
        return room

    async def on_decision(self, record: Record) -> None:
        """Open a query's row: its deadline is known from here on."""
        decision = decode(record.value, Decision)
        await self._turn(decision.query_id, record, decision)

    async def on_answer(self, record: Record) -> None:
        """Price and grade the Answer that counts."""
        answer = decode(record.value, Answer)
        await self._turn(answer.query_id, record, answer)

    async def on_feedback(self, record: Record) -> None:
        """Take what a client knows."""
        feedback = decode(record.value, Feedback)
        await self._turn(feedback.query_id, record, feedback)

    async def on_due(self, record: Record) -> None:
        """Act on a deadline that has passed."""
        due = decode(record.value, Due)
        await self._turn(due.query_id, record, due)

    async def _turn(self, query_id: str, record: Record, message: Decision | Answer | Feedback | Due) -> None:
        key = key_of(query_id)
        async with self._locks[record.partition]:
            data = self.table.data.get(key)
            row = decode_row(data) if data else None
            wanted = to_value(row, message)
            valued = await self._value(*wanted, row) if wanted else None
            generator = None
            if isinstance(message, Decision):
                generator = self.plumbing.control.pricing.generators.get(message.action.model)
            arrival = Arrival(message, record.timestamp_ms, origin_of(record))
            turn = on(row, arrival, self.waits, valued, generator)
            await self.plumbing.outbox.send_all([self._outgoing(out, record) for out in turn.out])
            if turn.row is None:
                if data is not None:
                    await self.table.drop(key, record.partition)
            elif turn.row != row:
                await self.table.put(key, encode_row(turn.row), record.partition)
                self._watch(turn.row)
            self._count(record, turn, valued)

    def _outgoing(self, out: Reward | Answer | Orphan, record: Record) -> Outgoing:
        topics = self.plumbing.topics
        if isinstance(out, Reward):
            return Outgoing(topics.reward, SHARD, encode(out))
        if isinstance(out, Answer):
            return Outgoing(topics.answer, key_of(out.query_id), encode(out))
        query_id = out.feedback.query_id
        why = {
            "unanswered": OrphanFeedback(
                f"{query_id}: query_id: no answer of that id came in time; check the id"
            ),
            "oversized": OversizedFeedback(
                f"{query_id}: does not fit the row of its query; shorten its metadata"
            ),
        }[out.why]
        letter = DeadLetter.of(
            encode(out.feedback),
            why,
            room="aggregator",
            origin=out.origin or Origin(topic=record.topic, partition=record.partition, offset=record.offset),
            query_id=query_id,
        )
        self.plumbing.metrics.dead_letters.labels(topics.feedback, letter.error).inc()
        return Outgoing(topics.dead_letter, letter.key.encode(), encode(letter))

    async def _value(self, reference: object, answer: Answer, row: Row | None) -> Valued:
        work = partial(
            value,
            reference,
            answer,
            pricing=self.plumbing.control.pricing,
            generator=row.opened.generator if row is not None and row.opened is not None else None,
        )
        try:
            return work(judge=ask_later, run=ask_later)
        except Undecided:
            return await asyncio.to_thread(partial(work, judge=self.pool.judge, run=self.pool.run))

    def _count(self, record: Record, turn: Turn, valued: Valued | None) -> None:
        metrics = self.plumbing.metrics
        for count in turn.counts:
            if count.startswith("duplicate"):
                metrics.duplicates.labels(record.topic).inc()
            elif count.startswith("late") or count == "expired":
                metrics.late.labels(record.topic).inc()
        if valued is not None:
            metrics.answers.labels(valued.status).inc()
            if valued.price is not None:
                metrics.eflops.labels("prefill").inc(valued.price.prefill_eflops)
                metrics.eflops.labels("decoding").inc(valued.price.decoding_eflops)
                metrics.eflops.labels("verifier").inc(valued.price.verifier_eflops)
        for out in turn.out:
            if isinstance(out, Reward):
                self._observe(out)

    def _observe(self, reward: Reward) -> None:
        metrics = self.plumbing.metrics
        terms = {"correct": reward.correct, "score": reward.score, "log_cost": reward.log_cost}
        for term, number in terms.items():
            if number is not None:
                metrics.reward_term.labels(term).observe(number)
        if reward.reward is not None:
            metrics.reward.labels(reward.kind).observe(reward.reward)

    def _watch(self, row: Row) -> None:
        for due in dues(row):
            heapq.heappush(self._due, (due.deadline_ms, row.query_id, due.kind, due.deadline_ms))

    async def _recovered(self) -> None:
        self._due = []
        for data in list(self.table.data.values()):
            self._watch(decode_row(data))

    async def _tick(self) -> None:
        try:
            while True:
                await asyncio.sleep(_TICK_S)
                self.plumbing.metrics.open_rows.set(len(self.table.data) if self.plumbing.app.started else 0)
                await self._send_due(int(time.time() * 1000))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not self.plumbing.app.should_stop:
                crash("the aggregator's timer failed", error)

    async def _send_due(self, now_ms: int) -> None:
        overdue: list[Outgoing] = []
        while self._due and self._due[0][0] <= now_ms and len(overdue) < 500:
            _, query_id, kind, deadline_ms = heapq.heappop(self._due)
            data = self.table.data.get(key_of(query_id))
            if data is None or (kind, deadline_ms) not in dues(decode_row(data)):
                continue
            due = Due(query_id=query_id, kind=kind, deadline_ms=deadline_ms)  # type: ignore[arg-type]
            overdue.append(Outgoing(self.plumbing.topics.due, key_of(query_id), encode(due)))
            heapq.heappush(self._due, (now_ms + _AGAIN_MS, query_id, kind, deadline_ms))
        if overdue:
            await self.plumbing.outbox.send_all(overdue)
