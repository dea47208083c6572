"""A demo's run in numbers and on its page, and its policy against the control, from timelines made by hand."""

from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from rich.console import Console

from schemas.query import Query
from streams.cli.demo import show_demo, standings_table
from streams.client.events import QueryEvent, Timelines
from streams.demo.paired import Outcome, baseline_for, compared, sentence
from streams.demo.pooled import line, pooled
from streams.demo.recorded import main as recorded
from streams.demo.recorded import outcomes_of
from streams.demo.report import render
from streams.demo.standing import Standing, standings
from streams.demo.summary import KNOWS, facts_told, summarise
from tests.support.demo_runs import (
    CONTROL,
    SAMPLE,
    Outcomes,
    add,
    asked,
    report_of,
    run_of,
    summary_of,
    timelines_of,
)


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


def test_facts_are_counted_apart_from_the_other_questions() -> None:
    facts, others = (
        [Query(query_id=f"{name}{n}", text=f"{name} {n}", metadata={"family": name}) for n in range(4)]
        for name in ("facts", "quick")
    )
    timelines = Timelines()
    for n, query in enumerate(facts):
        add(timelines, n, query, float(n > 0), 5.0, action=f"{KNOWS}/1/1/1" if n < 3 else "small/1/1/1")
    for n, query in enumerate(others):
        add(timelines, 4 + n, query, float(n > 2), 1.0)
    sent = [query.query_id for query in (*facts, *others)]
    found = summarise(timelines, sent, broker="b", mode="m", wall_s=1.0)["facts"]
    assert found == {"facts": 4, "sent": 3, "sent_right": 2.0, "others": 4, "others_right": 1.0}
    assert facts_told(found) == (
        "75% of 4 facts went to smollm2-135m, which got 67% of them right. "
        "Of the other 4 questions, 25% were right."
    )
    assert facts_told({**found, "sent": 0, "sent_right": 0.0}).startswith(
        "0% of 4 facts went to smollm2-135m. Of the other"
    )
    assert facts_told({**found, "facts": 0}) == ""


def test_a_run_s_baselines_are_recorded_for_later_runs(tmp_path: Path) -> None:
    queries, baselines, pairs = asked(3)
    outcomes: Outcomes = {each.query_id: (each, 1.0, 10.0) for each in queries}
    outcomes |= {each.query_id: (each, float(n > 0), 40.0 + n) for n, each in enumerate(baselines)}
    timelines = timelines_of(outcomes)
    comparison = compared(timelines, pairs, action=CONTROL, seed=1)
    summary, file = tmp_path / "summary.json", tmp_path / "recorded.jsonl"
    summary.write_bytes(orjson.dumps(summary_of(timelines, 3, comparison)))
    CliRunner().invoke(recorded, [str(summary), "-o", str(file)], catch_exceptions=False)
    known = outcomes_of(file, "tiny")
    assert outcomes_of(file, "other") == {}
    assert known == {f"x {n}": {CONTROL: Outcome(float(n > 0), 40.0 + n)} for n in range(3)}
    about = orjson.loads(file.read_bytes().splitlines()[0])
    assert (about["catalogue"], about["questions"], about["commit"]) == ("tiny", "questions.jsonl", "abc")
    beside = {each.query_id: known[each.text or ""][CONTROL] for each in baselines}
    again = compared(timelines, pairs, action=CONTROL, seed=1, recorded=beside)
    assert again["pairs"] == comparison["pairs"]
    assert sentence(again) == sentence(comparison).replace("a search", "a recorded search")
    expired = {**comparison["pairs"][0], "control_cost": 0.0}
    shown = {**comparison, "pairs": [expired, *comparison["pairs"][1:]]}
    summary.write_bytes(orjson.dumps(summary_of(timelines, 3, shown)))
    refused = CliRunner().invoke(recorded, [str(summary), "-o", str(file)])
    assert (refused.exit_code, "1 of 3 outcomes" in refused.output) == (1, True)
    with pytest.raises(ValueError, match="with the same controls"):
        pooled([summary_of(timelines, 3, each) for each in (comparison, again)])


def test_an_empty_run_is_no_error() -> None:
    found = summarise(Timelines(), ["q"], broker="b", mode="m", wall_s=0.0)
    assert found["unanswered"] == 1
    assert found["mean_reward"] is None


def test_a_report_without_baselines_shows_the_choices() -> None:
    timelines = run_of(30, 10)
    page = render(timelines, [f"q{n}" for n in range(30)], summary_of(timelines, 30))
    assert page.count("<figure>") == 1
    assert "small got 100% of the questions" in page
    assert "50% of 30 right" in page
    assert "second act" not in page
    assert "http" not in page


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
    assert report["control"] == {
        "action": CONTROL,
        "recorded": False,
        "queries": 40,
        "accuracy": 0.5,
        "mean_cost": 40.0,
    }
    difference, ratio = report["accuracy_difference"], report["cost_ratio"]
    assert difference["mean"] == pytest.approx(-0.1)
    # Unpaired, 40 answers each would be uncertain by more than 20 points.
    assert -0.23 < difference["low"] < -0.1 < difference["high"] <= 0.0
    assert ratio["mean"] == pytest.approx(0.225)
    assert ratio["low"] < 0.225 < ratio["high"] <= 0.25
    assert report == compared(timelines_of(outcomes), pairs, action=CONTROL, seed=1)
    said = sentence(report)
    assert "Accuracy 40% against 50% (difference -10.0 points" in said
    assert said.endswith("of a search with large (2/1/1).")


