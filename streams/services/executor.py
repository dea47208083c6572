"""The service of one executor group: Decision or Verification in, SearchStep, Answer or AttemptFailed out.

Each call of the handler awaits the engine, and all calls share one continuous batch. `UNISCALE_CONCURRENCY` limits how
many queries a worker has in flight.
"""

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Self

from agents.catalogue.cost_model import UnpricedAnswer
from agents.catalogue.models import Model
from agents.search.progress import Progress
from agents.search.search import (
    Job,
    SearchRules,
    after_control,
    begin,
    blamed,
    cancelled,
    draft,
    failed,
    overdue,
    passed_whole,
    ran_out_of_time,
    resume,
    resume_unscored,
    time_left_s,
    used_up,
)
from agents.serving.engine import OnText
from agents.serving.errors import DeadlinePassedError, ServingError, UnknownEngineError
from agents.serving.registry import GroupEngines
from agents.serving.retries import within
from agents.serving.vllm_host import EngineHost
from schemas.answer import Answer, Probe
from schemas.attempt import AttemptFailed
from schemas.control import Cancel
from schemas.decision import Decision
from schemas.errors import RecordTooLarge, UniscaleError
from schemas.failure import QUESTIONABLE, attempt_id
from schemas.record import decode, encode
from schemas.search import SearchStep, Verification
from streams.log.base import ConsumerRecord, Outgoing
from streams.runtime.effects import Effects, KeyedService
from streams.runtime.errors import Death
from streams.runtime.runtime import Runtime
from streams.services.answer_chunks import AnswerChunks
from streams.services.heartbeat import Heartbeats
from streams.services.hosting import engines_of, unless_vllm_hangs, watch_vllm
from streams.topics import SHARD

log = logging.getLogger("streams.executor")

# An Answer is later than any step.
_FINAL_STEP = 1 << 30

CANCELS = 32_000
"""Cancel records to remember, and to read again at startup."""

FAILURES = 32_000
"""Failed attempts to read again at startup, so that a redelivered search does not end its attempt a second time."""


