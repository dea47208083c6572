"""An attempt that failed: its row ends, another model is decided, and no redelivery or crash changes what follows."""

from collections.abc import Callable
from typing import Any

import pytest

from agents.bandit.contextual import Contextual
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.exploration import ControlGroup, Explored
from agents.bandit.features import FeatureMap, FeatureSettings
from agents.bandit.linucb import LinUCB, SlidingWindow, Thompson
from agents.bandit.policy import Policy
from agents.decider.decisions import DecisionResult
from agents.decider.failed_attempts import Failure
from agents.decider.rows import decode_row
from agents.decider.verify import mismatches
from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.decision import Decision
from schemas.failure import Cause, Fault
from schemas.query import Budget, QueryContext
from schemas.record import decode
from tests.support.shard import Shard

POLICIES: dict[str, Callable[[FeatureMap], Policy]] = {
    "linucb": LinUCB,
    "thompson": lambda f: Thompson(f, propensity_draws=16),
    "window": lambda f: SlidingWindow(f, window=12),
    "floor": lambda f: Explored(LinUCB(f), floor=0.2, warm_up=5),
    "contextual": lambda _: Contextual(ContextualFeatures(FeatureSettings(21, 10, query_rank=11))),
}


def failed(
    decided: bytes,
    context: QueryContext | None,
    offset: int = 0,
    *,
    fault: Fault = "infrastructure",
    cause: Cause = "",
    **more: Any,
) -> Failure:
    """Return how the attempt of a Decision failed."""
    decision = decode(decided, Decision)
    answer = Answer(
        query_id=decision.query_id,
        status="failed",
        by="executor",
        action=decision.action,
        attempt=decision.attempt,
        group=decision.group,
        seq=decision.seq,
        error="429",
        fault=fault,
        cause=cause,
    )
    return Failure(AttemptFailed(answer=answer), offset, context, **more)


def follow(shard: Shard, *failures: Failure, attempts: int = 2) -> list[Any]:
    """Let the decider follow failures, and write the rows as its service does."""
    done = shard.decider.retry_failed(failures, shard.row, shard.environment, attempts=attempts)
    shard.table |= [row for each in done for row in each.rows]
    return done


def asked(shard: Shard, **query: Any) -> tuple[QueryContext, bytes]:
    context = shard.context(**query)
    return context[0], shard.ask(context)[0].value


@pytest.fixture
def shard() -> Shard:
    return Shard(LinUCB, models=3)


def test_another_model_is_decided_with_what_failed(shard: Shard) -> None:
    context, first = asked(shard)
    [next_] = follow(shard, failed(first, context, cost=1e11))
    before, after = decode(first, Decision), decode(next_.value, Decision)
    assert (after.attempt, after.excluded) == (2, (before.action.model,))
    assert after.action.model != before.action.model
    [earlier] = after.earlier
    assert (earlier.seq, earlier.action, earlier.cost, earlier.error) == (
        before.seq,
        before.action,
        1e11,
        "429",
    )
    assert (after.objective, after.cohort, after.randomised) == (before.objective, before.cohort, False)
    assert after.seed != before.seed
    one, two = shard.entry("q0"), decode_row(b"q0 2", shard.table[b"q0 2"])
    assert (one.stage, one.paid, one.failure_offset) == ("abandoned", 1e11, 0)
    assert (two.stage, two.attempt, two.seq) == ("pending", 2, one.ended_seq + 1)  # type: ignore[union-attr]


def test_a_model_s_own_fault_is_learned_as_a_wrong_answer(shard: Shard) -> None:
    context, first = asked(shard)
    version = shard.decider.policy.version
    follow(shard, failed(first, context, fault="model", cause="timeout"))
    row = shard.entry("q0")
    assert (row.stage, row.correct, row.entered, row.kinds) == ("failed", 0.0, 0.0, ())
    assert shard.decider.policy.version == version + 1


@pytest.mark.parametrize(
    ("query", "how"),
    [
        ({}, {"in_time": False}),
        ({"pin_action": "qwen3-0.6b/1/1/1"}, {}),
        ({"budget": Budget(eflops=1e9)}, {"cost": 1e11}),
        ({"allowed_models": ("qwen3-0.6b",)}, {}),
    ],
    ids=["no time", "pinned", "no budget", "no other model"],
)
def test_without_time_choice_or_budget_its_answer_ends_the_query(
    shard: Shard, query: dict[str, Any], how: dict[str, Any]
) -> None:
    named = shard.space.models[0]
    query = {k: v.replace("qwen3-0.6b", named) if isinstance(v, str) else v for k, v in query.items()}
    query |= {"allowed_models": (named,)} if "allowed_models" in query else {}
    context, first = asked(shard, **query)
    failure = failed(first, context, **how)
    for _ in range(2):  # the second time it is redelivered
        [done] = follow(shard, failure)
        assert (done.value, done.answer) == (None, failure.record.answer)
        shard.crash()
    assert shard.entry("q0").stage == "abandoned"


