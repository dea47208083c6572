"""One contract suite over all policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agents.bandit.baselines import KNN, MLP, NetworkSettings, NeuralUCB, Uniform
from agents.bandit.contextual import Contextual
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.errors import CorruptState, InvalidObservation, NoAction, UnknownAction
from agents.bandit.exploration import Explored
from agents.bandit.features import FeatureSettings
from agents.bandit.learner import choose
from agents.bandit.linucb import Discounted, LinUCB, LinUCBSettings, SlidingWindow, Thompson, greedy
from agents.bandit.policy import Context, Pending, Policy
from tests.support.worlds import QUALITY, THRIFT, World

# A few iterations keep the suite fast; the contract holds for any number of them.
SMALL = NetworkSettings(hidden=8, iterations=5)

Make = Callable[[Any], Policy]
POLICIES: dict[str, Make] = {
    "linucb": lambda w: LinUCB(w.features()),
    "linucb-scalar": lambda w: LinUCB(w.features(), LinUCBSettings(reward="scalar")),
    "linucb-decided": lambda w: LinUCB(w.features(), LinUCBSettings(widths="decided")),
    "linucb-centred": lambda w: LinUCB(w.features(action_features="centred")),
    "linucb-one-hot": lambda w: LinUCB(w.features(action_features="one-hot")),
    "linucb-bilinear": lambda w: LinUCB(w.features(interactions="bilinear")),
    "linucb-model": lambda w: LinUCB(w.features(interactions="model", action_features="centred")),
    "greedy": lambda w: greedy(w.features()),
    "thompson": lambda w: Thompson(w.features(), propensity_draws=32),
    "thompson-bilinear": lambda w: Thompson(w.features(interactions="bilinear"), propensity_draws=0),
    "uniform": lambda w: Uniform(w.features()),
    "knn": lambda w: KNN(w.features()),
    "mlp": lambda w: MLP(w.features(), SMALL),
    "neural-ucb": lambda w: NeuralUCB(w.features(), SMALL),
    "neural-ucb-per-width": lambda w: NeuralUCB(w.features(), SMALL, per_width=True),
    "sliding-window": lambda w: SlidingWindow(w.features(), window=9),
    "sliding-window-decided": lambda w: SlidingWindow(
        w.features(), LinUCBSettings(widths="decided"), window=9
    ),
    "discounted": lambda w: Discounted(w.features(), gamma=0.97),
    "contextual": lambda w: Contextual(
        ContextualFeatures(FeatureSettings(w.query_dim, w.action_dim, query_rank=11))
    ),
    "floor": lambda w: Explored(LinUCB(w.features()), floor=0.3),
    "warm-up": lambda w: Explored(LinUCB(w.features()), warm_up=6),
    "floor-thompson": lambda w: Explored(Thompson(w.features(), propensity_draws=32), floor=0.3, warm_up=4),
}
NEURAL = {"mlp", "neural-ucb", "neural-ucb-per-width"}


@pytest.fixture(params=POLICIES, ids=str)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def policy(name: str, world: World) -> Policy:
    made = POLICIES[name](world)
    made.offer(world.actions())
    return made


def close(one: Any, two: Any) -> bool:
    """Say whether two choices agree to 1e-9."""
    numbers = [(one.mean, two.mean), (one.width, two.width), (one.score, two.score)]
    same = one.action_id == two.action_id and one.reason == two.reason
    same = same and [c.action_id for c in one.runners_up] == [c.action_id for c in two.runners_up]
    return same and all(a == pytest.approx(b, rel=1e-9, abs=1e-9) for a, b in numbers)


def test_every_policy_satisfies_the_protocol(policy: Policy) -> None:
    assert isinstance(policy, Policy)


def test_a_batch_makes_the_choices_of_single_calls(policy: Policy, world: World) -> None:
    world.train(policy, 12)
    contexts, objectives = [world.context() for _ in range(6)], [QUALITY, THRIFT] * 3
    batch = choose(policy, contexts, objectives, seed=5)
    singles = [choose(policy, [c], [o], seed=5)[0] for c, o in zip(contexts, objectives, strict=True)]
    # MLP predicts in float32, whose sums differ in the seventh digit between shapes.
    assert all(a.action_id == b.action_id for a, b in zip(batch, singles, strict=True))
    assert all(
        a.score == pytest.approx(b.score, rel=1e-5, abs=1e-9) for a, b in zip(batch, singles, strict=True)
    )


def test_same_seed_makes_the_same_choices(policy: Policy, world: World) -> None:
    contexts = [world.context() for _ in range(20)]
    once = choose(policy, contexts, [QUALITY] * 20, seed=1)
    assert once == choose(policy, contexts, [QUALITY] * 20, seed=1)


def test_selecting_changes_no_state(policy: Policy, world: World) -> None:
    world.train(policy, 5)
    before = policy.state()
    choose(policy, [world.context() for _ in range(4)], [QUALITY] * 4, seed=1)
    assert policy.state() == before


def test_a_choice_carries_every_term_that_explains_it(policy: Policy, world: World) -> None:
    world.train(policy, 8)
    choice = choose(policy, [world.context()], [QUALITY], seed=2)[0]
    assert choice.score == pytest.approx(choice.mean + choice.width, abs=1e-12)
    assert len(choice.runners_up) == 3
    assert choice.action_id not in {c.action_id for c in choice.runners_up}
    assert choice.version == policy.version == 8
    if choice.reason == "policy":
        assert all(choice.score >= c.score - 1e-12 for c in choice.runners_up)


def test_probabilities_sum_to_one_over_allowed_actions(policy: Policy, world: World) -> None:
    world.train(policy, 8)
    some = frozenset(a.action_id for a in world.actions()[:4])
    for allowed in (None, some):
        scored = policy.predict([world.context(allowed)], [QUALITY], seed=2)[0]
        assert set(scored.action_ids) == (some if allowed else {a.action_id for a in world.actions()})
        if scored.probability is not None:
            assert scored.probability.sum() == pytest.approx(1.0)
            assert scored.probability[scored.chosen] > 0


def test_only_allowed_actions_are_chosen(policy: Policy, world: World) -> None:
    allowed = frozenset(a.action_id for a in world.actions()[2:4])
    contexts = [world.context(allowed) for _ in range(12)]
    assert {c.action_id for c in choose(policy, contexts, [QUALITY] * 12, seed=1)} <= allowed
    with pytest.raises(NoAction, match=r"q-none.*allow more models"):
        choose(policy, [Context("q-none", world.query(), frozenset({"other/1/1/1"}))], [QUALITY], seed=1)


def test_a_removed_action_is_never_chosen_and_still_learns(policy: Policy, world: World) -> None:
    world.train(policy, 6)
    gone = [a.action_id for a in world.actions()[:5]]
    pending = world.context()
    policy.decided([Pending(pending.query_id, pending.embedding, gone[0])])
    policy.offer([a for a in world.actions() if a.action_id not in gone])
    contexts = [world.context() for _ in range(15)]
    assert not {c.action_id for c in choose(policy, contexts, [QUALITY] * 15, seed=1)} & set(gone)
    version = policy.version
    policy.learn([world.outcome(pending, gone[0])])
    assert policy.version == version + 1
    policy.offer(world.actions())
    assert policy.predict([world.context(frozenset(gone[:1]))], [QUALITY], 1)[0].action_ids == gone[:1]


def test_an_action_added_at_run_time_is_chosen_and_learned(policy: Policy, world: World) -> None:
    if "one-hot" not in policy.name:
        world.train(policy, 6)
    new = world.actions(3, prefix="new")
    policy.offer([*world.actions(), *new])
    only = frozenset(a.action_id for a in new)
    context = world.context(only)
    chosen = choose(policy, [context], [QUALITY], seed=1)[0]
    assert chosen.action_id in only
    policy.learn([world.outcome(context, chosen.action_id)])
    world.train(policy, 3)


def test_state_round_trips_and_keeps_learning_alike(policy: Policy, name: str, world: World) -> None:
    world.train(policy, 11)
    policy.offer(world.actions()[1:])
    twin = POLICIES[name](World())
    twin.load(policy.state())
    assert twin.version == policy.version
    for _ in range(4):
        context = world.context()
        one, two = (choose(p, [context], [QUALITY], seed=4)[0] for p in (policy, twin))
        assert close(one, two)
        outcome = world.outcome(context, one.action_id)
        for p in (policy, twin):
            p.decided([Pending(context.query_id, context.embedding, one.action_id)])
            p.learn([outcome])


def test_a_state_that_is_not_whole_is_refused(policy: Policy, name: str, world: World) -> None:
    world.train(policy, 3)
    data = policy.state()
    before = (twin := POLICIES[name](World())).state()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    for broken in (b"", data[:-7], data[:40], flipped, data + b"x", b"X" + data[1:]):
        with pytest.raises(CorruptState, match="use an earlier state or fold the log"):
            twin.load(broken)
    assert twin.state() == before


def test_a_state_of_other_settings_is_refused(policy: Policy, name: str, world: World) -> None:
    other = POLICIES[name](World(query_dim=13))
    with pytest.raises(CorruptState, match="settings"):
        other.load(policy.state())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("correct", float("nan")),
        ("correct", 1.5),
        ("score", float("inf")),
        ("score", -0.1),
        ("log_cost", 1e308),
        ("log_cost", float("nan")),
        ("imputed", 2.0),
        ("embedding", np.zeros(12)),
        ("embedding", np.full(12, np.nan)),
        ("embedding", np.full(12, 1e200)),
        ("embedding", np.ones(11)),
    ],
)
def test_poison_never_reaches_the_state(policy: Policy, world: World, field: str, value: Any) -> None:
    told = world.train(policy, 4)
    context = world.context()
    good = world.outcome(context, told[0].action_id)
    before = policy.state()
    with pytest.raises(InvalidObservation, match=field) as caught:
        policy.learn([replace(good, **{field: value})])
    assert caught.value.field == field
    with pytest.raises(InvalidObservation, match=field):
        policy.learn([replace(told[0], **{field: value}, kind="correction")])
    assert policy.state() == before


def test_an_embedding_that_cannot_be_decided_names_its_query(policy: Policy, world: World) -> None:
    with pytest.raises(InvalidObservation, match=r"bad: embedding.*length 12"):
        choose(policy, [Context("bad", np.ones(5))], [QUALITY], seed=1)


def test_an_unknown_action_is_refused(policy: Policy, world: World) -> None:
    context = world.context()
    with pytest.raises(UnknownAction, match="nobody"):
        policy.learn([world.outcome(context, "nobody/1/1/1")])


# A network does not unlearn a target: the corrected one counts from the next training on.
@pytest.mark.parametrize("name", [each for each in POLICIES if each not in NEURAL])
def test_a_correction_replaces_what_was_imputed(policy: Policy, name: str, world: World) -> None:
    sure = POLICIES[name](World())
    sure.offer(World().actions())
    contexts = [world.context() for _ in range(8)]
    ids = [a.action_id for a in world.actions()]
    true = [world.outcome(c, ids[i % 7], correct=1.0, imputed=0.25) for i, c in enumerate(contexts)]
    sure.learn(true)
    policy.learn([replace(o, correct=None) for o in true])
    policy.learn([replace(o, kind="correction") for o in true])
    assert policy.version == 16
    context = world.context()
    one, two = (p.predict([context], [QUALITY], seed=1)[0] for p in (policy, sure))
    assert np.allclose(one.score, two.score, rtol=1e-9, atol=1e-9)


def test_batched_outcomes_count_as_single_ones(policy: Policy, name: str, world: World) -> None:
    """Decisions made and abandoned, and outcomes of every kind, mixed."""
    singly = POLICIES[name](World())
    singly.offer(World().actions())
    ids = [a.action_id for a in world.actions()]
    contexts = [world.context() for _ in range(6)]
    first = [world.outcome(c, ids[i % 7], correct=1.0, imputed=0.25) for i, c in enumerate(contexts)]
    made = [Pending(o.observation_id, o.embedding, o.action_id) for o in first]
    told = [replace(o, correct=None) for o in first[:3]]
    told += [replace(first[0], kind="correction"), replace(first[3], correct=None, kind="cost"), first[4]]
    told += [replace(first[1], kind="correction")]
    decisions = [*made, replace(made[5], abandoned=True)]
    policy.decided(decisions)
    policy.learn(told)
    for decision in decisions:
        singly.decided([decision])
    for outcome in told:
        singly.learn([outcome])
    assert policy.version == singly.version == 6
    context = world.context()
    one, two = (p.predict([context], [QUALITY], seed=1)[0] for p in (policy, singly))
    assert np.allclose(one.score, two.score, rtol=1e-9, atol=1e-9)


def test_nothing_told_changes_nothing(policy: Policy, world: World) -> None:
    world.train(policy, 3)
    before = policy.state()
    policy.learn([])
    policy.decided([])
    policy.offer(world.actions())
    assert policy.state() == before