def test_runs_are_pooled_and_a_question_asked_twice_is_one_draw() -> None:
    queries, baselines, pairs = asked(40)
    outcomes: Outcomes = {}
    for n, (query, baseline) in enumerate(zip(queries, baselines, strict=True)):
        outcomes[query.query_id] = (query, float(n % 3 > 0), 10.0 + n)
        outcomes[baseline.query_id] = (baseline, float(n % 2), 40.0)
    comparison = compared(timelines_of(outcomes), pairs, action=CONTROL, seed=0)
    change = {
        "name": "worse", "title": "large becomes worse", "asked": 60, "condition": "at most 30%", "notes": (),
        "after": 34, "without_change": None, "comparison": comparison,
    }  # fmt: skip
    run = summary_of(timelines_of(outcomes), 40, *[comparison] * 2)
    run = orjson.loads(orjson.dumps(run | {"changes": [change]}))
    other_seed = {**run, "seed": 2, "changes": [{**run["changes"][0], "after": None}]}
    found = pooled([run, other_seed])
    one, (both, second) = run["comparisons"][0], found["comparisons"]
    assert both == second
    assert both["policy"] == {**one["policy"], "queries": 80}
    # The same questions again teach nothing new, so no interval narrows.
    assert both["accuracy_difference"] == pytest.approx(one["accuracy_difference"])
    assert both["cost_ratio"] == pytest.approx(one["cost_ratio"])
    assert (found["seeds"], found["queries"], found["audit_wrong"]) == ([1, 2], 80, 0)
    assert (found["facts"]["others"], found["facts"]["others_right"]) == (80, 52.0)
    (pooled_change,) = found["changes"]
    assert line(pooled_change) == "large becomes worse: the choices followed after 34, not within 60 queries."
    assert pooled_change["comparison"]["policy"]["queries"] == 80
    with pytest.raises(ValueError, match="with the same changes"):
        pooled([run, {**run, "changes": []}])
    other = {**one, "control": {**one["control"], "action": "other/1/1/1"}}
    wrongs: list[list[list[Any]]] = [
        [[one], [other]], [[one], [one, other]], [[one, {**one, "pairs": []}]], [[]], []]  # fmt: skip
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


@pytest.mark.parametrize(
    ("right", "cost", "said"),
    [
        (1.0, 20.0, ("less than one sample of large", "No difference in accuracy to one sample of large")),
        (0.0, 60.0, ("cost more than one sample of large", "right less often than one sample of large")),
        (1.0, 40.0, ("No difference in cost to one sample of large is shown",)),
    ],
)
def test_a_figure_says_what_it_shows(right: float, cost: float, said: tuple[str, ...]) -> None:
    page = report_of(30, right, cost)
    for each in said:
        assert each in page
    assert f"{right:.0%} right against 100%, at {cost / 40:.0%} of the cost" in page


def test_costs_are_in_samples_of_the_largest_model() -> None:
    page = report_of(30, 1.0, 20.0)
    assert "<span>0.50 <small>0.50 to 0.50</small></span>" in page
    assert "<span>a recorded search with large (1/4/2)</span>" in page
    assert "went to one sample of large. What a recorded search with large (1/4/2) came to" in page
    assert "<span>2.00</span>" in page
    assert '%">0.50</span>' in page, "the line is labelled"
    assert "e+" not in page


def test_report_leaves_baselines_out_of_the_choices() -> None:
    page = report_of(30, 1.0, 20.0)
    assert "small got 100% of the questions" in page
    assert "</i>small</li>" in page
    assert "</i>large</li>" not in page


def test_standings_compare_costs_of_the_same_questions() -> None:
    queries, baselines, _ = asked(4)
    parties = {"policy": [q.query_id for q in queries], "one sample": [b.query_id for b in baselines]}
    timelines = timelines_of(
        {q.query_id: (q, float(n > 0), 10.0) for n, q in enumerate(queries[:3])}
        | {b.query_id: (b, 1.0, 40.0) for b in baselines[1:]}
    )
    rewards = {each: s.closing for each, s in timelines.by_id.items() if s.closing is not None}
    assert standings(parties, rewards) == [
        Standing("policy", 4, 3, 2 / 3, 0.25),
        Standing("one sample", 4, 3, 1.0, 1.0),
    ]
    assert [each.cost for each in standings(parties, {})] == [None, None]
    (alone,) = standings({"policy": parties["policy"]}, rewards)
    assert (alone.closed, alone.cost) == (3, None)


def test_the_table_shows_what_is_known_so_far() -> None:
    printed = StringIO()
    rows = [Standing("policy", 4, 3, 0.5, 0.25), Standing("one sample of large", 4, 0, None, None)]
    Console(file=printed, width=100).print(standings_table(rows))
    assert "cost: times one sample of large" in printed.getvalue()
    assert [line.split() for line in printed.getvalue().splitlines() if "policy" in line] == [
        ["│", "policy", "│", "3", "of", "4", "│", "50%", "│", "0.25", "│"]
    ]
