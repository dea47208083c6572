"""The embedder service: admits queries, and encodes each Query into a Context."""

from typing import Self

from msgspec.structs import replace

from agents.embedding import ArrivedQuery, Encoder, EncoderUnavailable, TextUnanswered, embed
from agents.encoders import encoder_of
from schemas.chat import FIELDS, nobody_has
from schemas.dead_letter import DeadLetter
from schemas.errors import InvalidField, UniscaleError
from schemas.query import Origin, Query, QueryContext
from schemas.record import decode, encode
from schemas.spent import Spent
from streams.log.base import ConsumerRecord, Outgoing, Unavailable
from streams.runtime.effects import Effects, KeyedService
from streams.runtime.queues import WINDOW
from streams.runtime.runtime import Runtime
from streams.services.admission import Admission, GraderChecks
from streams.services.fair_queue import FairQueue
from streams.topics import SHARD

# A query whose Answer is never seen frees its slot this long after the query's deadline.
_MARGIN_S = 60.0
# A text that fails while the encoder embeds others is refused only after this many rounds, with this pause in seconds,
# because a load balancer may fail some requests for a while.
_ROUNDS = 3
_BETWEEN_S = 10.0


class NotEmbeddedInTime(UniscaleError):
    """The encoder returned no vector before the query's deadline. Send it again once the encoder is back."""

    instead = "timeout_s: was over before the encoder gave the query a vector; send it again later"


class EmbedderService(KeyedService[None]):
    """Embeds and forwards queries as they are admitted."""

    def __init__(self, runtime: Runtime, encoder: Encoder) -> None:
        self.runtime = runtime
        self.encoder = encoder
        kafka, most = runtime.settings.kafka, runtime.settings.queries.max_in_flight
        # Maximum number of queries that may be redelivered after a restart.
        self._again = max(4 * most, WINDOW * kafka.concurrency * kafka.query_partitions)
        self.admission = Admission(
            most, runtime.monotonic, runtime.control.serving, remembered=4 * self._again
        )
        # One text at a time: the encoder is the busiest code of this process and must not starve the heartbeats.
        self._encoding = FairQueue(1, runtime.monotonic)
        self._graders = GraderChecks(runtime)
        runtime.answers_for = self.answers_for

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the encoder and start watching for Answers."""
        service = cls(runtime, await runtime.in_thread(lambda: encoder_of(runtime.settings.encoder)))
        # In the worst case, the Answers of all redelivered queries are in one partition.
        await runtime.log.tail([runtime.topics.answer], service._on_answer, begin=service._again)
        await runtime.log.tail([runtime.topics.dead_letter], service._on_dead_letter, begin=service._again)
        runtime.background("admission", service._look)
        return service

    async def on(self, row: None, message: Query, at: ConsumerRecord) -> Effects[None]:
        """Wait for admission, embed the query and forward it.

        Raises:
            UniscaleError: the text has no vector, or the query is accepted by no model in the catalogue or no grader.
        """
        query, runtime = message, self.runtime
        await self._graders.check(query)
        timeout_s = query.timeout_s or runtime.settings.queries.timeout_s
        began_s = runtime.monotonic()
        models = self._able(query)
        await self.admission.enter(
            query.query_id,
            timeout_s + _MARGIN_S,
            at.origin,
            tenant=query.account,
            models=models,
        )
        runtime.metrics.admission_wait.observe(runtime.monotonic() - began_s)
        runtime.metrics.in_flight.set(len(self.admission))
        context = await self._embed(ArrivedQuery(query, at.origin, at.timestamp_ms), timeout_s, began_s)
        return Effects(send=[Outgoing(runtime.topics.context, SHARD, encode(context))])

    def _able(self, query: Query) -> frozenset[str] | None:
        """Return the models that may answer a query, without those lacking something it requires; None for all.

        Raises:
            InvalidField: There is no such model.
        """
        named = (query.pinned.model,) if query.pinned else query.allowed_models
        catalogue, required = self.runtime.control.catalogue, query.required
        if (lacking := catalogue.lacking(required, named)) is not None:
            raise InvalidField("Query", FIELDS[lacking][0], nobody_has(lacking))
        unable = (
            {model.name for model in catalogue.models if not model.honours(required)} if required else set()
        )
        if named is None and not unable:
            return None
        return frozenset(catalogue.model_names if named is None else named) - unable

    def answers_for(self, query_id: str, origin: Origin) -> bool:
        """Return whether a query whose record was refused should get an Answer.

        Its own slot does not matter, because the Answer frees it. But if an earlier record with that id has a slot, the
        earlier query will get its Answer, which must not come from a broken second record. A query that has ended
        already has its Answer.
        """
        return self.admission.origin(query_id) in (None, origin) and not self.admission.has_ended(query_id)

    async def _look(self) -> None:
        while True:
            await self.runtime.sleep(1.0)
            self.admission.look()

    async def _embed(self, arrival: ArrivedQuery, timeout_s: float, began_s: float) -> QueryContext:
        """Return a query's Context, including how long it has waited since `began_s` for a turn and for a vector."""
        rounds = 0
        while True:
            async with self._encoding.turn(arrival.query.account):
                turn_s = self.runtime.monotonic()
                try:
                    (context,) = await self.runtime.in_thread(lambda: embed([arrival], encoder=self.encoder))
                    embed_s = self.runtime.monotonic() - turn_s
                    spent = Spent().plus(admission_s=turn_s - began_s, embed_s=embed_s)
                    return replace(context, spent=spent)
                except EncoderUnavailable as error:
                    self.runtime.metrics.engine_faults.labels("embedder").inc()
                    if self.runtime.clock.now_ms() > arrival.appended_ms + timeout_s * 1000:
                        # The client is no longer waiting, and the query itself may be crashing the server.
                        raise NotEmbeddedInTime(
                            f"timeout_s: {timeout_s:g} s are over, and {error}"
                        ) from error
                    if not isinstance(error, TextUnanswered):
                        # The server is down, and no query is at fault: the backlog waits until it is back.
                        raise Unavailable(f"the encoder: {error}") from error
                    rounds += 1
                    if rounds == _ROUNDS:
                        raise
            await self.runtime.sleep(_BETWEEN_S)

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
