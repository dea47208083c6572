"""The service of one executor group: Decision or Verification in, SearchStep, Answer or AttemptFailed out.

Each call of the handler awaits the engine, and all calls share one continuous batch. `UNISCALE_CONCURRENCY` limits how
many queries a worker has in flight.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from functools import partial
from typing import Self

from agents.catalogue.cost_model import UnpricedAnswer
from agents.catalogue.models import Model
from agents.search.progress import Progress
from agents.search.search import (
    Job,
    OnText,
    SearchRules,
    after_control,
    begin,
    blamed,
    cancelled,
    draft,
    failed,
    overdue,
    passed_whole,
    ran_out,
    resume,
    resume_unscored,
    time_left_s,
    used_up,
)
from agents.serving.errors import DeadlinePassedError, ServingError, UnknownEngineError
from agents.serving.registry import GroupEngines
from agents.serving.retries import within
from agents.serving.vllm_host import EngineHost
from schemas.answer import Answer, Probe
from schemas.attempt import AttemptFailed
from schemas.control import Cancel, Heartbeat, ModelHealth
from schemas.decision import Decision
from schemas.errors import RecordTooLarge, UniscaleError
from schemas.failure import QUESTIONABLE, attempt_id
from schemas.record import decode, encode
from schemas.search import SearchStep, Verification
from streams.log.base import ConsumerRecord, Outgoing, Unavailable
from streams.runtime.effects import Effects, Keyed
from streams.runtime.errors import Death
from streams.runtime.runtime import Runtime
from streams.services.answer_chunks import AnswerChunks
from streams.services.hosting import engines_of, unless_vllm_hangs, watch_vllm
from streams.topics import SHARD

log = logging.getLogger("streams.executor")

# An Answer is later than any step.
_ENDED = 1 << 30

CANCELS = 32_000
"""Cancel records to remember, and to read again at startup."""

FAILURES = 32_000
"""Failed attempts to read again at startup, so that a redelivered search does not end its attempt a second time."""


class ExecutorService(Keyed[None]):
    """Runs the searches of one group. It keeps no state that must survive a restart.

    Attributes:
        retries: Whether a query whose attempt fails may be decided again.
        since_ms: When the service became ready, in ms since the epoch. Another process may already have handled a
            Decision from before that.
    """

    def __init__(self, runtime: Runtime, engines: GroupEngines) -> None:
        self.runtime = runtime
        self.engines = engines
        settings = runtime.settings
        self.rules = SearchRules(
            eta=settings.executor.eta,
            early_exit=settings.executor.early_exit,
            cut_completes=settings.executor.cut_completes,
            timeout_s=settings.queries.timeout_s,
        )
        self.retries = settings.queries.attempts > 1
        self.progress = Progress(most=max(10_000, 16 * settings.queries.max_in_flight))
        self.busy: set[str] = set()
        self.since_ms = runtime.clock.now_ms()
        self._cancelled: OrderedDict[str, str] = OrderedDict()

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the group's models, read recent Cancels, then start sending heartbeats.

        Raises:
            ServingError: none of the models can be loaded.
        """
        service = cls(runtime, engines_of(runtime.settings, runtime.control.base))
        service.engines.probed = service._count_probe
        runtime.closers.append(service._last_beat)
        runtime.closers.append(service.engines.close)
        service.engines.want(service._models())
        await unless_vllm_hangs(service._host, service.engines.settled())
        await service.engines.probe()  # so that servers that are up are ready in the first heartbeat
        begin = CANCELS // runtime.settings.kafka.group_partitions  # per partition
        await runtime.log.tail([runtime.topics.cancel_for(runtime.group)], service.on_cancel, begin=begin)
        if service.retries:
            await runtime.log.tail([runtime.topics.attempt_failed], service.on_failed, begin=FAILURES)
        service.since_ms = runtime.clock.now_ms()  # loading takes minutes
        runtime.background("the heartbeat", service._beat)
        runtime.background("vLLM", lambda: watch_vllm(service._host))
        runtime.background("the probes of endpoints", service._probe)
        return service

    async def on(self, row: None, message: Decision | Verification, at: ConsumerRecord) -> Effects[None]:
        """Start a search, or continue it with the next step or end it."""
        step = 1 if isinstance(message, Decision) else message.step + 1
        search = message if isinstance(message, Decision) else message.search
        if self.progress.behind(attempt_id(message.query_id, search.attempt), step):
            return Effects(then=self.runtime.metrics.duplicates.labels(at.topic).inc)
        began_s = self.runtime.monotonic()
        next_ = self._begin(message, at) if isinstance(message, Decision) else self._resume(message)
        next_ = after_control(next_, self.runtime.monotonic() - began_s)
        chunks = AnswerChunks(self.runtime)
        done = await self._advance(next_, at, chunks)
        while isinstance(done, SearchStep) and not done.forest.limits.verified:
            self._count(done)
            next_ = self._resume_unscored(done)
            done = await self._advance(next_, at, chunks)
        if isinstance(done, Answer) and used_up(done, self.rules):
            done = blamed(done, "timeout")
        if isinstance(done, SearchStep):
            try:
                out = Outgoing.of(self.runtime.topics.search_step, done)
            except RecordTooLarge as error:
                self.runtime.metrics.engine_faults.labels("executor").inc()
                done = failed(done, error, done.engine)
            else:
                return Effects(send=[out], then=partial(self._drafted, done))
        if done.error == ran_out("deadline") and not done.trace and at.timestamp_ms < self.since_ms:
            # Another process may have continued the search. If one of its steps is in flight, that step ends the search
            # with the best path. If not, the aggregator ends it when the query expires.
            return Effects()
        return Effects(send=[self._end(done, chunks)], then=partial(self._ended, done))

    async def _advance(
        self, next_: Job | Answer, at: ConsumerRecord, chunks: AnswerChunks
    ) -> SearchStep | Answer:
        done = await self._go(next_, chunks) if isinstance(next_, Job) else next_
        if isinstance(done, SearchStep) and at.identity in self.runtime.interrupted:
            self._count_repeated(done)
        return done

    def _end(self, answer: Answer, chunks: AnswerChunks) -> Outgoing:
        """Return the record that ends an attempt: its Answer, or an AttemptFailed, on which the decider may retry.

        Once a client may have read some of the attempt's text, no other attempt can answer.
        """
        if self.retries and answer.status == "failed" and answer.text is None and not chunks.began:
            failed = encode(AttemptFailed(answer=answer))
            return Outgoing(self.runtime.topics.attempt_failed, SHARD, failed)
        return Outgoing.of(self.runtime.topics.answer, answer)

    def _ended(self, answer: Answer) -> None:
        self.progress.done(attempt_id(answer.query_id, answer.attempt), _ENDED)
        if answer.fault == "model" and answer.action is not None:
            self.runtime.metrics.model_failures.labels(answer.action.model, answer.cause).inc()
            self.engines.suspect(answer.action.model)

    def _begin(self, decision: Decision, at: ConsumerRecord) -> Job | Answer:
        model = self.runtime.control.models.get(decision.action.model)
        if model is None:  # removed before this process read the catalogue
            gone = UnknownEngineError(
                f"{decision.action.model}: is no longer in the catalogue; send the query again"
            )
            return failed(decision, gone)
        if (why := self._cancelled.get(decision.query_id)) is not None:
            return cancelled(decision, why)
        return begin(
            decision,
            model.sampling,
            rules=self.rules,
            now_ms=self.runtime.clock.now_ms(),
            arrived_ms=at.timestamp_ms,
            verified=self.runtime.control.verifier_of(model) is not None and not passed_whole(decision),
            prompts=decision.action.qp if model.endpoint.kind == "chat" else 1,
        )

    def _resume(self, verification: Verification) -> Job | Answer:
        verifier = verification.verifier.model or verification.verifier.name
        self.runtime.metrics.scored.labels(verifier).inc(len(verification.scores))
        self.runtime.metrics.shortened.labels(verifier).inc(sum(s.shortened for s in verification.scores))
        cost_so_far = self.runtime.control.cost_model.forest_eflops
        try:
            job = resume(verification, now_ms=self.runtime.clock.now_ms(), cost_so_far=cost_so_far)
        except UnpricedAnswer as error:  # removed, and unknown to this process
            return failed(verification.search, error, verification.search.engine)
        return self._unless_cancelled(job)

    def _resume_unscored(self, step: SearchStep) -> Job | Answer:
        cost_so_far = self.runtime.control.cost_model.forest_eflops
        try:
            job = resume_unscored(step, now_ms=self.runtime.clock.now_ms(), cost_so_far=cost_so_far)
        except UnpricedAnswer as error:
            return failed(step, error, step.engine)
        return self._unless_cancelled(job)

    def _unless_cancelled(self, job: Job | Answer) -> Job | Answer:
        if isinstance(job, Job) and (why := self._cancelled.get(job.query_id)) is not None:
            return cancelled(job, why)
        return job

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

    def on_failed(self, record: ConsumerRecord) -> None:
        """Remember an attempt that failed, whichever process ran it."""
        try:
            failed = decode(record.value, AttemptFailed)
        except UniscaleError as error:
            log.warning("%s: %s", record.coordinates, error)
            return
        self.progress.done(attempt_id(failed.query_id, failed.attempt), _ENDED)

    async def _go(self, job: Job, chunks: AnswerChunks) -> SearchStep | Answer:
        self.busy.add(job.query_id)
        try:
            return await self._draft(job, chunks.of(job))
        except DeadlinePassedError:  # the model was not loaded in time
            return overdue(job)
        except ServingError as error:
            self.runtime.metrics.engine_faults.labels("executor").inc()
            if error.fatal:
                raise Death(f"{job.query_id}/{job.step}: {error}") from error
            made = failed(job, error)
            return blamed(made, error.cause, await self._probed(job, error)) if error.cause else made
        finally:
            chunks.stop()
            self.busy.discard(job.query_id)

    async def _probed(self, job: Job, error: ServingError) -> Probe | None:
        """Return whether a model that refused a request passes the operator's probe; None if unknown."""
        if error.cause not in QUESTIONABLE or job.forest.best >= 0:
            return None
        left_s = time_left_s(job, self.runtime.clock.now_ms())
        with contextlib.suppress(DeadlinePassedError):
            return await within(left_s, self.engines.verdict(job.action.model), job.query_id)
        return None

    def _drafted(self, step: SearchStep) -> None:
        self.progress.done(attempt_id(step.query_id, step.attempt), step.step)
        self._count(step)

    def _count(self, step: SearchStep) -> None:
        made = [step.forest.drafts[at] for at in step.forest.pending]
        self.runtime.metrics.drafts.labels(step.forest.action.model).inc(len(made))
        self.runtime.metrics.tokens.labels(step.forest.action.model).inc(sum(d.tokens for d in made))

    def _count_repeated(self, step: SearchStep) -> None:
        """Count the tokens of a step that may already have been generated, and billed, for a process that died."""
        forest, billed = step.forest, step.billed
        output = sum(forest.drafts[at].tokens for at in forest.pending) if billed is None else billed.output
        counter, model = self.runtime.metrics.repeated_tokens, forest.action.model
        counter.labels(model, "input").inc(forest.prompt_tokens if billed is None else billed.input)
        counter.labels(model, "output").inc(output)

    async def _draft(self, job: Job, on_text: OnText | None) -> SearchStep | Answer:
        model = self.runtime.control.models.get(job.action.model)
        if model is None:
            raise UnknownEngineError(
                f"{job.action.model}: is no longer in the catalogue; send the query again"
            )
        what = f"{job.query_id}/{job.step}"
        engine = await within(time_left_s(job, self.runtime.clock.now_ms()), self.engines.get(model), what)
        return await draft(job, engine=engine, clock_ms=self.runtime.clock.now_ms, on_text=on_text)

    def _models(self) -> list[Model]:
        return [m for m in self.runtime.control.catalogue.models if m.group == self.runtime.group]

    def _host(self) -> EngineHost | None:
        return self.engines.host

    async def _beat(self) -> None:
        runtime = self.runtime
        while True:
            here = self._models()
            self.engines.want(here)
            known = {each.model: each for each in self.engines.health()}
            health = tuple(known[model.name] for model in here)
            for each in health:
                runtime.metrics.suspended.labels(each.model).set(each.state == "suspended")
            try:
                await runtime.send(self._heartbeat(health))
            except Unavailable as error:
                log.warning("no heartbeat: %s", error)
            await runtime.sleep(runtime.settings.executor.heartbeat_s)

    def _count_probe(self, model: str, passed: bool) -> None:
        self.runtime.metrics.probes.labels(model, "passed" if passed else "failed").inc()

    async def _probe(self) -> None:
        """Probe suspended endpoints, separately from the heartbeat, because one that hangs must not silence its group.

        Models whose queries failed get the operator's probe question.
        """
        while True:
            await self.engines.probe()
            await self.runtime.sleep(self.runtime.settings.executor.heartbeat_s)

    async def _last_beat(self) -> None:
        """Send the last heartbeat, so that the decider masks this group's models at once."""
        # An unavailable broker must not delay the stop: without this heartbeat, the models are masked three intervals
        # later.
        with contextlib.suppress(Unavailable, TimeoutError):
            await asyncio.wait_for(self.runtime.send(self._heartbeat(stopping=True)), 1.0)

    def _heartbeat(self, health: tuple[ModelHealth, ...] = (), *, stopping: bool = False) -> Outgoing:
        runtime = self.runtime
        beat = Heartbeat(
            group=runtime.group,
            instance=runtime.instance,
            models=tuple(each.model for each in health if each.state == "ready"),
            every_s=runtime.settings.executor.heartbeat_s,
            in_flight=len(self.busy),
            health=health,
            stopping=stopping,
        )
        return Outgoing(runtime.topics.heartbeat, beat.key.encode(), encode(beat))
