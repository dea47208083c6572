"""The verifier service: reads SearchSteps, and sends Verifications back to the group that each step came from."""

import asyncio
import logging
from typing import Self

from msgspec.structs import replace

from agents.catalogue.models import VerifierModel
from agents.search.search import failed
from agents.serving.errors import ServingError, UnknownEngineError
from agents.verifier.prm import Verifier, ask, verify
from schemas.errors import RecordTooLarge, UniscaleError
from schemas.search import SearchStep
from streams.control_follower import overlong_in_words
from streams.log.base import ConsumerRecord, Outgoing
from streams.runtime.effects import Effects, KeyedService
from streams.runtime.errors import Death
from streams.runtime.runtime import Runtime
from streams.services.hosting import unless_vllm_hangs, verifier_of, watch_vllm

log = logging.getLogger("streams.verifier")


class UnknownGroup(UniscaleError):
    """A step names an executor group that does not exist. Only executors may write steps (see SECURITY.md)."""


class VerifierService(KeyedService[None]):
    """Scores steps. A redelivered step is scored again, but only its first Verification is used."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.verifiers: dict[str, Verifier] = {}
        self._loading = asyncio.Lock()

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the verifiers that score the catalogue's models."""
        service, catalogue = cls(runtime), runtime.control.catalogue
        if said := overlong_in_words(catalogue):
            log.warning("%s", said)
        for entry in catalogue.scoring:
            await service._loaded(entry)
        return service

    async def _loaded(self, entry: VerifierModel) -> Verifier:
        """Return a verifier, loading it if a model added at run time is the first to name it."""
        async with self._loading:
            if (known := self.verifiers.get(entry.name)) is not None:
                return known
            runtime = self.runtime
            verifier = await verifier_of(runtime.settings, entry, runtime.control.base)
            runtime.closers.append(verifier.close)
            if entry.endpoint.kind != "http":
                question = runtime.settings.executor.probe_question
                await unless_vllm_hangs(lambda: verifier.host, ask(verifier, question))
                runtime.background("vLLM", lambda: watch_vllm(lambda: verifier.host))
            self.verifiers[entry.name] = verifier
            return verifier

    async def _verifier(self, step: SearchStep) -> Verifier:
        """Return a step's verifier.

        Raises:
            ServingError: the catalogue has changed and has no verifier for the step's model, or it cannot be loaded.
        """
        control, name = self.runtime.control, step.forest.action.model
        entry = control.verifier_of(control.models[name]) if name in control.models else None
        if entry is None and len(self.verifiers) == 1:  # the one that scored the earlier steps
            return next(iter(self.verifiers.values()))
        if entry is None:
            raise UnknownEngineError(f"{name}: no verifier scores it any more; send the query again")
        return self.verifiers.get(entry.name) or await self._loaded(entry)

    async def on(self, row: None, message: SearchStep, at: ConsumerRecord) -> Effects[None]:
        """Score one step."""
        runtime, step = self.runtime, message
        topic = runtime.topics.verification_for(step.group)
        await self._require_group(step, topic)
        try:
            verifier = await self._verifier(step)
            verification = await verify(
                step, verifier=verifier, clock=runtime.monotonic, now_ms=runtime.clock.now_ms()
            )
            out = Outgoing.of(topic, verification)
        except (ServingError, RecordTooLarge) as error:
            runtime.metrics.engine_faults.labels("verifier").inc()
            if isinstance(error, ServingError) and error.fatal:
                raise Death(f"{step.query_id}/{step.step}: {error}") from error
            # Keep the trace: the cost of its drafts is charged to the API key.
            answer = replace(failed(step, error, step.engine), by="verifier")
            return Effects(send=[Outgoing.of(runtime.topics.answer, answer)])
        return Effects(send=[out])

    async def _require_group(self, step: SearchStep, topic: str) -> None:
        """Refuse a group without a topic, because a producer would wait for the topic and block later steps.

        Raises:
            UnknownGroup: the group has no topic.
            Unavailable: the broker does not respond.
        """
        # A group may have left the catalogue while its last searches are still running.
        known = {model.group for model in self.runtime.control.models.values()}
        if step.group not in known and not await self.runtime.log.has_topic(topic):
            raise UnknownGroup(f"{step.query_id}: group: {step.group!r} has no topic {topic}")
