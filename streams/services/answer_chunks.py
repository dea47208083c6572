"""Sends the text of a search to gateways while it is generated: at once, then at most ten times a second.

As with heartbeats, no record waits for chunks, and chunks may be lost. The Answer contains the whole text.
"""

import asyncio
import logging

from agents.search.search import Job, OnText
from schemas.chunk import AnswerChunk, digest
from schemas.errors import UniscaleError
from schemas.forest import before_stop
from schemas.record import encode
from streams.log.base import Outgoing, Unavailable, key_of
from streams.runtime.runtime import Runtime

log = logging.getLogger("streams.executor")

CHUNK_S = 0.1
"""Seconds between two chunks of an answer."""


class AnswerChunks:
    """The chunks that one call of the executor's handler sends while it drafts.

    Attributes:
        began: Whether a client may have read some of the attempt's text, from a chunk or from an earlier step. Then no
            other attempt may answer, because its text would differ.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.began = False
        self._runtime = runtime
        self._text, self._sent = "", 0
        self._sending: asyncio.Task[None] | None = None

    def of(self, job: Job) -> OnText | None:
        """Return the callback for the text of a step while it is drafted; None if the answer is not streamed."""
        if not job.forest.limits.streamed:
            return None
        # Gateways already have the earlier steps, from chunks or from a SearchStep.
        self._text = "".join(job.forest.steps(len(job.forest.drafts) - 1))
        self._sent = max(self._sent, len(self._text))
        self.began |= bool(self._text.strip())

        def on_text(piece: str) -> None:
            self._text += piece
            if self._sending is None or self._sending.done():
                self._sending = asyncio.get_running_loop().create_task(self._send(job))

        return on_text

    def stop(self) -> None:
        """Stop sending, because the step has been drafted or has failed."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self, job: Job) -> None:
        """Send chunks until there is no more text."""
        runtime = self._runtime
        while (chunk := self._next(job)) is not None:
            self.began = True
            try:
                await runtime.send(Outgoing(runtime.topics.answer_chunk, key_of(job.query_id), encode(chunk)))
                self._sent += len(chunk.text)
            except (Unavailable, UniscaleError) as error:  # the next chunk begins at the same offset
                log.debug("%s: no chunk: %s", job.query_id, error)
            await runtime.sleep(CHUNK_S)

    def _next(self, job: Job) -> AnswerChunk | None:
        text = before_stop(self._text, job.forest.limits.stop)
        if len(text) <= self._sent or not text.strip():  # an answer without any text is a failure
            return None
        return AnswerChunk(
            query_id=job.query_id,
            attempt=job.attempt,
            offset=self._sent,
            before=digest(text[: self._sent]),
            text=text[self._sent :],
        )
