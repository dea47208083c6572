"""The verifier's service: SearchStep in, Verification out, to the group the step came from."""

import logging
from typing import Self

from msgspec.structs import replace

from agents.search.search import failed
from agents.serving.errors import ServingError
from agents.verifier.prm import Verifier, ask, verify
from schemas.errors import RecordTooLarge, UniscaleError
from schemas.search import SearchStep
from streams.control import overlong_in_words
from streams.log.base import ConsumerRecord, Outgoing
from streams.runtime.effects import Effects, Keyed
from streams.runtime.errors import Death
from streams.runtime.runtime import Runtime
from streams.services.hosting import unless_vllm_hangs, verifier_of, watch_vllm

log = logging.getLogger("streams.verifier")


class UnknownGroup(UniscaleError):
    """A step names an executor group that does not exist. Only the executors may write steps, see SECURITY.md."""


class VerifierService(Keyed[None]):
    """Scores steps. A redelivered step is scored again; its first Verification counts."""

    def __init__(self, runtime: Runtime, verifier: Verifier) -> None:
        self.runtime = runtime
        self.verifier = verifier

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the catalogue's verifier in use."""
        catalogue = runtime.control.catalogue
        if said := overlong_in_words(catalogue):
            log.warning("%s", said)
        entry = catalogue.verifier_named()
        verifier = await verifier_of(runtime.settings, entry, runtime.control.base)
        runtime.closers.append(verifier.close)
        if entry.endpoint.kind != "http":
            question = runtime.settings.executor.probe_question
            await unless_vllm_hangs(lambda: verifier.host, ask(verifier, question))
            runtime.background("vLLM", lambda: watch_vllm(lambda: verifier.host))
        return cls(runtime, verifier)

    async def on(self, row: None, message: SearchStep, at: ConsumerRecord) -> Effects[None]:
        """Score one step."""
        runtime, step = self.runtime, message
        topic = runtime.topics.verification_for(step.group)
        await self._require_group(step, topic)
        try:
            verification = await verify(
                step, verifier=self.verifier, clock=runtime.monotonic, now_ms=runtime.clock.now_ms()
            )
            out = Outgoing.of(topic, verification)
        except (ServingError, RecordTooLarge) as error:
            runtime.metrics.engine_faults.labels("verifier").inc()
            if isinstance(error, ServingError) and error.fatal:
                raise Death(f"{step.query_id}/{step.step}: {error}") from error
            # With its trace: what was drafted was worked for, and its key pays for it.
            answer = replace(failed(step, error, step.engine), by="verifier")
            return Effects(send=[Outgoing.of(runtime.topics.answer, answer)])
        return Effects(send=[out])

    async def _require_group(self, step: SearchStep, topic: str) -> None:
        """Refuse a group without a topic: a producer would wait for that topic, and hold up the steps behind this one.

        Raises:
            UnknownGroup: naming it.
            Unavailable: the broker does not say.
        """
        # A group may have left the catalogue while its last searches run.
        known = {model.group for model in self.runtime.control.models.values()}
        if step.group not in known and not await self.runtime.log.has_topic(topic):
            raise UnknownGroup(f"{step.query_id}: group: {step.group!r} has no topic {topic}")
