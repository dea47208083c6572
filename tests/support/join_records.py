"""The records of one query, as the join receives them."""

from typing import Any

from schemas.action import Action
from schemas.answer import Answer, Status
from schemas.decision import Decision, PolicyState
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Origin, Query
from schemas.reward import Price

ACTION = Action(model="m", qp=1, cp=1, bs=1)
OBJECTIVE = ObjectiveInForce(
    weights=Weights(correct=0.4, score=0.4, cost=0.2), cost_range=CostRange(low=1.0, high=100.0)
)
PRICE = Price(
    cost=10.0, prefill_eflops=1.0, decoding_eflops=6.0, verifier_eflops=3.0, compute_flops=4.0,
    memory_bytes=2.0, intensity=3.0,
)  # fmt: skip
ORIGIN = Origin(topic="feedback", partition=0, offset=9)


def decision(**query: Any) -> Decision:
    return Decision(
        query=Query(query_id="q", text="?", **query),
        origin=Origin(topic="query", partition=0, offset=1),
        action=ACTION,
        group="g",
        seq=5,
        seed=1,
        objective=OBJECTIVE,
        policy=PolicyState(name="linucb", version=0),
        appended_ms=1_000,
    )


def answer(status: Status = "ok") -> Answer:
    text = "so 4" if status == "ok" else None
    error = None if status == "ok" else "why"
    return Answer(
        query_id="q", status=status, by="executor", text=text, score=0.5 if text else None, error=error
    )
