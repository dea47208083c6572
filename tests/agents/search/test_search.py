"""Decision to Answer through the records alone: a small engine and a small verifier, and no state in between.

And what a deadline and a fault of the infrastructure make of a search in the middle of a step.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from agents.catalogue.models import Sampling
from agents.decider.decisions import seed_of
from agents.search.explain import explain
from agents.search.forest import SearchError
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
    resume,
    time_left_s,
    used_up,
)
from agents.serving.engine import Drafted, Engine, Prefix
from agents.serving.errors import (
    EndpointRefusedError,
    EndpointSuspendedError,
    EngineTimeoutError,
    PromptTooLongError,
    RequestRefusedError,
)
from schemas.action import Action
from schemas.answer import Answer, CutStep, Probe
from schemas.decision import Decision
from schemas.errors import RecordTooLarge
from schemas.forest import Finish, Forest
from schemas.query import Budget, Message, Query
from schemas.record import decode, encode
from schemas.search import Scored, SearchStep, Served, Verification
from schemas.spent import Spent
from tests.support.records import decision_for

SAMPLING = Sampling(temperature=0.7, step_tokens=30, depth_limit=6, top_p=0.9, top_k=20)
RULES = SearchRules(timeout_s=100.0)
START_MS = 1_000_000


class CountingEngine:
    """Writes "step <j>" until depth `ends`, then boxes a number that its seed chooses."""

    def __init__(self, ends: int = 3) -> None:
        self.model = "m"
        self.served = Served(name="counting", version="1", model="m")
        self.calls: list[tuple[str, list[Prefix], int, list[int], Sampling]] = []
        self._ends = ends

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        self.calls.append((step_id, list(prefixes), n, list(seeds), sampling))
        drafts = []
        for index, prefix in enumerate(prefixes):
            for seed in seeds[index * n : (index + 1) * n]:
                depth = len(prefix.steps) + 1
                end = depth == self._ends
                text = f"so \\boxed{{{seed % 7}}}" if end else f"step {depth}\n\n"
                tokens = min(10 + seed % 3, sampling.step_tokens)
                cut = prefix.max_tokens is not None and tokens > prefix.max_tokens
                finish: Finish = "length" if cut else "eos" if end else "separator"
                said, spent = text[:3] if cut else text, min(tokens, prefix.max_tokens or tokens)
                drafts.append(Drafted(said, spent, finish, prompt_tokens=40 + 10 * len(prefix.steps)))
        return drafts

    async def close(self) -> None:
        """Nothing is held."""


def decision(qp: int = 2, cp: int = 4, bs: int = 2, **query: object) -> Decision:
    asked = Query(query_id="q", text="how many?", **query)  # type: ignore[arg-type]
    return decision_for(asked, action=Action(model="m", qp=qp, cp=cp, bs=bs), seed=11, appended_ms=START_MS)


def verify(step: SearchStep) -> Verification:
    scores = tuple(Scored(score=(at * 37 % 100) / 100, tokens=50) for at in step.forest.pending)
    return Verification(search=step, scores=scores, verifier=Served(name="prm", version="2"), verify_s=0.25)


class Clock:
    """Advances 100 ms each time it is read."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        self.now_ms += 100
        return self.now_ms


def finish(work: Job | Answer, engine: CountingEngine, clock: Clock, **options: object) -> Answer:
    """Run a search to its end, through encoded records, as if each step were another process."""
    while isinstance(work, Job):
        step = decode(encode(asyncio.run(draft(work, engine=engine, clock_ms=clock))), SearchStep)
        work = resume(decode(encode(verify(step)), Verification), now_ms=clock(), **options)  # type: ignore[arg-type]
    return decode(encode(work), Answer)


def begun(asked: Decision, now_ms: int = START_MS) -> Job:
    """Take up a decision before its deadline."""
    work = begin(asked, SAMPLING, rules=RULES, now_ms=now_ms)
    assert isinstance(work, Job)
    return work


def drafted(work: Job, engine: Engine | None = None) -> SearchStep:
    step = asyncio.run(draft(work, engine=engine or CountingEngine(), clock_ms=Clock()))
    assert isinstance(step, SearchStep)
    return step


def run(engine: CountingEngine | None = None, asked: Decision | None = None, **query: object) -> Answer:
    """Search to the end."""
    return finish(begun(asked or decision(**query)), engine or CountingEngine(), Clock())  # type: ignore[arg-type]


