"""The verifier on Kafka: SearchStep in, Verification out, to the group the step came from."""

import time
from typing import Self

from agents.serving.errors import ServingError
from agents.verifier.agent import verify
from agents.verifier.prm import Verifier
from schemas.answer import Answer
from schemas.base import decode, encode
from schemas.search import SearchStep
from streams.rooms.executor.hosting import verifier_of
from streams.runtime.kafka.handlers import Record
from streams.runtime.plumbing import Plumbing, key_of
from streams.runtime.retry import attempts


class VerifierRoom:
    """Scores steps; a step that comes again is scored again, and its first Verification counts."""

    def __init__(self, plumbing: Plumbing, verifier: Verifier) -> None:
        self.plumbing = plumbing
        self.verifier = verifier

    @classmethod
    async def build(cls, plumbing: Plumbing) -> Self:
        """Load the catalogue's verifier in use."""
        entry = plumbing.control.catalogue.verifier_named()
        room = cls(plumbing, await verifier_of(plumbing.settings, entry))
        plumbing.closers.append(room.verifier.close)
        return room

    async def on_step(self, record: Record) -> None:
        """Score one step."""
        step = decode(record.value, SearchStep)
        try:
            verification = await attempts(
                lambda: verify(step, verifier=self.verifier, clock=time.monotonic),
                self.plumbing.settings.engine_attempts,
                f"{step.query_id}/{step.step}",
                self.plumbing.metrics.engine_faults.labels("verifier").inc,
            )
        except ServingError as error:
            told = Answer(
                query_id=step.query_id, status="failed", by="verifier", action=step.forest.action, group=step.group,
                seq=step.seq, error=f"{type(error).__name__}: {error}",
            )  # fmt: skip
            await self.plumbing.outbox.send(self.plumbing.topics.answer, key_of(step.query_id), encode(told))
            return
        await self.plumbing.outbox.send(
            self.plumbing.topics.verification_for(step.group), key_of(step.query_id), encode(verification)
        )
