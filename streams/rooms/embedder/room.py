"""The embedder on Kafka: Query in, Context out, and the only place that waits (admission)."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from agents.embedder.agent import Arrival, embed
from agents.embedder.encoder import Encoder
from agents.embedder.errors import EncoderUnavailable
from schemas.base import decode, encode
from schemas.errors import UniscaleError
from schemas.query import Context, Query
from streams.rooms.embedder.admission import Admission
from streams.rooms.embedder.encoders import encoder_of
from streams.runtime.kafka.handlers import Record
from streams.runtime.kafka.tail import Follower
from streams.runtime.plumbing import Plumbing, origin_of
from streams.topics import SHARD

# An Answer that is never seen frees its place this long after the query's deadline.
_MARGIN_S = 60.0


class EmbedderRoom:
    """Forward queries with their vectors while there is room for more in flight."""

    def __init__(self, plumbing: Plumbing, encoder: Encoder) -> None:
        self.plumbing = plumbing
        self.encoder = encoder
        self.admission = Admission(plumbing.settings.max_in_flight, time.monotonic)
        # One thread: the encoder is the busiest code of this process and must not starve the heartbeats.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        # Far enough back to know the Answers of all that may be read again after a restart.
        tail = 4 * plumbing.settings.max_in_flight
        self._answers = Follower(plumbing.settings, [plumbing.topics.answer], self._on_answer, begin=tail)
        # A query in flight has an Answer coming: a broken second one under its id must not answer it.
        plumbing.answers_for = lambda query_id: query_id not in self.admission

    @classmethod
    async def build(cls, plumbing: Plumbing) -> Self:
        """Load the encoder and begin to watch the answers."""
        room = cls(plumbing, await asyncio.to_thread(encoder_of, plumbing.settings))
        await room._answers.start()
        plumbing.closers.append(room._answers.stop)
        return room

    async def on_query(self, record: Record) -> None:
        """Embed one query and hand it on.

        Raises:
            UniscaleError: the record is no query, or its text has no vector.
        """
        query = decode(record.value, Query)
        timeout_s = query.timeout_s or self.plumbing.settings.timeout_s
        await self.admission.enter(query.query_id, timeout_s + _MARGIN_S)
        self.plumbing.metrics.in_flight.set(len(self.admission))
        arrival = Arrival(query, origin_of(record), record.timestamp_ms)
        try:
            context = await self._embed(arrival)
            value = encode(context)
        except UniscaleError:
            self.admission.leave(query.query_id)
            raise
        await self.plumbing.outbox.send(self.plumbing.topics.context, SHARD, value)
        self.plumbing.metrics.admitted.inc()

    async def _embed(self, arrival: Arrival) -> Context:
        loop = asyncio.get_running_loop()
        pause_s = 0.5
        for attempt in range(1, self.plumbing.settings.engine_attempts + 1):
            try:
                contexts = await loop.run_in_executor(
                    self._thread, lambda: embed([arrival], encoder=self.encoder)
                )
                return contexts[0]
            except EncoderUnavailable:
                self.plumbing.metrics.engine_faults.labels("embedder").inc()
                if attempt == self.plumbing.settings.engine_attempts:
                    raise
                await asyncio.sleep(pause_s)
                pause_s *= 2
        raise AssertionError("unreachable")

    def _on_answer(self, record: Record) -> None:
        if record.key:
            self.admission.ended(record.key.decode(errors="replace"))
            self.plumbing.metrics.in_flight.set(len(self.admission))
