"""A cancelled search in the join: it costs what it spent, and nobody learns from it."""

from msgspec.structs import replace

from agents.aggregator.agent import Pricing, value
from agents.aggregator.join import Arrival, Waits, on
from schemas.answer import Answer
from schemas.reward import Feedback, Reward
from tests.agents.aggregator.records import ORIGIN, PRICE, decision

WAITS = Waits(timeout_ms=60_000, feedback_ms=30_000, keep_ms=1_000_000)
CANCELLED = Answer(query_id="q", status="cancelled", by="executor", text="so 4", score=0.5)


def no_judge(gold: str, answer: str) -> bool:
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
    late = on(turn.row, Arrival(Feedback(query_id="q", correct=True), 4_000, ORIGIN), WAITS)
    assert (late.out, late.counts) == ((), ("late_feedback",))
