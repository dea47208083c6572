"""What a deadline and a fault of the infrastructure make of a search in the middle of a step."""

import asyncio
from collections.abc import Sequence

import pytest

from agents.catalogue.models import Sampling
from agents.search.search import Job, SearchRules, begin, draft, failed, overdue, resume, time_left_s
from agents.serving.engine import Drafted, Prefix
from agents.serving.errors import (
    DeadlinePassedError,
    EndpointRefusedError,
    EndpointSuspendedError,
    EngineTimeoutError,
    PromptTooLongError,
    RequestRefusedError,
)
from schemas.action import Action
from schemas.decision import Decision, PolicyState
from schemas.errors import RecordTooLarge
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Origin, Query
from schemas.record import decode, encode
from schemas.search import Scored, SearchStep, Served, Verification

SAMPLING = Sampling(temperature=0.7, step_tokens=30, depth_limit=6)
RULES = SearchRules(timeout_s=10.0, search_share=0.9)
START_MS = 1_000_000
DECISION = Decision(
    query=Query(query_id="q", text="how many?"),
    origin=Origin(topic="query", partition=0, offset=1),
    action=Action(model="m", qp=1, cp=2, bs=1),
    group="g",
    seq=5,
    seed=11,
    objective=ObjectiveInForce(weights=Weights(correct=1), cost_range=CostRange(low=1.0, high=100.0)),
    policy=PolicyState(name="linucb", version=0),
    appended_ms=START_MS,
)


class Engine:
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


def second_step(engine: Engine) -> Job:
    job = begin(DECISION, SAMPLING, rules=RULES, now_ms=START_MS)
    assert isinstance(job, Job)
    step = asyncio.run(draft(job, engine=engine, clock_ms=lambda: START_MS))
    scores = (Scored(score=0.2), Scored(score=0.9))
    scored = Verification(search=decode(encode(step), SearchStep), scores=scores, verifier=Served(name="v"))
    job = resume(scored, now_ms=START_MS)
    assert isinstance(job, Job)
    return job


def test_a_search_knows_its_deadline_and_when_its_query_expires() -> None:
    job = second_step(Engine())
    assert job.forest.limits.deadline_ms == START_MS + 9_000
    assert job.forest.limits.expires_ms == START_MS + 10_000
    assert time_left_s(job, START_MS + 8_500) == 0.5
    assert time_left_s(job, START_MS + 60_000) == 0.0


def test_a_step_that_hangs_ends_at_the_deadline_with_the_best_path_so_far() -> None:
    engine = Engine()
    job = second_step(engine)
    engine.hangs = True
    with pytest.raises(DeadlinePassedError, match="q/2: the query's deadline passed"):
        asyncio.run(draft(job, engine=engine, clock_ms=lambda: START_MS + 8_950))
    assert engine.cancelled
    answer = overdue(job)
    assert (answer.status, answer.text, answer.complete) == ("budget", "so \\boxed{4}", True)
    assert (answer.error, answer.fault) == ("the budget of deadline ran out", "")
    assert [row.fate for row in answer.trace] == ["finished", "stopped"]


def test_a_first_step_that_hangs_has_no_path() -> None:
    job = begin(DECISION, SAMPLING, rules=RULES, now_ms=START_MS)
    assert isinstance(job, Job)
    answer = overdue(job)
    assert (answer.status, answer.text, answer.trace) == ("budget", None, ())


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
    for source in (DECISION, second_step(Engine())):
        answer = failed(source, error)
        assert (answer.status, answer.fault) == ("failed", fault)
        assert str(error) in (answer.error or "")
