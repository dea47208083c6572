"""The embedder's service: Query in, Context out, and the only service that makes queries wait (admission)."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from agents.embedding import ArrivedQuery, Encoder, EncoderUnavailable, Vectors, embed, readable, unit_rows
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.query import Origin, Query, QueryContext
from schemas.record import decode, encode
from streams.runtime.base import ConsumerRecord, Outgoing, Runtime, Unavailable
from streams.runtime.queues import WINDOW
from streams.settings import Settings
from streams.topics import SHARD

# The encoder that the settings name.


class HashedEncoder:
    """Words hashed to signed coordinates: no model, microseconds a text. For measuring the plumbing alone.

    It knows nothing of meaning: a policy that learns on it learns which words occur.
    """

    name = "hashed-words"
    version = "1"
    truncated = 0

    def __init__(self, dimension: int = 64) -> None:
        self.dimension = dimension

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit row a text."""
        rows = np.zeros((len(texts), self.dimension))
        for row, text in zip(rows, texts, strict=True):
            row[0] = 1e-3  # a text of unlucky words must not cancel out
            for word in readable(text).lower().split():
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                at = int.from_bytes(digest[:4], "little") % self.dimension
                row[at] += 1.0 if digest[4] & 1 else -1.0
        return unit_rows(rows, len(texts), self.dimension)


def encoder_of(settings: Settings) -> Encoder:
    """Return the encoder of the settings; queries and actions go through the same one.

    Raises:
        EncoderError: its files are missing.
    """
    if settings.encoder.kind == "hashed":
        return HashedEncoder(settings.encoder.dimension or 64)
    if settings.encoder.kind == "http":
        from agents.embedding import HttpEncoder

        return HttpEncoder(
            url=settings.encoder.url,
            model=settings.encoder.model,
            dimension=settings.encoder.dimension,
            api_key=settings.encoder.key or None,
        )
    from agents.minilm import MiniLM

    return MiniLM()


# Admission: limits how many queries are in flight. No other part of the pipeline holds queries back.
#
# Without it, thousands of decisions would be made before the first reward. A query counts from when its Context is
# sent until its Answer appears on the `answer` topic. A separate reader watches that topic: handlers that all
# waited for a record of their own app would never get it. Queries are admitted in the order in which they came.


class Admission:
    """Let at most `most` queries be in flight.

    Args:
        most: Queries in flight.
        clock: Seconds, monotonic.
        remembered: Queries that have ended and are recognised.
    """

    def __init__(self, most: int, clock: Callable[[], float], remembered: int = 4096) -> None:
        self.most = most
        self._remembered = remembered
        self._clock = clock
        self._open: OrderedDict[str, tuple[float, Origin | None]] = OrderedDict()
        # A query redelivered after a restart may already have its Answer: it must not hold a slot forever.
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._changed = asyncio.Event()
        self._first = asyncio.Lock()  # held by the query that is admitted next; a lock is fair

    def __len__(self) -> int:
        """Return how many queries are in flight."""
        return len(self._open)

    def __contains__(self, query_id: object) -> bool:
        """Return whether a query is in flight."""
        return query_id in self._open

    async def enter(self, query_id: str, timeout_s: float, origin: Origin | None = None) -> None:
        """Wait for a slot and take it; a query that is already in flight takes no second one.

        Args:
            query_id: The query.
            timeout_s: Its slot is freed after this time, should its Answer never be seen.
            origin: Where its record lies, which tells it from a later one of the same id.
        """
        if query_id in self._open or query_id in self._ended:
            return
        async with self._first:
            while len(self._open) >= self.most:
                self._changed.clear()
                self._expire()
                if len(self._open) < self.most:
                    break
                try:
                    await asyncio.wait_for(self._changed.wait(), 1.0)
                except TimeoutError:
                    continue
            if query_id not in self._ended:
                self._open[query_id] = (self._clock() + timeout_s, origin)

    def leave(self, query_id: str) -> None:
        """Release the slot of a query. An unknown query is not an error: it belongs to another process."""
        if self._open.pop(query_id, None) is not None:
            self._changed.set()

    def refused(self, query_id: str, origin: Origin) -> None:
        """Release the slot taken by the record at `origin`; an earlier query with the same id keeps its own."""
        if query_id in self._open and self._open[query_id][1] == origin:
            self.leave(query_id)

    def ended(self, query_id: str) -> None:
        """Record that a query has its Answer: its slot is free, and it takes none when it is redelivered."""
        self._ended[query_id] = None
        while len(self._ended) > self._remembered:
            self._ended.popitem(last=False)
        self.leave(query_id)

    def _expire(self) -> None:
        now = self._clock()
        for query_id in [q for q, (until, _) in self._open.items() if until < now]:
            self.leave(query_id)


