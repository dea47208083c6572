"""The executor's logic: Decision to the first step; Verification to the next step, or to the Answer (§3.3).

`begin` and `resume` return a Job, the drafts an engine is to make, or the Answer. `draft` makes them and
returns the SearchStep for the verifier. Nothing is kept between records: the forest travels in them.
`Progress` only remembers which step of a query was last done, so that a record delivered twice is dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from agents.executor.engine import Engine, Prefix
from agents.executor.forest import (
    Ask,
    ask,
    outcome,
    plant,
    spent,
    stop,
    tell_drafts,
    tell_scores,
)
from agents.executor.rules import SearchRules, limits_of, sampling_of
from agents.serving.errors import ServingError
from agents.serving.retry import within
from agents.space.models import Sampling
from schemas.action import Action
from schemas.answer import Answer, Completion, Fault, Status
from schemas.boxed import extract_boxed
from schemas.decision import Decision
from schemas.forest import Forest, Stop
from schemas.query import Message
from schemas.search import SearchStep, Served, Spent, Verification

Price = Callable[[Forest], float]
"""eFLOPs of a search so far. Pricing is the aggregator's; who binds the rooms hands it in."""


@dataclass(frozen=True)
class Job:
    """One step to be drafted: the search so far, and what to ask the engine for.

    Not a SearchStep: that one is the record of a step that has been drafted, and refuses a forest without drafts to
    score. A Job comes before it, never travels, and holds the request to the engine in place of its drafts.
    """

    query_id: str
    group: str
    seq: int
    seed: int
    messages: tuple[Message, ...]
    forest: Forest
    ask: Ask
    spent: Spent = field(default_factory=Spent)

    @property
    def step(self) -> int:
        """The step that will be drafted, 1 for the first."""
        return self.ask.step

    @property
    def action(self) -> Action:
        """What is run."""
        return self.forest.action


def begin(
    decision: Decision,
    sampling: Sampling,
    *,
    rules: SearchRules,
    now_ms: int,
    arrived_ms: int | None = None,
) -> Job | Answer:
    """Return the first step of a search, or the Answer when not even that may be spent.

    Args:
        decision: What was chosen.
        sampling: Of the chosen model, from the catalogue.
        rules: Of this deployment.
        now_ms: Time since the epoch.
        arrived_ms: When the Decision was appended, for the time it queued.
    """
    waited_s = max(0, now_ms - arrived_ms) / 1000 if arrived_ms is not None else 0.0
    job = Job(
        query_id=decision.query_id,
        group=decision.group,
        seq=decision.seq,
        seed=decision.seed,
        messages=decision.query.chat,
        forest=plant(decision.action, limits_of(decision, sampling, rules)),
        ask=Ask(step=0, expansions=(), n=0, max_tokens=0),
        spent=Spent(queue_s=waited_s),
    )
    return _next(job, now_ms, None)


def resume(
    verification: Verification, *, now_ms: int, price: Price | None = None, engine: Served | None = None
) -> Job | Answer:
    """Return the next step of a search after search control, or its Answer.

    Args:
        verification: The scored step with its forest.
        now_ms: Time since the epoch.
        price: Of the search so far; needed where queries may have a budget in eFLOPs.
        engine: What generates, for the Answer; by default what made the step.

    Raises:
        SearchError: when the scores do not fit the step.
    """
    step = verification.search
    round_trip_s = max(0, now_ms - step.sent_ms) / 1000 if step.sent_ms else 0.0
    took = msgspec.structs.replace(
        step.spent,
        verify_s=step.spent.verify_s + verification.verify_s,
        transit_s=step.spent.transit_s + max(0.0, round_trip_s - verification.verify_s),
    )
    job = Job(
        query_id=step.query_id,
        group=step.group,
        seq=step.seq,
        seed=step.seed,
        messages=step.messages,
        forest=tell_scores(step.forest, step.forest.step, verification.scores),
        ask=Ask(step=0, expansions=(), n=0, max_tokens=0),
        spent=took,
    )
    return _next(job, now_ms, price, engine or step.engine, verification.verifier)


async def draft(job: Job, *, engine: Engine, clock_ms: Callable[[], int]) -> SearchStep:
    """Have a step drafted and return it for scoring.

    Args:
        job: From `begin` or `resume`.
        engine: Of the job's model.
        clock_ms: Tells the time since the epoch.

    Raises:
        DeadlinePassedError: the search ran out of time first; `overdue` makes its Answer.
        ServingError: what the engine raised.
    """
    limits, request = job.forest.limits, job.ask
    began_ms = clock_ms()
    name = f"{job.query_id}/{request.step}"
    drafts = await within(
        time_left_s(job, began_ms),
        engine.generate(
            name,
            [Prefix(messages=job.messages, steps=job.forest.steps(e.parent)) for e in request.expansions],
            request.n,
            [seed for expansion in request.expansions for seed in expansion.seeds],
            sampling_of(limits, request.max_tokens),
        ),
        name,
    )
    prompt_tokens = drafts[0].prompt_tokens if drafts else 0
    now_ms = clock_ms()
    return SearchStep(
        query_id=job.query_id,
        group=job.group,
        seq=job.seq,
        seed=job.seed,
        messages=job.messages,
        forest=tell_drafts(job.forest, request.step, drafts, prompt_tokens),
        spent=msgspec.structs.replace(
            job.spent, generate_s=job.spent.generate_s + max(0, now_ms - began_ms) / 1000
        ),
        engine=engine.served,
        sent_ms=now_ms,
    )


