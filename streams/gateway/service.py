"""The gateway as a service: it indexes the topics, and owns the components that its routes use."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from schemas.answer import Answer
from schemas.chunk import AnswerChunk
from schemas.control import KeyEntry, decode_control
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Query
from schemas.record import Record, decode
from schemas.reward import Feedback, Reward
from schemas.search import SearchStep
from streams.gateway import answer_details
from streams.gateway.access import QueryAccess
from streams.gateway.auth import ApiKeys
from streams.gateway.index import Index, Marks
from streams.gateway.quotas import SPENT_MS, KeyLimits
from streams.gateway.searches import Searches
from streams.gateway.submission import QuerySubmitter
from streams.log.base import ConsumerRecord, Since
from streams.runtime.runtime import Runtime, ServiceSpec


class GatewayService:
    """One gateway.

    Args:
        runtime: Access to the topics.
        recent: How many queries the index keeps, and how many records per partition are read at startup.
        services: Services whose consumer groups are shown.

    Attributes:
        keys: The API keys; `limits` are what each may use.
        index: Recent queries.
        marks: Changes on the page's time axis.
        searches: The searches that its clients wait for.
        submission: Turns requests into queries.
        access: What callers may do with a query.
        started: Creation time in the list of models, in seconds since the epoch.
    """

    def __init__(self, runtime: Runtime, recent: int, services: Sequence[ServiceSpec] = ()) -> None:
        self.runtime = runtime
        self.services = services
        self.recent = recent
        settings = runtime.settings
        self.keys = ApiKeys()
        self.limits = KeyLimits(
            settings.queries.max_in_flight, settings.gateway.streams, settings.gateway.reads
        )
        self.index = Index(recent, timeout_s=settings.queries.timeout_s, group_by=settings.gateway.group_by)
        self.marks = Marks(runtime.control.base.model_names)
        self.searches = Searches(runtime, self.index)
        self.submission = QuerySubmitter(runtime, self.index, self.keys, self.limits, self.searches)
        self.access = QueryAccess(runtime, self.index, self.limits)
        self.started = runtime.clock.now_ms() // 1000

    async def follow(self) -> None:
        """Read the topics to their current ends, and keep reading."""
        topics = self.runtime.topics
        await self.runtime.log.tail([topics.control], self._on_control, begin="beginning")
        index, begun = self.index, set[int]()

        def on_query(query: Query, raw: ConsumerRecord) -> None:
            # Earlier records of the partition have not been read, or no longer exist.
            index.moves |= raw.partition not in begun and raw.offset > 0
            begun.add(raw.partition)
            index.query(query, raw.timestamp_ms)

        followed: tuple[tuple[str, type[Record], Callable[[Any, ConsumerRecord], object]], ...] = (
            (topics.query, Query, on_query),
            (topics.decision, Decision, self._on_decision),
            # Read before the Answers, because Rewards are read from further back and contain the cost and the API key.
            (topics.reward, Reward, self._on_reward),
            (topics.answer, Answer, self._on_answer),
            (topics.feedback, Feedback, lambda given, raw: index.note_feedback(given)),
            (topics.dead_letter, DeadLetter, self._on_dead_letter),
        )
        # With much traffic, a day of Rewards takes minutes to read: skip it if no key has a quota.
        counts = self.keys.has_quotas or not self.keys.has_keys
        spent = Since(self.runtime.clock.now_ms() - SPENT_MS, least=self.recent) if counts else self.recent
        for topic, kind, take in followed:
            begin = spent if topic == topics.reward else self.recent
            await self.runtime.log.tail([topic], _decoded(kind, take), begin=begin)
        # Only new records can still be streamed.
        await self.runtime.log.tail([topics.search_step], partial(self._on_text, SearchStep), begin="end")
        await self.runtime.log.tail([topics.answer_chunk], partial(self._on_text, AnswerChunk), begin="end")

    def _on_control(self, record: ConsumerRecord) -> None:
        with contextlib.suppress(UniscaleError):  # `streams.control_follower` reports unreadable records
            if not record.value:
                return
            entry = decode_control(record.value)
            if isinstance(entry, KeyEntry):
                self.keys.change(entry)
            self.marks.note(entry, record.timestamp_ms)

    def _on_decision(self, decision: Decision, raw: ConsumerRecord) -> None:
        self.searches.release(decision)
        first = self.index.decision(decision, raw.value or b"", raw.timestamp_ms)
        self.searches.decided(decision, first=first)

    def _on_answer(self, answer: Answer, raw: ConsumerRecord) -> None:
        self.searches.ended(answer.query_id)
        if self.index.answer(answer, raw.value or b"", raw.timestamp_ms):  # the first one counts
            cost_model, decision = self.runtime.control.cost_model, self.index.decision_of(answer.query_id)
            total = answer_details.total(answer_details.price(answer, cost_model), decision)
            self.index.priced(answer.query_id, total, answer_details.cut(answer, cost_model))
            self.searches.requests.seen(answer.query_id, answer)

    def _on_reward(self, reward: Reward, raw: ConsumerRecord) -> None:
        self.index.reward(reward, raw.value or b"")
        self.index.spent(reward, raw.timestamp_ms)
        self.searches.requests.seen(reward.query_id, reward)

    def _on_dead_letter(self, letter: DeadLetter, raw: ConsumerRecord) -> None:
        self.index.dead_letter(letter, raw.value or b"", raw.timestamp_ms)
        # Only duplicates have an origin here. Other queries that cannot be handled get an Answer that says why.
        if letter.query_id is not None and letter.query_origin is not None:
            self.searches.requests.seen(letter.query_id, letter)

    def _on_text(self, kind: type[SearchStep | AnswerChunk], record: ConsumerRecord) -> None:
        key = record.key.decode(errors="replace") if record.key else ""
        if key in self.searches.requests:
            with contextlib.suppress(UniscaleError):
                self.searches.requests.seen(key, decode(record.value, kind))


def _decoded(
    kind: type[Record], take: Callable[[Any, ConsumerRecord], object]
) -> Callable[[ConsumerRecord], None]:
    """Return a function that decodes a record and passes both on; services report the records they cannot read."""

    def on_record(raw: ConsumerRecord) -> None:
        with contextlib.suppress(UniscaleError):
            take(decode(raw.value, kind), raw)

    return on_record
