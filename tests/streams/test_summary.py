"""A run in numbers, from a timelines made by hand."""

from typing import Any

import msgspec
import pytest

from schemas.action import Action
from schemas.answer import Answer
from schemas.decision import Decision, PolicyState
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Origin, Query
from schemas.record import encode
from schemas.reward import Price, Reward
from streams.client.events import Timelines
from streams.demo.report import render, summarise
from streams.settings import Settings
from streams.topics import Topics

OBJECTIVE = ObjectiveInForce(
    weights=Weights(correct=1, score=1, cost=2), cost_range=CostRange(low=1e9, high=1e12)
)


class Raw(msgspec.Struct):
    """What the timelines needs of a consumer's record."""

    topic: str
    value: bytes
    timestamp: int


def run_of(count: int, warm_up: int) -> Timelines:
    topics, timelines = Topics(Settings()), Timelines()
    for n in range(count):
        action = Action(model="small", qp=1, cp=2 if n % 2 else 1, bs=1)
        query = Query(query_id=f"q{n}", text="x", metadata={"level": "l1"})
        origin = Origin(topic=topics.query, partition=0, offset=n)
        decision = Decision(
            query=query, origin=origin, action=action, group="g", seq=2 * n, seed=1, objective=OBJECTIVE,
            policy=PolicyState(name="p", version=n), reason="warm-up" if n < warm_up else "policy",
        )  # fmt: skip
        price = Price(
            cost=10.0 * (count - n), prefill_eflops=1, decoding_eflops=1, verifier_eflops=1, compute_flops=1,
            memory_bytes=1, intensity=156,
        )  # fmt: skip
        reward = Reward(
            reward_id=f"q{n}/final", query_id=f"q{n}", kind="final", seq=2 * n, action=action, status="ok",
            correct=float(n % 2), score=0.5, log_cost=1.0, price=price, objective=OBJECTIVE, reward=n / count,
        )  # fmt: skip
        answer = Answer(query_id=f"q{n}", status="ok", by="executor", action=action, text="t")
        at = 1000 * n
        timelines.add(topics, Raw(topics.query, encode(query), at))
        timelines.add(topics, Raw(topics.decision, encode(decision), at + 7))
        timelines.add(topics, Raw(topics.answer, encode(answer), at + 100))
        timelines.add(topics, Raw(topics.reward, encode(reward), at + 110))
    timelines.add(topics, Raw(topics.answer, encode(answer), 10**6))
    return timelines


def summary_of(timelines: Timelines, count: int) -> dict[str, Any]:
    return summarise(timelines, [f"q{n}" for n in range(count)], broker="b", mode="m", wall_s=1.0)


def test_thirds_follow_the_order_of_decisions_and_repeats_are_counted_once() -> None:
    found = summary_of(run_of(30, 10), 31)
    assert (found["queries"], found["answers"], found["unanswered"], found["rewards"]) == (31, 30, 1, 30)
    assert found["duplicates"] == 1
    assert found["mean_reward_first_third"] == pytest.approx(4.5 / 30)
    assert found["mean_reward_last_third"] == pytest.approx(24.5 / 30)
    assert found["mean_cost_eflops_first_third"] == pytest.approx(255.0)
    assert found["accuracy"] == 0.5
    assert found["distinct_actions"] == 2
    assert found["latency_ms"]["query_to_decision"] == {"p50": 7.0, "p95": 7.0}
    assert found["latency_ms"]["query_to_answer"] == {"p50": 100.0, "p95": 100.0}


def test_an_empty_run_is_no_error() -> None:
    found = summarise(Timelines(), ["q"], broker="b", mode="m", wall_s=0.0)
    assert found["unanswered"] == 1
    assert found["mean_reward"] is None


def test_the_report_is_one_page_with_three_curves_and_the_choices_by_level() -> None:
    timelines = run_of(30, 10)
    page = render(timelines, summary_of(timelines, 30))
    assert page.count("<svg") == 3
    assert "<td>l1</td><td>20</td>" in page
    assert "<td>query to answer</td>" in page
    assert "http" not in page
