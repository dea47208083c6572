"""A demo's run in numbers and on its page, and its policy against the control, from timelines made by hand."""

from io import StringIO
from typing import Any

import orjson
import pytest
from rich.console import Console

from schemas.action import Action
from schemas.answer import Answer
from schemas.decision import PolicyState, Reason
from schemas.query import Query
from schemas.record import encode
from streams.cli.demo import show_demo
from streams.client.events import QueryEvent, Timelines
from streams.demo.paired import baseline_for, compared, pooled, sentence
from streams.demo.report import render, summarise
from streams.log.base import ConsumerRecord
from streams.settings import Settings
from streams.topics import Topics
from tests.support.records import decision_for, paid, reward_for

CONTROL, SAMPLE = "large/2/1/1", "large/1/1/1"
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
    return found | {"comparisons": list(comparisons)}


def test_thirds_follow_decisions_and_duplicates_count_once() -> None:
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


def test_bytes_are_those_of_a_query_with_or_without_a_baseline() -> None:
    timelines, sent = Timelines(), [Query(query_id=f"q{n}", text="x") for n in range(3)]
    for query in [*sent, *(baseline_for(query, CONTROL) for query in sent)]:
        timelines.take(QueryEvent(kind="query", query_id=query.query_id, record=query, at_ms=1, bytes=500))
    assert summary_of(timelines, 3)["bytes_per_query"] == 500


def test_an_empty_run_is_no_error() -> None:
    found = summarise(Timelines(), ["q"], broker="b", mode="m", wall_s=0.0)
    assert found["unanswered"] == 1
    assert found["mean_reward"] is None


def test_report_has_three_curves_and_choices_by_level() -> None:
    timelines = run_of(30, 10)
    page = render(timelines, summary_of(timelines, 30))
    assert page.count("<svg") == 3
    assert "<td>l1</td><td>20</td>" in page
    assert "<td>query to answer</td>" in page
    assert "http" not in page


def asked(count: int) -> tuple[list[Query], list[Query], list[tuple[str, str]]]:
    queries = [
        Query(query_id=f"q{n}", text=f"x {n}", accuracy=0.98, metadata={"level": "l1"}) for n in range(count)
    ]
    baselines = [baseline_for(query, CONTROL) for query in queries]
    return queries, baselines, [(a.query_id, b.query_id) for a, b in zip(queries, baselines, strict=True)]


def test_baseline_asks_the_same_pinned_and_unlearned() -> None:
    (query,), (baseline,), _ = asked(1)
    assert (baseline.text, baseline.reference) == (query.text, query.reference)
    assert baseline.metadata["level"] == "l1"
    assert (baseline.pin_action, baseline.learn, baseline.accuracy) == (CONTROL, False, None)
    assert baseline.metadata["baseline_of"] == query.query_id
    unpaired = baseline_for(query, SAMPLE, paired=False)
    assert "baseline_of" not in unpaired.metadata
    assert len({each.query_id for each in (query, baseline, unpaired)}) == 3


def test_differences_are_paired_and_failures_count_as_wrong() -> None:
    queries, baselines, pairs = asked(40)
    outcomes: Outcomes = {}
    for n, (query, baseline) in enumerate(zip(queries, baselines, strict=True)):
        # Right on the same questions but for one in ten, where the policy's search failed.
        right = float(n % 2)
        outcomes[query.query_id] = (query, None if n % 10 == 1 else right, None if n % 10 == 1 else 10.0)
        outcomes[baseline.query_id] = (baseline, right, 40.0)
    report = compared(timelines_of(outcomes), pairs, action=CONTROL, seed=1)
    assert report["policy"] == {"queries": 40, "accuracy": 0.4, "mean_cost": 9.0}
    assert report["control"] == {"action": CONTROL, "queries": 40, "accuracy": 0.5, "mean_cost": 40.0}
    difference, ratio = report["accuracy_difference"], report["cost_ratio"]
    assert difference["mean"] == pytest.approx(-0.1)
    # Unpaired, 40 answers each would be uncertain by more than 20 points.
    assert -0.23 < difference["low"] < -0.1 < difference["high"] <= 0.0
    assert ratio["mean"] == pytest.approx(0.225)
    assert ratio["low"] < 0.225 < ratio["high"] <= 0.25
    assert report == compared(timelines_of(outcomes), pairs, action=CONTROL, seed=1)
    said = sentence(report)
    assert "Accuracy 40% against 50% (difference -10.0 points" in said
    assert said.endswith(f"of always asking {CONTROL}.")


def test_runs_are_pooled_and_a_question_asked_twice_is_one_draw() -> None:
    queries, baselines, pairs = asked(40)
    outcomes: Outcomes = {}
    for n, (query, baseline) in enumerate(zip(queries, baselines, strict=True)):
        outcomes[query.query_id] = (query, float(n % 3 > 0), 10.0 + n)
        outcomes[baseline.query_id] = (baseline, float(n % 2), 40.0)
    run = {"comparisons": [compared(timelines_of(outcomes), pairs, action=CONTROL, seed=0)] * 2}
    run = orjson.loads(orjson.dumps(run))
    one, (both, second) = run["comparisons"][0], pooled([run, run])
    assert both == second
    assert both["policy"] == {**one["policy"], "queries": 80}
    # The same questions again teach nothing new, so no interval narrows.
    assert both["accuracy_difference"] == pytest.approx(one["accuracy_difference"])
    assert both["cost_ratio"] == pytest.approx(one["cost_ratio"])
    other = {**one, "control": {**one["control"], "action": "other/1/1/1"}}
    empty = {**one, "pairs": []}
    wrongs: list[list[list[Any]]] = [
        [[one], [other]], [[one], [one, other]], [[one, empty]], [[]], []]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(ValueError, match="with the same controls"):
            pooled([{"comparisons": comparisons} for comparisons in wrong])


def test_comparisons_are_printed_before_the_table() -> None:
    queries, _, pairs = asked(2)
    timelines = timelines_of({q.query_id: (q, 1.0, 1.0) for q in queries})
    against = [compared(timelines, pairs, action=action, seed=1) for action in (SAMPLE, CONTROL)]
    printed = StringIO()
    show_demo(summary_of(timelines, len(queries), *against), Console(file=printed, width=200))
    assert printed.getvalue().startswith("".join(sentence(each) + "\n" for each in against))
    assert "│ queries" in printed.getvalue()


def test_nothing_to_compare_is_said() -> None:
    queries, _, pairs = asked(2)
    report = compared(
        timelines_of({q.query_id: (q, 1.0, 1.0) for q in queries}), pairs, action=CONTROL, seed=1
    )
    assert report["accuracy_difference"] is None
    assert "nothing to compare" in sentence(report)


def test_report_leaves_baselines_out_of_the_choices() -> None:
    queries, baselines, pairs = asked(30)
    samples = [baseline_for(query, SAMPLE, paired=False) for query in queries]
    outcomes: Outcomes = {each.query_id: (each, 1.0, 7.0) for each in (*queries, *baselines, *samples)}
    timelines = timelines_of(outcomes)
    against = [compared(timelines, pairs, action=action, seed=1) for action in (CONTROL, SAMPLE)]
    page = render(timelines, summary_of(timelines, len(queries), *against))
    assert sentence(against[0]) in page
    assert page.count(f">{CONTROL}</text>") == page.count(">large for one sample</text>") == 2, (
        "cost, accuracy"
    )
    assert "30 queries" in page
    assert "<th>small</th>" in page
    assert "<th>large</th>" not in page
