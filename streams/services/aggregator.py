"""The aggregator service: joins Decision, Answer, Feedback and Due in one table; writes Rewards and expired Answers.

The four topics have equal partition counts, so one worker gets all of a query's records and handles them one at a time:
each reads the row that the previous one wrote. Feedback from a client with a different partitioner (librdkafka's
default, or no key) may arrive in a different partition; it is forwarded to the query's partition and handled there.

A closed query has no row: its worker, or a successor, recognises it by its Reward. The timer writes no rows; it sends
overdue deadlines as Due records, so that they are handled in order.

There is no order across topics. When a query's deadline passes, an `expired` Answer is sent, and the first Answer on
`answer` counts. Any other deadline takes effect only once everything appended by then to the topics it waits for has
been delivered, because records that arrived in time while no aggregator was running are not late. A worker therefore
acts only on a Due sent by its own timer in this assignment; an older one may precede those records in its query's
queue.

The number of rewards waiting for feedback is limited, in total and per account, with an equal share for each partition.
The partition's rows determine which rewards are closed early (`OpenRewards`). Each is closed by a Due, as if its
deadline had just passed.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import NoReturn, Self

from msgspec import structs
from msgspec.structs import replace

from agents.grading.grade import Undecided, ask_later
from agents.grading.pool import GradingPool
from agents.reward.comparison import Uplift
from agents.reward.join import on, to_value
from agents.reward.join_row import JoinRow, ScoredAnswer, decode_row, dues, encode_row, newer, rejected_row
from agents.reward.outcome import gradable, value
from agents.reward.transition import Arrival, Orphan, Timeouts, Transition
from schemas.answer import FAILURES, UNCOUNTED, Answer
from schemas.decision import Cohort, Decision
from schemas.errors import UniscaleError
from schemas.grader import Grader
from schemas.record import MAX_RECORD, MAX_VALUE, decode, encode
from schemas.reward import Due, Feedback, Reward
from streams.log.base import ConsumerRecord, Outgoing, Unavailable, key_of
from streams.log.partitioner import partition_for
from streams.recent_ids import RecentIds
from streams.runtime.effects import Effects, KeyedService, Rows
from streams.runtime.handler_guard import Refusal
from streams.runtime.runtime import Runtime
from streams.services import rejected
from streams.services.fair_queue import FairQueue, QueueFull
from streams.services.open_rewards import OpenRewards
from streams.services.priority_queue import PriorityQueue
from streams.services.rejected import RejectedIds
from streams.topics import SHARD

log = logging.getLogger("streams.aggregator")

# The timer's interval, and the time after which a Due that had no effect is sent again. It may have been appended
# before the deadline, if this machine's clock is ahead of the broker's.
_TICK_S = 0.5
_AGAIN_MS = 15_000

# Minimum time between two requests for the end offsets of the topics that deadlines wait for.
_ASK_MS = 2_000

# Maximum number of answers waiting for a grader, as a multiple of the concurrency. Their partition's committed offset
# waits for them, and reading pauses once that offset is `WINDOW` times the concurrency behind.
_AT_GRADERS = 2

# Maximum number of closed queries to remember, so that later records do not reopen them. They are reread at startup.
_CLOSED = 200_000

# Maximum number of queries rejected before a Decision to remember, over all partitions.
_REJECTED = 100_000

# Maximum number of provisional Rewards with a term that could not be computed to remember, each until its query closes.
_UNGRADED = 10_000

Message = Decision | Answer | Feedback | Due

_Overdue = tuple[str, str, int]
"""A query's deadline: query id, kind, and time in ms since the epoch."""


class OrphanFeedback(UniscaleError):
    """Feedback for a query that got no Answer in time. Check the query_id, or wait longer."""


class OversizedFeedback(UniscaleError):
    """Feedback that does not fit its query's row. Shorten its metadata and send it again."""


