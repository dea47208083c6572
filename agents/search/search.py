"""The executor's logic: Decision to the first step; Verification to the next step, or to the Answer (§3.3)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from agents.catalogue.models import Sampling
from agents.grading.grade import extract_boxed
from agents.search.forest import Ask, ask, outcome, plant, spent, stop, tell_drafts, tell_scores
from agents.search.unscored import tell_unscored
from agents.serving.engine import Drafted, Engine, OnText, Prefix, StreamingEngine
from agents.serving.errors import DeadlinePassedError, ServingError
from agents.serving.retries import within
from schemas.action import Action
from schemas.answer import Answer, Completion, CutStep, Probe, Status
from schemas.chat import WHOLE, ChatOptions, UpstreamChoice
from schemas.decision import Decision
from schemas.failure import QUESTIONABLE, Cause, Fault
from schemas.forest import Forest, Limits, Stop
from schemas.prices import MILLION, Billed
from schemas.query import Message
from schemas.search import SearchStep, Served, Verification
from schemas.spent import Spent

# A search's limits, set once when it begins, from the catalogue, the deployment and the query.


@dataclass(frozen=True)
class SearchRules:
    """The deployment's search rules. Attributes shared with `schemas.forest.Limits` override its defaults.

    Attributes:
        timeout_s: Timeout for queries that do not set one.
        search_share: Share of a query's time to expiry that its search may take. The rest is for the step in progress
            and for returning the Answer.
    """

    eta: float = 1.2
    early_exit: bool = True
    cut_completes: bool = False
    box_completes: bool = False
    timeout_s: float = 600.0
    search_share: float = 0.9


def limits(sampling: Sampling, rules: SearchRules) -> Limits:
    """Return a search's limits from the model's sampling parameters and the rules, without budget or deadline."""
    ours = {name: getattr(rules, name) for name in ("eta", "early_exit", "cut_completes", "box_completes")}
    return Limits(**msgspec.structs.asdict(sampling), **ours)


def limits_of(
    decision: Decision, sampling: Sampling, rules: SearchRules, verified: bool = True, prompts: int = 1
) -> Limits:
    """Return a query's search limits, from the model's sampling parameters, the rules, and the query's budget and time.

    Args:
        decision: The Decision.
        sampling: The chosen model's sampling parameters.
        rules: The deployment's rules.
        verified: Whether a verifier scores the drafts.
        prompts: How many times the prompt is billed.
    """
    query = decision.query
    timeout_s = query.timeout_s if query.timeout_s is not None else rules.timeout_s
    # A deadline is measured from the append time.
    began_ms = decision.appended_ms or None
    options = query.options or ChatOptions()
    return msgspec.structs.replace(
        limits(sampling_for(options, sampling), rules),
        budget_tokens=_affordable(decision, prompts),
        budget_eflops=_left(decision, query.budget.eflops if query.budget else None),
        budget_usd=_left(decision, query.budget.usd if query.budget else None),
        max_tokens=query.max_tokens,
        stop=query.stop,
        seeded=query.seed is not None,
        answers=query.n,
        deadline_ms=began_ms and began_ms + int(timeout_s * rules.search_share * 1000),
        expires_ms=began_ms and began_ms + int(timeout_s * 1000),
        price_factor=decision.price_factor,
        prices=decision.prices,
        distorted=options.distorts,
        verified=verified,
        streamed=query.stream and decision.action.samples == 1,
        early_exit=rules.early_exit and verified,
    )


def sampling_for(options: ChatOptions, sampling: Sampling) -> Sampling:
    """Return a model's sampling parameters, overridden by any temperature and top_p the client requested."""
    if options.temperature is not None:
        sampling = msgspec.structs.replace(sampling, temperature=options.temperature)
    if options.top_p is not None:
        # Engines reject 0. A tiny top_p has the same effect: only the most likely token is left.
        sampling = msgspec.structs.replace(sampling, top_p=max(options.top_p, 1e-6))
    return sampling


def _left(decision: Decision, most: float | None) -> float | None:
    """Return a cost bound minus the cost of earlier attempts; None without a bound."""
    return None if most is None else max(0.0, most - sum(each.cost for each in decision.earlier))


