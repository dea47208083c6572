"""Searches that their client ended, by hanging up or by its own bounds: they cost what they spent, and no more."""

from typing import Any

import pytest
from msgspec.structs import replace

from agents.answers import Verdict
from agents.reward.join import Arrival, Waits, on
from agents.reward.outcome import Pricing, value
from schemas.answer import Answer
from schemas.forest import Draft
from schemas.reward import Feedback, Reward
from tests.support.join_records import ACTION, ORIGIN, PRICE, decision

WAITS = Waits(timeout_ms=60_000, feedback_ms=30_000, keep_ms=1_000_000)
CANCELLED = Answer(query_id="q", status="cancelled", by="executor", text="so 4", score=0.5)


def no_judge(gold: str, answer: str) -> Verdict:
    raise AssertionError("a cancelled answer is not graded")


def test_a_cancelled_search_is_priced_and_never_learned_from() -> None:
    pricing = Pricing(generators={}, verifiers={}, verifier="")
    valued = value("4", CANCELLED, pricing=pricing, judge=no_judge)
    assert (valued.status, valued.score, valued.correct) == ("cancelled", None, None)
    opened = on(None, Arrival(decision(reference="4"), 1_100, ORIGIN), WAITS).row
    turn = on(opened, Arrival(CANCELLED, 3_000, ORIGIN), WAITS, replace(valued, price=PRICE))
    (reward,) = [out for out in turn.out if isinstance(out, Reward)]
    assert (reward.kind, reward.status, reward.correct, reward.score) == ("default", "cancelled", None, None)
    assert reward.price == PRICE
    assert reward.log_cost is not None
    assert not reward.learnable
    assert turn.row is None, "it is closed"


@pytest.mark.parametrize(
    ("finish", "complete", "bounded"),
    [("max_tokens", False, True), ("stop", True, True), ("length", False, False), ("eos", True, False)],
)
def test_what_the_client_s_own_bounds_cut_teaches_cost_and_never_wrong(
    finish: Any, complete: bool, bounded: bool
) -> None:
    """Neither the reference nor a judgement of the user counts: the configuration was not let finish."""
    trace = (
        Draft(parent=-1, depth=1, tokens=3, finish=finish, score=0.5, fate="finished" if complete else "cut"),
    )
    answer = Answer(
        query_id="q", status="ok" if complete else "unfinished", by="executor", action=ACTION, text="so", score=0.5,
        complete=complete, path=(0,), trace=trace,
    )  # fmt: skip
    pricing = Pricing(generators={}, verifiers={}, verifier="")
    valued = replace(value("4", answer, pricing=pricing, judge=no_judge), price=PRICE)
    assert (valued.bounded, valued.score, valued.correct) == (bounded, 0.5, None if bounded else 0.0)
    for early in (False, True):
        row = on(None, Arrival(decision(reference="4"), 1_100, ORIGIN), WAITS).row
        if early:
            row = on(row, Arrival(Feedback(query_id="q", correct=False), 1_200, ORIGIN), WAITS).row
        turn = on(row, Arrival(answer, 3_000, ORIGIN), WAITS, valued)
        (reward,) = [out for out in turn.out if isinstance(out, Reward)]
        assert reward.log_cost is not None
        assert reward.bounded is bounded
        assert (reward.kind, reward.correct) == (("default", None) if bounded else ("final", 0.0))
        assert turn.row is None, "it is closed"
