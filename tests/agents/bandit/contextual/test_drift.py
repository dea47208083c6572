"""Models that come to cost something else or to be wrong: noticed from outcomes alone, kept across a restart."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agents.bandit.contextual import CORRECT, COST, Contextual
from agents.bandit.drift import LEAST, AccuracyDrift, CostDrift
from agents.bandit.policy import ActionVector, Context, Observation, Pending, Target
from tests.support.traffic import PLAIN, Traffic, actions, contextual, decide, learn, single, teach

TARGET = Target("a", accuracy=0.9)


def test_cost_drift_of_one_model_changes_its_factor_alone() -> None:
    policy, traffic = contextual(), Traffic(7)
    policy.offer(actions())
    learn_paced(policy, traffic, 1_000)
    assert (policy.estimates.factors == 1.0).all()
    z = policy.features.short(traffic.question()[1])
    before = policy.estimates.predicted(z)[:, COST]
    learn_paced(policy, traffic, 120, longer=4.0)
    middle = np.array([action.startswith("middle") for action in policy.features.ids])
    ratio = policy.estimates.predicted(z)[:, COST] / before
    assert np.median(ratio[middle]) > 2.5
    assert (policy.estimates.factors[~middle] == 1.0).all()
    [(model, drift)] = policy.drifted().items()
    assert (model, drift.accuracy_seq) == ("middle", None)
    assert drift.cost == policy.estimates.factors[middle][0] > 2.0
    # A price is told, not noticed: it multiplies on top.
    drifted = policy.estimates.factors.copy()
    policy.offer(actions(), {"middle": 3.0})
    assert np.allclose(policy.estimates.factors, np.where(middle, 3.0 * drifted, drifted))
    assert policy.drifted() == {"middle": drift}


def test_what_was_noticed_survives_a_restart() -> None:
    policy, other, traffic = contextual(), contextual(), Traffic(8)
    policy.offer(actions())
    learn_paced(policy, traffic, 1_000)
    learn_paced(policy, traffic, 60, longer=4.0)
    other.load(policy.state())
    assert (other.estimates.factors != 1.0).any()
    assert np.array_equal(other.estimates.factors, policy.estimates.factors)
    for each in (policy, other):
        learn_paced(each, Traffic(9), 60)
    assert other.state() == policy.state()


def test_a_regression_that_knows_little_is_not_corrected() -> None:
    policy, traffic = contextual(), Traffic(10)
    policy.offer(actions())
    learn_paced(policy, traffic, 100)
    learn_paced(policy, traffic, 100, longer=4.0)
    assert (policy.estimates.factors == 1.0).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_few_surprises_or_small_ones_change_nothing(sign: float) -> None:
    few, small = CostDrift(), CostDrift()
    assert not few.learn("m", sign * math.log(3))
    assert few.factor("m") == 1.0
    assert not any([small.learn("m", sign * 0.9 * LEAST) for _ in range(500)])
    assert small.factor("m") == 1.0


def test_a_model_that_is_itself_again_has_no_factor() -> None:
    drift = CostDrift()
    for _ in range(50):
        drift.learn("m", -math.log(3))
    assert drift.factor("m") == pytest.approx(1 / 2.4, rel=0.05)
    assert any([drift.learn("m", 0.0) for _ in range(50)])
    assert drift.factor("m") == 1.0


def told_later(
    policy: Contextual,
    traffic: Traffic,
    rounds: int,
    score: float,
    *,
    after: int = 50,
    share: float = 1.0,
    worse: bool = False,
) -> None:
    """Learn outcomes; the correctness of a share of them is told later, and all have the same score until then."""
    waiting: list[Observation] = []
    for _ in range(rounds):
        query_id, query, hard = traffic.question()
        action = policy.features.ids[int(traffic.rng.integers(len(policy.features.ids)))]
        correct, log_cost = traffic.outcome(action, hard)
        correct = 0.0 if worse and action.startswith("middle") else correct
        seq = policy.version
        made = Observation(
            query_id, query, action, None, score, log_cost, score, PLAIN, seq=seq, learned_seq=seq
        )
        policy.learn([made])
        if traffic.rng.random() < share:
            waiting.append(replace(made, correct=correct, kind="correction"))
        if len(waiting) > after:
            tell(policy, waiting.pop(0))
    for late in waiting:
        tell(policy, late)


def tell(policy: Contextual, late: Observation) -> None:
    policy.learn([replace(late, seq=policy.version)])


def predicted(policy: Contextual, model: str) -> np.ndarray:
    """Return the accuracies that are predicted of a model."""
    traffic = Traffic(99)
    rows = [
        policy.estimates.predicted(policy.features.short(traffic.question()[1]))[:, CORRECT]
        for _ in range(50)
    ]
    return np.array(rows)[:, [action.startswith(model) for action in policy.features.ids]]


def test_scores_are_distrusted_once_the_catalogue_is_mixed() -> None:
    """A verifier thought the middle model bad. References now teach how good it is, and faster than otherwise."""
    policies = [contextual(refits=()) for _ in range(2)]
    for policy in policies:
        policy.offer(actions())
        told_later(policy, Traffic(11), 600, 0.1, share=0.0)
    kept, loosened = policies
    before = predicted(loosened, "middle").mean()
    loosened.distrust_scores(loosened.version)
    assert predicted(loosened, "middle").mean() == pytest.approx(before), "predictions stay what they were"
    state = loosened.state()
    loosened.distrust_scores(loosened.version)
    assert loosened.state() == state, "once"
    restarted = contextual(refits=())
    restarted.load(state)
    restarted.distrust_scores(loosened.version)
    assert restarted.state() == state
    for policy in policies:
        teach(policy, Traffic(12), 60)
    slow, fast = (predicted(policy, "middle").mean() for policy in (kept, loosened))
    assert before < slow < fast < 0.9
    assert fast - before > 1.5 * (slow - before)
    assert loosened.drifted() == kept.drifted() == {}, "the models have not changed"


def test_correctness_told_after_distrust_is_learned_again() -> None:
    policies = [contextual(refits=()) for _ in range(2)]
    for policy in policies:
        policy.offer(actions())
        told_later(policy, Traffic(11), 600, 0.1, share=0.0)
    amended, again = policies
    again.distrust_scores(again.version)
    outcomes = [each.estimates.right.outcomes for each in policies]
    for policy in policies:
        query_id, query, _ = Traffic(11).question()
        action = policy.features.ids[0]
        late = Observation(query_id, query, action, 1.0, 0.1, 1.0, 0.1, PLAIN, seq=600, learned_seq=0)
        tell(policy, replace(late, kind="correction"))
    assert [each.estimates.right.outcomes for each in policies] == [outcomes[0], outcomes[1] + 1]
    assert again.estimates.accuracy.changed == amended.estimates.accuracy.changed == {}


@pytest.mark.parametrize("score", [0.1, 0.9])
@pytest.mark.parametrize(("after", "share"), [(50, 1.0), (400, 1.0), (50, 0.1)])
@pytest.mark.parametrize("known", [0, 1_000])
def test_scores_that_are_not_calibrated_are_no_drift(
    score: float, after: int, share: float, known: int
) -> None:
    """What stands in for Correct was compared with what is predicted: accuracies of seven came of it."""
    policy, traffic = contextual(refits=()), Traffic(11)
    policy.offer(actions())
    learn_paced(policy, traffic, known)
    policy.estimates.accuracy = AccuracyDrift()
    told_later(policy, traffic, 600, score, after=after, share=share)
    assert policy.estimates.accuracy.changed == {}
    assert -0.1 < predicted(policy, "").min() < predicted(policy, "").max() < 1.1


def test_accuracy_drift_by_late_feedback_is_relearned() -> None:
    policy, other, traffic = contextual(refits=()), contextual(refits=()), Traffic(12)
    policy.offer(actions())
    learn_paced(policy, traffic, 1_000)
    policy.estimates.accuracy = AccuracyDrift()
    before = predicted(policy, "middle").mean()
    told_later(policy, traffic, 200, 0.5, worse=True)
    assert list(policy.estimates.accuracy.changed) == ["middle"]
    assert predicted(policy, "middle").mean() < before - 0.2
    assert -0.2 < predicted(policy, "").min() < predicted(policy, "").max() < 1.2
    other.load(policy.state())
    query_id, query, _ = traffic.question()
    for action, again in (("middle/1/1/1", 1), ("small/1/1/1", 0)):
        late = Observation(query_id, query, action, 1.0, 0.5, 15.0, 0.5, PLAIN, seq=9_999, kind="correction")
        for each in (policy, other):
            rows = each.estimates.right.ridge.rows
            each.learn([late])
            assert each.estimates.right.ridge.rows == rows + again
    assert other.state() == policy.state()


def test_feedback_after_a_refit_replaces_imputed_scores() -> None:
    found = []
    for score in (0.1, 0.9):
        policy, traffic = contextual(refits=(400,)), Traffic(13)
        policy.offer(actions())
        told_later(policy, traffic, 400, score, after=400)
        found.append(predicted(policy, ""))
    assert np.abs(found[0] - found[1]).max() < 0.05


def learn_paced(policy: Contextual, traffic: Traffic, rounds: int, longer: float = 1.0) -> None:
    teach(policy, traffic, rounds, target=TARGET, longer=longer)


def cut_short(policy: Contextual, traffic: Traffic, rounds: int) -> None:
    """Learn the cost alone of searches that their clients cut after a tenth."""
    for _ in range(rounds):
        query_id, query, hard = traffic.question()
        chosen = policy.features.ids[int(traffic.rng.integers(len(policy.features.ids)))]
        log_cost = traffic.outcome(chosen, hard)[1] + math.log(0.1)
        policy.decided([Pending(query_id, query, chosen, TARGET)])
        outcome = Observation(query_id, query, chosen, None, 0.5, log_cost, 0.5, PLAIN)
        policy.learn([replace(outcome, kind="cost")])


def test_cost_only_outcome_leaves_correctness_and_width() -> None:
    policy, traffic = contextual(), Traffic(7)
    policy.offer(actions())
    learn_paced(policy, traffic, 300)
    z = policy.features.short(traffic.question()[1])
    before, version, account = policy.estimates.predicted(z), policy.version, policy.pacer.status(TARGET)
    width = policy.estimates.right.widths(z, policy.features.sides)
    cut_short(policy, traffic, 300)
    after = policy.estimates.predicted(z)
    assert np.array_equal(after[:, [0, 1, 3]], before[:, [0, 1, 3]])
    assert np.array_equal(policy.estimates.right.widths(z, policy.features.sides), width)
    # Half of the outcomes cost a tenth: the mean of the logarithm falls by half of ln 10.
    assert np.median(after[:, COST] / before[:, COST]) == pytest.approx(10**-0.5, abs=0.06)
    assert policy.version == version
    paid = policy.pacer.status(TARGET)
    assert account is not None
    assert paid is not None
    assert (paid.correct, paid.predicted) == (account.correct, account.predicted)
    assert paid.mean_cost < 0.8 * account.mean_cost


def test_costs_learned_alone_survive_a_restart_and_new_actions() -> None:
    policy, other = contextual(), contextual()
    policy.offer(actions())
    learn_paced(policy, Traffic(8), 100)
    cut_short(policy, Traffic(9), 20)
    other.load(policy.state())
    for each in (policy, other):
        learn_paced(each, Traffic(10), 30)
        each.offer([*actions(), ActionVector("large/8/4/2", "large", np.ones(4), 1e8)])
        cut_short(each, Traffic(11), 10)
        learn_paced(each, Traffic(12), 30)
    assert policy.state() == other.state()


def serve(policy: Contextual, rounds: int, broken: str = "", seed: int = 0) -> list[str]:
    """Let a policy choose among four models that differ in price alone; one may be broken. Return its choices."""
    rng, chosen = np.random.default_rng(seed), []
    for at in range(rounds):
        asked = Context(f"s{seed}-{at}", single(rng.normal(size=21) * 0.1))
        action, objective = decide(policy, asked, TARGET)
        model = action.split("/")[0]
        correct = float(rng.random() < (0.15 if model == broken else 0.85))
        learn(
            policy, asked, action, (correct, math.log(1e9 * FLEET[model])), target=TARGET, objective=objective
        )
        chosen.append(model)
    return chosen


FLEET = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}


def fleet() -> Contextual:
    policy = contextual()
    policy.offer([ActionVector(f"{name}/1/1/1", name, np.ones(4), 0.0) for name in FLEET])
    return policy


def test_degraded_model_loses_its_share_within_250_outcomes() -> None:
    policy = fleet()
    before = serve(policy, 1000)
    assert before[500:].count("a") > 350
    after = serve(policy, 350, broken="a", seed=1)
    share = before[500:].count("a") / 500
    assert after[250:].count("a") / 100 < share / 2


def test_a_fall_that_was_noticed_is_kept_across_a_restart() -> None:
    policy, other = fleet(), fleet()
    serve(policy, 300)
    serve(policy, 13, broken="a", seed=1)
    other.load(policy.state())
    assert other.estimates.accuracy.sums == policy.estimates.accuracy.sums != {}
    for each in (policy, other):
        serve(each, 40, broken="a", seed=2)
    assert other.state() == policy.state()


def test_a_model_as_right_as_predicted_is_hardly_ever_suspected() -> None:
    rng, drift = np.random.default_rng(0), AccuracyDrift()
    for chance in (0.0, 0.1, 0.5, 0.9, 1.0):
        found = sum(drift.learn("m", float(rng.random() < chance), chance) for _ in range(4000))
        assert found <= 6, chance


@pytest.mark.parametrize(("before", "now"), [(0.8, 0.3), (0.2, 0.8)])
def test_a_model_that_is_not_what_was_learned_is_suspected_soon(before: float, now: float) -> None:
    """Worse or better, within 60 outcomes; another model is not touched."""
    rng, took = np.random.default_rng(1), []
    for _ in range(50):
        drift = AccuracyDrift()
        took.append(next(n for n in range(1000) if drift.learn("m", float(rng.random() < now), before)))
        assert "other" not in drift.sums
    assert np.median(took) < 60


def test_suspicion_widens_the_model_and_leaves_the_prediction() -> None:
    policy = fleet()
    serve(policy, 400)
    z, on = policy.features.short(np.zeros(21)), policy.features
    before, width = policy.estimates.predicted(z), policy.estimates.right.widths(z, on.sides)
    policy.estimates.right.loosen(on.names.index("model a") * on.rank, 0.09)
    after = policy.estimates.right.widths(z, on.sides)
    assert policy.estimates.predicted(z) == pytest.approx(before)
    assert after[0] == pytest.approx(math.sqrt(width[0] ** 2 + 0.09))
    assert after[1:] == pytest.approx(width[1:])


def fail(policy: Contextual, traffic: Traffic, model: str, paid: float | None = None) -> None:
    """Learn that a model gave no text."""
    query_id, query, _ = traffic.question()
    chosen, query_id = f"{model}/1/1/1", f"failed {query_id}"
    policy.decided([Pending(query_id, query, chosen, TARGET)])
    outcome = Observation(query_id, query, chosen, 0.0, 0.0, 25.0, 0.0, PLAIN, kind="failure", paid=paid)
    policy.learn([outcome])


def test_failure_lowers_correctness_and_leaves_costs() -> None:
    policy, traffic = contextual(refits=()), Traffic(7)
    policy.offer(actions())
    learn_paced(policy, traffic, 300)
    z = policy.features.short(traffic.question()[1])
    before, tried, account = (
        policy.estimates.predicted(z),
        policy.estimates.tried["large"],
        account_of(policy),
    )
    for _ in range(30):
        fail(policy, traffic, "large", paid=2.0)
    after, at = policy.estimates.predicted(z), policy.features.models.index("large")
    assert np.array_equal(after[:, COST], before[:, COST])
    assert after[at, 0] < before[at, 0] - 0.4, "what fails is soon known to"
    assert policy.estimates.tried["large"] == tried + 30
    assert policy.estimates.costs.sums == {}
    now = account_of(policy)
    assert (now.told, now.paid) == (account.told, account.paid), "nor is it a sign that searches became cheap"
    assert now.spent == pytest.approx(account.spent + 60.0), "but its account pays"
    assert now.known == account.known + 30


def account_of(policy: Contextual) -> Any:
    return copy.copy(policy.pacer.accounts[TARGET.account_id])


def test_refit_learns_correctness_but_no_cost_from_failures() -> None:
    """The anchors are those of a history without the failures."""
    found = {}
    for failures in (0, 15):
        policy, traffic = contextual(refits=(60 + failures,)), Traffic(7)
        policy.offer(actions())
        teach(policy, traffic, 30, in_turn=True)
        failing = Traffic(3)
        for _ in range(failures):
            fail(policy, failing, "large")
        teach(policy, traffic, 30, in_turn=True)
        assert policy.refits.at == (), "it has learned anew"
        found[failures] = policy
    plain, some = found[0], found[15]
    assert np.array_equal(some.features.anchors, plain.features.anchors)
    assert (some.estimates.right.outcomes, some.estimates.paid.outcomes) == (75.0, 60.0)
    assert some.estimates.tried["large"] == plain.estimates.tried["large"] + 15


def test_policy_with_only_failures_survives_a_restart() -> None:
    policy, traffic = contextual(), Traffic(7)
    policy.offer(actions())
    for _ in range(25):
        fail(policy, traffic, "small")
    assert policy.version == 25
    fresh = contextual()
    fresh.offer(actions())
    fresh.load(policy.state())
    for each in (policy, fresh):
        teach(each, Traffic(9), 60)
    assert fresh.state() == policy.state()
