"""The contextual policy: what it tries, its price of exploration, its pacer; exact across crashes."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from agents.bandit.contextual import COST, FAMILIAR, OPTIMISM, Contextual, ContextualSettings
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.exploration import Explored
from agents.bandit.features import FeatureSettings
from agents.bandit.learner import choose, pack, unpack
from agents.bandit.pacing import KEYS, BudgetAccount, Forecast, Pacer, shadow_price_for_accuracy
from agents.bandit.policy import ActionVector, Context, Observation, Pending, Target
from agents.decider.rows import Row, decode_row
from agents.decider.verify import load_replay, mismatches
from schemas.decision import Decision
from schemas.record import decode, encode
from schemas.reward import Kind
from tests.support.shard import Shard
from tests.support.traffic import (
    DIM,
    MODELS,
    NEW,
    PLAIN,
    Traffic,
    actions,
    contextual,
    decide,
    learn,
    live,
    teach,
)


def test_exploration_width_shrinks_with_cost_at_the_shadow_price() -> None:
    policy = contextual(alpha=1.0)
    policy.offer(actions())
    query = Traffic().question()[1]
    z = policy.features.short(query)
    cost = policy.estimates.predicted(z)[:, COST]
    plain = policy.estimates.right.widths(z, policy.features.sides)
    price = 0.5 / float(np.median(cost))
    (scores,) = policy.predict([Context("q", query)], [dataclasses.replace(PLAIN, shadow_price=price)], 1)
    extra = price * np.maximum(cost - cost[scores.mean.argmax()], 0.0)
    assert scores.width == pytest.approx(plain**2 / (plain + extra))
    assert scores.width.max() > 0.99 * plain.max(), "what is cheap is explored"
    assert scores.width[cost.argmax()] < 0.1 * plain[cost.argmax()], "what is dear is hardly"


def mean_cost(policy: Contextual, target: Target) -> float:
    account = policy.pacer.status(target)
    assert account is not None
    return account.mean_cost


@pytest.mark.parametrize("mean_eflops", [8e9, 2e10])
def test_spend_stays_within_5_percent_through_drifts(mean_eflops: float) -> None:
    policy, traffic, target = contextual(), Traffic(), Target("t", mean_cost=mean_eflops)
    policy.offer(actions())
    live(policy, 1000, target=target, traffic=traffic)
    assert mean_cost(policy, target) == pytest.approx(mean_eflops, rel=0.05)
    policy.offer([each for each in actions() if each.model != "middle"])
    live(policy, 400, target=target, traffic=traffic)
    assert mean_cost(policy, target) == pytest.approx(mean_eflops, rel=0.05)
    policy.offer(actions())
    live(policy, 600, target=target, traffic=traffic, price=3.0)
    assert mean_cost(policy, target) == pytest.approx(mean_eflops, rel=0.05)


def test_a_target_that_cannot_be_met_is_known_with_what_can() -> None:
    policy, traffic = contextual(), Traffic()
    low, enough = Target("low", mean_cost=1e6), Target("enough", mean_cost=1e12)
    assert policy.pacer.shortfall(low) is None, "nothing is known yet"
    policy.offer(actions())
    assert live(policy, 300, target=low, traffic=traffic, warm_up=100)["cost"] > 1e6
    before = policy.state()
    least = policy.pacer.shortfall(low)
    assert least is not None
    spent = live(copy.deepcopy(policy), 300, target=low, traffic=traffic)["cost"]
    assert spent == pytest.approx(least, rel=0.25)
    assert policy.pacer.shortfall(enough) is None
    assert policy.pacer.shortfall(Target("most", accuracy=0.9)) is None
    policy.pacer.accounts["", "much"] = BudgetAccount(known=500, predicted=400.0, correct=200.0)
    assert policy.pacer.shortfall(Target("much", accuracy=0.99)) is None, "all are too high alike"
    refits, policy.refits.at = policy.refits.at, ()
    most = policy.pacer.shortfall(Target("much", accuracy=0.99))
    assert most is not None
    assert 0.5 < most < 0.99, "predictions that are too high leave less than they promise"
    del policy.pacer.accounts["", "much"]
    policy.refits.at = refits
    assert policy.state() == before


def test_accuracy_target_keeps_exploring_before_any_right_answer() -> None:
    """The large model is right on one question in ten, and the others never are."""
    policy, rng, target = contextual(), np.random.default_rng(0), Target("a", accuracy=0.98)
    policy.offer(actions())
    known, chosen = dict(MODELS), []
    for at in range(400):
        asked = Context(f"q{at}", rng.normal(size=DIM))
        action, objective = decide(policy, asked, target)
        action = policy.features.ids[at % 9] if at < 60 else action
        model = action.split("/")[0]
        correct = float(at >= 100 and model == "large" and rng.random() < 0.1)
        outcome = correct, float(np.log(1e3 * known[model]))
        learn(policy, asked, action, outcome, target=target, objective=objective, score=0.0)
        if at == 99:
            assert policy.pacer.shadow_price(target) * 16 * 1e3 * 1e8 < 0.01, (
                "even the dearest costs next to nothing"
            )
        chosen.append(model)
    assert chosen[300:].count("large") > 50


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_an_accuracy_is_kept_at_a_part_of_the_cost(seed: int) -> None:
    policy, traffic, target = contextual(), Traffic(seed), Target("a", accuracy=0.95)
    policy.offer(actions())
    live(policy, 1200, target=target, traffic=traffic, warm_up=200)
    found = live(policy, 600, target=target, traffic=traffic)
    best = (0.9 + 0.95) / 2
    assert found["accuracy"] >= 0.95 * best - 0.03
    assert found["cost"] < 0.85 * 1e3 * 1e8  # one path of the large model
    account = policy.pacer.status(target)
    assert account is not None
    assert account.predicted == pytest.approx(account.correct, abs=0.05)


def test_a_new_price_counts_at_once_and_teaches_nothing() -> None:
    """Two learners see the same searches, one of them at three times the price: they learn the same."""
    plain, charged, traffic = contextual(), contextual(), Traffic(5)
    target = Target("a", accuracy=0.9)
    plain.offer(actions())
    charged.offer(actions(), {"middle": 3.0})
    for _ in range(200):
        query_id, query, hard = traffic.question()
        chosen = plain.features.ids[int(traffic.rng.integers(len(plain.features.ids)))]
        correct, log_cost = traffic.outcome(chosen, hard)
        factor = 3.0 if chosen.startswith("middle") else 1.0
        for policy, paid in ((plain, 1.0), (charged, factor)):
            policy.decided([Pending(query_id, query, chosen, target)])
            priced = float(log_cost + np.log(paid))
            observed = Observation(query_id, query, chosen, correct, correct, priced, correct, PLAIN)
            policy.learn([dataclasses.replace(observed, price_factor=paid)])
    assert np.allclose(plain.estimates.paid.ridge.theta, charged.estimates.paid.ridge.theta, rtol=1e-9)
    assert np.allclose(plain.estimates.right.ridge.theta, charged.estimates.right.ridge.theta, rtol=1e-9)
    dear = np.array([3.0 if action.startswith("middle") else 1.0 for action in plain.features.ids])
    z = plain.features.short(query)
    ours, theirs = plain.estimates.predicted(z), charged.estimates.predicted(z)
    assert np.allclose(theirs[:, COST], ours[:, COST] * dear)
    assert np.allclose(np.exp(theirs[:, 2]), np.exp(ours[:, 2]) * dear)
    # λ was solved under the old price; the next decision solves for it again, and a price that goes back does not.
    before = plain.pacer.shadow_price(target)
    plain.offer(actions(), {"middle": 3.0})
    assert plain.pacer.shadow_price(target) != before
    plain.offer(actions())
    assert plain.pacer.shadow_price(target) == before
    # The middle model is worth its price only while it is not too dear.
    objective, shares = dataclasses.replace(PLAIN, shadow_price=before), []
    for factors in ({}, {"middle": 100.0}):
        plain.offer(actions(), factors)
        asked = [Context(f"p{n}", traffic.question()[1]) for n in range(40)]
        made = choose(plain, asked, [objective] * 40, 1)
        shares.append(sum(choice.action_id.startswith("middle") for choice in made))
    assert shares[0] > shares[1] == 0
    other = contextual()
    other.load(charged.state())
    assert other.state() == charged.state()
    assert np.array_equal(other.estimates.predicted(z), theirs)


def shard_of() -> Shard:
    def policy(_: Any) -> Explored:
        early = ContextualSettings(refits=(8, 14))
        inner = Contextual(ContextualFeatures(FeatureSettings(DIM, 10, query_rank=11)), early)
        return Explored(inner, warm_up=6)

    return Shard(policy)


AIMS: tuple[dict[str, Any], ...] = (
    {},
    {"mean_cost": 2e13},
    {"accuracy": 0.9, "tenant": "b"},
    {"mean_cost": 5e13, "tenant": "c"},
)
KINDS: tuple[Kind, ...] = ("final", "provisional", "default", "correction")
acts = st.sampled_from(["ask", "reward", "price", "snapshot", "crash"])
steps = st.lists(st.tuples(acts, st.integers(0, 3), st.integers(1, 4)), min_size=4, max_size=25)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
# Eight outcomes, none of which differs from what its action usually gives.
@example([
    ("ask", 0, 4), ("reward", 0, 3), ("ask", 0, 3), ("reward", 0, 3), ("ask", 0, 2), ("ask", 1, 2), ("reward", 0, 2),
])  # fmt: skip
def test_a_crash_anywhere_changes_no_later_decision(done: list[Any]) -> None:
    """One learner crashes where it is told to, the other never does: their states stay equal to the bit."""
    mortal, eternal = shard_of(), shard_of()
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
                shard.tell(*(shard.reward(each, KINDS[which]) for each in decided[-count:]))
    assert [each.value for each in made[0]] == [each.value for each in made[1]]
    assert mortal.decider.policy.state() == eternal.decider.policy.state()


def test_prices_and_decisions_are_reproduced_from_the_log() -> None:
    shard = shard_of()
    for round_ in range(30):
        if round_ % 10 == 4:
            shard.reprice((3.0, 0.5, 1.0)[round_ // 10])
        made = shard.ask(*(shard.context(**AIMS[(round_ + i) % 4]) for i in range(4)))
        shard.tell(*(shard.reward(each) for each in made[:3]))
    rows, after = load_replay(shard.policy(), shard.table)
    assert list(mismatches(shard.policy(), rows, 7, after)) == []
    logged = {r.query_id: decode(bytes(r.decision), Decision) for r in rows if isinstance(r, Row)}
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


def test_the_log_keeps_what_a_row_needs() -> None:
    shard = shard_of()
    first, second = shard.ask(shard.context(mean_cost=1e13), shard.context())
    row = decode_row(*first.row)
    assert isinstance(row, Row)
    assert len(row.vector()) == DIM
    assert (row.batch, row.paced) == (0, True)
    assert decode_row(*second.row).batch == 0  # type: ignore[union-attr]
    (pinned,) = shard.ask(shard.context(mean_cost=1e13, pin_action=row.action))
    assert decode_row(*pinned.row).paced is False  # type: ignore[union-attr]


def test_without_a_prior_directions_are_fitted_to_own_history() -> None:
    """What decides here lies in the embedding, where no count sees it."""
    found = {}
    for refits in ((100, 300), ()):
        policy, rng = contextual(refits=refits), np.random.default_rng(3)
        policy.offer(actions(MODELS[:1] + MODELS[2:]))
        objective, right = dataclasses.replace(PLAIN, shadow_price=4e-12), []
        for at in range(900):
            query = rng.normal(size=DIM) * 0.3
            hard = bool(query[5] + query[7] > 0)
            seen = Context(f"q{at}", query)
            chosen = (
                policy.features.ids[at % 6]
                if at < 60
                else choose(policy, [seen], [objective], 1)[0].action_id
            )
            large = chosen.startswith("large")
            correct = float(rng.random() < (0.9 if large or not hard else 0.1))
            log_cost = float(np.log(1e11 if large else 1e9))
            learn(policy, seen, chosen, (correct, log_cost), objective=objective, score=0.5)
            right.append(large == hard)
        found[refits] = np.mean(right[400:])
    assert found[100, 300] > found[()] + 0.1


@pytest.mark.parametrize("rank", [1, 5, 9, 10, 21])
@pytest.mark.parametrize("questions", [1, 2, 9, 10, 12])
def test_few_questions_or_directions_end_no_refit(questions: int, rank: int) -> None:
    rng = np.random.default_rng(3)
    settings = ContextualSettings(refits=(60,))
    policy = Contextual(ContextualFeatures(FeatureSettings(DIM, 4, query_rank=rank)), settings)
    policy.offer(actions())
    asked, transform = np.abs(rng.normal(size=(questions, DIM))), policy.features.transform
    for at in range(80):
        query, action = asked[at % questions], policy.features.ids[at % 9]
        terms = float(rng.random() < 0.5), 0.5, float(20.0 + at % 3)
        policy.learn([Observation(f"q{at}", query, action, *terms, 0.5, PLAIN)])
    assert policy.refits.at == ()
    assert (policy.features.transform is transform) == (questions < 10)
    assert policy.features.rank <= 1 + rank
    assert all(np.isfinite(each).all() for each in policy.features.transform.snapshot().values())


def questions(traffic: Traffic, count: int) -> list[Context]:
    return [Context(*traffic.question()[:2]) for _ in range(count)]


def test_cold_start_tries_each_models_cheapest_action_equally() -> None:
    policy = contextual()
    policy.offer(actions())
    scored = policy.predict(questions(Traffic(), 900), [PLAIN] * 900, 1)
    drawn = [each.action_ids[each.chosen] for each in scored]
    cheapest = {f"{model}/1/1/1" for model, _ in MODELS}
    assert set(drawn) == cheapest
    assert {each.reason for each in scored} <= {"policy", "warm-up"}
    for action in cheapest:
        assert drawn.count(action) / 900 == pytest.approx(1 / 3, abs=0.05)
    for each in scored:
        told = dict(zip(each.action_ids, each.probability, strict=True))
        assert sum(told.values()) == pytest.approx(1.0)
        assert told["small/1/1/1"] == pytest.approx(1 / 3)


def joined() -> tuple[Contextual, Traffic]:
    """Return a policy that has learned of three models and is offered a fourth, and its traffic."""
    policy, traffic = contextual(), Traffic()
    assert policy.untried({"small", "new"}) == set(), "nothing is known of any"
    policy.offer(actions())
    teach(policy, traffic, 90, in_turn=True)
    assert {each.reason for each in policy.predict(questions(traffic, 50), [PLAIN] * 50, 1)} == {"policy"}
    newcomers = policy.untried({"small", "new"})
    assert newcomers == {"new"}
    added = [ActionVector(f"new/{qp}/1/1", "new", np.ones(4), 3e7) for qp in (4, 1)]
    policy.offer([*actions(), *added], newcomers=newcomers)
    return policy, traffic


def tries(policy: Contextual, contexts: Sequence[Context]) -> bool:
    """Return whether some of the queries go to a model only in order to learn about it."""
    found = policy.predict(contexts, [PLAIN] * len(contexts), 1)
    return "warm-up" in {each.reason for each in found}


def test_new_model_is_tried_until_it_has_outcomes() -> None:
    policy, traffic = joined()
    contexts = questions(traffic, 1200)
    scored = policy.predict(contexts, [PLAIN] * 1200, 1)
    tried = [each.action_ids[each.chosen] == "new/1/1/1" for each in scored]
    told = [dict(zip(each.action_ids, each.probability, strict=True))["new/1/1/1"] for each in scored]
    assert all(each.probability.sum() == pytest.approx(1.0) for each in scored)
    assert min(told) == pytest.approx(0.25)
    assert np.mean(tried) == pytest.approx(np.mean(told), abs=0.04)
    assert all((each.reason == "warm-up") <= chosen for each, chosen in zip(scored, tried, strict=True))
    # A query that does not allow it never gets it, and one that allows nothing else always does.
    only = frozenset(f"{model}/1/1/1" for model, _ in MODELS)
    for allowed, expected in ((only, 0.0), (frozenset({"new/1/1/1"}), 1.0)):
        narrow = [Context(c.query_id, c.embedding, allowed) for c in contexts[:100]]
        found = policy.predict(narrow, [PLAIN] * 100, 1)
        assert np.mean([f.action_ids[f.chosen].startswith("new") for f in found]) == expected
    for at in range(2):
        learn(policy, questions(traffic, 1)[0], "new/1/1/1", (1.0, 24.0))
        assert tries(policy, contexts[:200]) == (at == 0)


def test_newcomer_gets_more_optimism_until_it_is_familiar() -> None:
    policy, traffic = joined()
    (context,) = questions(traffic, 1)

    def widths() -> dict[str, float]:
        (of,) = policy.predict([context], [PLAIN], 1)
        assert of.width is not None
        return dict(zip(of.action_ids, of.width.tolist(), strict=True))

    for at in range(FAMILIAR + 1):
        if at == FAMILIAR // 2:
            restored = contextual()
            restored.load(policy.state())
            policy = restored
        found, newcomers = widths(), policy.newcomers
        policy.newcomers = set()
        plain = widths()
        policy.newcomers = newcomers
        for action, width in found.items():
            factor = OPTIMISM if action.startswith("new/") and at < FAMILIAR else 1.0
            assert width == pytest.approx(factor * plain[action])
        learn(policy, questions(traffic, 1)[0], "new/1/1/1", (1.0, 24.0))


@pytest.mark.parametrize("factor", [40.0, 0.02])
def test_cost_of_a_newcomer_is_learned_though_guessed_wrong(factor: float) -> None:
    policy, traffic = joined()
    at = policy.features.index["new/1/1/1"]
    cost = policy.features.anchors[at] * factor
    for _ in range(60):
        learn(policy, questions(traffic, 1)[0], "new/1/1/1", (1.0, math.log(cost)))
    (context,) = questions(traffic, 1)
    (query,) = policy.features.queries([(context.query_id, context.embedding)])
    predicted = policy.estimates.predicted(policy.features.short(query, ()))[at, COST]
    assert cost / 1.5 < predicted < cost * 1.5


def test_a_good_model_that_joins_gets_its_share() -> None:
    """Nothing but its size says what the new one is: as right as the large model, at a hundredth of its cost."""
    policy, traffic, target = contextual(), Traffic(), Target("a", accuracy=0.95)
    policy.offer(actions())
    live(policy, 500, target=target, traffic=traffic)
    policy.offer([*actions(), ActionVector("new/1/1/1", "new", np.ones(4), 0.0)])
    chosen = []
    for _ in range(300):
        query_id, query, hard = traffic.question()
        asked = Context(query_id, query)
        action, objective = decide(policy, asked, target)
        correct, log_cost = traffic.outcome(action.replace("new", "large"), hard)
        if new := action.startswith("new"):
            log_cost = float(np.log(1e9))
        learn(policy, asked, action, (correct, log_cost), target=target, objective=objective)
        chosen.append(new)
    assert np.mean(chosen[150:]) > 0.5


def test_accuracy_is_relative_to_reachable_or_best_single() -> None:
    """Each model is right on its own half: what can be reached is far above what either reaches alone."""
    reached = {}
    for accuracy_of in ("reachable", "best"):
        policy, rng = contextual(accuracy_of=accuracy_of), np.random.default_rng(2)
        target = Target("a", accuracy=0.95)
        both = [ActionVector(f"{name}/1/1/1", name, np.ones(4), 0.0) for name in ("cheap", "dear")]
        policy.offer(both)
        right = []
        for at in range(900):
            query = rng.normal(size=DIM) * 0.1
            query[12:] = 1.0 + 2.0 * (side := bool(rng.random() < 0.5))
            asked = Context(f"q{at}", query)
            chosen, objective = decide(policy, asked, target)
            chosen = both[at % 2].action_id if at < 100 else chosen
            correct = float(rng.random() < (0.95 if side == chosen.startswith("dear") else 0.35))
            log_cost = float(np.log(1e11 if chosen.startswith("dear") else 1e9))
            under = target if at >= 100 else None
            learn(policy, asked, chosen, (correct, log_cost), target=under, objective=objective, score=0.5)
            right.append(correct)
        forecast = policy.pacer.forecast()
        assert forecast is not None
        single, every = (forecast.best_accuracy(reachable=each) for each in (False, True))
        assert single == pytest.approx(0.65, abs=0.1)
        assert single + 0.1 < every <= float(forecast.accuracy.max(axis=1).mean())
        reached[accuracy_of] = float(np.mean(right[400:]))
    assert reached["best"] == pytest.approx(0.65, abs=0.07)
    assert reached["reachable"] > reached["best"] + 0.1


def test_reachable_accuracy_less_doubt_never_below_best_single() -> None:
    accuracy = np.array([[0.2, 0.9], [0.8, 0.5]])
    for doubt, expected in ((0.0, 0.85), (0.1, 0.75), (0.5, 0.7)):
        forecast = Forecast(accuracy, np.ones((2, 2)), doubt)
        assert forecast.best_accuracy(reachable=True) == pytest.approx(expected)
        assert forecast.best_accuracy(reachable=False) == pytest.approx(0.7)


def test_shadow_price_for_full_accuracy_survives_rounding() -> None:
    rng = np.random.default_rng(0)
    for queries in range(10, 60):
        cost = np.stack([rng.uniform(1, 2, queries), rng.uniform(5, 9, queries)], axis=1)
        worse = rng.uniform(0.2, 0.5, queries)
        forecast = Forecast(np.stack([worse, worse + rng.uniform(0.2, 0.4, queries)], axis=1), cost)
        # Above this price, one query goes to the cheap action.
        largest = float((np.diff(forecast.accuracy, axis=1) / np.diff(cost, axis=1)).min())
        assert shadow_price_for_accuracy(forecast, 1.0, reachable=True) == pytest.approx(largest, rel=1e-5)


@pytest.mark.parametrize("refits", [(), (10, 30)])
def test_a_state_is_loaded_to_the_byte_and_goes_on_alike(refits: tuple[int, ...]) -> None:
    policy, traffic, target = contextual(refits=refits), Traffic(), Target("a", accuracy=0.9)
    policy.offer(actions())
    live(policy, 60, target=target, traffic=traffic, warm_up=20)
    other = contextual(refits=())
    other.load(policy.state())
    assert other.state() == policy.state()
    later = [Traffic(4), Traffic(4)]
    for each, questions in zip((policy, other), later, strict=True):
        each.offer([*actions(), ActionVector("new/1/1/1", "new", np.ones(4), NEW[1])])
        live(each, 300, target=target, traffic=questions)
    assert other.state() == policy.state()


@pytest.mark.parametrize("read", [False, True], ids=["estimated", "read"])
@pytest.mark.parametrize("first", [3, 1], ids=["searches", "one shape"])
def test_later_offers_change_nothing_learned_before(first: int, read: bool) -> None:
    """A log is read back with every action it ever offered there from the start: both must come to the same."""
    early, late, traffic = contextual(), contextual(), Traffic(6)
    known = [each for each in actions() if int(each.action_id.split("/")[1]) in (1, 4, 16)[:first]]
    ids = {each.action_id for each in known}
    added = [each for each in actions() if each.action_id not in ids]
    added += [ActionVector(f"new/{qp}/1/1", "new", np.ones(4), NEW[1]) for qp in (1, 4)]
    for policy in (early, late):
        policy.offer(known)
    early.offer([*known, *added])
    early.offer(known)
    for at in range(400):
        if at == 333:  # after a refit, before the next
            for policy in (early, late):
                policy.offer([*known, *added])
        query_id, query, hard = traffic.question()
        chosen = late.features.ids[int(traffic.rng.integers(len(late.features.ids)))]
        correct, log_cost = traffic.outcome(chosen, hard)
        seen = Observation(query_id, query, chosen, correct, correct, log_cost, correct, PLAIN)
        for policy in (late, early):
            if read:
                early.refits.results.update(late.refits.results)
            policy.decided([Pending(query_id, query, chosen)])
            policy.learn([seen])
        if at in (150, 332, 340, 399):
            one, other = (p.estimates.predicted(p.features.short(query)) for p in (early, late))
            assert one[: len(other)] == pytest.approx(other, rel=1e-8), at
    assert (early.refits.results == late.refits.results) is read


def outcomes(count: int) -> list[Observation]:
    """Return outcomes of actions in turn, each of a question of its own."""
    traffic, found, ids = Traffic(3), [], [action.action_id for action in actions()]
    for at in range(count):
        query_id, query, hard = traffic.question()
        correct, log_cost = traffic.outcome(ids[at % len(ids)], hard)
        terms = (correct, 0.8 * correct + 0.1, log_cost, correct, PLAIN)
        found.append(Observation(query_id, query, ids[at % len(ids)], *terms))
    return found


def learned(told: list[Observation], known: bytes = b"") -> Contextual:
    """Return a policy that has learned these outcomes, all anew after the fortieth, of which it may read a result."""
    policy = contextual(refits=(40,))
    policy.offer(actions())
    if known:
        policy.refits.results[40] = known
    policy.learn(told)
    return policy


def test_refit_result_of_another_history_is_recomputed() -> None:
    told = outcomes(41)
    whole = learned(told[:40]).refits.results[40]
    left = [each for each in told if each is not told[2]]
    anew, given = learned(left), learned(left, whole)
    assert given.refits.results == anew.refits.results != {40: whole}
    assert given.state() == anew.state()
    graded = [dataclasses.replace(told[2], correct=1.0 - told[2].entered), *left[:39]]
    for other in (graded, list(reversed(told[:40]))):
        assert learned(other, whole).refits.results != {40: whole}
    assert learned(told[:40], whole).refits.results == {40: whole}


def test_refit_result_without_a_digest_is_read() -> None:
    told = outcomes(40)
    policy = learned(told)
    meta, arrays = unpack(policy.refits.results[40], policy.name, policy.identity())
    del meta["history"]
    old = pack(policy.name, policy.identity(), meta, arrays)
    given = learned(told, old)
    assert given.refits.results == {40: old}
    assert given.state() == policy.state()


def test_the_targets_of_one_tenant_put_out_nobody_elses_accounts() -> None:
    pacer = Pacer(lambda window: None, reachable=True)
    ours = [
        Target("careful/accuracy=0.98", accuracy=0.98),
        Target("/accuracy=0.9", accuracy=0.9, tenant="shop"),
    ]
    for at, target in enumerate(ours):
        pacer.decided(target, f"q{at}", 1.0, 0.5)
    for at in range(3 * KEYS):
        own = Target(f"/mean_cost={at}.0", mean_cost=float(at + 1), tenant="evil")
        pacer.decided(own, f"evil{at}", 1.0, 0.5)
    assert len(pacer.accounts) == KEYS
    assert all(pacer.status(target) is not None for target in ours)
    other = Pacer(lambda window: None, reachable=True)
    other.restore(*pacer.snapshot())
    assert other.snapshot()[0] == pacer.snapshot()[0]


def test_open_decisions_of_an_account_share_it() -> None:
    """There may be 100,000 of them."""
    pacer = Pacer(lambda window: None, reachable=True)
    for at in range(2):
        target = Target("".join(["careful", "/accuracy=0.9"]), accuracy=0.9, tenant="".join(["sh", "op"]))
        pacer.decided(target, f"q{at}", 1.0, 0.5)
    other = Pacer(lambda window: None, reachable=True)
    other.restore(*pacer.snapshot())
    assert len({id(account) for each in (pacer, other) for account, _, _ in each.open.values()}) == 1


def test_account_of_an_earlier_release_restarts_calibration() -> None:
    """It counted scores that stood in for correctness."""
    policy, other, target = contextual(), contextual(), Target("a", accuracy=0.9)
    policy.offer(actions())
    policy.pacer.accounts[target.account_id] = BudgetAccount(
        decisions=9, spent=5.0, known=4, predicted=3.0, correct=1.0
    )
    meta, arrays = policy.saved()
    other.restored(meta, arrays)
    assert other.pacer.accounts == policy.pacer.accounts
    (account,) = meta["pacer"]["paces"]
    account[2]["rewarded"] = account[2].pop("known")
    other.restored(meta, arrays)
    assert other.pacer.accounts == {target.account_id: BudgetAccount(decisions=9, spent=5.0)}
