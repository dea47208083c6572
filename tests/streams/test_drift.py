"""What the demo says of a policy whose favourite model becomes dearer, from ledgers made by hand."""

import pytest

from schemas.action import Action
from schemas.decision import Decision, PolicyState, Reason
from schemas.objective import CostRange, ObjectiveInForce, Weights
from schemas.query import Origin, Query
from schemas.reward import Price, Reward
from streams.client.events import QueryEvent, Timelines
from streams.demo import report as drift
from streams.demo.report import render, summarise

OBJECTIVE = ObjectiveInForce(
    weights=Weights(correct=1, score=1, cost=2), cost_range=CostRange(low_eflops=1e9, high_eflops=1e12)
)
COSTS = {"small": 1.0, "large": 10.0}


class Run:
    """A run of queries, with a choice and what it cost for each."""

    def __init__(self) -> None:
        self.timelines, self.queries = Timelines(), list[Query]()

    def ask(
        self, queries: list[Query], models: list[str], dear: str = "", reason: Reason = "policy"
    ) -> list[str]:
        for query, model in zip(queries, models, strict=True):
            n = len(self.queries)
            self.queries.append(query)
            action = Action(model=model, qp=1, cp=1, bs=1)
            factor = 3.0 if model == dear else 1.0
            decision = Decision(
                query=query, origin=Origin(topic="query", partition=0, offset=n), action=action, group="g", seq=n,
                seed=1, objective=OBJECTIVE, policy=PolicyState(name="p", version=n), reason=reason,
                price_factor=factor,
            )  # fmt: skip
            price = Price(
                eflops=COSTS[model] * factor, prefill_eflops=1, decoding_eflops=1, verifier_eflops=1, compute_flops=1,
                memory_bytes=1, intensity=156, factor=factor,
            )  # fmt: skip
            reward = Reward(
                reward_id=f"{query.query_id}/final", query_id=query.query_id, kind="final", seq=n, action=action,
                status="ok", correct=1.0, score=0.5, log_cost=1.0, price=price, objective=OBJECTIVE, reward=0.1,
                learn=query.learn,
            )  # fmt: skip
            for kind, record in (("decision", decision), ("reward", reward)):
                self.timelines.take(QueryEvent(kind=kind, query_id=query.query_id, record=record, at_ms=n))  # type: ignore[arg-type]
        return [query.query_id for query in queries]


def questions(count: int) -> list[Query]:
    return [Query(query_id=f"q{n}", text="x", metadata={"level": f"l{n % 3}"}) for n in range(count)]


def test_the_same_questions_are_asked_again_under_other_ids() -> None:
    asked = questions(30)
    again = drift.further(asked, 12, seed=3)
    assert [q.query_id for q in drift.further(asked, 12, seed=3)] == [q.query_id for q in again]
    assert len({q.query_id for q in again}) == 12
    assert {q.query_id for q in asked}.isdisjoint(q.query_id for q in again)
    assert {q.metadata["drift_of"] for q in again} <= {q.query_id for q in asked}
    assert [sum(q.metadata["level"] == f"l{n}" for q in again) for n in range(3)] == [4, 4, 4]


@pytest.mark.parametrize(
    ("before", "after", "took"),
    [
        (["a"] * 30, ["b"] * 30, 10),
        (["a"] * 30, ["a"] * 12 + ["b"] * 30, 22),
        (["a", "b"] * 15, ["b"] * 30, 9),
        (["a"] * 30, ["a"] * 30, None),
        (["a"] * 30, ["b"] * 9, None),
        (["a"] * 30, ["a", "b", "b"] * 10, 15),
        (["a"] * 4, ["b"] * 4, 4),
        (["a"] * 30, [], None),
    ],
)
def test_a_policy_has_adapted_when_the_favourite_has_half_its_share(
    before: list[str], after: list[str], took: int | None
) -> None:
    assert drift.adapted_after(before, after, "a") == took


def test_twins_and_what_the_policy_did_not_decide_are_no_choices() -> None:
    run = Run()
    ids = run.ask(questions(6), ["small"] * 6)
    ids += run.ask([Query(query_id=f"w{n}", text="x") for n in range(9)], ["large"] * 9, reason="warm-up")
    run.ask(
        [Query(query_id=f"t{n}", text="x", learn=False) for n in range(9)], ["large"] * 9, reason="pinned"
    )
    assert [s.query_id for s in drift.chosen(run.timelines, ids)] == [f"q{n}" for n in range(6)]
    assert drift.favourite(drift.chosen(run.timelines, ids)) == "small"
    assert drift.favourite([]) is None


def test_what_followed_is_said_whatever_it_was() -> None:
    asked = questions(30)
    for models, took, words in (
        (
            ["small"] * 30,
            10,
            "After 10 queries it was chosen at most half as often; of the last 20 choices it has 0%",
        ),
        (["large"] * 30, None, "In 30 further queries it was never chosen half as often"),
    ):
        run = Run()
        before = run.ask(asked, ["large"] * 30)
        after = run.ask(drift.further(asked, 30, 1), models, dear="large")
        report = drift.followed(run.timelines, before, after, "large")
        assert report["adapted_after"] == took
        found = report["drift"]
        assert (found["share_before"], found["cost_ratio_unchanged"]) == (1.0, 3.0)
        assert found["cost_ratio"] == pytest.approx(0.1 if took else 3.0)
        assert words in drift.sentence(report)
        assert "chosen for 100% of the questions, cost 3 times as much" in drift.sentence(report)
    nothing = drift.followed(run.timelines, before, [], "large")
    assert nothing["adapted_after"] is None
    assert "no further query was answered" in drift.sentence(nothing)


def test_the_report_shows_the_change_apart_from_the_first_part() -> None:
    run, asked = Run(), questions(30)
    before = run.ask(asked, ["large"] * 30)
    after = run.ask(drift.further(asked, 15, 1), ["small"] * 15, dear="large")
    summary = summarise(run.timelines, before, broker="b", mode="m", wall_s=1.0)
    plain = render(run.timelines, summary)
    assert "costs 3 times as much" not in plain
    assert "<th>small</th>" not in plain
    summary |= drift.followed(run.timelines, before, after, "large")
    summary["drift_sentence"] = drift.sentence(summary)
    page = render(run.timelines, summary)
    assert "large costs 3 times as much</h2>" in page
    assert summary["drift_sentence"] in page
    assert "<th>small</th>" not in page
    assert "adapted_after" in page
