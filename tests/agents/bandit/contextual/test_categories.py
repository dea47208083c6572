"""Categories of requests in the contextual policy: their columns, their variances, what gives way, and states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agents.bandit import contextual_features
from agents.bandit.contextual import Contextual
from agents.bandit.contextual_features import MARGIN
from agents.bandit.features import counts
from agents.bandit.history import History
from agents.bandit.learner import choose
from agents.bandit.policy import ActionVector, Context, Observation, Pending
from agents.bandit.prior import begin, teach
from agents.bandit.variances import FLAT
from tests.support.traffic import DIM, PLAIN, actions, contextual, single

ONE = (("left", 1e6), ("right", 1e6))
EQUAL_COST = 14.0


def two_models() -> list[ActionVector]:
    return [ActionVector(f"{name}/1/1/1", name, np.eye(1, 4)[0], size) for name, size in ONE]


class Applications:
    """Two applications whose requests are worded alike; each has a model that is good at it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def ask(self, policy: Contextual, at: int, *, named: bool) -> bool:
        """Let the policy decide and learn a request; return whether its application's own model got it."""
        application = int(self.rng.integers(2))
        text = counts(f"Please see to order {self.rng.integers(100, 999)}.")
        query = single(np.concatenate([self.rng.normal(size=DIM - 9) * 0.3, text]))
        shown = (f"route={'ab'[application]}",) if named else ()
        asked = Context(f"q{at}", query, categories=shown)
        chosen = choose(policy, [asked], [PLAIN], 1)[0].action_id
        own = chosen.startswith(ONE[application][0])
        correct = float(self.rng.random() < (0.9 if own else 0.4))
        policy.decided([Pending(f"q{at}", query, chosen, categories=shown)])
        terms = (correct, correct, EQUAL_COST, correct, PLAIN)
        policy.learn([Observation(f"q{at}", query, chosen, *terms, categories=shown)])
        return own


@pytest.mark.seconds
def test_each_of_two_applications_gets_its_own_model() -> None:
    shares = {}
    for named in (True, False):
        policy, world = contextual(), Applications(2)
        policy.offer(two_models())
        shares[named] = np.mean([world.ask(policy, at, named=named) for at in range(800)][600:])
    assert shares[True] >= 0.8, "with the key named"
    assert shares[False] < 0.65, "what is not shown cannot be learned"


def lived(
    rounds: int = 60, categories: int = 3, known: Mapping[int, bytes] | None = None, **settings: Any
) -> Contextual:
    """Return a policy that has learned of requests with two categories each, of two keys."""
    policy, rng = contextual(**settings), np.random.default_rng(0)
    policy.refits.results.update(known or {})
    policy.offer(actions())
    for at in range(rounds):
        query = single(rng.normal(size=DIM) * 0.3)
        shown = (f"route={rng.integers(categories)}", f"task={rng.integers(2)}")
        action = policy.features.ids[int(rng.integers(9))]
        policy.decided([Pending(f"q{at}", query, action, categories=shown)])
        correct = float(rng.random() < 0.5)
        terms = (correct, 0.5, EQUAL_COST + rng.normal(), correct, PLAIN)
        policy.learn([Observation(f"q{at}", query, action, *terms, categories=shown)])
    return policy