def test_the_last_attempt_ends_with_its_answer(shard: Shard) -> None:
    context, first = asked(shard)
    [second] = follow(shard, failed(first, context))
    last = failed(second.value, context, 1)
    [done] = follow(shard, last)
    assert (done.value, done.answer) == (None, last.record.answer)
    [third] = follow(shard, failed(asked(shard)[1], shard.context("q9")[0], 2), attempts=1)
    assert third.value is None


@pytest.mark.parametrize("written", [True, False], ids=["after the rows", "before the rows"])
def test_a_crash_between_two_attempts_leaves_one_next_decision(shard: Shard, written: bool) -> None:
    context, first = asked(shard)
    failure = failed(first, context)
    [next_] = shard.decider.retry_failed([failure], shard.row, shard.environment, attempts=2)
    if written:
        shard.table |= list(next_.rows)
    shard.crash()
    [again] = follow(shard, failure)
    assert again.value == next_.value
    [copy] = follow(shard, failed(first, context, 7))  # a search that ran twice failed twice
    assert copy.value == next_.value
    assert not copy.rows


def test_the_query_s_rewards_end_the_rows_of_both_attempts(shard: Shard) -> None:
    context, first = asked(shard)
    [second] = follow(shard, failed(first, context))
    [learned] = shard.tell(shard.reward(second, attempt=2, earlier=decode(second.value, Decision).earlier))
    assert (learned.verdict, learned.ended) == ("learned", ("q0 2",))
    assert {shard.entry("q0").stage} == {"abandoned"}


def test_late_answer_of_a_failed_attempt_ends_the_next(shard: Shard) -> None:
    """Its search was run twice, and came to something the second time."""
    made = shard.ask(shard.context())[0]
    context = shard.context("q0")[0]
    follow(shard, failed(made.value, context))
    [late] = shard.tell(shard.reward(made))
    assert (late.verdict, late.ended) == ("late", ("q0 2",))
    two = decode_row(b"q0 2", shard.table[b"q0 2"])
    assert two.stage == "abandoned"  # type: ignore[union-attr]
    assert shard.tell(shard.reward(made))[0].ended == ()


def test_a_failure_of_an_answered_query_changes_nothing(shard: Shard) -> None:
    made = shard.ask(shard.context())[0]
    shard.tell(shard.reward(made))
    before = dict(shard.table)
    [done] = follow(shard, failed(made.value, shard.context("q0")[0]))
    assert (done.value, done.answer, done.rows) == (None, None, ())
    assert dict(shard.table) == before


def test_a_further_attempt_keeps_the_cohort_and_is_never_drawn() -> None:
    control = Shard(LinUCB, models=3).space[0]

    def explored(features: FeatureMap) -> Policy:
        return Explored(LinUCB(features), control=ControlGroup(1.0, control.id))

    shard = Shard(explored, models=3)
    context, first = asked(shard)
    [next_] = follow(shard, failed(first, context))
    one, two = decode(first, Decision), decode(next_.value, Decision)
    assert (one.reason, one.cohort, one.randomised) == ("control", "control", True)
    assert (two.reason, two.cohort, two.randomised) == ("policy", "control", False)
    row = decode_row(b"q0 2", shard.table[b"q0 2"])
    assert not row.paced  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", POLICIES)
def test_recovery_and_replay_see_what_live_did(policy: str) -> None:
    """Half of the first attempts fail, for one reason or the other; snapshots let ended rows go."""
    shard = Shard(POLICIES[policy], models=3)
    for number in range(40):
        context, value = asked(shard)
        last: Any = DecisionResult(context.query_id, value)
        if number % 2:
            kind: dict[str, Any] = {"fault": "model", "cause": "empty"} if number % 4 == 1 else {}
            [last] = follow(shard, failed(value, context, number, cost=1e11, **kind))
        if number % 3 == 0:
            made = decode(last.value, Decision)
            shard.tell(shard.reward(last, attempt=made.attempt, earlier=made.earlier))
        if number == 20:
            rows = [decode_row(key, value) for key, value in shard.table.items()]
            assert list(mismatches(shard.policy(), rows, 7)) == []
        if number in (22, 28, 34):
            shard.apply(shard.snapshot())
            live = shard.decider
            shard.crash()
            shard.same_as(live)
            assert shard.decider.failure_offset == live.failure_offset
    assert b"q37 2" in shard.table, "it waits for its reward"
