"""An executor of one group on Kafka: Decision or Verification in, SearchStep or Answer out.

Each partition's handler awaits the engine; all handlers share one continuous batch, so the partition count is
how many queries the group has in flight.
"""

import asyncio
import time
from typing import Any, Self

from agents.executor.agent import Job, begin, draft, failed, resume
from agents.executor.progress import Progress
from agents.executor.rules import SearchRules
from agents.serving.errors import ServingError
from schemas.answer import Answer
from schemas.base import decode, encode
from schemas.decision import Decision
from schemas.errors import RecordTooLarge
from schemas.heartbeat import Heartbeat
from schemas.search import SearchStep, Verification
from streams.rooms.executor.hosting import Engines
from streams.runtime.kafka.app import crash
from streams.runtime.kafka.handlers import Record
from streams.runtime.plumbing import Plumbing, key_of
from streams.runtime.retry import attempts

# An Answer is later than any step.
_ENDED = 1 << 30


class ExecutorRoom:
    """The searches of one group; keeps nothing that a restart would miss."""

    def __init__(self, plumbing: Plumbing, engines: Engines) -> None:
        self.plumbing = plumbing
        self.engines = engines
        settings = plumbing.settings
        self.rules = SearchRules(
            eta=settings.eta, early_exit=settings.early_exit, timeout_s=settings.timeout_s
        )
        self.progress = Progress(most=max(10_000, 16 * settings.max_in_flight))
        self.busy: set[str] = set()

    @classmethod
    async def build(cls, plumbing: Plumbing) -> Self:
        """Load the group's models, then begin to show signs of life."""
        models = [m for m in plumbing.control.catalogue.models if m.group == plumbing.group]
        room = cls(plumbing, await Engines.start(plumbing.settings, models))
        plumbing.closers.append(room.engines.close)
        asyncio.get_running_loop().create_task(room._beat())
        return room

    async def on_decision(self, record: Record) -> None:
        """Begin a search."""
        decision = decode(record.value, Decision)
        if self._behind(decision.query_id, 1, record.topic):
            return
        model = self.plumbing.control.models[decision.action.model]
        job = begin(
            decision, model.sampling, rules=self.rules, now_ms=_now_ms(), arrived_ms=record.timestamp_ms
        )
        await self._go(job)

    async def on_verification(self, record: Record) -> None:
        """Take search control, and the next step or the end."""
        verification = decode(record.value, Verification)
        if self._behind(verification.query_id, verification.step + 1, record.topic):
            return
        self.plumbing.metrics.scored.labels(verification.verifier.model or verification.verifier.name).inc(
            len(verification.scores)
        )
        job = resume(verification, now_ms=_now_ms(), price=self.plumbing.control.pricing.forest_eflops)
        await self._go(job)

    async def _go(self, next_: Job | Answer) -> None:
        if isinstance(next_, Answer):
            await self._answer(next_)
            return
        self.busy.add(next_.query_id)
        try:
            step = await self._draft(next_)
            value = encode(step)
        except (ServingError, RecordTooLarge) as error:
            await self._answer(failed(next_, f"{type(error).__name__}: {error}"))
            return
        finally:
            self.busy.discard(next_.query_id)
        await self.plumbing.outbox.send(self.plumbing.topics.search_step, key_of(step.query_id), value)
        self.progress.done(step.query_id, step.step)
        made = [step.forest.drafts[at] for at in step.forest.pending]
        self.plumbing.metrics.drafts.labels(step.forest.action.model).inc(len(made))
        self.plumbing.metrics.tokens.labels(step.forest.action.model).inc(sum(d.tokens for d in made))

    async def _draft(self, job: Job) -> SearchStep:
        engine = await self.engines.get(self.plumbing.control.models[job.action.model])
        faults = self.plumbing.metrics.engine_faults.labels("executor")
        return await attempts(
            lambda: draft(job, engine=engine, clock_ms=_now_ms),
            self.plumbing.settings.engine_attempts,
            f"{job.query_id}/{job.step}",
            faults.inc,
        )

    async def _answer(self, answer: Answer) -> None:
        await self.plumbing.outbox.send(self.plumbing.topics.answer, key_of(answer.query_id), encode(answer))
        self.progress.done(answer.query_id, _ENDED)

    def _behind(self, query_id: str, step: int, topic: str) -> bool:
        behind = self.progress.behind(query_id, step)
        if behind:
            self.plumbing.metrics.duplicates.labels(topic).inc()
        return behind

    async def _beat(self) -> None:
        plumbing = self.plumbing
        every_s = plumbing.settings.heartbeat_s
        try:
            # faust calls the producer started before it has connected.
            producer: Any = plumbing.app.producer
            while producer._producer is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            while True:
                here = [m for m in plumbing.control.catalogue.models if m.group == plumbing.group]
                for model in here:
                    await self.engines.get(
                        model
                    )  # one that joined the catalogue is loaded before it is announced
                beat = Heartbeat(
                    group=plumbing.group, instance=plumbing.instance, models=tuple(m.name for m in here),
                    every_s=every_s, in_flight=len(self.busy),
                )  # fmt: skip
                await plumbing.outbox.send(plumbing.topics.heartbeat, beat.key.encode(), encode(beat))
                await asyncio.sleep(every_s)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not plumbing.app.should_stop:
                crash("the heartbeat failed", error)


def _now_ms() -> int:
    return int(time.time() * 1000)