def _affordable(decision: Decision, prompts: int) -> int | None:
    """Return the number of tokens a query's budget pays for; None if it sets no bound."""
    budget, prices = decision.query.budget, decision.prices
    if budget is None:
        return None
    tokens = budget.tokens
    if tokens is not None:
        tokens = max(0, tokens - sum(each.tokens for each in decision.earlier))
    usd = _left(decision, budget.usd)
    if usd is None or prices is None:
        return tokens
    prompt = longest_prompt(decision.query.chat, decision.query.options)
    left = usd * MILLION - prices.input * prompt * prompts
    bought = max(0, math.floor(left / prices.output))
    return bought if tokens is None else min(bought, tokens)


def sampling_of(limits: Limits, max_tokens: int) -> Sampling:
    """Return the sampling parameters a search began with, even if the catalogue has changed since."""
    began = {name: getattr(limits, name) for name in Sampling.__struct_fields__}
    return Sampling(**{**began, "step_tokens": max_tokens})


# One search step for an engine to draft.


@dataclass(frozen=True)
class Job:
    """One step to draft: the search so far, and the request to the engine.

    A SearchStep is the record of a step that has been drafted, and must contain drafts to score. A Job comes before it
    and is never sent. Instead of drafts, it contains the request to the engine.

    Attributes:
        options: The client's options, for the first step; only models that answer in one step need them.
        whole: Whether the request is passed through whole and the reply returned whole.
        upstream: The upstream's whole reply.
    """

    query_id: str
    group: str
    seq: int
    seed: int
    messages: tuple[Message, ...]
    forest: Forest
    ask: Ask
    spent: Spent = field(default_factory=Spent)
    billed: Billed | None = None
    attempt: int = 1
    options: ChatOptions | None = None
    whole: bool = False
    upstream: UpstreamChoice | None = None

    @property
    def step(self) -> int:
        """Return the number of the step to draft, 1 for the first."""
        return self.ask.step

    @property
    def action(self) -> Action:
        """Return the configuration being run."""
        return self.forest.action


# The Answers for searches that finished, ran out of time, failed or were cancelled. Each includes the time and cost so
# far.


_TURN_TOKENS = 16
"""Maximum number of tokens a chat template adds to a message; ours adds five."""

_IMAGE_TOKENS = 8_192
"""Upper bound on the number of tokens in an image. Hosted models bill up to a few thousand for an image in high
detail."""

_AUDIO_CHARACTERS = 24
"""Lower bound on base64 characters per token of a recording. MP3 takes at least 1,000 bytes (1,333 base64 characters)
per second, and encoders produce at most 50 tokens per second, as Whisper's does."""


def answer_of(
    source: Job | SearchStep,
    forest: Forest,
    index: int,
    status: Status,
    *,
    error: str | None,
    engine: Served | None = None,
    verifier: Served | None = None,
) -> Answer:
    """Return the Answer with one of a search's paths.

    Args:
        source: The step the search has reached; provides the query and the time spent.
        forest: The search.
        index: The draft that ends the path; -1 for no path.
        status: How the search ended.
        error: Why the search ended early, if it did.
        engine: The generator to name in the Answer, if known.
        verifier: The verifier to name in the Answer, if known.
    """
    path = forest.path(index)
    chosen = _completion(forest, index) if path else None
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
        attempt=source.attempt,
        group=source.group,
        seq=source.seq,
        text=chosen.text if chosen else None,
        complete=index >= 0 and forest.drafts[index].fate == "finished",
        extracted=chosen.extracted if chosen else None,
        score=chosen.score if chosen else None,
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
        billed=source.billed,
        upstream=source.upstream,
        verifier=verifier,
        error=error,
    )


def overdue(job: Job, *, generate_s: float = 0.0) -> Answer:
    """Return the Answer with the best path so far, for a search whose deadline passed while a step was being drafted.

    Args:
        job: The step.
        generate_s: How long an engine worked on the step, in seconds; 0 if the step was never sent to one.
    """
    forest = stop(job.forest, "deadline")
    ended = outcome(forest)
    took = replace(job, spent=job.spent.plus(generate_s=generate_s))
    made = answer_of(took, forest, ended.index, ended.status, error=ran_out("deadline"))
    return msgspec.structs.replace(made, cut=_cut(job)) if generate_s > 0 else made


