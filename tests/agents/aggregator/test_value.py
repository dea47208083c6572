"""An Answer in the terms of the reward: its price from the trace, its grade from the reference."""

import math

import pytest

from agents.aggregator import eflops
from agents.aggregator.agent import Pricing, UnpricedAnswer, price_of, value
from agents.aggregator.math_pool import Verdict
from agents.aggregator.reward import composite_reward, normalised_cost, sparse_reward
from agents.space.models import Architecture
from schemas.action import Action
from schemas.answer import Answer
from schemas.forest import Draft, Forest, Limits
from schemas.objective import CostRange
from schemas.query import Weights
from schemas.search import Served

GENERATOR = Architecture(parameters=1000, layers=2, query_heads=4, kv_heads=2, head_dim=8)
VERIFIER = Architecture(parameters=500, layers=1, query_heads=2, kv_heads=1, head_dim=8)
PRICING = Pricing(generators={"m": GENERATOR}, verifiers={"prm": VERIFIER}, verifier="prm", intensity=156.0)
# The trace of docs/eflops.md.
TRACE = (
    Draft(parent=-1, depth=1, tokens=3, finish="separator", score=0.4, fate="beam"),
    Draft(parent=-1, depth=1, tokens=5, finish="separator", score=0.9, slot=1, fate="kept"),
    Draft(parent=1, depth=2, tokens=2, finish="eos", score=0.8, fate="finished"),
    Draft(parent=1, depth=2, tokens=4, finish="eos", score=0.7, slot=1, fate="finished"),
)
ACTION = Action(model="m", qp=1, cp=2, bs=1)


def answer(**changes: object) -> Answer:
    fields: dict[str, object] = {
        "query_id": "q",
        "status": "ok",
        "by": "executor",
        "action": ACTION,
        "text": r"so \boxed{4}",
        "score": 0.85,
        "path": (1, 2),
        "trace": TRACE,
        "prompt_tokens": 10,
        "verifier": Served(name="prm"),
    }
    return Answer(**{**fields, **changes})  # type: ignore[arg-type]


def no_judge(gold: str, given: str) -> Verdict:
    raise AssertionError("the judge was asked")


def test_the_price_of_an_answer_is_the_worked_example() -> None:
    cost = price_of(answer(), PRICING)
    assert cost is not None
    assert (cost.eflops, cost.compute_flops, cost.memory_bytes) == (8_238_400.0, 213_760.0, 51_440.0)
    assert (cost.prefill_eflops, cost.decoding_eflops, cost.verifier_eflops) == (
        545_760.0,
        6_961_696.0,
        730_944.0,
    )
    assert cost.intensity == 156.0


def test_a_search_under_way_costs_what_its_drafts_cost() -> None:
    limits = Limits(depth_limit=4, step_tokens=9)
    forest = Forest(action=ACTION, limits=limits, drafts=TRACE, step=2, scored=2, prompt_tokens=10, best=2)
    assert PRICING.forest_eflops(forest) == 8_238_400.0
    assert PRICING.forest_eflops(Forest(action=ACTION, limits=limits)) == 0.0


def test_what_was_never_run_has_no_price() -> None:
    silent = Answer(query_id="q", status="expired", by="aggregator", action=ACTION, error="silent")
    assert price_of(silent, PRICING) is None
    valued, graded = value(None, silent, pricing=PRICING, judge=no_judge)
    assert (valued.score, valued.price, valued.correct, graded) == (None, None, None, None)


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(UnpricedAnswer, match="'other' is not in the catalogue"):
        price_of(answer(action=Action(model="other", qp=1, cp=1, bs=1)), PRICING)


@pytest.mark.parametrize(
    ("reference", "correct", "grader"),
    [
        ("4", 1.0, True),
        (5, 0.0, True),
        (None, None, False),
        ("", None, False),  # no reference at all, rather than a wrong answer
        ({"tests": [["a", "b"]]}, 0.0, True),
        ('{"tests": [["a", "b"]]}', 0.0, True),
    ],
)
def test_an_answer_is_graded_against_what_is_known(
    reference: object, correct: float | None, grader: bool
) -> None:
    valued, graded = value(reference, answer(), pricing=PRICING, judge=no_judge)
    assert valued.correct == correct
    assert bool(valued.grader) == grader == (graded is not None)
    assert valued.score == 0.85


def test_no_text_is_wrong_where_a_reference_is_known() -> None:
    silent = Answer(query_id="q", status="failed", by="executor", error="gone")
    valued, graded = value("4", silent, pricing=PRICING, judge=no_judge)
    assert valued.correct == 0.0
    assert graded is not None
    assert graded.how == "no-box"


RANGE = CostRange(low_eflops=1e12, high_eflops=1e16)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((0.1, 0.1, 0.8), 0.1 + 0.08 + 0.4), ((0.4, 0.4, 0.2), 0.4 + 0.32 + 0.1), ((1, 1, 8), 0.1 + 0.08 + 0.4)],
)
def test_the_reward_is_equation_four(weights: tuple[float, float, float], expected: float) -> None:
    w = Weights(correct=weights[0], score=weights[1], cost=weights[2])
    assert composite_reward(1.0, 0.8, math.log(1e14), w, RANGE) == pytest.approx(expected)


def test_cost_is_normalised_and_never_clipped() -> None:
    assert normalised_cost(math.log(1e12), RANGE) == 0.0
    assert normalised_cost(math.log(1e16), RANGE) == 1.0
    assert normalised_cost(math.log(1e18), RANGE) == pytest.approx(1.5)
    assert normalised_cost(math.log(1e10), RANGE) == pytest.approx(-0.5)


def test_without_dense_feedback_correctness_takes_the_weight_of_the_score() -> None:
    w = Weights(correct=0.3, score=0.3, cost=0.4)
    assert sparse_reward(1.0, math.log(1e14), w, RANGE) == pytest.approx(0.6 + 0.2)
    assert sparse_reward(0.0, math.log(1e14), w, RANGE) == pytest.approx(0.2)


def test_the_intensity_is_the_paper_s() -> None:
    assert eflops.INTENSITY == 156
