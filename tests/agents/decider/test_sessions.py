"""Conversations that stick: which turns keep their configuration, what that leaves out, and that a recovery agrees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from agents.bandit.exploration import ControlGroup, Explored
from agents.bandit.features import FeatureMap
from agents.bandit.linucb import LinUCB
from agents.decider.decisions import DecisionResult
from agents.decider.rows import encode_row
from agents.decider.sessions import session_of
from agents.decider.verify import load_replay, mismatches
from schemas.action import Action
from schemas.decision import Decision
from schemas.errors import InvalidField
from schemas.query import Query
from schemas.record import decode
from tests.support.shard import Shard

WITHIN_S = 300.0


def explored(features: FeatureMap) -> Explored:
    """A policy that draws every third choice, and a control group: whatever is drawn, a session is not."""
    group = ControlGroup(share=0.3, action_id="qwen3-0.6b/1/1/1", salt="s")
    return Explored(LinUCB(features), floor=0.3, control=group)


@pytest.fixture
def shard() -> Shard:
    made = Shard(explored, pairs=((1, 1), (4, 1), (4, 2)), models=3)
    made.environment = replace(made.environment, session_s=WITHIN_S)
    return made


def turn(shard: Shard, session: str | None = "s", at_s: float = 1_000.0, **query: Any) -> Decision:
    """Decide a turn that was asked at a time, and return its Decision."""
    return turns(shard, (session, at_s), **query)[0]


def turns(shard: Shard, *asked: tuple[str | None, float], **query: Any) -> list[Decision]:
    """Decide turns together."""
    contexts = []
    for session, at_s in asked:
        record, origin = shard.context(session=session, **query)
        contexts.append((msgspec.structs.replace(record, appended_ms=int(1000 * at_s)), origin))
    made = shard.ask(*contexts)
    assert all(each.value is not None for each in made), made[0].error
    return [decode(each.value, Decision) for each in made]


def checked(shard: Shard) -> None:
    """Demand that a recovery has the same sessions, and that a replay chooses the same."""
    live = shard.decider.sessions.turns()
    assert replayed(shard) == []
    shard.crash()
    assert shard.decider.sessions.turns() == live


def replayed(shard: Shard) -> list[tuple[str, str]]:
    """Return what a replay of the log does not reproduce: query and field."""
    rows, after = load_replay(policy := shard.policy(), shard.table)
    return [(each.query_id, each.field) for each in mismatches(policy, rows, shard.decider.seed, after)]


def test_later_turns_keep_the_configuration_of_the_first(shard: Shard) -> None:
    first, *later = (turn(shard, at_s=1_000.0 + 60 * at) for at in range(12))
    assert first.reason != "session"
    assert {each.action for each in later} == {first.action}
    for each in later:
        assert (each.reason, each.cohort, each.randomised, each.propensity) == (
            "session",
            "policy",
            False,
            None,
        )
        assert (each.mean, each.width, each.candidates) == (None, None, 1)
    assert {each.session for each in (first, *later)} == {first.session}
    others = [turn(shard, None) for _ in range(12)]
    assert {each.reason for each in others}.isdisjoint({"session"})
    assert len({each.action for each in others}) > 1, "the choice is not drawn, and this shows nothing"
    checked(shard)


def test_a_session_is_kept_for_a_time_after_its_last_turn(shard: Shard) -> None:
    assert turn(shard, at_s=0.0).reason != "session"
    assert turn(shard, at_s=WITHIN_S).reason == "session"
    assert turn(shard, at_s=2 * WITHIN_S).reason == "session"
    assert turn(shard, at_s=3 * WITHIN_S + 0.001).reason != "session"
    shard.environment = replace(shard.environment, session_s=0.0)
    assert turn(shard, at_s=3 * WITHIN_S + 0.002).reason != "session"
    checked(shard)


def test_sessions_of_two_accounts_are_two(shard: Shard) -> None:
    one = turn(shard, tenant="a")
    other = turn(shard, tenant="b")
    assert other.reason != "session"
    assert one.session != other.session
    assert session_of(Query(query_id="q", text="?", tenant="a", session="s")) == one.session
    checked(shard)


def test_what_is_not_on_offer_or_not_able_is_decided_freely(shard: Shard) -> None:
    first = turn(shard)
    others = tuple(model for model in shard.space.models if model != first.action.model)
    freed = turn(shard, allowed_models=others)
    assert freed.reason != "session"
    assert freed.action.model in others
    assert turn(shard).action == freed.action, "the session goes on with what ran last"
    shard.environment = replace(shard.environment, living=frozenset({first.action.model}))
    assert turn(shard).action.model == first.action.model
    shard.environment = replace(shard.environment, living=None)
    shard.use(shard.space.restrict(set(others)))
    assert turn(shard).reason != "session"
    checked(shard)


def test_a_pin_is_obeyed_and_kept(shard: Shard) -> None:
    turn(shard)
    pin = next(action for action in shard.space if action.samples == 4)
    pinned = turn(shard, pin_action=pin.id)
    assert (pinned.reason, pinned.action) == ("pinned", pin)
    kept = turn(shard)
    assert (kept.reason, kept.action) == ("session", pin)
    checked(shard)


def test_turns_decided_together_are_from_one_state(shard: Shard) -> None:
    first, second = turns(shard, ("s", 1_000.0), ("s", 1_000.0))
    assert "session" not in (first.reason, second.reason)
    third = turn(shard)
    assert (third.reason, third.action) == ("session", second.action)
    checked(shard)


def test_a_later_turn_teaches_and_is_not_paced(shard: Shard) -> None:
    first, later = turn(shard), turn(shard)
    for each in (first, later):
        shard.tell(shard.reward(_decided(shard, each)))
        row = shard.entry(each.query_id)
        assert (row.stage, row.weight, row.correct) == ("closed", 1, row.entered)
    assert shard.entry(first.query_id).paced == (first.cohort == "policy")
    assert not shard.entry(later.query_id).paced
    assert shard.decider.policy.version == 2
    checked(shard)


def _decided(shard: Shard, decision: Decision) -> DecisionResult:
    row = shard.entry(decision.query_id)
    return DecisionResult(decision.query_id, bytes(row.decision))


def test_redelivered_turn_gets_its_first_decision_again(shard: Shard) -> None:
    record, origin = shard.context("again", session="s")
    [first] = shard.ask((record, origin))
    turn(shard)
    [again] = shard.ask((record, origin))
    assert again.resent
    assert decode(again.value, Decision).action == decode(first.value, Decision).action
    assert decode(again.value, Decision).query.session == "s"
    checked(shard)


def test_a_snapshot_has_sessions_whose_rows_are_gone(shard: Shard) -> None:
    first = turn(shard)
    shard.tell(shard.reward(_decided(shard, first)))
    for _ in range(3):
        turn(shard, None)
        shard.apply(shard.snapshot())
    assert first.query_id.encode() not in shard.table, "its row is still in the log"
    shard.crash()
    shard.environment = replace(shard.environment, session_s=WITHIN_S)
    kept = turn(shard, at_s=1_001.0)
    assert (kept.reason, kept.action) == ("session", first.action)
    checked(shard)


def test_verify_names_a_turn_that_left_its_session(shard: Shard) -> None:
    first, later = turn(shard), turn(shard)
    row = shard.entry(later.query_id)
    other = next(action for action in shard.space if action != first.action)
    forged = msgspec.structs.replace(decode(bytes(row.decision), Decision), action=Action.parse(other.id))
    decision = msgspec.Raw(msgspec.json.encode(forged))
    row = msgspec.structs.replace(row, action=other.id, decision=decision)
    shard.table[row.key] = encode_row(row)
    assert replayed(shard) == [(later.query_id, "action of the session")]


@pytest.mark.parametrize("name", ["", "x" * 201], ids=["empty", "long"])
def test_a_session_has_a_name_of_1_to_200_characters(name: str) -> None:
    with pytest.raises(InvalidField, match="session"):
        Query(query_id="q", text="?", session=name)