# The embedder's service: Query in, Context out, and the only service that makes queries wait (admission).

# A query whose Answer is never seen frees its slot this long after the query's deadline.
_MARGIN_S = 60.0


class EmbedderService:
    """Forward queries with their vectors while there is room for more in flight."""

    def __init__(self, runtime: Runtime, encoder: Encoder) -> None:
        self.runtime = runtime
        self.encoder = encoder
        kafka, most = runtime.settings.kafka, runtime.settings.queries.max_in_flight
        # So many queries may be read again after a restart.
        self._again = max(4 * most, WINDOW * kafka.concurrency * kafka.query_partitions)
        self.admission = Admission(most, runtime.monotonic, remembered=4 * self._again)
        # One text at a time: the encoder is the busiest code of this process and must not starve the heartbeats.
        self._encoding = asyncio.Lock()
        # A query in flight has an Answer coming: a broken second one under its id must not answer it.
        runtime.answers_for = lambda query_id: query_id not in self.admission

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the encoder and begin to watch how queries end."""
        service = cls(runtime, await runtime.in_thread(lambda: encoder_of(runtime.settings)))
        # Their Answers are in one partition, at worst.
        await runtime.follow([runtime.topics.answer], service._on_answer, begin=service._again)
        await runtime.follow([runtime.topics.dead_letter], service._on_dead_letter, begin=service._again)
        return service

    async def on_query(self, record: ConsumerRecord) -> None:
        """Embed one query and hand it on.

        Raises:
            UniscaleError: the record is no query, or its text has no vector.
        """
        query = decode(record.value, Query)
        runtime = self.runtime
        timeout_s = query.timeout_s or runtime.settings.queries.timeout_s
        began_s = runtime.monotonic()
        await self.admission.enter(query.query_id, timeout_s + _MARGIN_S, record.origin)
        runtime.metrics.admission_wait.observe(runtime.monotonic() - began_s)
        runtime.metrics.in_flight.set(len(self.admission))
        try:
            value = encode(await self._embed(ArrivedQuery(query, record.origin, record.timestamp_ms)))
        except UniscaleError:
            self.admission.leave(query.query_id)
            raise
        await runtime.send(Outgoing(runtime.topics.context, SHARD, value))
        runtime.metrics.admitted.inc()

    async def _embed(self, arrival: ArrivedQuery) -> QueryContext:
        async with self._encoding:
            try:
                contexts = await self.runtime.in_thread(lambda: embed([arrival], encoder=self.encoder))
            except EncoderUnavailable as error:
                # The server is down, which no query is to blame for: the backlog waits until it is back.
                self.runtime.metrics.engine_faults.labels("embedder").inc()
                raise Unavailable(f"the encoder: {error}") from error
        return contexts[0]

    def _on_answer(self, record: ConsumerRecord) -> None:
        if record.key:
            self.admission.ended(record.key.decode(errors="replace"))
            self.runtime.metrics.in_flight.set(len(self.admission))

    def _on_dead_letter(self, record: ConsumerRecord) -> None:
        """Free the slot of a query refused as a duplicate: it gets no Answer of its own."""
        try:
            letter = decode(record.value, DeadLetter)
        except UniscaleError:
            return
        if letter.query_id and letter.query_origin is not None:
            self.admission.refused(letter.query_id, letter.query_origin)
            self.runtime.metrics.in_flight.set(len(self.admission))
