"""The records of one query, with all that a test does not speak of filled in."""

from typing import Any

from schemas.action import Action
from schemas.answer import Answer, Status
from schemas.decision import Decision, PolicyState
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Origin, Query
from schemas.reward import Cost, Kind, Reward

ACTION = Action(model="m", qp=1, cp=1, bs=1)
OBJECTIVE = ObjectiveInForce(
    weights=Weights(correct=0.4, score=0.4, cost=0.2), cost_range=CostRange(low=1.0, high=100.0)
)
PRICE = Cost(
    cost=10.0, prefill_eflops=1.0, decoding_eflops=6.0, verifier_eflops=3.0, compute_flops=4.0,
    memory_bytes=2.0, intensity=3.0,
)  # fmt: skip
ORIGIN = Origin(topic="feedback", partition=0, offset=9)


def decision_for(query: Query, **fields: Any) -> Decision:
    """Return the decision of a query, of one path where `action` says nothing else."""
    made: dict[str, Any] = {
        "action": ACTION, "group": "g", "seq": 5, "seed": 1, "objective": OBJECTIVE, "appended_ms": 1_000,
        "origin": Origin(topic="query", partition=0, offset=1), "policy": PolicyState(name="linucb", version=0),
    }  # fmt: skip
    return Decision(query=query, **{**made, **fields})


def decision(**query: Any) -> Decision:
    """Return the decision of the query `q`, with fields of the query."""
    return decision_for(Query(query_id="q", text="?", **query))


def reward_for(decision: Decision, kind: Kind = "final", **fields: Any) -> Reward:
    """Return a reward of a decision; of the terms those that `fields` says."""
    of = {"query_id": decision.query_id, "kind": kind, "reward_id": f"{decision.query_id}/{kind}"}
    made = {"seq": decision.seq, "action": decision.action, "objective": decision.objective, "price": None}
    terms = {"status": "ok", "correct": 1.0, "score": 0.5, "log_cost": 1.0}
    return Reward(**{**of, **made, **terms, **fields})


def paid(cost: float, factor: float = 1.0) -> Cost:
    """Return the price of an answer of which the sum alone matters, in eFLOPs times the factor."""
    parts = ("prefill_eflops", "decoding_eflops", "verifier_eflops", "compute_flops", "memory_bytes")
    unknown: dict[str, Any] = dict.fromkeys(parts, 0.0)
    return Cost(cost=cost, intensity=156.0, factor=factor, **unknown)


def answer(status: Status = "ok") -> Answer:
    """Return the answer to the query `q`, which has a text only where all went well."""
    text = "so 4" if status == "ok" else None
    error = None if status == "ok" else "why"
    return Answer(
        query_id="q", status=status, by="executor", text=text, score=0.5 if text else None, error=error
    )
