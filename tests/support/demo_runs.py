"""Runs of the demo, as timelines made by hand, with their summaries and reports."""

from typing import Any

from schemas.action import Action
from schemas.answer import Answer
from schemas.decision import PolicyState, Reason
from schemas.query import Query
from schemas.record import encode
from streams.client.events import Timelines
from streams.demo.paired import Outcome, baseline_for, baseline_id, compared
from streams.demo.report import render
from streams.demo.summary import summarise
from streams.log.base import ConsumerRecord
from streams.settings import Settings
from streams.topics import Topics
from tests.support.records import decision_for, paid, reward_for

CONTROL, SAMPLE, SEARCH = "large/2/1/1", "large/1/1/1", "large/1/4/2"
REASONS: tuple[Reason, ...] = ("warm-up", "policy")


def add(
    timelines: Timelines,
    n: int,
    query: Query,
    right: float | None,
    cost: float | None,
    *,
    action: str = "small/1/1/1",
    reason: Reason = "policy",
    reward: float = 0.1,
) -> None:
    """Add the nth query, a second after the one before, with whether it was right, what it cost, and its reward."""
    topics, query_id, at_ms = Topics(Settings()), query.query_id, 1000 * n
    did = Action.parse(query.pin_action or action)
    decision = decision_for(
        query,
        action=did,
        seq=2 * n,
        policy=PolicyState(name="p", version=n),
        reason=reason,
        appended_ms=at_ms,
    )
    terms = {"correct": right, "price": paid(cost) if cost else None, "reward": reward, "learn": query.learn}
    closing = reward_for(decision, "final" if right is not None else "default", **terms)
    answer = Answer(query_id=query_id, status="ok", by="executor", action=did, text="t")
    for topic, value, after_ms in (
        (topics.query, query, 0), (topics.decision, decision, 7), (topics.answer, answer, 100),
        (topics.reward, closing, 110),
    ):  # fmt: skip
        timelines.add(topics, ConsumerRecord(topic, 0, 0, at_ms + after_ms, None, encode(value)))


Outcomes = dict[str, tuple[Query, float | None, float | None]]


def timelines_of(outcomes: Outcomes) -> Timelines:
    """Return the timelines of queries by id, each with whether it was right and what it cost."""
    timelines = Timelines()
    for n, outcome in enumerate(outcomes.values()):
        add(timelines, n, *outcome)
    return timelines


def run_of(count: int, warm_up: int) -> Timelines:
    """Return the timelines of a run whose rewards rise and whose costs fall; the last Answer comes twice."""
    timelines = Timelines()
    for n in range(count):
        query = Query(query_id=f"q{n}", text="x", metadata={"level": "l1"})
        action, reason = f"small/1/{2 if n % 2 else 1}/1", REASONS[n >= warm_up]
        cost = 10.0 * (count - n)
        add(timelines, n, query, float(n % 2), cost, action=action, reason=reason, reward=n / count)
    topics = Topics(Settings())
    again = Answer(query_id=query.query_id, status="ok", by="executor", action=Action.parse(action), text="t")
    timelines.add(topics, ConsumerRecord(topics.answer, 0, 0, 10**6, None, encode(again)))
    return timelines


def summary_of(timelines: Timelines, count: int, *comparisons: dict[str, Any]) -> dict[str, Any]:
    found = summarise(timelines, [f"q{n}" for n in range(count)], broker="b", mode="m", wall_s=1.0)
    run = {"seed": 1, "questions": "questions.jsonl", "unit": "eflops", "catalogue": "tiny"}
    run |= {"version": "0.1.0", "commit": "abc", "policy": "contextual"}
    run |= {"models": ["small", "large"], "parameters": 4e6}
    audit = {"queries": count, "wrong": 0, "discrepancies": [], "pending": []}
    return (
        found
        | run
        | {"audit": audit, "comparisons": list(comparisons), "changes": [], "changes_left_out": ""}
    )


def asked(count: int) -> tuple[list[Query], list[Query], list[tuple[str, str]]]:
    queries = [
        Query(query_id=f"q{n}", text=f"x {n}", accuracy=0.98, metadata={"level": "l1"}) for n in range(count)
    ]
    baselines = [baseline_for(query, CONTROL) for query in queries]
    return queries, baselines, [(a.query_id, b.query_id) for a, b in zip(queries, baselines, strict=True)]


def report_of(count: int, right: float, cost: float) -> str:
    """Return the report of a run beside one sample that is always right for 40, and a recorded search for 80."""
    queries, samples, pairs = asked(count)
    searches = {baseline_id(query.query_id, SEARCH): Outcome(1.0, 80.0) for query in queries}
    outcomes: Outcomes = {each.query_id: (each, right, cost) for each in queries}
    outcomes |= {each.query_id: (each, 1.0, 40.0) for each in samples}
    timelines = timelines_of(outcomes)
    both = list(zip((query.query_id for query in queries), searches, strict=True))
    against = [
        compared(timelines, pairs, action=SAMPLE, seed=1),
        compared(timelines, both, action=SEARCH, seed=1, recorded=searches),
    ]
    return render(timelines, [q.query_id for q in queries], summary_of(timelines, count, *against))
