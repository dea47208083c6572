"""Cost at equal accuracy: on mixes and scales whose ratio is known."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from experiments.yardstick import Array, Points, Yardstick, area, hull, is_history, least_cost

SEEDS = st.integers(0, 10_000)


def arms_of(seed: int, arms: int = 6, questions: int = 80) -> Points:
    """Arms of rising accuracy and cost, on questions of differing difficulty."""
    rng = np.random.default_rng(seed)
    chance = np.clip(np.linspace(0.25, 0.9, arms)[:, None] + 0.2 * rng.normal(size=questions), 0, 1)
    cost = 3.0 ** np.arange(arms)[:, None] * np.exp(0.2 * rng.normal(size=(arms, questions)))
    return Points(chance, cost)


def best_of(points: Points) -> int:
    return int(points.accuracy.mean(axis=1).argmax())


def mix(points: Points, shares: Array) -> Points:
    """What a randomised mix of arms has on every question, in expectation."""
    return Points(shares @ points.accuracy, shares @ points.cost)


@given(SEEDS, st.floats(0.3, 0.9))
def test_the_hull_is_what_a_linear_programme_finds(seed: int, target: float) -> None:
    rng = np.random.default_rng(seed)
    accuracy, cost = rng.random(9), rng.random(9) + 0.1
    solved = linprog(
        cost, A_ub=-accuracy[None], b_ub=[-target], A_eq=np.ones((1, 9)), b_eq=[1.0], bounds=(0, 1)
    )
    (found,) = least_cost(hull(accuracy, cost), np.array([target]))
    assert np.isinf(found) if not solved.success else found == pytest.approx(solved.fun)


@given(SEEDS)
@settings(max_examples=25)
def test_the_fixed_arms_and_all_their_mixes_have_ratio_one(seed: int) -> None:
    arms = arms_of(seed)
    rng = np.random.default_rng(seed)
    yardstick = Yardstick(arms, best_of(arms), draws=50)
    judged = yardstick.judge(arms)
    assert judged["mean_cost_ratio"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    # Mixed at random and run over all questions, arms can only be dearer than the cheapest of their mixes.
    dearer = yardstick.judge(mix(arms, rng.dirichlet(np.ones(6), size=20)))
    for at in dearer["at"].values():
        assert at["cost_ratio"] is None or at["cost_ratio"]["mean"] >= 1 - 1e-9


def test_an_honest_mix_chosen_on_history_is_near_one() -> None:
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        history, live = arms_of(seed, questions=400), arms_of(seed + 1_000, questions=400)
        chosen = _corners(history)
        realised = Points((rng.random(live.accuracy.shape) < live.accuracy).astype(float), live.cost)
        yardstick = Yardstick(live, best_of(history), draws=0)
        judged = yardstick.judge(Points(realised.accuracy[chosen], realised.cost[chosen]))
        found += [np.log(judged["at"][share]["cost_ratio"]["mean"]) for share in ("0.9", "0.95")]
    assert np.mean(found) == pytest.approx(0.0, abs=0.05)


@given(SEEDS)
@settings(max_examples=25)
def test_nothing_is_cheaper_than_full_knowledge(seed: int) -> None:
    arms = arms_of(seed)
    rng = np.random.default_rng(seed)
    # Who knows every chance takes, at each price, what is best on that question.
    columns = np.arange(arms.accuracy.shape[1])
    prices = np.concatenate([[0.0], np.logspace(-6, 2, 400)])
    rows = [(arms.accuracy - price * arms.cost).argmax(axis=0) for price in prices]
    knowing = _points(arms, rows, columns)
    anyone = _points(arms, [rng.integers(6, size=len(columns)) for _ in range(20)], columns)
    yardstick = Yardstick(arms, best_of(arms), draws=0)
    for policy in (arms, anyone):
        assert (yardstick.ratios(knowing) <= yardstick.ratios(policy) + 1e-3).all()


@given(SEEDS, st.floats(1e-9, 1e15))
@settings(max_examples=25)
def test_the_unit_of_cost_does_not_matter(seed: int, unit: float) -> None:
    arms, rng = arms_of(seed), np.random.default_rng(seed)
    policy = mix(arms, rng.dirichlet(0.3 * np.ones(6), size=16))

    def judged(factor: float) -> dict[str, object]:
        scaled = Points(arms.accuracy, factor * arms.cost)
        found = Yardstick(scaled, best_of(arms), draws=20).judge(
            Points(policy.accuracy, factor * policy.cost)
        )
        return {
            "mean": found["mean_cost_ratio"] and found["mean_cost_ratio"]["mean"],
            "aiq": found["aiq"]["mean"],
            "unreached": len(found["unreached"]),
        }

    assert judged(unit) == pytest.approx(judged(1.0))


def test_unreached_targets_are_named_and_have_no_ratio() -> None:
    arms = arms_of(1)
    poor = Points(arms.accuracy[:3], arms.cost[:3])
    judged = Yardstick(arms, best_of(arms), draws=10).judge(poor)
    assert judged["mean_cost_ratio"] is None
    assert judged["unreached"] == ["0.9", "0.95", "0.98"]
    assert judged["at"]["0.98"]["cost_ratio"] is None
    assert judged["at"]["0.98"]["accuracy"] == pytest.approx(poor.accuracy.mean(axis=1).max())


def test_a_target_that_the_cheapest_arm_nearly_meets_is_dropped() -> None:
    accuracy = np.array([[0.90], [1.0]]) * np.ones((2, 50))
    arms = Points(accuracy, np.array([[1.0], [10.0]]) * np.ones((2, 50)))
    yardstick = Yardstick(arms, 1, draws=0)
    assert yardstick.shares == (0.95, 0.98)
    assert set(yardstick.judge(arms)["at"]) == {"0.95", "0.98", "1"}


def test_half_the_cost_at_equal_accuracy_is_a_ratio_of_half() -> None:
    arms = arms_of(4)
    judged = Yardstick(arms, best_of(arms), draws=30).judge(Points(arms.accuracy, arms.cost / 2))
    assert judged["mean_cost_ratio"] == pytest.approx({"mean": 0.5, "low": 0.5, "high": 0.5})


def test_the_area_is_the_mean_over_the_logarithm_of_the_cost() -> None:
    corners = (np.array([0.3, 0.6]), np.array([1.0, 4.0]))
    costs = np.exp(np.linspace(np.log(0.5), np.log(16.0), 200_001))
    below = np.interp(costs, [0.0, 1.0, 4.0], [0.0, 0.3, 0.6])
    assert area(corners, 0.5, 16.0) == pytest.approx(below.mean(), rel=1e-4)


def test_a_question_keeps_its_side() -> None:
    sides = [is_history(f"q{n}") for n in range(3_000)]
    assert sides == [is_history(f"q{n}") for n in range(3_000)]
    assert sum(sides) / 3_000 == pytest.approx(1 / 3, abs=0.03)


def test_orders_that_differ_are_spread() -> None:
    arms = arms_of(4)
    orders = [Points(arms.accuracy, arms.cost * factor) for factor in (0.5, 1.0, 2.0)]
    found = Yardstick(arms, best_of(arms), draws=0).judge(arms, orders)["over_orders"]
    assert (found["orders"], found["reached"]) == (3, 3)
    assert (found["low"], found["high"]) == pytest.approx((0.5, 2.0))


def test_an_order_that_reaches_nothing_counts_in_the_spread() -> None:
    arms = arms_of(4)
    orders = [arms, Points(arms.accuracy * 0.1, arms.cost)]
    found = Yardstick(arms, best_of(arms), draws=0).judge(arms, orders)["over_orders"]
    assert (found["reached"], found["low"], found["high"], found["std"]) == (
        1,
        pytest.approx(1.0),
        None,
        None,
    )


def test_the_spread_of_few_prices_is_part_of_the_interval() -> None:
    arms = arms_of(4)
    judge = Yardstick(arms, best_of(arms))
    row = judge.judge(arms)
    before = row["mean_cost_ratio"]["high"]
    rise = judge.over_prices(arms, row)
    assert rise is None
    assert row["mean_cost_ratio"]["high"] is None, "without its best arm it misses a target"
    twice = Points(np.repeat(arms.accuracy, 2, axis=0), np.repeat(arms.cost, 2, axis=0))
    row = judge.judge(twice)
    assert judge.over_prices(twice, row) == pytest.approx(0.0)
    assert row["mean_cost_ratio"]["high"] == pytest.approx(before)


def test_orders_are_drawn_with_the_questions() -> None:
    arms = arms_of(4)
    judge = Yardstick(arms, best_of(arms), draws=200)
    dearer, cheaper = (Points(arms.accuracy, factor * arms.cost) for factor in (1.3, 0.7))
    averaged = judge.against([Points(arms.accuracy, (dearer.cost + cheaper.cost) / 2)], [arms])["cost_ratio"]
    assert averaged == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0})
    over_orders = judge.against([dearer, cheaper], [arms, arms])["cost_ratio"]
    assert over_orders == pytest.approx({"mean": 1.0, "low": 0.7, "high": 1.3})


def test_the_spread_of_few_prices_is_part_of_a_comparison() -> None:
    arms = arms_of(4)
    judge = Yardstick(arms, best_of(arms), draws=200)
    twice = Points(np.repeat(arms.accuracy, 2, axis=0), np.repeat(arms.cost, 2, axis=0))
    dearer = Points(twice.accuracy, 1.2 * twice.cost)
    found = judge.against([dearer], [twice])
    before = dict(found["cost_ratio"])
    judge.over_prices_against(dearer, twice, found)
    assert found["without_one_price"] == pytest.approx({"low": 1.2, "high": 1.2})
    assert found["cost_ratio"] == pytest.approx(before)
    # The comparison rests on one price at which the other is cheaper.
    cheaper = Points(twice.accuracy, twice.cost * np.array([1.0] * 11 + [0.8])[:, None])
    found = judge.against([dearer], [cheaper])
    before = dict(found["cost_ratio"])
    judge.over_prices_against(dearer, cheaper, found)
    assert found["without_one_price"]["low"] == pytest.approx(1.2)
    assert found["cost_ratio"]["low"] == pytest.approx(before["low"] * 1.2 / before["mean"])
    assert found["cost_ratio"]["high"] == pytest.approx(before["high"])
    alone = judge.against([arms], [twice])
    judge.over_prices_against(arms, twice, alone)
    assert "without_one_price" not in alone, "not the same number of prices"
    behind = judge.against([arms], [arms.of([0, 1, 2])])
    judge.over_prices_against(arms.of([3, 4, 5]), arms.of([0, 1, 2]), behind)
    assert behind["cost_ratio"]["mean"] == 0.0, "only the other misses a target"
    assert "without_one_price" not in behind


def _corners(points: Points) -> list[int]:
    means = points.accuracy.mean(axis=1), points.cost.mean(axis=1)
    corners = set(hull(*means)[1].tolist())
    return [i for i, cost in enumerate(means[1]) if float(cost) in corners]


def _points(arms: Points, rows: Sequence[np.ndarray], columns: np.ndarray) -> Points:
    return Points(
        np.array([arms.accuracy[row, columns] for row in rows]),
        np.array([arms.cost[row, columns] for row in rows]),
    )


def test_who_pays_a_fifth_more_for_the_same_is_shown_to() -> None:
    arms = arms_of(4, questions=300)
    yardstick = Yardstick(arms, best_of(arms), draws=200)
    dearer = Points(arms.accuracy, 1.2 * arms.cost)
    found = yardstick.against([dearer], [arms])
    assert found["cost_ratio"]["mean"] == pytest.approx(1.2)
    assert found["p_worse"] == pytest.approx(1 / 201)
    assert found["p_better"] == 1
    assert yardstick.against([arms], [arms])["p_worse"] == 1
    # Who misses every target alone is behind, by no number.
    short = arms.of([0, 1])
    assert yardstick.against([short], [arms])["cost_ratio"] is None
    assert yardstick.against([short], [arms])["p_worse"] == pytest.approx(1 / 201)
    assert yardstick.against([short], [short])["cost_ratio"]["mean"] == 1