def test_same_text_of_two_applications_keeps_its_categories() -> None:
    policy, rng = contextual(), np.random.default_rng(3)
    policy.offer(two_models())
    # Each text with each category would be more questions than a query has coordinates, and directions would be fitted.
    texts = np.array([single(each) for each in rng.normal(size=(DIM // 2 + 1, DIM))])
    rows = 20 * len(texts)
    asked, good = rng.integers(2 * len(texts), size=rows), rng.random(rows) < 0.6
    action = np.where(good, asked % 2, 1 - asked % 2)
    correct = (rng.random(rows) < np.where(good, 0.9, 0.1)).astype(float)
    shown = [(f"route={'ab'[at % 2]}",) for at in range(2 * len(texts))]
    history = History(
        np.repeat(texts, 2, axis=0), asked, action, correct, correct, np.full(rows, EQUAL_COST), np.ones(rows),
        categories=shown,
    )  # fmt: skip
    for category in ("route=a", "route=b"):
        policy.decided([Pending("q", texts[0], "left/1/1/1", categories=(category,))])
    policy.relearn(history)
    assert policy.estimates.right.variances["model × category"] > 0.02
    for place, (category, (own, _)) in enumerate(zip(("route=a", "route=b"), ONE, strict=True)):
        told = policy.estimates.right.predicted(policy.features.short(texts[1], (category,)))[:, 0]
        assert policy.features.models[int(told.argmax())] == own
        assert told[place] > 0.7 > 0.3 > told[1 - place]


def test_products_with_categories_equal_those_of_x() -> None:
    policy = lived()
    on, right = policy.features, policy.estimates.right
    z = on.short(single(np.full(DIM, 0.3)), ("route=1", "task=0", "task=unknown"))
    x = on.rows(np.repeat(z[None], len(on.ids), axis=0), np.arange(len(on.ids)))
    assert x.shape[1] == on.dim == len(on.column_blocks) == len(on.columns) == right.ridge.dim
    crossed = [name for name, part in on.columns if part == "route=1"]
    assert set(crossed) == {name for name in on.names if not name.startswith("shape")}
    predicted = right.centre + x @ right.theta
    assert right.predicted(z) == pytest.approx(predicted)
    assert on.predict(z[None], right.theta[:, 0], on.sides)[0] == pytest.approx(
        predicted[:, 0] - right.centre[0]
    )
    half = right.ridge.half
    inverse = half + np.tril(half, -1).T
    wanted = np.sqrt(right.noise * np.einsum("nd,de,ne->n", x, inverse, x))
    assert right.widths(z, on.sides) == pytest.approx(wanted)


def test_a_category_enters_at_zero_and_leaves_no_trace() -> None:
    policy = lived()
    before = policy.estimates.right
    theta, columns = before.theta.copy(), policy.features.columns
    query = single(np.full(DIM, 0.1))
    policy.decided([Pending("new", query, policy.features.ids[0], categories=("route=late",))])
    kept = [policy.features.columns.index(each) for each in columns]
    assert (before.theta[kept] == theta).all()
    entered = [at for at, (_, part) in enumerate(policy.features.columns) if part == "route=late"]
    assert (before.theta[entered] == 0.0).all()
    plain = policy.estimates.predicted(policy.features.short(query))
    assert (policy.estimates.predicted(policy.features.short(query, ("route=late",))) == plain).all()


def test_a_dropped_category_is_as_if_it_had_never_been() -> None:
    whole, without = lived(9), lived(9)
    for policy in (whole, without):
        policy.features.categories = [c for c in policy.features.categories if c != "task=1"]
        policy.estimates.arrange()
    rng, other = np.random.default_rng(0), contextual()
    other.offer(actions())
    for at in range(9):
        query = single(rng.normal(size=DIM) * 0.3)
        shown = (f"route={rng.integers(3)}", f"task={rng.integers(2)}")
        action, kept = other.features.ids[int(rng.integers(9))], tuple(c for c in shown if c != "task=1")
        other.decided([Pending(f"q{at}", query, action, categories=kept)])
        correct = float(rng.random() < 0.5)
        terms = (correct, 0.5, EQUAL_COST + rng.normal(), correct, PLAIN)
        other.learn([Observation(f"q{at}", query, action, *terms, categories=kept)])
    z = single(rng.normal(size=DIM))
    mine, theirs = (p.estimates.predicted(p.features.short(z, ("route=1", "task=0"))) for p in (whole, other))
    assert mine == pytest.approx(theirs, rel=1e-9)


def test_those_with_the_fewest_outcomes_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = contextual()
    policy.offer(actions())
    on, plain = policy.features, policy.features.dim
    crossed = len(on.crossed)
    monkeypatch.setattr(contextual_features, "MOST_WITH_CATEGORIES", plain + 2 * crossed + crossed // 2)
    assert on.room_for_categories() == 2
    assert on.enter(("route=a", "route=b", "route=c"))
    assert (on.categories, on.left_out) == (["route=a", "route=b"], ["route=c"])
    on.count(["route=a"], 20)
    on.count(["route=b"], 5)
    on.count(["route=c"], MARGIN[0] * 5 + MARGIN[1])
    assert not on.enter(("route=c",)), "it has to have clearly more"
    on.count(["route=c"])
    assert on.enter(("route=c",))
    assert (on.categories, list(policy.left_out())) == (["route=a", "route=c"], ["route=b"])
    monkeypatch.setattr(contextual_features, "MOST_WITH_CATEGORIES", plain + crossed)
    assert on.enter(())
    assert on.categories == ["route=c"]


def test_counts_of_outcomes_fade_and_forget_what_is_gone() -> None:
    on = contextual().features
    on.categories = ["route=a"]
    on.count(["route=gone"])
    on.count(["route=a"], 4094)
    assert on.outcomes == {"route=gone": 1, "route=a": 4094}
    on.count(["route=a"])
    assert on.outcomes == {"route=a": 2047}


@pytest.mark.parametrize("rounds", [7, 60])
def test_a_state_with_categories_is_loaded_to_the_byte(rounds: int) -> None:
    policy, other = lived(rounds), contextual()
    other.load(policy.state())
    assert other.state() == policy.state()
    assert other.features.categories == policy.features.categories != []


def test_a_policy_without_categories_has_the_state_it_had() -> None:
    policy = contextual()
    policy.offer(actions())
    assert b"categor" not in policy.state()


def table(categories: int, *, true: float, questions: int = 120, seed: int = 3) -> History:
    """Return a history in which each category changes every model's accuracy by up to `true`, or means nothing."""
    rng = np.random.default_rng(seed)
    queries = np.array([single(rng.normal(size=DIM) * 0.3) for _ in range(questions)])
    own = rng.integers(categories, size=questions)
    effect = rng.choice([-true, true], size=(categories, 2))
    question, action = np.repeat(np.arange(questions), 2), np.tile([0, 1], questions)
    right = (rng.random(2 * questions) < 0.5 + effect[own[question], action]).astype(float)
    costs = EQUAL_COST + 0.1 * rng.normal(size=2 * questions)
    ones = np.ones(2 * questions)
    shown = [(f"task={each}",) for each in own]
    return History(queries, question, action, right, right, costs, ones, categories=shown)


def taught(history: History) -> Contextual:
    policy = contextual()
    policy.offer(two_models())
    teach(policy, history)
    return policy


def test_what_predicts_no_held_out_question_has_no_variance() -> None:
    useful, random, few = (
        taught(each).estimates.right.variances
        for each in (table(4, true=0.4), table(4, true=0.0), table(2, true=0.4, questions=4))
    )
    assert useful["model × category"] > 0.05
    for found in (random, few):
        assert {found["one × category"], found["model × category"]} == {FLAT}


def test_what_means_nothing_leaves_a_prior_of_the_text_alone() -> None:
    history = table(4, true=0.0)
    # Each text twice, mostly in two categories, so that both would be held out together.
    history = replace(history, queries=np.repeat(history.queries[::2], 2, axis=0))
    shown, alone = (taught(each) for each in (history, replace(history, categories=())))
    assert shown.features.categories
    assert shown.features.transform.learned
    for query in history.queries[::20]:
        z = alone.features.short(query)
        assert np.array_equal(shown.features.short(query)[: len(z)], z)
        found = shown.estimates.predicted(shown.features.short(query))
        assert found == pytest.approx(alone.estimates.predicted(z), rel=1e-3)


def test_explain_names_the_category_of_a_choice() -> None:
    policy = taught(table(4, true=0.4))
    query = single(np.full(DIM, 0.1))
    parts = policy.explain(Context("q", query, categories=("task=2",)), policy.features.ids[0])
    named = {each.part: each.mean for each in parts}
    assert {part for part in named if "task" in part} == {"one × task=2", "model × task=2"}
    assert abs(named["model × task=2"]) > 0.1
    z = policy.features.short(query, ("task=2",))
    assert sum(named.values()) == pytest.approx(policy.estimates.predicted(z)[0, 0])


def test_a_prior_without_categories_fits_and_learns_them() -> None:
    plain = table(2, true=0.4)
    prior = taught(History(plain.queries, plain.question, plain.action, *(np.full(240, 0.5),) * 2,
                           plain.log_cost, plain.propensity)).state()  # fmt: skip
    policy = contextual()
    begin(policy, prior, two_models())
    policy.offer(two_models())
    usual = {}
    world = Applications(0)
    announced = []
    for at in range(40):
        if policy.refits.due(1):
            announced.append(at + 1)
        world.ask(policy, at, named=True)
        if at == 5:
            usual = dict(policy.estimates.right.variances)
    assert sorted(policy.refits.results) == [10, 20, 40], "estimated at the usual numbers, and logged"
    assert announced == [10, 20, 40], "so that the decider runs them in a thread"
    loaded = contextual()
    loaded.load(policy.state())
    assert not loaded.refits.due(39)
    assert loaded.refits.due(40)
    after = policy.estimates.right.variances
    assert {block for block in usual if usual[block] != after[block]} <= {
        "one × category",
        "model × category",
    }
    assert after["model × category"] != usual["model × category"]
    # From the log, the estimates are taken as they are.
    other = contextual()
    begin(other, prior, two_models())
    other.offer(two_models())
    other.refits.results = dict(policy.refits.results)
    world = Applications(0)
    for at in range(40):
        world.ask(other, at, named=True)
    assert other.state() == policy.state()
    assert other.refits.results == policy.refits.results


def test_the_last_refit_is_not_followed_by_another_estimate() -> None:
    policy = lived(20, refits=(20,))
    (result,) = policy.refits.results.values()
    other = lived(20, refits=(20,), known={20: result})
    assert other.refits.results == {20: result}
    assert other.state() == policy.state()


def test_the_room_after_a_refit_is_that_beside_its_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (lived(rounds, refits=(20,)).features for rounds in (19, 20))
    assert before.rank < after.rank
    beside_the_new = after.plain_dim + 2 * len(after.crossed)
    monkeypatch.setattr(contextual_features, "MOST_WITH_CATEGORIES", beside_the_new)
    assert before.room_for_categories() > after.room_for_categories() == 2
    policy = lived(20, refits=(20,))
    other = lived(20, refits=(20,), known=policy.refits.results)
    assert policy.features.categories == other.features.categories != []
    assert len(policy.features.categories) == 2
    assert other.state() == policy.state()