class MisplacedRecord(UniscaleError):
    """A record that only services may write is not in its query's partition, so a foreign producer sent it."""


class GradersBusy(UniscaleError):
    """Too many of a tenant's answers wait for a grader. Send fewer at once, or references that are quicker to grade."""


class AggregatorService(KeyedService[JoinRow]):
    """Joins the records of each query in a deployment."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        settings = runtime.settings
        self.table = runtime.table(
            "join",
            settings.kafka.join_partitions,
            source=runtime.topics.answer,
            recovered=self._recovered,
            newer=newer,
        )
        self.rows: Rows[JoinRow] = Rows(self.table, decode_row, encode_row)
        self.timeouts = Timeouts(
            timeout_ms=int(settings.queries.timeout_s * 1000),
            feedback_ms=int(settings.queries.feedback_waits_s(mixed=False) * 1000),
            mixed_feedback_ms=int(settings.queries.feedback_waits_s(mixed=True) * 1000),
            row_bytes=settings.kafka.max_record_bytes - (MAX_RECORD - MAX_VALUE),
        )
        self.closed = RecentIds(_CLOSED)
        self.pool = GradingPool()
        runtime.closers.append(self.pool.aclose)
        # Answers waiting for a grader do not block other records, but they hold back their partition's committed
        # offset, so their number is limited.
        most = _AT_GRADERS * settings.kafka.concurrency
        self.grading = FairQueue(self.pool.workers, runtime.monotonic, most=most)
        # By query, what its provisional Reward reports as missing. If it has one, a redelivered Answer is not graded.
        self._ungraded: OrderedDict[str, str] = OrderedDict()
        self.uplift = Uplift()
        self.rejected = RejectedIds(
            self.table, max(1, _REJECTED // settings.kafka.join_partitions), self.timeouts.keep_ms
        )
        self._rows = 0
        self._open: dict[int, OpenRewards] = {}
        # When each query's reward was picked to be closed early, ms since the epoch.
        self._crowded: dict[str, int] = {}
        # The rows' deadlines, by the time of their next check.
        self._due = PriorityQueue[_Overdue]()
        topics = runtime.topics
        self._awaited = {
            "feedback": (topics.feedback,),
            "crowded": (topics.feedback,),
            # The Decision says how long Feedback waits for its Answer.
            "parked": (topics.answer, topics.decision),
            "forget": (topics.decision,),
        }
        # By topic and partition, the append time in ms up to which everything has been delivered.
        self._delivered_ms: dict[tuple[str, int], int] = {}
        self._asked_ms = 0
        # By topic and partition, passed deadlines waiting until every record that may have been in time is delivered.
        self._held: dict[tuple[str, int], PriorityQueue[_Overdue]] = {}
        # When the timer first sent a Due in this assignment, ms since the epoch.
        self._sent: dict[_Overdue, int] = {}
        # Deadlines that have passed but are still in their rows.
        self._passed: set[_Overdue] = set()

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Create the service, read which queries are closed, and start its timer."""
        service = cls(runtime)
        await runtime.log.tail([runtime.topics.reward], service._on_reward, begin=_CLOSED)
        runtime.background("the aggregator's timer", service._tick)
        return service

    def _on_reward(self, record: ConsumerRecord) -> None:
        try:
            reward = decode(record.value, Reward)
        except UniscaleError as error:
            log.warning("%s: %s", record.coordinates, error)
            return
        if reward.closes:
            self.closed.add(reward.query_id)
            self._ungraded.pop(reward.query_id, None)
        elif reward.missing:
            self._ungraded[reward.query_id] = reward.missing
            if len(self._ungraded) > _UNGRADED:
                self._ungraded.popitem(last=False)

    async def on(self, row: JoinRow | None, message: Message, at: ConsumerRecord) -> Effects[JoinRow]:
        """Fold one record into its query's row: open it, price and grade the Answer, apply feedback or a deadline."""
        query_id = message.query_id
        partition = partition_for(key_of(query_id), self.runtime.settings.kafka.join_partitions)
        if at.partition != partition:
            return self._misplaced(message, at, partition)
        if isinstance(message, Due) and message.sent_ms != self._sent.get(
            (query_id, message.kind, message.deadline_ms)
        ):
            return Effects()  # sent before this assignment; the timer sends another
        if query_id in self.closed:
            # A closed query with a row: the worker ended after sending its Reward, or the row was written late.
            return Effects(row=None, then=partial(self._seen, row, message, at))
        known = self._known(row, query_id)
        wanted = to_value(known, message)
        if isinstance(message, Decision):
            grader = self.runtime.control.grader(message.query, message.action.model)
        else:
            grader = known.decision.grader if known is not None and known.decision is not None else None
        scored = await self._value(*wanted, grader, known, message) if wanted else None
        if wanted and scored and scored.correct is None and gradable(*wanted, grader):
            self.runtime.metrics.ungraded.inc()
            log.warning("%s: its correctness stays unknown: %s", query_id, scored.missing)
        generator = None
        if isinstance(message, Decision):
            generator = self.runtime.control.cost_model.generators.get(message.action.model)
        transition = on(
            known, Arrival(message, at.timestamp_ms, at.origin), self.timeouts, scored, generator, grader
        )
        after, beside = transition.row, list[tuple[bytes, bytes | None]]()
        if after is not None and after.rejected:
            assert after.answered_ms is not None
            beside = self.rejected.rows(query_id, after.answered_ms, at.partition)
            after = None
        return Effects(
            send=[self._outgoing(out) for out in transition.out if not isinstance(out, Orphan)],
            row=after,
            beside=beside,
            refused=[_orphan(out, at) for out in transition.out if isinstance(out, Orphan)],
            then=partial(self._done, row, after, beside, message, at, transition, scored),
        )

    def _known(self, row: JoinRow | None, query_id: str) -> JoinRow | None:
        """Return a query's row, or one derived from the digest of a rejected id."""
        if row is not None or (answered_ms := self.rejected.answered_ms(query_id)) is None:
            return row
        return rejected_row(query_id, answered_ms)

    def _misplaced(self, message: Message, at: ConsumerRecord, partition: int) -> Effects[JoinRow]:
        """Forward a client's feedback to its query's partition; refuse records that only services may write.

        A second copy, caused by a crash, is a duplicate in that partition. Its append time is that of the forwarded
        record, so the time taken to forward it counts against its deadline.
        """
        if isinstance(message, Feedback):
            out = Outgoing(at.topic, key_of(message.query_id), at.value or b"", partition)
            return Effects(send=[out], then=self.runtime.metrics.misplaced.labels(at.topic).inc)
        error = MisplacedRecord(
            f"{message.query_id}: lies in partition {at.partition} of {at.topic}, its query's is {partition}; "
            "only the services may write this topic, see SECURITY.md"
        )
        # The query continues without it: the services' own records are in its partition.
        return Effects(refused=[Refusal(error, at.value, at.origin)])

    def _outgoing(self, out: Reward | Answer) -> Outgoing:
        if isinstance(out, Answer):
            return Outgoing.of(self.runtime.topics.answer, out)
        return Outgoing(self.runtime.topics.reward, SHARD, encode(out))

    def _seen(self, before: JoinRow | None, message: Message, at: ConsumerRecord) -> None:
        self._rows -= before is not None
        self._watch(before, None)
        metrics = self.runtime.metrics
        counter = metrics.late if isinstance(message, Feedback) else metrics.duplicates
        counter.labels(at.topic).inc()

    def _done(
        self,
        before: JoinRow | None,
        after: JoinRow | None,
        beside: Sequence[tuple[bytes, bytes | None]],
        message: Message,
        at: ConsumerRecord,
        transition: Transition,
        scored: ScoredAnswer | None,
    ) -> None:
        self._rows += (after is not None) - (before is not None)
        self._watch(before, after)
        self.rejected.written(beside, at.partition)
        for out in transition.out:
            if isinstance(out, Reward) and out.closes:
                self.closed.add(out.query_id)
        self._count(message, at, transition, scored)

    async def _value(
        self,
        reference: object,
        answer: Answer,
        grader: Grader | None,
        row: JoinRow | None,
        message: Message,
    ) -> ScoredAnswer:
        decision = row.decision if row is not None else None
        ran = decision if decision is not None and decision.action == answer.action else None
        work = partial(
            value,
            reference,
            answer,
            cost_model=self.runtime.control.cost_model,
            grader=grader,
            generator=ran.generator if ran is not None else None,
        )
        try:
            return work(ask=ask_later)
        except Undecided:
            pass
        tenant = (
            message.query.account if isinstance(message, Decision) else decision.tenant if decision else ""
        )
        missing = self._ungraded.get(answer.query_id)
        try:
            if missing is not None:  # a worker ended after sending its Reward and before writing its row
                raise QueueFull(missing)
            with self.runtime.release_slot():
                async with self.grading.turn(tenant):
                    return await self.runtime.in_thread(partial(work, ask=self.pool.ask))
        except QueueFull as wait:
            busy = GradersBusy(f"answers: {wait}")
            scored = work(ask=_fails(busy))
            return scored if missing is None else replace(scored, missing=missing)

    def _count(
        self, message: Message, record: ConsumerRecord, transition: Transition, scored: ScoredAnswer | None
    ) -> None:
        metrics = self.runtime.metrics
        undecided = isinstance(message, Answer) and message.status == "rejected" and message.seq is None
        if undecided and scored is None and "duplicate_answer" not in transition.counts:
            metrics.answers.labels("rejected").inc()  # no Decision will follow, so no reward will be computed
        if (
            isinstance(message, Answer)
            and message.seq is not None
            and "duplicate_answer" not in transition.counts
        ):
            for name, seconds in structs.asdict(message.spent).items():
                metrics.spent.labels(name.removesuffix("_s")).observe(seconds)
        for count in transition.counts:
            if count.startswith("duplicate"):
                metrics.duplicates.labels(record.topic).inc()
            elif count == "late_feedback":  # parked feedback is counted at the Decision or Answer
                metrics.late.labels(self.runtime.topics.feedback).inc()
            elif count == "expired":
                metrics.late.labels(record.topic).inc()
        if scored is not None:
            metrics.answers.labels(scored.status).inc()
            if scored.price is not None and scored.price.unit == "usd":
                model = (
                    message.action.model if isinstance(message, Decision | Answer) and message.action else ""
                )
                metrics.usd.labels(model).inc(scored.price.cost)
            elif scored.price is not None:
                metrics.eflops.labels("prefill").inc(scored.price.prefill_eflops)
                metrics.eflops.labels("decoding").inc(scored.price.decoding_eflops)
                metrics.eflops.labels("verifier").inc(scored.price.verifier_eflops)
        for out in transition.out:
            if isinstance(out, Reward):
                metrics.closed_early.inc(out.closed_early)
                self._observe(out)
                if out.closes and transition.cohort:
                    self._observe_cohort(out, transition.cohort)

    def _observe(self, reward: Reward) -> None:
        metrics = self.runtime.metrics
        terms = {"correct": reward.correct, "score": reward.score, "log_cost": reward.log_cost}
        for term, number in terms.items():
            if number is not None:
                metrics.reward_term.labels(term).observe(number)
        if reward.reward is not None:
            metrics.reward.labels(reward.kind).observe(reward.reward)

    def _observe_cohort(self, reward: Reward, cohort: Cohort) -> None:
        """Count a closed query towards its cohort, as `Uplift` does: a failure is a wrong answer."""
        status = reward.status
        if status in UNCOUNTED:
            return
        metrics, failed = self.runtime.metrics, status in FAILURES
        metrics.cohort_queries.labels(cohort, "all").inc()
        metrics.cohort_queries.labels(cohort, "failed").inc(failed)
        correct = 0.0 if failed else reward.correct
        if correct is not None:
            metrics.cohort_queries.labels(cohort, "graded").inc()
            metrics.cohort_correct.labels(cohort).inc(correct)
        cost = reward.cost
        if cost is not None:
            in_usd = reward.objective.cost_range.unit == "usd"
            (metrics.cohort_usd if in_usd else metrics.cohort_eflops).labels(cohort).inc(cost)
        self.uplift.add(cohort, status, correct=reward.correct, cost=cost)
        for gauge, found in (
            (metrics.uplift_accuracy, self.uplift.accuracy_difference()),
            (metrics.uplift_cost_ratio, self.uplift.cost_ratio()),
        ):
            for bound, number in (asdict(found) if found else {}).items():
                gauge.labels(bound).set(number)

    def _watch(self, before: JoinRow | None, after: JoinRow | None) -> None:
        """Replace the tracked deadlines of a changed row."""
        had, has = self._deadlines(before), self._deadlines(after)
        for each in had - has:
            self._due.remove(each)
            for held in self._held.values():
                held.remove(each)
            self._sent.pop(each, None)
            self._passed.discard(each)
        for each in has - had:
            self._due.push(each[2], each)
        waited, waits = before is not None and before.provisional, after is not None and after.provisional
        if waits and not waited:
            assert after is not None
            assert after.decision is not None
            assert after.answered_ms is not None
            self._open_beside(after).add(after.decision.tenant, after.answered_ms, after.query_id)
        elif waited and not waits:
            assert before is not None
            assert before.decision is not None
            self._open_beside(before).remove(before.decision.tenant, before.query_id)
            self._crowded.pop(before.query_id, None)

    def _open_beside(self, row: JoinRow) -> OpenRewards:
        """Return the open rewards in a row's partition."""
        partitions, queries = self.runtime.settings.kafka.join_partitions, self.runtime.settings.queries
        partition = partition_for(key_of(row.query_id), partitions)
        if partition not in self._open:
            bounds = queries.max_open_rewards, queries.max_open_rewards_per_account
            self._open[partition] = OpenRewards(*(max(1, bound // partitions) for bound in bounds))
        return self._open[partition]

    def _crowd(self, now_ms: int) -> None:
        """Schedule rewards beyond the limits to be closed early."""
        for rewards in self._open.values():
            for query_id in rewards.beyond():
                self._crowded[query_id] = now_ms
                self._due.push(now_ms, (query_id, "crowded", now_ms))

    async def _recovered(self) -> None:
        self._due, self._sent, self._passed, self._delivered_ms, self._held = (
            PriorityQueue(),
            {},
            set(),
            {},
            {},
        )
        self._open, self._crowded = {}, {}
        rows = self.table.items()
        ids = [row for row in rows if row[0].startswith(rejected.KEY)]
        self.rejected.recovered(ids)
        self._rows = len(rows) - len(ids)
        for key, data in rows:
            if key.startswith(rejected.KEY):
                continue
            try:
                self._watch(None, decode_row(data))
            except UniscaleError as error:
                log.error("the row of %s is left alone: %s", key.decode(errors="replace"), error)

    async def _tick(self) -> None:
        while True:
            await self.runtime.sleep(_TICK_S)
            self.runtime.metrics.open_rows.set(self._rows)
            now_ms = self.runtime.clock.now_ms()
            self._crowd(now_ms)
            try:
                await self._send_due(now_ms)
            except Unavailable as error:
                log.warning("deadlines wait: %s", error)
            oldest_ms = min((deadline_ms for _, _, deadline_ms in self._passed), default=now_ms)
            self.runtime.metrics.overdue.set(max(0, now_ms - oldest_ms) / 1000)

    async def _send_due(self, now_ms: int) -> None:
        self._release()
        overdue: list[Outgoing] = []
        held = 0
        while (first := self._due.first()) and first[0] <= now_ms and max(len(overdue), held) < 500:
            _, each = self._due.pop()
            query_id, kind, deadline_ms = each
            self._passed.discard(each)
            partition = self._awaits(*each)
            if partition is None:
                self._sent.pop(each, None)
                continue
            self._passed.add(each)
            if (part := self._unread(kind, deadline_ms, partition)) is not None:
                self._held.setdefault(part, PriorityQueue()).push(deadline_ms, each)
                held += 1
                continue
            sent_ms = self._sent.setdefault(each, now_ms)
            due = Due(query_id=query_id, kind=kind, deadline_ms=deadline_ms, sent_ms=sent_ms)  # type: ignore[arg-type]
            overdue.append(Outgoing.of(self.runtime.topics.due, due))
            self._due.push(now_ms + _AGAIN_MS, each)
        if overdue:
            await self.runtime.send(*overdue)
        if self._held and now_ms - self._asked_ms >= _ASK_MS:
            self._asked_ms = now_ms
            delivered = self._delivered_ms  # of this assignment
            topics = sorted({topic for each in self._awaited.values() for topic in each})
            for part, up_to_ms in (await self.runtime.delivered_until(topics)).items():
                delivered[part] = max(up_to_ms, delivered.get(part, -1))

    def _release(self) -> None:
        """Recheck deadlines if everything up to them has been delivered, or if their partitions were revoked.

        Held deadlines' rows are not read before that, however many there are.
        """
        for part, held in list(self._held.items()):
            topic, partition = part
            ours = partition in self.runtime.assigned(topic)
            while (first := held.first()) and (not ours or self._delivered_ms.get(part, -1) >= first[0]):
                self._due.push(*held.pop())
            if not held:
                del self._held[part]

    def _unread(self, kind: str, deadline_ms: int, partition: int) -> tuple[str, int] | None:
        """Return a topic and partition that may contain unread records older than a deadline; None if there is none."""
        parts = ((topic, partition) for topic in self._awaited.get(kind, ()))
        return next((part for part in parts if self._delivered_ms.get(part, -1) < deadline_ms), None)

    def _awaits(self, query_id: str, kind: str, deadline_ms: int) -> int | None:
        """Return the partition of our row that still has this deadline; None if there is none.

        Rows stay in the table after their partition is revoked.
        """
        partition = self.table.partition_of(key_of(query_id))
        try:
            row = None if partition is None else self.rows.get(query_id)
        except UniscaleError as error:
            log.error("the row of %s is left alone: %s", query_id, error)
            return None
        return partition if (query_id, kind, deadline_ms) in self._deadlines(row) else None

    def _deadlines(self, row: JoinRow | None) -> set[_Overdue]:
        """Return a row's deadlines, including that of a reward to be closed early; empty for None."""
        if row is None:
            return set()
        found = {(row.query_id, str(due.kind), due.deadline_ms) for due in dues(row)}
        if row.provisional and (picked_ms := self._crowded.get(row.query_id)) is not None:
            found.add((row.query_id, "crowded", picked_ms))
        return found


def _fails(error: Exception) -> Callable[[object, object], NoReturn]:
    """Return a substitute for a grading process that raises an error instead of grading."""

    def fail(first: object, second: object) -> NoReturn:
        raise error

    return fail


def _orphan(orphan: Orphan, at: ConsumerRecord) -> Refusal:
    query_id = orphan.feedback.query_id
    why: UniscaleError
    if orphan.why == "unanswered":
        why = OrphanFeedback(f"{query_id}: query_id: no answer of that id came in time; check the id")
    else:
        why = OversizedFeedback(f"{query_id}: does not fit the row of its query; shorten its metadata")
    return Refusal(why, encode(orphan.feedback), orphan.origin or at.origin)
