"""The contextual policy: its regression, its price of exploration, its pacer; exact across crashes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from agents.bandit.contextual import Contextual, ContextualSettings
from agents.bandit.design import COST, Design
from agents.bandit.exploration import Explored
from agents.bandit.features import FeatureSettings
from agents.bandit.pacing import Pace
from agents.bandit.policy import Aim, Context, Objective, Observation, Pending
from agents.decider.log import Row, decode_row
from agents.decider.verify import mismatches, opened
from schemas.decision import Decision
from schemas.record import decode, encode
from tests.support.traffic import DIM, MODELS, Traffic, actions, contextual, live


def test_every_term_is_the_ridge_regression_of_its_departure_from_the_mean(world: Any) -> None:
    policy = contextual(ridge=2.0, query_ridge=20.0, detail_ridge=200.0)
    policy.add_actions(actions())
    traffic, rows, terms = Traffic(), [], []
    for at in range(60):
        query_id, query, hard = traffic.question()
        action = at % 9
        correct, log_cost = traffic.outcome(policy.features.ids[action], hard)
        seen = Observation(
            query_id, query, policy.features.ids[action], correct, 0.5, log_cost, 0.5, _plain()
        )
        policy.update([seen])
        rows.append(policy.design.row(policy.design.short(query), action))
        terms.append(policy.estimates.targets(correct, 0.5, log_cost, action))
    x, t = np.array(rows), np.array(terms)
    held = [
        2.0 if not place else 200.0 if policy.design.names[feature] == "width" else 20.0
        for feature, place in zip(policy.design.feature, policy.design.which, strict=True)
    ]
    theta = np.linalg.solve(np.diag(held) + x.T @ x, x.T @ (t - t.mean(axis=0)))
    z = policy.design.short(traffic.question()[1])
    expected = t.mean(axis=0) + np.array([policy.design.row(z, a) for a in range(9)]) @ theta
    found = policy.estimates.predicted(z)
    assert found[:, 0] == pytest.approx(expected[:, 0])
    assert found[:, COST] / policy.design.anchors == pytest.approx(
        np.maximum(expected[:, 4], 0.05 * t[:, 4].mean())
    )


def _plain() -> Objective:
    return Objective(1, 0, 0, 0, 30)


def test_what_costs_500_times_as_much_is_not_explored_like_the_others() -> None:
    policy = contextual(alpha=1.0)
    policy.add_actions(actions())
    query = Traffic().question()[1]
    free, priced = (
        policy.scores([Context("q", query)], [Objective(1, 0, 0, 0, 30, price)], 1)[0]
        for price in (0.0, 1e-12)
    )
    cost = policy.estimates.predicted(policy.design.short(query))[:, COST]
    assert priced.width == pytest.approx(free.width * np.minimum(1.0, cost[priced.mean.argmax()] / cost))
    assert priced.width.min() < 0.002 * priced.width.max()


def mean_cost(policy: Contextual, aim: Aim) -> float:
    account = policy.account(aim)
    assert account is not None
    return account.mean_cost


@pytest.mark.parametrize("target", [8e9, 2e10])
def test_spend_comes_within_five_per_cent_and_stays_there_through_drifts(target: float) -> None:
    policy, traffic, aim = contextual(), Traffic(), Aim("t", mean_cost=target)
    policy.add_actions(actions())
    live(policy, 1000, aim=aim, traffic=traffic)
    assert mean_cost(policy, aim) == pytest.approx(target, rel=0.05)
    policy.remove_actions([f"middle/{qp}/1/1" for qp in (1, 4, 16)])
    live(policy, 400, aim=aim, traffic=traffic)
    assert mean_cost(policy, aim) == pytest.approx(target, rel=0.05)
    policy.add_actions(actions())
    live(policy, 600, aim=aim, traffic=traffic, price=3.0)
    assert mean_cost(policy, aim) == pytest.approx(target, rel=0.05)


def test_a_target_that_cannot_be_met_is_known_with_what_can() -> None:
    policy, traffic = contextual(), Traffic()
    low, enough = Aim("low", mean_cost=1e6), Aim("enough", mean_cost=1e12)
    assert policy.shortfall(low) is None, "nothing is known yet"
    policy.add_actions(actions())
    assert live(policy, 300, aim=low, traffic=traffic, warm_up=100)["cost"] > 1e6
    before = policy.state()
    least = policy.shortfall(low)
    assert least is not None
    spent = live(copy.deepcopy(policy), 300, aim=low, traffic=traffic)["cost"]
    assert spent == pytest.approx(least, rel=0.25)
    assert policy.shortfall(enough) is None
    assert policy.shortfall(Aim("most", accuracy=0.9)) is None
    policy.pacer.paces["much"] = Pace(rewarded=500, predicted=400.0, correct=200.0)
    most = policy.shortfall(Aim("much", accuracy=0.99))
    assert most is not None
    assert 0.5 < most < 0.99, "predictions that are too high leave less than they promise"
    del policy.pacer.paces["much"]
    assert policy.state() == before


def test_where_nothing_was_right_yet_an_accuracy_sets_no_price_and_the_policy_keeps_looking() -> None:
    """The large model is right on one question in ten, and the others never are."""
    policy, rng, aim = contextual(), np.random.default_rng(0), Aim("a", accuracy=0.98)
    policy.add_actions(actions())
    known, chosen = dict(MODELS), []
    for at in range(400):
        query = rng.normal(size=DIM)
        objective = Objective(1, 0, 0, 0, 30, policy.price(aim))
        action = (
            policy.features.ids[at % 9]
            if at < 60
            else policy.select([Context(f"q{at}", query)], [objective], 1)[0].action_id
        )
        policy.expect([Pending(f"q{at}", query, action, aim)])
        model = action.split("/")[0]
        correct = float(at >= 100 and model == "large" and rng.random() < 0.1)
        log_cost = float(np.log(1e3 * known[model]))
        policy.update([Observation(f"q{at}", query, action, correct, 0.0, log_cost, correct, objective)])
        if at == 99:
            assert policy.price(aim) == policy.outlook.price(aim) == 0.0
            assert policy.shortfall(aim) is None
        chosen.append(model)
    assert chosen[300:].count("large") > 50


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_an_accuracy_is_kept_at_a_part_of_the_cost(seed: int) -> None:
    policy, traffic, aim = contextual(), Traffic(seed), Aim("a", accuracy=0.95)
    policy.add_actions(actions())
    live(policy, 1200, aim=aim, traffic=traffic, warm_up=200)
    found = live(policy, 600, aim=aim, traffic=traffic)
    best = (0.9 + 0.95) / 2
    assert found["accuracy"] >= 0.95 * best - 0.03
    assert found["cost"] < 0.75 * 1e3 * 1e8  # one path of the large model
    account = policy.account(aim)
    assert account is not None
    assert account.predicted == pytest.approx(account.correct, abs=0.05)


def test_a_new_price_counts_at_once_and_teaches_nothing() -> None:
    """Two learners see the same searches, one of them at three times the price: they learn the same."""
    plain, charged, traffic = contextual(), contextual(), Traffic(5)
    aim = Aim("a", accuracy=0.9)
    for policy in (plain, charged):
        policy.add_actions(actions())
    charged.reprice({"middle": 3.0})
    for _ in range(200):
        query_id, query, hard = traffic.question()
        chosen = plain.design.ids[int(traffic.rng.integers(len(plain.design.ids)))]
        correct, log_cost = traffic.outcome(chosen, hard)
        factor = 3.0 if chosen.startswith("middle") else 1.0
        for policy, paid in ((plain, 1.0), (charged, factor)):
            policy.expect([Pending(query_id, query, chosen, aim)])
            priced = float(log_cost + np.log(paid))
            observed = Observation(query_id, query, chosen, correct, correct, priced, correct, _plain())
            policy.update([replace_factor(observed, paid)])
    assert np.allclose(plain.estimates.ridge.theta, charged.estimates.ridge.theta, rtol=1e-9)
    dear = np.array([3.0 if action.startswith("middle") else 1.0 for action in plain.design.ids])
    z = plain.design.short(query)
    ours, theirs = plain.estimates.predicted(z), charged.estimates.predicted(z)
    assert np.allclose(theirs[:, COST], ours[:, COST] * dear)
    assert np.allclose(np.exp(theirs[:, 2]), np.exp(ours[:, 2]) * dear)
    # λ was solved under the old price; the next decision solves for it again, and a price that goes back does not.
    before = plain.price(aim)
    plain.reprice({"middle": 3.0})
    assert plain.price(aim) != before
    plain.reprice({})
    assert plain.price(aim) == before
    # The middle model is worth its price only while it is not too dear.
    objective = Objective(1, 0, 0, 0, 30, before)
    shares = []
    for factors in ({}, {"middle": 100.0}):
        plain.reprice(factors)
        asked = [Context(f"p{n}", traffic.question()[1]) for n in range(40)]
        made = plain.select(asked, [objective] * 40, 1)
        shares.append(sum(choice.action_id.startswith("middle") for choice in made))
    assert shares[0] > shares[1] == 0
    other = contextual()
    other.load(charged.state())
    assert other.state() == charged.state()
    assert np.array_equal(other.estimates.predicted(z), theirs)


def replace_factor(observed: Observation, factor: float) -> Observation:
    return dataclasses.replace(observed, price_factor=factor)


def shard_of(make_shard: Callable[..., Any]) -> Any:
    def policy(_: Any) -> Explored:
        early = ContextualSettings(lessons=(8, 14), settled=10)
        inner = Contextual(Design(FeatureSettings(DIM, 10, query_rank=11)), early)
        return Explored(inner, warm_up=6)

    return make_shard(policy)


AIMS: tuple[dict[str, Any], ...] = ({}, {"mean_cost": 2e13}, {"accuracy": 0.9}, {"mean_cost": 5e13})
steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "reward", "price", "snapshot", "crash"]), st.integers(0, 3), st.integers(1, 4)
    ),
    min_size=4,
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
# Eight outcomes, none of which differs from what its action usually gives.
@example([
    ("ask", 0, 4), ("reward", 0, 3), ("ask", 0, 3), ("reward", 0, 3), ("ask", 0, 2), ("ask", 1, 2), ("reward", 0, 2),
])  # fmt: skip
def test_a_crash_anywhere_changes_no_later_decision(make_shard: Callable[..., Any], done: list[Any]) -> None:
    """One learner crashes where it is told to, the other never does: their states stay equal to the bit."""
    mortal, eternal = shard_of(make_shard), shard_of(make_shard)
    made: list[list[Any]] = [[], []]
    for act, which, count in [*done, ("ask", 1, 4), ("ask", 2, 4)]:
        if act == "crash":
            mortal.crash()
        elif act == "snapshot" and mortal.decider.seq:
            mortal.table |= dict(mortal.decider.snapshot())
        for shard, decided in zip((mortal, eternal), made, strict=True):
            if act == "ask":
                decided += shard.ask(*(shard.context(**AIMS[which]) for _ in range(count)))
            elif act == "price":
                shard.reprice((1.0, 3.0, 0.2, 1.0)[which])
            elif act == "reward" and decided:
                kind = ("final", "provisional", "default", "correction")[which]
                shard.tell(*(shard.reward(each, kind) for each in decided[-count:]))
    assert [each.value for each in made[0]] == [each.value for each in made[1]]
    assert mortal.decider.policy.state() == eternal.decider.policy.state()


def test_prices_and_decisions_are_reproduced_from_the_log(make_shard: Callable[..., Any]) -> None:
    shard = shard_of(make_shard)
    for round_ in range(30):
        if round_ % 10 == 4:
            shard.reprice((3.0, 0.5, 1.0)[round_ // 10])
        made = shard.ask(*(shard.context(**AIMS[(round_ + i) % 4]) for i in range(4)))
        shard.tell(*(shard.reward(each) for each in made[:3]))
    rows, after = opened(shard.policy(), shard.table)
    assert list(mismatches(shard.policy(), rows, 7, after)) == []
    logged = {r.query_id: decode(bytes(r.decision), Decision) for r in rows if isinstance(r, Row)}
    ranked = [(d.mean + d.width, d.score) for d in logged.values() if None not in (d.mean, d.width, d.score)]
    assert any(score < before - 1e-9 for before, score in ranked), "some were chosen with caution"
    assert len({made.objective.price for made in logged.values()}) >= 4
    assert {made.price_factor for made in logged.values()} == {1.0, 3.0, 0.5}
    learned = [r for r in rows if isinstance(r, Row) and r.stage == "closed"]
    assert all(r.price_factor == logged[r.query_id].price_factor for r in learned)
    at = next(i for i, r in enumerate(rows) if isinstance(r, Row) and r.objective.price)
    forged = rows[at]
    assert isinstance(forged, Row)
    rows[at] = replace(forged, objective=replace(forged.objective, price=forged.objective.price * 1.5))
    assert "objective.price" in {m.field for m in mismatches(shard.policy(), rows, 7, after)}
    rows[at] = replace(forged, decision=Raw(encode(replace(logged[forged.query_id], price_factor=9.0))))
    assert "price_factor" in {m.field for m in mismatches(shard.policy(), rows, 7, after)}


def test_the_log_keeps_what_a_row_needs(make_shard: Callable[..., Any]) -> None:
    shard = shard_of(make_shard)
    first, second = shard.ask(shard.context(mean_cost=1e13), shard.context())
    row = decode_row(*first.row)
    assert isinstance(row, Row)
    assert len(row.vector()) == DIM
    assert (row.batch, row.paced) == (0, True)
    assert decode_row(*second.row).batch == 0  # type: ignore[union-attr]
    (pinned,) = shard.ask(shard.context(mean_cost=1e13, pin_action=row.action))
    assert decode_row(*pinned.row).paced is False  # type: ignore[union-attr]


def test_without_a_prior_it_fits_its_transform_to_its_own_history() -> None:
    """What decides here lies in the embedding, where no count sees it."""
    found = {}
    for lessons in ((300,), ()):
        policy, rng = contextual(lessons=lessons), np.random.default_rng(3)
        policy.add_actions(actions(MODELS[:1] + MODELS[2:]))
        objective = Objective(1, 0, 0, 0, 30, 2e-12)
        right = []
        for at in range(900):
            query = rng.normal(size=DIM) * 0.3
            hard = bool(query[5] + query[7] > 0)
            seen = Context(f"q{at}", query)
            chosen = (
                policy.features.ids[at % 6] if at < 60 else policy.select([seen], [objective], 1)[0].action_id
            )
            large = chosen.startswith("large")
            correct = float(rng.random() < (0.9 if large or not hard else 0.1))
            log_cost = float(np.log(1e11 if large else 1e9))
            policy.update(
                [Observation(seen.query_id, query, chosen, correct, 0.5, log_cost, correct, objective)]
            )
            right.append(large == hard)
        found[lessons] = np.mean(right[400:])
    assert found[300,] > found[()] + 0.1


@pytest.mark.parametrize("rank", [1, 5, 9, 10, 21])
@pytest.mark.parametrize("questions", [1, 2, 9, 10, 12])
def test_few_questions_or_directions_end_no_lesson(questions: int, rank: int) -> None:
    rng = np.random.default_rng(3)
    policy = Contextual(Design(FeatureSettings(DIM, 4, query_rank=rank)), ContextualSettings(lessons=(60,)))
    policy.add_actions(actions())
    asked = np.abs(rng.normal(size=(questions, DIM)))
    directions = policy.design.directions
    objective = Objective(1, 0, 0, 0, 30)
    for at in range(80):
        query, action = asked[at % questions], policy.features.ids[at % 9]
        terms = float(rng.random() < 0.5), 0.5, float(20.0 + at % 3)
        policy.update([Observation(f"q{at}", query, action, *terms, 0.5, objective)])
    assert policy.lessons.due == ()
    assert (policy.design.directions is directions) == (questions < 10)
    assert np.isfinite(policy.design.directions).all()