class ExecutorService(KeyedService[None]):
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
        self.heartbeats = Heartbeats(runtime, engines, self.busy)
        self.since_ms = runtime.clock.now_ms()
        self._cancelled: OrderedDict[str, str] = OrderedDict()

    @classmethod
    async def build(cls, runtime: Runtime) -> Self:
        """Load the group's models, read recent Cancels, then start sending heartbeats.

        Raises:
            ServingError: none of the models can be loaded.
        """
        service = cls(runtime, engines_of(runtime.settings, runtime.control.base))
        runtime.closers.append(service.heartbeats.send_last)
        runtime.closers.append(service.engines.close)
        service.engines.want(service.heartbeats.models())
        await unless_vllm_hangs(service._host, service.engines.settled())
        await service.engines.probe()  # so that servers that are up are ready in the first heartbeat
        per_partition = CANCELS // runtime.settings.kafka.group_partitions
        await runtime.log.tail(
            [runtime.topics.cancel_for(runtime.group)], service.on_cancel, begin=per_partition
        )
        if service.retries:
            await runtime.log.tail([runtime.topics.attempt_failed], service.on_failed, begin=FAILURES)
        service.since_ms = runtime.clock.now_ms()  # loading takes minutes
        runtime.background("the heartbeat", service.heartbeats.send_regularly)
        runtime.background("vLLM", lambda: watch_vllm(service._host))
        runtime.background("the probes of endpoints", service.heartbeats.probe_regularly)
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
                return Effects(send=[out], then=partial(self._after_step_sent, done))
        if ran_out_of_time(done) and not done.trace and at.timestamp_ms < self.since_ms:
            # Another process may have continued the search. If one of its steps is in flight, that step ends the search
            # with the best path. If not, the aggregator ends it when the query expires.
            return Effects()
        return Effects(send=[self._final_record(done, chunks)], then=partial(self._after_final_sent, done))

    async def _advance(
        self, next_: Job | Answer, at: ConsumerRecord, chunks: AnswerChunks
    ) -> SearchStep | Answer:
        done = await self._run_step(next_, chunks) if isinstance(next_, Job) else next_
        if at.identity in self.runtime.interrupted:
            if isinstance(done, SearchStep):
                self._count_repeated(done)
            elif isinstance(next_, Job) and next_.billed is None and done.billed is not None:
                self._count_billed(next_.action.model, done.billed.input, done.billed.output)
        return done

    def _final_record(self, answer: Answer, chunks: AnswerChunks) -> Outgoing:
        """Return the record that ends an attempt: its Answer, or an AttemptFailed, on which the decider may retry.

        Once a client may have read some of the attempt's text, no other attempt can answer.
        """
        if self.retries and answer.status == "failed" and answer.text is None and not chunks.began:
            return Outgoing(self.runtime.topics.attempt_failed, SHARD, encode(AttemptFailed(answer=answer)))
        return Outgoing.of(self.runtime.topics.answer, answer)

    def _after_final_sent(self, answer: Answer) -> None:
        self.progress.done(attempt_id(answer.query_id, answer.attempt), _FINAL_STEP)
        if answer.fault == "model" and answer.action is not None:
            self.runtime.metrics.model_failures.labels(answer.action.model, answer.cause).inc()
            self.engines.suspect(answer.action.model)

    def _begin(self, decision: Decision, at: ConsumerRecord) -> Job | Answer:
        try:
            model = self._model(decision.action.model)
        except UnknownEngineError as error:  # removed before this process read the catalogue
            return failed(decision, error)
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
        return self._continue(verification.search, partial(resume, verification))

    def _resume_unscored(self, step: SearchStep) -> Job | Answer:
        return self._continue(step, partial(resume_unscored, step))

    def _continue(self, step: SearchStep, resumed: Callable[..., Job | Answer]) -> Job | Answer:
        """Return what follows a step, unless its query was cancelled or this process cannot compute its cost."""
        cost_so_far = self.runtime.control.cost_model.forest_eflops
        try:
            job = resumed(now_ms=self.runtime.clock.now_ms(), cost_so_far=cost_so_far)
        except UnpricedAnswer as error:  # its model was removed, and this process does not know it
            return failed(step, error, step.engine)
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
            ended = decode(record.value, AttemptFailed)
        except UniscaleError as error:
            log.warning("%s: %s", record.coordinates, error)
            return
        self.progress.done(attempt_id(ended.query_id, ended.attempt), _FINAL_STEP)

    async def _run_step(self, job: Job, chunks: AnswerChunks) -> SearchStep | Answer:
        self.busy.add(job.query_id)
        try:
            return await self._generate(job, chunks.of(job))
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
            return await within(left_s, self.engines.verdict(job.action.model, error.server), job.query_id)
        return None

    def _after_step_sent(self, step: SearchStep) -> None:
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
        prompts = forest.prompt_tokens if billed is None else billed.input
        self._count_billed(forest.action.model, prompts, output)

    def _count_billed(self, model: str, prompts: int, output: int) -> None:
        self.runtime.metrics.repeated_tokens.labels(model, "input").inc(prompts)
        self.runtime.metrics.repeated_tokens.labels(model, "output").inc(output)

    async def _generate(self, job: Job, on_text: OnText | None) -> SearchStep | Answer:
        model = self._model(job.action.model)
        what = f"{job.query_id}/{job.step}"
        engine = await within(time_left_s(job, self.runtime.clock.now_ms()), self.engines.get(model), what)
        return await draft(job, engine=engine, clock_ms=self.runtime.clock.now_ms, on_text=on_text)

    def _model(self, name: str) -> Model:
        if (model := self.runtime.control.models.get(name)) is None:
            raise UnknownEngineError(f"{name}: is no longer in the catalogue; send the query again")
        return model

    def _host(self) -> EngineHost | None:
        return self.engines.host
