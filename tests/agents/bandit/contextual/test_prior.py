"""A prior from history: what it knows, that a log begins from it, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from agents.bandit.contextual import Contextual, ContextualSettings
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.errors import CorruptState, InvalidObservation, PriorRefused
from agents.bandit.exploration import Explored
from agents.bandit.features import FeatureSettings
from agents.bandit.history import History
from agents.bandit.learner import choose
from agents.bandit.linucb import LinUCB
from agents.bandit.policy import ActionVector, Context, Objective
from agents.bandit.prior import begin, digest, teach
from agents.decider.snapshot import versions
from agents.decider.verify import load_replay, mismatches
from tests.support.shard import Shard

DIM, EMBEDDED = 21, 12


def policy(**changes: Any) -> Contextual:
    settings = ContextualSettings(**{"encoder": "tiny", **changes})
    return Contextual(ContextualFeatures(FeatureSettings(DIM, 10, query_rank=11)), settings)


def history(
    actions: list[ActionVector], *, logged: bool = False, questions: int = 240, seed: int = 0
) -> History:
    """Questions of two kinds along one direction of the embedding: on one the dear model is worth its price."""
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(questions, DIM)) * 0.3
    hard = queries[:, 3] > 0
    rows = [(q, a) for q in range(questions) for a in range(len(actions))]
    if logged:
        rows = [(q, int(rng.integers(len(actions)))) for q in range(questions)]
    dear = [actions[a].size > 5e6 for _, a in rows]
    chance = [0.9 if d or not hard[q] else 0.2 for (q, _), d in zip(rows, dear, strict=True)]
    return History(
        queries=queries,
        question=np.array([q for q, _ in rows]),
        action=np.array([a for _, a in rows]),
        correct=(rng.random(len(rows)) < chance).astype(float),
        score=np.full(len(rows), 0.5),
        log_cost=np.log([1e4 * max(actions[a].size, 1.0) for _, a in rows])
        + 0.1 * rng.normal(size=len(rows)),
        propensity=np.full(len(rows), 1.0 / len(actions) if logged else 1.0),
    )


def two_models() -> list[ActionVector]:
    return [
        ActionVector(f"{model}/1/1/1", model, np.eye(10)[i], size)
        for i, (model, size) in enumerate((("small", 1e6), ("large", 1e7)))
    ]


@pytest.mark.parametrize("logged", [False, True], ids=["table", "log"])
def test_the_first_decision_knows_what_history_knew(logged: bool) -> None:
    actions = two_models()
    taught = policy()
    taught.offer(actions)
    prior = teach(taught, history(actions, logged=logged, questions=600 if logged else 240))
    fresh = policy()
    begin(fresh, prior, actions)
    fresh.offer(actions)
    assert fresh.version == 0
    probe = history(actions, seed=9).queries
    objective = Objective(1, 0, 0, 20, 30, shadow_price=0.3 / 1e11)
    chosen = choose(fresh, [Context(f"q{i}", q) for i, q in enumerate(probe)], [objective] * len(probe), 1)
    right = [
        (choice.action_id == "large/1/1/1") == (q[3] > 0) for choice, q in zip(chosen, probe, strict=True)
    ]
    assert np.mean(right) > 0.75  # what lies near the border is anybody's


def test_every_outcome_of_history_weighs_up_to_a_cap() -> None:
    actions = two_models()
    sums = []
    for cap in (1e9, 60.0):
        taught = policy()
        taught.offer(actions)
        teach(taught, history(actions), cap)
        sums.append(taught.estimates.right.outcomes)
    assert sums == pytest.approx([480.0, 60.0])


def test_a_log_begins_from_it_and_recovers_and_replays_exactly() -> None:
    shard = Shard(lambda _: Explored(policy(encoder=""), warm_up=3))
    actions = list(shard.vectors.values())
    taught = policy(encoder="")
    taught.offer(actions)
    prior = teach(taught, history(actions, questions=60))
    shard.table.clear()
    shard.decider = shard.fresh()
    shard.table |= dict(shard.decider.begin(prior, actions))
    shard.offer()
    with pytest.raises(CorruptState, match="an empty log to start from a prior"):
        shard.decider.begin(prior, actions)
    for _ in range(6):
        made = shard.ask(*(shard.context(mean_cost=1e13) for _ in range(4)))
        shard.tell(*(shard.reward(each) for each in made[:3]))
    state = shard.decider.policy.state()
    found = shard.crash()
    assert found.snapshot_version == -1
    assert shard.decider.prior == digest(prior)
    assert shard.decider.policy.state() == state
    again = shard.policy()
    rows, after = load_replay(again, shard.table)
    assert (after, list(mismatches(again, rows, 7, after))) == (-1, [])
    for _ in range(3):
        shard.apply(shard.snapshot())
        shard.ask(shard.context())
    assert len(versions(shard.table)) == 3
    assert -1 in versions(shard.table)


def test_what_does_not_fit_is_refused_and_nothing_changes() -> None:
    actions = two_models()
    taught = policy()
    taught.offer(actions)
    prior = teach(taught, history(actions))
    other = Contextual(
        ContextualFeatures(FeatureSettings(DIM, 10, query_rank=12)), ContextualSettings(encoder="tiny")
    )
    third = [*actions, ActionVector("new/1/1/1", "new", np.eye(10)[3], 1e8)]
    linear = LinUCB(taught.features)
    for learner, offered, why in (
        (policy(encoder="huge"), actions, "encoder is 'tiny', this deployment has 'huge'"),
        (other, actions, "features: query_rank is 11, this deployment has 12"),
        (policy(), third, "catalogue is .*small.* this deployment has .*new"),
        (linear, actions, "policy is 'contextual', this deployment has 'linucb'"),
    ):
        before = learner.state()
        with pytest.raises(PriorRefused, match=f"prior: {why}.*make it again with"):
            begin(learner, prior, offered)
        assert learner.state() == before
    with pytest.raises(CorruptState, match="sha256"):
        begin(policy(), prior[:-1], actions)
    with pytest.raises(CorruptState, match="a fresh policy"):
        teach(taught, history(actions))


def test_prior_with_another_cost_basis_is_refused() -> None:
    shard = Shard(lambda _: policy(encoder=""))
    actions = list(shard.vectors.values())

    def taught(cost_basis: dict[str, Any] | None) -> bytes:
        fresh = policy(encoder="")
        fresh.offer(actions)
        return teach(fresh, history(actions, questions=20), cost_basis=cost_basis)

    here = shard.catalogue.cost_basis
    # What a prior says of its costs is no part of the state that it is.
    unnamed, named = policy(encoder=""), policy(encoder="")
    begin(unnamed, taught(None), actions)
    begin(named, taught(here), actions)
    assert unnamed.state() == named.state()
    for part, theirs in (
        ("verifier", "other"),
        ("verifier.layers", 1),
        ("models.qwen3-0.6b.weight_bytes", 4),
    ):
        assert part in here
        prior, decider = taught(here | {part: theirs}), shard.fresh()
        before = decider.policy.state()
        why = f"catalogue: {part} is {theirs!r}, this deployment has {here[part]!r}"
        with pytest.raises(PriorRefused, match=re.escape(why)):
            decider.begin(prior, actions, cost_basis=here)
        assert (decider.policy.state(), decider.prior) == (before, "")
    for prior in (taught(None), taught(here)):
        decider = shard.fresh()
        decider.begin(prior, actions, cost_basis=here)
        assert decider.prior == digest(prior)


def test_history_that_would_poison_is_refused() -> None:
    good = history(two_models())
    for name, value in (("correct", 2.0), ("log_cost", np.nan), ("propensity", 0.0)):
        bad = getattr(good, name).copy()
        bad[0] = value
        with pytest.raises(InvalidObservation, match=f"history: {name}"):
            History(**{**{f: getattr(good, f) for f in good.__dataclass_fields__}, name: bad})
