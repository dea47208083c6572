"""The embedder's room: Query in, Context out, and the only room that makes queries wait (admission)."""

import asyncio
from typing import Self

from agents.embedder.agent import Arrival, embed
from agents.embedder.encoder import Encoder
from agents.embedder.errors import EncoderUnavailable
from schemas.base import decode, encode
from schemas.context import Context
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.query import Query
from streams.rooms.embedder.admission import Admission
from streams.rooms.embedder.encoders import encoder_of
from streams.runtime.base import Runtime
from streams.runtime.errors import Unavailable
from streams.runtime.records import Outgoing, Record
from streams.topics import SHARD

# A query whose Answer is never seen frees its slot this long after the query's deadline.
_MARGIN_S = 60.0


class EmbedderRoom:
    """Forward queries with their vectors while there is room for more in flight."""

    def __init__(self, runtime: Runtime, encoder: Encoder) -> None:
        self.runtime = runtime
        self.encoder = encoder
        self.admission = Admission(runtime.settings.queries.max_in_flight, runtime.monotonic)
        # One text at a time: the encoder is the busiest code of this process and must not starve the heartbeats.
        self._encoding = asyncio.Lock()
        # A query in flight has an Answer coming: a broken second one under its id must not answer it.
        runtime.answers_for = lambda query_id: query_id not in self.admission

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the encoder and begin to watch how queries end."""
        room = cls(runtime, await runtime.in_thread(lambda: encoder_of(runtime.settings)))
        # Far enough back to know the Answers of all that may be read again after a restart.
        tail = 4 * runtime.settings.queries.max_in_flight
        await runtime.follow([runtime.topics.answer], room._on_answer, begin=tail)
        await runtime.follow([runtime.topics.dead_letter], room._on_dead_letter, begin=tail)
        return room

    async def on_query(self, record: Record) -> None:
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
            value = encode(await self._embed(Arrival(query, record.origin, record.timestamp_ms)))
        except UniscaleError:
            self.admission.leave(query.query_id)
            raise
        await runtime.send(Outgoing(runtime.topics.context, SHARD, value))
        runtime.metrics.admitted.inc()

    async def _embed(self, arrival: Arrival) -> Context:
        async with self._encoding:
            try:
                contexts = await self.runtime.in_thread(lambda: embed([arrival], encoder=self.encoder))
            except EncoderUnavailable as error:
                # The server is down, which no query is to blame for: the backlog waits until it is back.
                self.runtime.metrics.engine_faults.labels("embedder").inc()
                raise Unavailable(f"the encoder: {error}") from error
        return contexts[0]

    def _on_answer(self, record: Record) -> None:
        if record.key:
            self.admission.ended(record.key.decode(errors="replace"))
            self.runtime.metrics.in_flight.set(len(self.admission))

    def _on_dead_letter(self, record: Record) -> None:
        """Free the slot of a query refused as a duplicate: it gets no Answer of its own."""
        try:
            letter = decode(record.value, DeadLetter)
        except UniscaleError:
            return
        if letter.query_id and letter.query_origin is not None:
            self.admission.refused(letter.query_id, letter.query_origin)
            self.runtime.metrics.in_flight.set(len(self.admission))