def _cut(job: Job) -> CutStep:
    """Return an upper bound on the number of tokens that may have been drafted for a step."""
    return CutStep(
        parents=tuple(each.parent for each in job.ask.expansions for _ in range(job.ask.n)),
        tokens=job.ask.max_tokens,
        prompt_tokens=job.forest.prompt_tokens or longest_prompt(job.messages, job.options),
    )


def longest_prompt(messages: Sequence[Message], options: ChatOptions | None = None) -> int:
    """Return an upper bound on the number of tokens in a prompt, assuming that text has no more tokens than bytes.

    Only the server knows how many tokens an image, a recording or a schema takes. An image counts as `_IMAGE_TOKENS`,
    and a recording by its length (`_AUDIO_CHARACTERS`).
    """
    turns = sum(_turn_bytes(message) + _TURN_TOKENS for message in messages)
    return turns + (0 if options is None else len(msgspec.json.encode(options)))


def _turn_bytes(message: Message) -> int:
    calls = sum(len(call.name.encode()) + len(call.arguments.encode()) for call in message.tool_calls)
    heard = sum(length // _AUDIO_CHARACTERS + 1 for length in message.audio)
    return len(message.text.encode()) + calls + message.images * _IMAGE_TOKENS + heard


def failed(
    source: Decision | Job | SearchStep, error: Exception | str, engine: Served | None = None
) -> Answer:
    """Return the Answer for a search that cannot continue, with status `failed` and the best completed path, if any.

    Args:
        source: The step where the search failed.
        error: The cause and the fix. An infrastructure fault is marked as such, and nothing is learned from it.
        engine: The generator to name in the Answer, if known.
    """
    fault: Fault = "infrastructure" if isinstance(error, ServingError) and error.infrastructure else ""
    why = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    if not isinstance(source, Decision):
        made = answer_of(source, source.forest, source.forest.best, "failed", error=why, engine=engine)
        lost = error.billed if isinstance(error, ServingError) else None
        return msgspec.structs.replace(made, fault=fault, billed=_sum(source.billed, lost))
    return msgspec.structs.replace(_without_search(source, "failed", why), engine=engine, fault=fault)


def blamed(answer: Answer, cause: Cause, probe: Probe | None = None) -> Answer:
    """Return an Answer without text, marked with the cause. The model is at fault unless the client may be.

    Args:
        answer: The Answer. If it has text, from a path that completed earlier, it is returned unchanged and graded as
            usual.
        cause: Why the Answer has no text.
        probe: The result of the model's probe; None if unknown.
    """
    if answer.text is not None:
        return answer
    excused = answer.bounded or (cause in QUESTIONABLE and (probe is None or probe.passed))
    fault: Fault = answer.fault if excused else "model"
    return msgspec.structs.replace(answer, fault=fault, cause=cause, probe=probe)


NEARLY = 0.9
"""If generating took more than this share of a search's time, the model is the reason the time ran out."""


def used_up(answer: Answer, rules: SearchRules) -> bool:
    """Return whether a search ran out of time without text because its model was generating nearly all the time.

    Time spent waiting does not count against the model, nor does a timeout shorter than the deployment's.
    """
    had_s = rules.search_share * rules.timeout_s
    return ran_out_of_time(answer) and answer.text is None and answer.spent.generate_s >= NEARLY * had_s


def cancelled(source: Decision | Job, why: str) -> Answer:
    """Return the Answer for a cancelled search, with status `cancelled` and the time and cost so far.

    Args:
        source: The step where the search was cancelled.
        why: Who cancelled it, and why.
    """
    if not isinstance(source, Decision):
        return answer_of(source, source.forest, source.forest.best, "cancelled", error=why)
    return _without_search(source, "cancelled", why)


def _without_search(decision: Decision, status: Status, why: str) -> Answer:
    return Answer(
        query_id=decision.query_id,
        status=status,
        by="executor",
        action=decision.action,
        attempt=decision.attempt,
        group=decision.group,
        seq=decision.seq,
        spent=decision.spent,
        error=why,
    )


def ran_out(stopped: Stop | Literal["usd"]) -> str:
    """Return a sentence naming the budget that stopped a search."""
    return f"the budget of {stopped} ran out"


def ran_out_of_time(answer: Answer) -> bool:
    """Return whether an executor's Answer says that its search was stopped by the deadline."""
    return answer.error == ran_out("deadline")


def _completion(forest: Forest, at: int) -> Completion:
    text = forest.answer(at)
    return Completion(text=text, score=forest.value(at), extracted=extract_boxed(text))


# The executor's logic: Decision to the first step; Verification to the next step, or to the Answer (§3.3).
#
# `begin` and `resume` return the Answer, or a Job with the drafts for an engine to make. `draft` makes them and returns
# the SearchStep for the verifier, or for `resume_unscored` if there is none. The forest travels in the records, so no
# state is kept between them. `Progress` only remembers the last step done, to drop redelivered records.

CostSoFar = Callable[[Forest], float]
"""Function that returns a search's cost so far, in eFLOPs (`agents.catalogue.cost_model.CostModel`)."""


def begin(
    decision: Decision,
    sampling: Sampling,
    *,
    rules: SearchRules,
    now_ms: int,
    arrived_ms: int | None = None,
    verified: bool = True,
    prompts: int = 1,
) -> Job | Answer:
    """Return a search's first step, or the Answer if the budget does not cover even that step.

    Args:
        decision: The Decision.
        sampling: The chosen model's sampling parameters, from the catalogue.
        rules: The deployment's rules.
        now_ms: Time since the epoch.
        arrived_ms: When the Decision was appended, for computing its time in the queue.
        verified: Whether a verifier scores the model's drafts.
        prompts: How many times the prompt is billed.
    """
    waited_s = max(0, now_ms - arrived_ms) / 1000 if arrived_ms is not None else 0.0
    job = Job(
        query_id=decision.query_id,
        group=decision.group,
        seq=decision.seq,
        seed=decision.seed,
        messages=decision.query.chat,
        forest=plant(decision.action, limits_of(decision, sampling, rules, verified, prompts)),
        ask=Ask(step=0, expansions=(), n=0, max_tokens=0),
        spent=decision.spent.plus(queue_s=waited_s),
        attempt=decision.attempt,
        options=decision.query.options,
        whole=passed_whole(decision),
    )
    return _next(job, now_ms, None)


def passed_whole(decision: Decision) -> bool:
    """Return whether a query is answered by one sample from a chat endpoint, with the whole reply returned unscored."""
    return not WHOLE.isdisjoint(decision.required)


def resume(
    verification: Verification,
    *,
    now_ms: int,
    cost_so_far: CostSoFar | None = None,
    engine: Served | None = None,
) -> Job | Answer:
    """Return a search's next step after search control, or its Answer.

    Args:
        verification: The scored step, with its forest.
        now_ms: Time since the epoch.
        cost_so_far: Function that returns the search's cost so far; required if queries can have a budget in eFLOPs.
        engine: The generator to name in the Answer; by default, the engine that made the step.

    Raises:
        SearchError: The scores do not match the step.
    """
    step = verification.search
    round_trip_s = max(0, now_ms - step.sent_ms) / 1000 if step.sent_ms else 0.0
    transit_s = max(0.0, round_trip_s - verification.verify_s)
    took = step.spent.plus(verify_s=verification.verify_s, transit_s=transit_s)
    job = _after(step, tell_scores(step.forest, step.forest.step, verification.scores), took)
    return _next(job, now_ms, cost_so_far, engine or step.engine, verification.verifier)


def resume_unscored(step: SearchStep, *, now_ms: int, cost_so_far: CostSoFar | None = None) -> Job | Answer:
    """Return the next step of a search without a verifier, or its Answer. The arguments are those of `resume`."""
    job = _after(step, tell_unscored(step.forest, step.forest.step), step.spent)
    return _next(job, now_ms, cost_so_far, step.engine)


def _after(step: SearchStep, forest: Forest, took: Spent) -> Job:
    return Job(
        query_id=step.query_id,
        group=step.group,
        seq=step.seq,
        seed=step.seed,
        messages=step.messages,
        forest=forest,
        ask=Ask(step=0, expansions=(), n=0, max_tokens=0),
        spent=took,
        billed=step.billed,
        attempt=step.attempt,
        upstream=step.upstream,
    )


def after_control(made: Job | Answer, control_s: float) -> Job | Answer:
    """Return the result of search control, with its duration added to the query's times (`Spent.control_s`)."""
    spent = made.spent.plus(control_s=control_s)
    return replace(made, spent=spent) if isinstance(made, Job) else msgspec.structs.replace(made, spent=spent)


async def draft(
    job: Job, *, engine: Engine, clock_ms: Callable[[], int], on_text: OnText | None = None
) -> SearchStep | Answer:
    """Draft a step with an engine and return it for scoring, or the Answer if the search runs out of time first.

    Args:
        job: A job from `begin` or `resume`.
        engine: The engine for the job's model.
        clock_ms: Function that returns the time since the epoch.
        on_text: Function that receives the draft of a search with one path while it is generated, if the engine can
            stream.

    Raises:
        ServingError: The engine failed.
    """
    request, began_ms = job.ask, clock_ms()
    name = f"{job.query_id}/{request.step}"
    try:
        drafts = await within(
            time_left_s(job, began_ms),
            _generate(job, engine, name, on_text),
            name,
        )
    except DeadlinePassedError:
        return overdue(job, generate_s=max(0, clock_ms() - began_ms) / 1000)
    prompt_tokens = drafts[0].prompt_tokens if drafts else 0
    now_ms = clock_ms()
    return SearchStep(
        query_id=job.query_id,
        group=job.group,
        seq=job.seq,
        seed=job.seed,
        messages=job.messages,
        forest=tell_drafts(job.forest, request.step, drafts, prompt_tokens),
        spent=job.spent.plus(generate_s=max(0, now_ms - began_ms) / 1000),
        engine=engine.served,
        billed=_billed(job.billed, drafts),
        sent_ms=now_ms,
        attempt=job.attempt,
        upstream=drafts[0].upstream if drafts else None,
    )


async def _generate(job: Job, engine: Engine, name: str, on_text: OnText | None) -> Sequence[Drafted]:
    request = job.ask
    sampling = sampling_of(job.forest.limits, request.max_tokens)
    prefixes = [
        Prefix(
            messages=job.messages,
            steps=job.forest.steps(each.parent),
            max_tokens=each.max_tokens,
            options=job.options,
            whole=job.whole,
        )
        for each in request.expansions
    ]
    seeds = [seed for expansion in request.expansions for seed in expansion.seeds]
    if on_text is not None and len(seeds) == 1 and isinstance(engine, StreamingEngine):
        return [await engine.stream(name, prefixes[0], seeds[0], sampling, on_text)]
    return await engine.generate(name, prefixes, request.n, seeds, sampling)


def _billed(before: Billed | None, drafts: Sequence[Drafted]) -> Billed | None:
    for draft in drafts:
        before = _sum(before, draft.billed)
    return before


def _sum(one: Billed | None, other: Billed | None) -> Billed | None:
    return one.plus(other) if one is not None and other is not None else one or other


def time_left_s(job: Job, now_ms: int) -> float | None:
    """Return the number of seconds until a search must stop; None if it has no deadline."""
    deadline_ms = job.forest.limits.deadline_ms
    return None if deadline_ms is None else max(0.0, (deadline_ms - now_ms) / 1000)


def _next(
    job: Job,
    now_ms: int,
    cost_so_far: CostSoFar | None,
    engine: Served | None = None,
    verifier: Served | None = None,
) -> Job | Answer:
    forest = job.forest
    if not forest.over:
        eflops = (
            cost_so_far(forest)
            if cost_so_far is not None and forest.limits.budget_eflops is not None
            else 0.0
        )
        if why := spent(forest, eflops=eflops, now_ms=now_ms):
            forest = stop(forest, why)
    if (request := ask(forest, job.query_id, job.seed)) is not None:
        return replace(job, forest=forest, ask=request)
    ended = outcome(forest)
    in_usd = forest.stopped == "tokens" and forest.limits.budget_usd is not None
    error = ran_out("usd" if in_usd else forest.stopped) if forest.stopped else None
    made = answer_of(job, forest, ended.index, ended.status, error=error, engine=engine, verifier=verifier)
    said = (made.text or "").strip() or (made.upstream is not None and made.upstream.says)
    return made if not made.complete or made.bounded or said else _empty(made)


def _empty(made: Answer) -> Answer:
    """Return the failed Answer for a search whose chosen path is complete but empty. Its cost is in the trace."""
    why = "the model gave an empty completion; choose another, or look at its chat template and stop tokens"
    none = msgspec.structs.replace(
        made, status="failed", text=None, complete=False, extracted=None, score=None, answers=(), path=(), depth=0,
        error=why,
    )  # fmt: skip
    return blamed(none, "empty")