def test_search_runs_from_decision_to_answer_by_records() -> None:
    engine, clock = CountingEngine(), Clock()
    work = begin(decision(), SAMPLING, rules=RULES, now_ms=START_MS + 50, arrived_ms=START_MS + 20)
    answer = finish(work, engine, clock)
    assert (answer.status, answer.complete) == ("ok", True)
    assert (answer.by, answer.seq, answer.group) == ("executor", 5, "g")
    assert answer.text is not None
    assert answer.text.startswith("step 1\n\nstep 2\n\nso \\boxed{")
    assert answer.extracted == answer.text[answer.text.index("{") + 1 : -1]
    assert (answer.depth, answer.steps, answer.prompt_tokens) == (3, 3, 40)
    assert len(answer.trace) == 8 + 8 + 8
    assert [answer.trace[at].text for at in answer.path] == ["step 1\n\n", "step 2\n\n", answer.text[16:]]
    assert all(not row.text for at, row in enumerate(answer.trace) if at not in answer.path)
    assert answer.score == pytest.approx(sum(answer.trace[at].score or 0 for at in answer.path) / 3)
    assert answer.generated_tokens == sum(row.tokens for row in answer.trace)
    assert answer.verifier_tokens == 50 * 24
    assert (answer.engine, answer.verifier) == (engine.served, Served(name="prm", version="2"))
    assert answer.limits is not None
    assert (answer.limits.temperature, answer.limits.top_k) == (0.7, 20)
    assert answer.spent.queue_s == pytest.approx(0.03)
    assert answer.spent.generate_s == pytest.approx(0.3)
    assert answer.spent.verify_s == pytest.approx(0.75)


def test_answer_reports_time_before_search_and_in_control() -> None:
    before = Spent(admission_s=0.5, embed_s=0.01, decide_s=0.002)
    asked = msgspec.structs.replace(decision(), spent=before)
    work = begin(asked, SAMPLING, rules=RULES, now_ms=START_MS + 50, arrived_ms=START_MS + 20)
    answer = finish(after_control(work, 0.25), CountingEngine(), Clock())
    assert after_control(answer, 0.5).spent == answer.spent.plus(control_s=0.5)
    assert (answer.spent.admission_s, answer.spent.embed_s, answer.spent.decide_s) == (0.5, 0.01, 0.002)
    assert answer.spent.control_s == 0.25
    assert cancelled(asked, "by whoever asked").spent == before


def test_the_engine_is_asked_for_the_widths_of_the_action() -> None:
    engine = CountingEngine()
    run(engine)
    asked = [(step_id, len(prefixes), n) for step_id, prefixes, n, *_ in engine.calls]
    assert asked == [("q/1", 2, 4), ("q/2", 4, 2), ("q/3", 4, 2)]
    first, second, _ = engine.calls
    assert first[1] == [Prefix(messages=(Message(role="user", content="how many?"),))] * 2
    assert all(prefix.steps == ("step 1\n\n",) for prefix in second[1])
    assert all(len(set(call[3])) == len(call[3]) == 8 for call in engine.calls)
    assert (first[4].step_tokens, first[4].temperature, first[4].top_p) == (30, 0.7, 0.9)


def test_n_answers_are_the_n_best_completed_paths() -> None:
    answer = run(n=3)
    assert len(answer.answers) == 3
    assert [a.score for a in answer.answers] == sorted([a.score for a in answer.answers], reverse=True)
    assert (answer.answers[0].text, answer.answers[0].score) == (answer.text, answer.score)
    assert all(a.text.startswith("step 1\n\nstep 2\n\nso") and a.extracted for a in answer.answers)
    assert run().answers == ()


def test_the_same_decision_is_searched_the_same_way_twice() -> None:
    assert run() == run()


