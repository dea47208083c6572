"""The executor's logic: Decision to the first step; Verification to the next step, or to the Answer (§3.3).

`begin` and `resume` return the Answer, or a Job: the drafts that an engine has to make. `draft` makes them and returns
the SearchStep for the verifier. Nothing is kept between records, because the forest travels in them. `Progress` only
remembers which step of a query was done last, so that a record delivered twice is dropped.
"""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from agents.executor.answers import answer_of, ran_out
from agents.executor.engine import Engine, Prefix
from agents.executor.forest import outcome, plant, stop, tell_drafts, tell_scores
from agents.executor.job import Job
from agents.executor.next_step import Ask, ask, spent
from agents.executor.rules import SearchRules, limits_of, sampling_of
from agents.serving.retry import within
from agents.space.models import Sampling
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.forest import Forest
from schemas.search import SearchStep, Served, Spent, Verification

Price = Callable[[Forest], float]
"""Returns the price of a search so far, in eFLOPs. The aggregator owns pricing, so the room passes it in."""


def begin(
    decision: Decision,
    sampling: Sampling,
    *,
    rules: SearchRules,
    now_ms: int,
    arrived_ms: int | None = None,
) -> Job | Answer:
    """Return the first step of a search, or the Answer if the budget does not allow even that.

    Args:
        decision: The Decision.
        sampling: Sampling of the chosen model, from the catalogue.
        rules: The deployment's rules.
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
        price: Prices the search so far; needed if queries can have a budget in eFLOPs.
        engine: Named in the Answer as the generator; the default is the one that made the step.

    Raises:
        SearchError: the scores do not match the step.
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
    """Draft a step with an engine and return it for scoring.

    Args:
        job: A job from `begin` or `resume`.
        engine: The engine of the job's model.
        clock_ms: Returns the time since the epoch.

    Raises:
        DeadlinePassedError: the search ran out of time first; `overdue` makes its Answer.
        ServingError: the engine failed.
    """
    limits, request = job.forest.limits, job.ask
    began_ms = clock_ms()
    name = f"{job.query_id}/{request.step}"
    drafts = await within(
        time_left_s(job, began_ms),
        engine.generate(
            name,
            [
                Prefix(messages=job.messages, steps=job.forest.steps(e.parent), max_tokens=e.max_tokens)
                for e in request.expansions
            ],
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
    """Return the seconds until a search must stop; None if it has no deadline."""
    deadline_ms = job.forest.limits.deadline_ms
    return None if deadline_ms is None else max(0.0, (deadline_ms - now_ms) / 1000)


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
    error = ran_out(forest.stopped) if forest.stopped else None
    return answer_of(job, forest, ended.index, ended.status, error=error, engine=engine, verifier=verifier)