def time_left_s(job: Job, now_ms: int) -> float | None:
    """Return the seconds until a search must stop; None when it has no deadline."""
    deadline_ms = job.forest.limits.deadline_ms
    return None if deadline_ms is None else max(0.0, (deadline_ms - now_ms) / 1000)


def overdue(job: Job, engine: Served | None = None) -> Answer:
    """Return the Answer of a search whose deadline passed while a step was drafted: the best path so far."""
    forest = stop(job.forest, "deadline")
    ended = outcome(forest)
    return _answer(job, forest, ended.index, ended.status, error=_ran_out("deadline"), engine=engine)


def failed(
    source: Decision | Job | SearchStep, error: Exception | str, engine: Served | None = None
) -> Answer:
    """Return the Answer of a search that cannot go on: status `failed`, with the best completed path if any.

    Args:
        source: What could not be gone on with.
        error: Why, and what to do. A fault of the infrastructure is marked: nothing is learned from it.
        engine: What generates, where it is known.
    """
    fault: Fault = "infrastructure" if isinstance(error, ServingError) and error.infrastructure else ""
    why = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    if not isinstance(source, Decision):
        made = _answer(source, source.forest, source.forest.best, "failed", error=why, engine=engine)
        return msgspec.structs.replace(made, fault=fault)
    return Answer(
        query_id=source.query_id,
        status="failed",
        by="executor",
        action=source.action,
        group=source.group,
        seq=source.seq,
        engine=engine,
        error=why,
        fault=fault,
    )


def cancelled(source: Decision | Job, why: str) -> Answer:
    """Return the Answer of a search that nobody waits for: status `cancelled`, with what was spent.

    Args:
        source: What would have been gone on with.
        why: Who cancelled it, and the reason they gave.
    """
    if not isinstance(source, Decision):
        return _answer(source, source.forest, source.forest.best, "cancelled", error=why)
    return Answer(
        query_id=source.query_id,
        status="cancelled",
        by="executor",
        action=source.action,
        group=source.group,
        seq=source.seq,
        error=why,
    )


def _next(
    job: Job, now_ms: int, price: Price | None, engine: Served | None = None, verifier: Served | None = None
) -> Job | Answer:
    forest = job.forest
    if not forest.over:
        eflops = price(forest) if price is not None and forest.limits.budget_eflops is not None else 0.0
        if why := spent(forest, eflops=eflops, now_ms=now_ms):
            forest = stop(forest, why)
    if (request := ask(forest, job.query_id, job.seed)) is not None:
        return replace(job, forest=forest, ask=request)
    ended = outcome(forest)
    error = _ran_out(forest.stopped) if forest.stopped else None
    return _answer(job, forest, ended.index, ended.status, error=error, engine=engine, verifier=verifier)


def _ran_out(stopped: Stop) -> str:
    return f"the budget of {stopped} ran out"


def _answer(
    source: Job | SearchStep,
    forest: Forest,
    index: int,
    status: Status,
    *,
    error: str | None,
    engine: Served | None = None,
    verifier: Served | None = None,
) -> Answer:
    """Return the Answer that the path ending at `index` makes; -1 for none."""
    path = forest.path(index)
    text = forest.text(index) if path else None
    wanted = forest.limits.answers if forest.limits.answers > 1 else 0
    answers = tuple(_completion(forest, at) for at in forest.completed_paths[:wanted])
    trace = tuple(
        node if at in path or not node.text else msgspec.structs.replace(node, text="")
        for at, node in enumerate(forest.drafts)
    )
    return Answer(
        query_id=source.query_id,
        status=status,
        by="executor",
        action=forest.action,
        group=source.group,
        seq=source.seq,
        text=text,
        complete=index >= 0 and forest.drafts[index].fate == "finished",
        extracted=extract_boxed(text) if text is not None else None,
        score=forest.path_score(index) if path else None,
        answers=answers,
        path=path,
        trace=trace,
        limits=forest.limits,
        prompt_tokens=forest.prompt_tokens,
        depth=len(path),
        steps=forest.step,
        completed=sum(node.fate == "finished" for node in forest.drafts),
        shortened=sum(node.shortened for node in forest.drafts),
        spent=source.spent,
        engine=engine,
        verifier=verifier,
        error=error,
    )


def _completion(forest: Forest, at: int) -> Completion:
    text = forest.text(at)
    return Completion(text=text, score=forest.path_score(at), extracted=extract_boxed(text))