def test_a_token_budget_ends_in_the_best_so_far_and_is_kept() -> None:
    engine = CountingEngine()
    answer = run(engine, budget=Budget(tokens=150))
    assert (answer.status, answer.complete) == ("budget", False)
    assert answer.generated_tokens <= 150
    assert answer.text
    assert answer.error == "the budget of tokens ran out"
    first = sum(row.tokens for row in answer.trace if row.depth == 1)
    assert [call[4].step_tokens for call in engine.calls] == [150 // 8, (150 - first) // 8]


def test_a_price_budget_is_asked_of_whoever_prices() -> None:
    def cost_so_far(forest: Forest) -> float:
        return 10.0 * forest.generated_tokens

    work = begun(decision(budget=Budget(eflops=500.0)))
    answer = finish(work, CountingEngine(), Clock(), cost_so_far=cost_so_far)
    assert (answer.status, answer.steps) == ("budget", 1)
    assert run().status == "ok"


def test_a_search_keeps_the_price_it_was_decided_at() -> None:
    answer = run(asked=msgspec.structs.replace(decision(), price_factor=3.0))
    assert answer.limits is not None
    assert answer.limits.price_factor == 3.0


def test_search_ends_a_second_before_its_query_expires() -> None:
    work = begun(decision(timeout_s=10.0))
    assert work.forest.limits.deadline_ms == START_MS + 9_000
    assert work.forest.limits.expires_ms == START_MS + 10_000
    assert [time_left_s(work, START_MS + ms) for ms in (8_500, 60_000)] == [0.5, 0.0]
    step = drafted(work)
    in_time = resume(verify(step), now_ms=START_MS + 8_999)
    assert isinstance(in_time, Job)
    late = resume(verify(step), now_ms=START_MS + 9_000)
    assert isinstance(late, Answer)
    assert (late.status, late.complete, late.error) == ("budget", False, "the budget of deadline ran out")


def test_late_query_is_answered_without_an_engine() -> None:
    answer = begin(decision(timeout_s=1.0), SAMPLING, rules=RULES, now_ms=START_MS + 5_000)
    assert isinstance(answer, Answer)
    assert (answer.status, answer.text, answer.trace, answer.score) == ("budget", None, (), None)


def test_failed_search_answers_with_the_error() -> None:
    engine, clock = CountingEngine(ends=1), Clock()
    rules = SearchRules(early_exit=False)
    work = begin(decision(qp=1, cp=1, bs=1), SAMPLING, rules=rules, now_ms=START_MS)
    assert isinstance(work, Job)
    nothing = failed(work, "the engine is gone", engine.served)
    assert (nothing.status, nothing.text, nothing.error) == ("failed", None, "the engine is gone")
    assert failed(decision(), "no such model").action == decision().action
    done = finish(work, engine, clock)
    assert done.status == "ok"


def test_an_engine_that_loses_a_draft_is_refused() -> None:
    class Forgetful(CountingEngine):
        async def generate(
            self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
        ) -> list[Drafted]:
            return (await super().generate(step_id, prefixes, n, seeds, sampling))[1:]

    work = begun(decision())
    with pytest.raises(SearchError, match="7 drafts for 8"):
        drafted(work, Forgetful())


def test_a_step_delivered_twice_leads_to_the_same_next_step() -> None:
    work = begun(decision())
    verification = verify(drafted(work))
    assert resume(verification, now_ms=START_MS + 500) == resume(verification, now_ms=START_MS + 500)


def test_progress_drops_what_is_behind_and_forgets_the_oldest() -> None:
    progress = Progress(most=2)
    progress.done("a", 3)
    assert [progress.behind("a", step) for step in (1, 3, 4)] == [True, True, False]
    progress.done("a", 1)
    assert progress.behind("a", 3)
    progress.done("b", 1)
    progress.done("a", 4)
    progress.done("c", 1)
    assert not progress.behind("b", 1)
    assert progress.behind("a", 4)


def test_most_tokens_bound_each_answer_and_not_the_search() -> None:
    answer = run(max_tokens=25)
    assert (answer.status, answer.complete, answer.bounded) == ("unfinished", False, True)
    assert sum(answer.trace[at].tokens for at in answer.path) == 25
    assert answer.text is not None
    assert answer.text.startswith("step 1\n\nstep 2\n\n")
    assert answer.generated_tokens > 25
    why = {each.why for step in explain(answer) for each in step.drafts if each.fate == "cut"}
    assert why == {"unfinished: cut at the client's max_tokens = 25"}
    whole = run(max_tokens=1000)
    assert (whole.status, whole.complete, whole.bounded, whole.text) == ("ok", True, False, run().text)


def test_a_stop_text_cuts_the_answer() -> None:
    answer = run(stop=("2",))
    assert (answer.status, answer.complete, answer.bounded) == ("ok", True, True)
    assert answer.text == "step 1\n\nstep "
    why = {each.why for step in explain(answer) for each in step.drafts if each.fate == "finished"}
    assert why == {"complete: ended by a stop text of the client"}
    assert run(stop=("no such text",)).text == run().text


def test_client_seed_gives_the_same_answer_for_any_id() -> None:
    def of(query_id: str, seed: int | None) -> str | None:
        asked = decision(seed=seed)
        asked = msgspec.structs.replace(asked, query=msgspec.structs.replace(asked.query, query_id=query_id))
        asked = msgspec.structs.replace(asked, seed=seed_of(7, asked.query))
        return run(asked=asked).text

    assert {of(f"q{at}", 3) for at in range(20)} == {of("x", 3)}
    assert len({of("q", seed) for seed in range(20)}) > 1
    assert len({of(f"q{at}", None) for at in range(20)}) > 1


DECISION = decision(qp=1, cp=2, bs=1, timeout_s=10.0)


class Hanging:
    """Drafts one finished and one unfinished step, then hangs."""

    def __init__(self) -> None:
        self.model = "m"
        self.served = Served(name="e")
        self.hangs = False
        self.cancelled = False

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        if self.hangs:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        ended = Drafted(text="so \\boxed{4}", finish="eos", tokens=5, prompt_tokens=9)
        going = Drafted(text="first\n\n", finish="separator", tokens=5, prompt_tokens=9)
        return [ended, going][:n]

    async def close(self) -> None:
        """Nothing is held."""


def second_step(engine: Hanging) -> Job:
    step = decode(encode(drafted(begun(DECISION), engine)), SearchStep)
    scores = (Scored(score=0.2), Scored(score=0.9))
    job = resume(Verification(search=step, scores=scores, verifier=Served(name="v")), now_ms=START_MS)
    assert isinstance(job, Job)
    return job


def test_hanging_step_ends_at_deadline_with_best_path() -> None:
    engine = Hanging()
    job = second_step(engine)
    engine.hangs = True
    times = iter((START_MS + 8_950, START_MS + 9_000))
    answer = asyncio.run(draft(job, engine=engine, clock_ms=lambda: next(times)))
    assert engine.cancelled
    assert isinstance(answer, Answer)
    assert answer.spent.generate_s - job.spent.generate_s == pytest.approx(0.05)
    assert (answer.status, answer.text, answer.complete) == ("budget", "so \\boxed{4}", True)
    assert (answer.error, answer.fault) == ("the budget of deadline ran out", "")
    assert [row.fate for row in answer.trace] == ["finished", "stopped"]
    assert answer.cut == CutStep(
        parents=(1, 1), tokens=job.ask.max_tokens, prompt_tokens=answer.prompt_tokens
    )


def test_a_first_step_that_hangs_has_no_path() -> None:
    answer = overdue(begun(DECISION))
    assert (answer.status, answer.text, answer.trace) == ("budget", None, ())
    assert answer.cut is None, "it waited for its model: no engine worked"
    worked = overdue(begun(DECISION), generate_s=0.1).cut
    assert worked is not None
    assert worked.parents == (-1,) * (DECISION.action.qp * DECISION.action.cp)
    assert worked.prompt_tokens > len(DECISION.query.question)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (EngineTimeoutError("no reply"), "infrastructure"),
        (EndpointRefusedError("HTTP 401"), "infrastructure"),
        (EndpointSuspendedError("not asked"), "infrastructure"),
        (RequestRefusedError("HTTP 400"), ""),
        (PromptTooLongError("m", 9, 8), ""),
        (RecordTooLarge("SearchStep", "", "too large"), ""),
        ("why", ""),
    ],
    ids=str,
)
def test_only_a_fault_of_the_infrastructure_is_marked(error: Exception | str, fault: str) -> None:
    for source in (DECISION, second_step(Hanging())):
        answer = failed(source, error)
        assert (answer.status, answer.fault) == ("failed", fault)
        assert str(error) in (answer.error or "")


