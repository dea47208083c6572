"""A log that says of a choice what the replay does not is found, whichever field says it; a genuine one is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from agents.bandit.baselines import KNN, Uniform
from agents.bandit.contextual import Contextual
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.errors import CorruptState
from agents.bandit.exploration import ControlGroup, Explored
from agents.bandit.features import FeatureSettings
from agents.bandit.linucb import LinUCB, Thompson
from agents.decider.rows import AnyRow, Row, decode_row
from agents.decider.snapshot import RESET_KEY
from agents.decider.verify import load_replay, mismatches
from schemas.decision import Decision
from schemas.record import decode, encode
from tests.support.shard import Shard

CONTROL = ControlGroup(0.3, "qwen3-0.6b/1/4/2", "salt")

MAKERS: dict[str, Callable[[Any], Any]] = {
    "linucb": LinUCB,
    "thompson": lambda f: Thompson(f, propensity_draws=16),
    "knn": KNN,
    "random": Uniform,
    "contextual": lambda _: Contextual(ContextualFeatures(FeatureSettings(21, 10, query_rank=11))),
}


def lived(inner: Callable[[Any], Any]) -> Shard:
    """Return a shard after a warm-up, with an exploration floor, a control group, pins and masks."""
    shard = Shard(lambda f: Explored(inner(f), floor=0.2, warm_up=6, control=CONTROL))
    for _ in range(7):
        made = shard.ask(*(shard.context() for _ in range(5)), shard.context(pin_action=shard.space[2].id))
        shard.tell(*(shard.reward(each) for each in made[:3]))
        if shard.asked == 24:
            model = shard.space.models[0]
            shard.ask(shard.context(allowed_models=(model,), n=16), shard.context(learn=False))
    return shard


@pytest.fixture(scope="module")
def log() -> tuple[Any, list[AnyRow]]:
    shard = lived(LinUCB)
    return shard, [decode_row(key, value) for key, value in shard.table.items()]


def test_an_empty_log_is_corrupt_unless_it_was_reset() -> None:
    policy = Shard(LinUCB).policy()
    with pytest.raises(CorruptState, match="no rows"):
        load_replay(policy, {})
    rows, after = load_replay(policy, {RESET_KEY: b'{"0":7}'})
    assert list(mismatches(policy, rows, 7, after)) == []


@pytest.mark.parametrize("name", MAKERS)
def test_a_genuine_log_is_reproduced(name: str) -> None:
    shard = lived(MAKERS[name])
    rows = [decode_row(key, value) for key, value in shard.table.items()]
    made = [decode(bytes(row.decision), Decision) for row in rows if isinstance(row, Row)]
    assert {each.reason for each in made} == {"policy", "warm-up", "floor", "control", "pinned"}
    assert {each.randomised for each in made} == {False, True}
    assert list(mismatches(shard.policy(), rows, 7)) == []


def more(value: float) -> float:
    return value + 1e-6


ALTERED: dict[str, Callable[[Decision], Decision]] = {
    "mean": lambda d: replace(d, mean=more(d.mean or 0.0)),
    "width": lambda d: replace(d, width=more(d.width or 0.0)),
    "score": lambda d: replace(d, score=None),
    "predicted.correct": lambda d: replace(d, predicted=replace(d.predicted, correct=more(d.predicted.correct))),
    "predicted.score": lambda d: replace(d, predicted=replace(d.predicted, score=more(d.predicted.score))),
    "predicted.log_cost": lambda d: replace(d, predicted=replace(d.predicted, log_cost=more(d.predicted.log_cost))),
    "runners_up": lambda d: replace(d, runners_up=d.runners_up[:2]),
    "candidates": lambda d: replace(d, candidates=d.candidates + 1),
    "policy.name": lambda d: replace(d, policy=replace(d.policy, name="linucb")),
    "policy.version": lambda d: replace(d, policy=replace(d.policy, version=d.policy.version + 1)),
    "objective": lambda d: replace(d, objective=replace(d.objective, price=1e-12)),
    "seq": lambda d: replace(d, seq=d.seq + 1),
    "seed": lambda d: replace(d, seed=d.seed ^ 1),
    "origin": lambda d: replace(d, origin=replace(d.origin, offset=d.origin.offset + 1)),
    "reason": lambda d: replace(d, reason="floor"),
    "cohort": lambda d: replace(d, cohort="control"),
    "randomised": lambda d: replace(d, randomised=False),
    "propensity": lambda d: replace(d, propensity=d.propensity / 2),
    "propensity_draws": lambda d: replace(d, propensity_draws=64),
    "propensity_error": lambda d: replace(d, propensity_error=0.01),
    "price_factor": lambda d: replace(d, price_factor=2.0),
}  # fmt: skip


def found(
    log: tuple[Any, list[AnyRow]], wanted: Callable[[Decision], bool], alter: Callable[[Decision], Decision]
) -> Any:
    """Alter the last Decision of a kind; return what the replay finds, for it alone."""
    shard, rows = log
    at, made = [
        (i, decision)
        for i, row in enumerate(rows)
        if isinstance(row, Row) and wanted(decision := decode(bytes(row.decision), Decision))
    ][-1]
    row = rows[at]
    assert isinstance(row, Row)
    forged = replace(row, decision=Raw(encode(alter(made))))
    differs = list(mismatches(shard.policy(), [*rows[:at], forged, *rows[at + 1 :]], 7))
    assert {each.query_id for each in differs} == {made.query_id}
    return {each.field for each in differs}


@pytest.mark.parametrize("field", ALTERED)
def test_a_field_that_was_altered_is_found(log: tuple[Any, list[AnyRow]], field: str) -> None:
    assert found(log, lambda d: d.reason == "policy" and d.randomised, ALTERED[field]) == {field}


@pytest.mark.parametrize(
    ("field", "value"),
    [("mean", 0.5), ("reason", "policy"), ("cohort", "policy"), ("propensity", 1.0), ("randomised", False)],
)
def test_who_was_in_the_control_group_is_checked(
    log: tuple[Any, list[AnyRow]], field: str, value: Any
) -> None:
    assert field in found(log, lambda d: d.cohort == "control", lambda d: replace(d, **{field: value}))


@pytest.mark.parametrize(
    ("reason", "field"), [("warm-up", "propensity"), ("pinned", "reason"), ("floor", "reason")]
)
def test_what_was_drawn_or_pinned_is_checked(log: tuple[Any, list[AnyRow]], reason: str, field: str) -> None:
    value: Any = 0.5 if field == "propensity" else "policy"
    assert field in found(log, lambda d: d.reason == reason, lambda d: replace(d, **{field: value}))


def test_a_runner_up_with_another_score_or_name_is_found(log: tuple[Any, list[AnyRow]]) -> None:
    def first(**changes: Any) -> Callable[[Decision], Decision]:
        return lambda d: replace(d, runners_up=(replace(d.runners_up[0], **changes), *d.runners_up[1:]))

    def by_policy(decision: Decision) -> bool:
        return decision.reason == "policy"

    assert found(log, by_policy, first(score=9.0)) == {"runners_up"}
    assert found(log, by_policy, first(width=9.0)) == {"runners_up"}
    assert found(log, by_policy, first(action="nobody/1/1/1")) == {"runners_up"}
    assert found(log, by_policy, lambda d: replace(d, runners_up=d.runners_up[:1] * 3)) == {"runners_up"}
