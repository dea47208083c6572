"""`explain` shows the proof of every early exit in words."""

import io
from itertools import permutations

from msgspec.structs import replace
from rich.console import Console

from schemas.action import Action
from schemas.answer import Answer
from schemas.failure import EarlierAttempt
from schemas.forest import Draft, Limits
from schemas.query import Query
from streams.cli.queries import _decision, _earlier, _search
from streams.timeline import Timeline
from tests.support.records import OBJECTIVE, decision_for

# Two steps: the second tree finishes at step 1 with 0.9; H_max becomes ceil(1.2 · 1) = 2, and the first tree's
# 0.5 could reach (0.5 + 1) / 2 = 0.75 at best.
ANSWER = Answer(
    query_id="q",
    status="ok",
    by="executor",
    action=Action(model="m", qp=2, cp=1, bs=1),
    text="so [bold]4[/bold]",
    path=(1,),
    trace=(
        Draft(parent=-1, depth=1, tokens=4, finish="separator", score=0.5, fate="early_exit", bound=0.75),
        Draft(parent=-1, depth=1, tokens=6, finish="eos", tree=1, score=0.9, fate="finished"),
    ),
    limits=Limits(depth_limit=8, step_tokens=32, eta=1.2),
    steps=1,
    prompt_tokens=9,
    score=0.9,
)


def printed(answer: Answer) -> str:
    out = io.StringIO()
    _search(Console(file=out, width=80, markup=False), answer, drafts=True)
    return out.getvalue()


def test_a_prune_is_proved_with_v_max_and_h_max() -> None:
    text = printed(ANSWER)
    assert "early exit after step 1: V_max = 0.900 at D_best = 1, so H_max = ⌈1.2·1⌉ = 2" in text
    assert (
        "0.0: pruned: with 0.500 after 1 of at most 2 steps (H_max) it could reach 0.750 at best, below "
        "V_max = 0.900"
    ) in text
    assert "so [bold]4[/bold]" in text


def test_decided_query_counts_of_two_with_one_id() -> None:
    taken, decided = (Query(query_id="q", text=text) for text in ("refused", "decided"))
    decision = decision_for(decided, action=Action(model="m", qp=2, cp=1, bs=1), appended_ms=1_000)
    records = [(taken, 3_600_000), (decided, 1_000), (decision, 1_007)]
    for order in permutations(records):
        timeline = Timeline("q")
        for record, at_ms in order:
            timeline.add(record, at_ms)
        assert timeline.query == decided
        assert timeline.at_ms == {"query": 1_000, "decision": 1_007}


def test_malformed_trace_is_reported_in_words() -> None:
    orphan = Draft(parent=-1, depth=3, tokens=4, finish="separator", score=0.5)
    broken = replace(ANSWER, path=(), trace=(orphan,))
    assert "the trace is not that of a search" in printed(broken)


def test_each_failed_attempt_is_shown_with_cause_and_cost() -> None:
    slow = Action(model="slow", qp=1, cp=1, bs=1)
    earlier = EarlierAttempt(
        attempt=1, seq=3, action=slow, fault="model", cause="timeout", error="no reply", tokens=8, cost=2.5e9
    )
    query = Query(query_id="q", text="?")
    decision = decision_for(query, action=Action(model="m", qp=1, cp=1, bs=1))
    out = io.StringIO()
    console = Console(file=out, width=120, markup=False)
    _earlier(console, decision)
    assert not out.getvalue()
    _earlier(console, replace(decision, attempt=2, excluded=("slow",), earlier=(earlier,)))
    assert (
        "attempt 1 failed: slow/1/1/1 (model, timeout): no reply; 8 tokens, 2.5e+09 eFLOPs" in out.getvalue()
    )
    assert "attempt 2, without slow:" in out.getvalue()


def test_objective_and_reason_are_in_words() -> None:
    def told(**objective: float) -> str:
        out = io.StringIO()
        of = replace(OBJECTIVE, name="careful", **objective)
        _decision(
            Console(file=out, width=200, markup=False),
            decision_for(Query(query_id="q", text="?"), objective=of, reason="baseline"),
        )
        return out.getvalue()

    assert "by baseline (no answer has been graded yet)" in told()
    assert "objective careful: as cheap as possible at 98% of the accuracy within reach" in told(
        accuracy=0.98
    )
    assert "objective careful: as accurate as possible at a mean cost of 2e+10 eFLOPs" in told(mean_cost=2e10)
    assert "objective careful: correct " in told()
    assert "catalogue as configured" in told()