def test_deadline_is_the_models_fault_if_it_took_most_time() -> None:
    """Half of 90 s were waited for in the queue, or are what the client gave: neither says anything of the model."""
    assert used_up(overdue(begun(DECISION), generate_s=89.0), RULES)
    assert not used_up(overdue(begun(DECISION), generate_s=45.0), RULES)
    assert not used_up(overdue(second_step(Hanging()), generate_s=89.0), RULES), "it has a text"
    assert not used_up(failed(DECISION, "why"), RULES)


def test_refusal_is_the_models_fault_if_its_probe_failed() -> None:
    refused, passed = failed(DECISION, RequestRefusedError("HTTP 400")), Probe(passed=True)
    for probe, fault in ((None, ""), (passed, ""), (Probe(passed=False, age_s=3.0), "model")):
        answer = blamed(refused, "refused", probe)
        assert (answer.fault, answer.cause, answer.probe) == (fault, "refused", probe)
        assert decode(encode(answer), Answer) == answer
    late = blamed(failed(DECISION, EngineTimeoutError("no reply")), "timeout")
    assert (late.fault, late.cause) == ("model", "timeout")
    kept = failed(second_step(Hanging()), RequestRefusedError("HTTP 400"))
    assert blamed(kept, "refused", Probe(passed=False)) == kept, "a text is graded, whatever came after it"


class Silent(CountingEngine):
    """Ends the sequence at once."""

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        return [Drafted(text=" \n", finish="eos", tokens=1, prompt_tokens=9)] * (n * len(prefixes))


def test_empty_completion_is_a_priced_model_failure() -> None:
    step = drafted(begun(DECISION), Silent())
    scores = tuple(Scored(score=0.9) for _ in step.forest.pending)
    answer = resume(Verification(search=step, scores=scores, verifier=Served(name="v")), now_ms=START_MS)
    assert isinstance(answer, Answer)
    assert (answer.status, answer.text, answer.score, answer.path) == ("failed", None, None, ())
    assert (answer.fault, answer.cause) == ("model", "empty")
    assert answer.trace
    assert decode(encode(answer), Answer) == answer
