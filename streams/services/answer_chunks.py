"""Sends a search's answer to gateways while it is generated: at once, then at most ten times a second.

As with heartbeats, no record waits for chunks, and chunks may be lost. The Answer is whole.
"""

import asyncio
import logging

from agents.search.search import Job
from agents.serving.engine import OnText, Piece
from schemas.chunk import AnswerChunk, CallHead, Shown
from schemas.errors import UniscaleError
from schemas.forest import before_stop
from schemas.record import encode
from streams.log.base import Outgoing, Unavailable, key_of
from streams.runtime.runtime import Runtime

log = logging.getLogger("streams.executor")

CHUNK_S = 0.1
"""Seconds between two chunks of the same answer."""


class AnswerChunks:
    """The chunks that one call to the executor's handler sends while it drafts.

    Attributes:
        began: Whether a client may have read some of the attempt's answer, from a chunk or from an earlier step. Then
            no other attempt may answer, because it would differ.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.began = False
        self._runtime = runtime
        self._made, self._sent = Shown(), Shown()
        self._sending: asyncio.Task[None] | None = None

    def of(self, job: Job) -> OnText | None:
        """Return the callback for a step while it is drafted; None if the answer is not streamed."""
        if not job.forest.limits.streamed:
            return None
        # Gateways already have the earlier steps, from chunks or from a SearchStep.
        self._made.text = "".join(job.forest.steps(len(job.forest.drafts) - 1))
        self._sent.text = max(self._sent.text, self._made.text, key=len)
        self.began |= bool(self._made.text.strip())

        def on_text(piece: Piece) -> None:
            if isinstance(piece, str):
                self._made.text += piece
            elif job.whole:  # otherwise the Answer has no calls
                self._made.calls = list(piece)
            if self._sending is None or self._sending.done():
                self._sending = asyncio.get_running_loop().create_task(self._send(job))

        return on_text

    def stop(self) -> None:
        """Stop sending, because the step has been drafted or has failed."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self, job: Job) -> None:
        """Send chunks until there is nothing more."""
        runtime = self._runtime
        while (chunk := self._next(job)) is not None:
            self.began = True
            try:
                await runtime.send(Outgoing(runtime.topics.answer_chunk, key_of(job.query_id), encode(chunk)))
                self._sent.add(chunk)
            except (Unavailable, UniscaleError) as error:  # the next chunk begins at the same offset
                log.debug("%s: no chunk: %s", job.query_id, error)
            await runtime.sleep(CHUNK_S)

    def _next(self, job: Job) -> AnswerChunk | None:
        """Return the first piece that has not been sent: of the text, then of each call."""
        made, sent = self._made, self._sent
        text = before_stop(made.text, job.forest.limits.stop)
        if len(text) > len(sent.text) and not sent.calls:
            # An answer without any text or call is a failure.
            return self._piece(job, None, sent.text, text) if text.strip() or made.calls else None
        if made.text != sent.text:  # a stop text, or text after a call: the rest comes with the Answer
            return None
        for at in range(max(0, len(sent.calls) - 1), len(made.calls)):
            call = made.calls[at]
            known = sent.calls[at].arguments if at < len(sent.calls) else ""
            if not call.arguments:
                return None
            if len(call.arguments) > len(known):
                head = CallHead(index=at, id=call.id, name=call.name, type=call.type)
                return self._piece(job, head, known, call.arguments)
        return None

    def _piece(self, job: Job, head: CallHead | None, known: str, made: str) -> AnswerChunk:
        return AnswerChunk(
            query_id=job.query_id,
            attempt=job.attempt,
            call=head,
            offset=len(known),
            before=self._sent.digest(head, known),
            text=made[len(known) :],
        )
