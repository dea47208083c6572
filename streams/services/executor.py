"""The service of one executor group: Decision or Verification in, SearchStep or Answer out.

Each handler awaits the engine, and all share one continuous batch: `UNISCALE_CONCURRENCY` is how many queries a worker
has in flight.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from typing import Self

from agents.catalogue.models import Model
from agents.search.search import (
    Job,
    Progress,
    SearchRules,
    begin,
    cancelled,
    draft,
    failed,
    overdue,
    resume,
    time_left_s,
)
from agents.serving.errors import DeadlinePassedError, ServingError, UnknownEngineError
from agents.serving.http import within
from agents.serving.registry import GroupEngines
from schemas.answer import Answer
from schemas.control import Cancel, Heartbeat
from schemas.decision import Decision
from schemas.errors import RecordTooLarge, UniscaleError
from schemas.record import decode, encode
from schemas.search import SearchStep, Verification
from streams.runtime.base import ConsumerRecord, Crash, Outgoing, Runtime, Unavailable, key_of
from streams.services.hosting import engines_of

log = logging.getLogger("streams.executor")

# An Answer is later than any step.
_ENDED = 1 << 30

HUNG_S = 300.0
"""A step of vLLM that takes so long will not end: the process does, and the supervisor starts another."""

CANCELS = 32_000
"""Cancel records that are remembered, and at most read again at the start."""


class ExecutorService:
    """The searches of one group; keeps nothing that a restart would miss."""

    def __init__(self, runtime: Runtime, engines: GroupEngines) -> None:
        self.runtime = runtime
        self.engines = engines
        settings = runtime.settings
        self.rules = SearchRules(
            eta=settings.executor.eta,
            early_exit=settings.executor.early_exit,
            timeout_s=settings.queries.timeout_s,
        )
        self.progress = Progress(most=max(10_000, 16 * settings.queries.max_in_flight))
        self.busy: set[str] = set()
        self._cancelled: OrderedDict[str, str] = OrderedDict()

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the group's models, then start to send heartbeats.

        Raises:
            ServingError: not one of them can be loaded.
        """
        service = cls(runtime, engines_of(runtime.settings, runtime.control.base))
        runtime.on_stop(service._last_beat)
        runtime.on_stop(service.engines.close)
        service.engines.want(service._models())
        await service.engines.settled()
        runtime.background("the heartbeat", service._beat)
        return service

    async def on_decision(self, record: ConsumerRecord) -> None:
        """Begin a search."""
        decision = decode(record.value, Decision)
        if self._behind(decision.query_id, 1, record.topic):
            return
        model = self.runtime.control.models.get(decision.action.model)
        if model is None:  # removed, and this process knows the catalogue from after that
            gone = UnknownEngineError(
                f"{decision.action.model}: is no longer in the catalogue; send the query again"
            )
            await self._answer(failed(decision, gone))
            return
        if (why := self._cancelled.get(decision.query_id)) is not None:
            await self._answer(cancelled(decision, why))
            return
        job = begin(
            decision,
            model.sampling,
            rules=self.rules,
            now_ms=self.runtime.now_ms(),
            arrived_ms=record.timestamp_ms,
        )
        await self._go(job)

    async def on_verification(self, record: ConsumerRecord) -> None:
        """Take search control, and the next step or the end."""
        verification = decode(record.value, Verification)
        if self._behind(verification.query_id, verification.step + 1, record.topic):
            return
        self.runtime.metrics.scored.labels(verification.verifier.model or verification.verifier.name).inc(
            len(verification.scores)
        )
        job = resume(
            verification, now_ms=self.runtime.now_ms(), price=self.runtime.control.pricing.forest_eflops
        )
        if isinstance(job, Job) and (why := self._cancelled.get(job.query_id)) is not None:
            job = cancelled(job, why)
        await self._go(job)

    def on_cancel(self, record: ConsumerRecord) -> None:
        """Drop a search at its next step. One that ends with that step keeps its Answer."""
        try:
            cancel = decode(record.value, Cancel)
        except UniscaleError as error:
            log.warning("%s: %s", record.coordinates, error)
            return
        self._cancelled[cancel.query_id] = f"cancelled by {cancel.by}: {cancel.reason or 'no reason given'}"
        while len(self._cancelled) > CANCELS:
            self._cancelled.popitem(last=False)

    async def _go(self, next_: Job | Answer) -> None:
        if isinstance(next_, Answer):
            await self._answer(next_)
            return
        self.busy.add(next_.query_id)
        try:
            step = await self._draft(next_)
            value = encode(step)
        except DeadlinePassedError:
            await self._answer(overdue(next_))
            return
        except (ServingError, RecordTooLarge) as error:
            self.runtime.metrics.engine_faults.labels("executor").inc()
            if isinstance(error, ServingError) and error.fatal:
                raise Crash(f"{next_.query_id}/{next_.step}: {error}") from error
            await self._answer(failed(next_, error))
            return
        finally:
            self.busy.discard(next_.query_id)
        topics = self.runtime.topics
        await self.runtime.send(Outgoing(topics.search_step, key_of(step.query_id), value))
        self.progress.done(step.query_id, step.step)
        made = [step.forest.drafts[at] for at in step.forest.pending]
        self.runtime.metrics.drafts.labels(step.forest.action.model).inc(len(made))
        self.runtime.metrics.tokens.labels(step.forest.action.model).inc(sum(d.tokens for d in made))

    async def _draft(self, job: Job) -> SearchStep:
        model = self.runtime.control.models.get(job.action.model)
        if model is None:
            raise UnknownEngineError(
                f"{job.action.model}: is no longer in the catalogue; send the query again"
            )
        what = f"{job.query_id}/{job.step}"
        engine = await within(time_left_s(job, self.runtime.now_ms()), self.engines.get(model), what)
        return await draft(job, engine=engine, clock_ms=self.runtime.now_ms)

    def _models(self) -> list[Model]:
        return [m for m in self.runtime.control.catalogue.models if m.group == self.runtime.group]

    async def _answer(self, answer: Answer) -> None:
        topics = self.runtime.topics
        await self.runtime.send(Outgoing(topics.answer, key_of(answer.query_id), encode(answer)))
        self.progress.done(answer.query_id, _ENDED)

    def _behind(self, query_id: str, step: int, topic: str) -> bool:
        behind = self.progress.behind(query_id, step)
        if behind:
            self.runtime.metrics.duplicates.labels(topic).inc()
        return behind

    async def _beat(self) -> None:
        runtime = self.runtime
        every_s = runtime.settings.executor.heartbeat_s
        while True:
            if (hung_s := self.engines.hung_s) > HUNG_S:
                raise Crash(f"vLLM has not ended a step for {hung_s:.0f} s")
            here = self._models()
            self.engines.want(here)
            await self.engines.probe()
            known = {each.model: each for each in self.engines.health()}
            health = tuple(known[model.name] for model in here)
            for each in health:
                runtime.metrics.suspended.labels(each.model).set(each.state == "suspended")
            beat = Heartbeat(
                group=runtime.group,
                instance=runtime.instance,
                models=tuple(each.model for each in health if each.state == "ready"),
                every_s=every_s,
                in_flight=len(self.busy),
                health=health,
            )
            try:
                await runtime.send(Outgoing(runtime.topics.heartbeat, beat.key.encode(), encode(beat)))
            except Unavailable as error:
                log.warning("no heartbeat: %s", error)
            await runtime.sleep(every_s)

    async def _last_beat(self) -> None:
        """Say that no more comes, so that the decider masks this group's models at once."""
        runtime = self.runtime
        beat = Heartbeat(
            group=runtime.group,
            instance=runtime.instance,
            models=(),
            every_s=runtime.settings.executor.heartbeat_s,
            in_flight=len(self.busy),
            stopping=True,
        )
        # A broker that is away holds up no stop: without this beat the models are masked three beats later.
        with contextlib.suppress(Unavailable, TimeoutError):
            last = Outgoing(runtime.topics.heartbeat, beat.key.encode(), encode(beat))
            await asyncio.wait_for(runtime.send(last), 1.0)
