"""The join: what each order of arrival leads to; no order, repetition or crash makes a reward twice."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.catalogue.cost_model import CostModel
from agents.catalogue.models import Architecture
from agents.grading.grade import Rule, Verdict
from agents.reward.join import on, to_value
from agents.reward.join_row import Deadline, JoinRow, ScoredAnswer, decode_row, dues, encode_row, newer
from agents.reward.outcome import gradable, value
from agents.reward.transition import Arrival, Orphan, Timeouts, Transition
from schemas.action import Action
from schemas.answer import Answer
from schemas.decision import Decision, Verified
from schemas.errors import UnreadableRecord
from schemas.failure import EarlierAttempt
from schemas.forest import Draft
from schemas.query import Origin
from schemas.reward import CLOSING, Charge, Due, Feedback, GradeSource, Reward
from streams.recent_ids import RecentIds
from tests.support.records import ACTION, ORIGIN, PRICE, answer, decision

WAITS = Timeouts(timeout_ms=60_000, feedback_ms=30_000, keep_ms=1_000_000)


def feedback(correct: float = 1.0) -> Feedback:
    return Feedback(query_id="q", correct=correct)


def scored(record: Answer, correct: float | None) -> ScoredAnswer:
    price = PRICE if record.text else None
    unscored = record.text is not None and record.score is None
    return ScoredAnswer(
        status=record.status,
        score=record.score,
        price=price,
        correct=correct,
        grader="g 1",
        unscored=unscored,
        attempt=record.attempt if record.seq is not None else 0,
    )


class Join:
    """A row with what came out of it; `correct` is what the grader would find."""

    def __init__(self, correct: float | None = None, timeouts: Timeouts = WAITS) -> None:
        self.row: JoinRow | None = None
        self.correct = correct
        self.timeouts = timeouts
        self.closed = RecentIds(200_000)
        self.rewards: list[Reward] = []
        self.counts: list[str] = []

    def transition(self, record: Decision | Answer | Feedback | Due, at_ms: int) -> Transition:
        if "q" in self.closed:
            return Transition(None)
        asked = to_value(self.row, record)
        value = scored(asked[1], self.correct) if asked else None
        return on(self.row, Arrival(record, at_ms, ORIGIN), self.timeouts, value)

    def take(self, record: Decision | Answer | Feedback | Due, at_ms: int) -> Transition:
        transition = self.transition(record, at_ms)
        self.row = None if transition.row is None else decode_row(encode_row(transition.row))
        assert self.row == transition.row
        rewards = [out for out in transition.out if isinstance(out, Reward)]
        self.rewards += rewards
        if any(reward.closes for reward in rewards):
            assert self.row is None
            self.closed.add("q")
        self.counts += transition.counts
        return transition

    def opened(self, **query: Any) -> JoinRow:
        """Take a decision and return its row."""
        self.take(decision(**query), 1_100)
        assert self.row is not None
        return self.row

    def answered(self, **query: Any) -> "Join":
        """Take a decision and its answer."""
        self.take(decision(**query), 1_100)
        self.take(answer(), 3_000)
        return self

    def kinds(self) -> list[str]:
        return [reward.kind for reward in self.rewards]

    def due(self, kind: str, late_ms: int = 0) -> Transition:
        assert self.row is not None
        (deadline,) = [d.deadline_ms for d in dues(self.row) if d.kind == kind]
        return self.take(Due(query_id="q", kind=kind, deadline_ms=deadline), deadline + late_ms)  # type: ignore[arg-type]


@pytest.mark.parametrize("judged", [True, False])
def test_the_first_reward_alone_says_what_is_charged_to_the_key(judged: bool) -> None:
    metadata = {"gateway": {"key": "0f", "digest": "d"}}
    join = Join().answered(metadata=metadata)
    assert join.row is not None
    assert join.row.decision is not None
    assert join.row.decision.key == ""
    join.take(feedback(), 4_000) if judged else join.due("feedback")
    assert join.kinds() == ["provisional", "correction" if judged else "default"]
    assert [each.charge for each in join.rewards] == [Charge(key="0f", eflops=PRICE.cost), None]
    assert [each.charge for each in Join(correct=1.0).answered(reference="4").rewards] == [None], "no key"


def test_a_reference_makes_the_first_reward_final() -> None:
    join = Join(correct=1.0).answered(reference="4")
    (reward,) = join.rewards
    assert (reward.kind, reward.correct, reward.score, reward.seq) == ("final", 1.0, 0.5, 5)
    assert reward.reward_id == "q/final"
    assert reward.price == PRICE
    assert reward.log_cost == pytest.approx(2.302585)
    assert reward.reward == pytest.approx(0.4 * 1 + 0.4 * 0.5 + 0.2 * (1 - 0.5))
    assert (reward.graded_by, reward.grader, reward.latency_s) == ("reference", "g 1", 2.0)
    assert join.row is None, "what is closed takes no place"


def test_unscored_answer_is_learned_by_correctness_or_cost() -> None:
    unscored = replace(answer(), score=None)
    graded, judged, unknown = Join(correct=1.0), Join(), Join()
    for join in (graded, judged, unknown):
        join.take(decision(), 1_100)
        join.take(unscored, 3_000)
    assert graded.kinds() == ["final"]
    judged.take(feedback(0.75), 4_000)
    unknown.due("feedback")
    assert (judged.kinds(), unknown.kinds()) == (["provisional", "correction"], ["provisional", "default"])
    assert not judged.rewards[0].learnable
    for join, correct in ((graded, 1.0), (judged, 0.75), (unknown, None)):
        reward = join.rewards[-1]
        assert (reward.score, reward.unscored, reward.score_learned) == (None, True, correct)
        assert reward.cost_only is (correct is None)
    assert graded.rewards[0].reward == pytest.approx(0.4 + 0.4 + 0.2 * (1 - 0.5)), "w1 and w2 add up"
    assert unknown.rewards[-1].reward is None
    assert [join.rewards[-1].graded_by for join in (graded, judged, unknown)] == ["reference", "person", ""]


def test_older_row_does_not_replace_a_newer_one() -> None:
    def at(offset: int) -> Origin:
        return Origin(topic="any", partition=0, offset=offset)

    opened = on(None, Arrival(decision(), 1_100, at(7)), WAITS).row
    assert opened is not None
    assert opened.seen == (7, -1, -1, -1)
    told = on(opened, Arrival(answer(), 3_000, at(2)), WAITS, scored(answer(), None)).row
    assert told is not None
    assert told.seen == (7, 2, -1, -1)
    assert on(told, Arrival(decision(), 4_000, at(9)), WAITS).row == told, "a duplicate changes nothing"
    early, whole = encode_row(opened), encode_row(told)
    assert newer(whole, early)
    assert newer(whole, whole)
    assert not newer(early, whole)
    assert newer(whole, b"no row")
    assert not newer(b"no row", whole)


def test_provisional_without_correctness_awaits_correction() -> None:
    join = Join().answered()
    (provisional,) = join.rewards
    assert (provisional.kind, provisional.closes) == ("provisional", False)
    assert (provisional.correct, provisional.reward) == (None, None)
    assert provisional.learnable
    join.take(feedback(0.75), 33_000)
    assert join.kinds() == ["provisional", "correction"]
    correction = join.rewards[1]
    assert (correction.correct, correction.graded_by, correction.grader) == (0.75, "person", "")
    assert correction.log_cost == provisional.log_cost


@pytest.mark.parametrize("graded_by", ["reference", "person", "judge"])
def test_a_reward_says_whom_its_correctness_comes_from(graded_by: GradeSource) -> None:
    told = Feedback(query_id="q", correct=1.0, graded_by=graded_by)
    for early in (False, True):
        join = Join()
        join.take(decision(), 1_100)
        for record in (told, answer()) if early else (answer(), told):
            join.take(record, 3_000)
        assert (join.rewards[-1].graded_by, join.rewards[-1].grader) == (graded_by, "")


def test_feedback_that_never_comes_is_a_default_at_its_deadline() -> None:
    join = Join().answered()
    assert join.row is not None
    assert join.row.decision is not None
    assert join.row.decision.reference is None, "no text that is not needed any more is kept"
    assert [d.deadline_ms for d in dues(join.row)] == [33_000]
    join.due("feedback", late_ms=5)
    join.take(feedback(), 34_000)
    assert join.kinds() == ["provisional", "default"]
    assert [reward.graded_by for reward in join.rewards] == ["", "score"]


def test_feedback_appended_after_its_deadline_is_late() -> None:
    join = Join().answered()
    join.take(feedback(), 33_001)
    assert join.counts == ["late_feedback"]
    join.due("feedback")
    assert join.kinds() == ["provisional", "default"]


def test_a_reward_is_closed_early_on_request_and_says_so() -> None:
    crowded = Due(query_id="q", kind="crowded", deadline_ms=5_000)
    join = Join()
    join.opened(feedback_wait_s=3600.0)
    assert join.take(crowded, 5_000).counts == ("stale_due",), "its Answer is still to come"
    join.take(answer(), 3_000)
    transition = join.take(crowded, 5_001)
    assert (transition.row, join.kinds()) == (None, ["provisional", "default"])
    closed = join.rewards[-1]
    assert (closed.closed_early, closed.correct, closed.graded_by) == (True, None, "score")
    assert not join.rewards[0].closed_early
    told = Join().answered(feedback_wait_s=3600.0)
    told.take(feedback(), 4_000)
    assert not told.rewards[-1].closed_early


def test_a_row_knows_whose_reward_waits() -> None:
    row = Join().answered(tenant="shop", feedback_wait_s=60.0).row
    assert row is not None
    assert row.decision is not None
    assert row.decision.tenant == "shop"


def test_a_query_that_waits_for_no_feedback_closes_at_once() -> None:
    join = Join().answered(feedback_wait_s=0)
    assert join.kinds() == ["default"]


@pytest.mark.parametrize(("verified", "own", "wait_ms"), [
    ("some", None, 9_000), ("all", None, 0), ("none", None, 0), ("some", 4.0, 4_000), ("some", 0.0, 0),
])  # fmt: skip
def test_mixed_fleets_wait_for_feedback_by_default(
    verified: Verified, own: float | None, wait_ms: int
) -> None:
    join = Join(timeouts=Timeouts(feedback_ms=0, mixed_feedback_ms=9_000))
    made = decision() if own is None else decision(feedback_wait_s=own)
    join.take(replace(made, verified=verified), 1_900)
    join.take(answer(), 3_000)
    if not wait_ms:
        assert join.kinds() == ["default"]
        return
    assert join.row is not None
    assert dues(join.row) == (("feedback", 3_000 + wait_ms),)


def test_the_query_s_own_waits_count_from_append_times() -> None:
    join = Join()
    join.take(decision(timeout_s=2.5, feedback_wait_s=4), 1_900)
    assert join.row is not None
    assert dues(join.row) == (("timeout", 3_500),)
    join.take(answer(), 3_000)
    assert dues(join.row) == (("feedback", 7_000),)


def test_answer_without_text_by_model_fault_is_wrong_at_once() -> None:
    """No feedback is awaited, and the reference is not asked: there is nothing to grade."""
    blamed = replace(answer("failed"), fault="model", cause="timeout")
    for query in ({"reference": "4"}, {"feedback_wait_s": 100.0}):
        join = Join()
        join.take(decision(**query), 1_100)
        asked = to_value(join.row, blamed)
        assert asked is not None
        assert not gradable(*asked)
        found = value(
            *asked,
            cost_model=CostModel({}, {}, "prm"),
            ask=lambda rule, request: Verdict(True, rule),
        )
        transition = on(join.row, Arrival(blamed, 3_000, ORIGIN), WAITS, found)
        assert transition.row is None
        [reward] = transition.out
        assert isinstance(reward, Reward)
        assert (reward.kind, reward.correct, reward.score, reward.log_cost) == ("final", 0.0, None, None)
        assert (reward.fault, reward.graded_by, reward.grader) == ("model", "", "")


def test_early_feedback_is_parked_and_used() -> None:
    records: list[tuple[Any, int]] = [(decision(), 1_100), (feedback(), 1_200), (answer(), 3_000)]
    for first in permutations(records):
        join = Join()
        for record, at_ms in first:
            join.take(record, at_ms)
        assert join.kinds() == ["provisional", "correction"]
        assert (join.rewards[-1].correct, join.rewards[-1].graded_by) == (1.0, "person")


def test_feedback_for_an_unknown_query_becomes_an_orphan() -> None:
    join = Join()
    join.take(feedback(), 5_000)
    assert join.due("parked").out == (Orphan(feedback(), ORIGIN),)
    join.take(feedback(), 5_000)
    join.take(decision(), 40_000)
    join.take(answer(), 41_000)
    join.take(feedback(), 5_000)
    assert join.counts == ["orphan_feedback", "duplicate_feedback", "duplicate_feedback"]
    assert join.kinds() == ["provisional"]


def test_a_lone_orphan_is_forgotten_in_the_end() -> None:
    join = Join()
    join.take(feedback(), 5_000)
    join.due("parked")
    assert join.due("forget").row is None


def test_parked_feedback_becomes_an_orphan_when_due() -> None:
    join = Join()
    join.take(decision(), 1_100)
    join.take(feedback(), 1_200)
    assert isinstance(join.due("parked").out[0], Orphan)
    join.take(answer(), 50_000)
    assert join.kinds() == ["provisional"]


def test_silent_executor_leads_to_expired_answer_and_reward() -> None:
    join = Join()
    join.take(decision(), 1_100)
    (expired,) = join.due("timeout").out
    assert isinstance(expired, Answer)
    assert (expired.status, expired.by, expired.query_id, expired.seq) == ("expired", "aggregator", "q", 5)
    assert expired.error
    assert join.row is not None
    assert dues(join.row) == ()
    join.take(expired, 62_000)
    (reward,) = join.rewards
    assert (reward.kind, reward.status, reward.learnable) == ("default", "expired", False)
    assert join.counts == ["expired"]


def test_an_answer_that_was_first_in_the_topic_beats_the_expiry() -> None:
    join = Join(correct=1.0)
    join.take(decision(reference="4"), 1_100)
    (expired,) = join.due("timeout").out
    join.take(answer(), 61_001)
    join.take(expired, 61_002)  # type: ignore[arg-type]
    assert join.kinds() == ["final"]
    assert join.rewards[0].status == "ok"


def test_no_text_with_a_reference_is_a_wrong_answer() -> None:
    join = Join(correct=0.0)
    join.take(decision(reference="4"), 1_100)
    join.take(answer("failed"), 3_000)
    (reward,) = join.rewards
    assert (reward.kind, reward.correct, reward.learnable, reward.reward) == ("final", 0.0, False, None)


def test_an_answer_before_its_decision_waits_for_it() -> None:
    join = Join(correct=1.0)
    join.take(answer(), 3_000)
    assert not join.rewards
    join.take(decision(reference="4"), 3_100)
    assert join.kinds() == ["final"]
    assert join.rewards[0].latency_s == 2.0
    rejected = Join()
    rejected.take(answer("rejected"), 3_000)
    assert rejected.due("forget").row is None
    assert not rejected.rewards


def test_a_clock_that_runs_ahead_expires_nothing() -> None:
    join = Join()
    join.take(decision(), 1_100)
    transition = join.take(Due(query_id="q", kind="timeout", deadline_ms=61_000), 60_999)
    assert (transition.out, transition.counts) == ((), ("early_due",))
    join.take(Due(query_id="q", kind="timeout", deadline_ms=50_000), 70_000)
    join.take(Due(query_id="q", kind="feedback", deadline_ms=33_000), 70_000)
    assert join.counts == ["early_due", "stale_due", "stale_due"]
    assert on(None, Arrival(Due(query_id="q", kind="forget", deadline_ms=1), 5), WAITS) == Transition(
        None, counts=("stale_due",)
    )


def test_an_answer_that_was_not_valued_is_a_mistake() -> None:
    join = Join()
    join.take(decision(), 1_100)
    with pytest.raises(ValueError, match="to_value"):
        on(join.row, Arrival(answer(), 3_000), WAITS)


def test_an_unreadable_row_is_refused() -> None:
    whole = encode_row(JoinRow(query_id="q"))
    for bad in (
        b"", b"{}", b'{"schema":"join-row.v2","query_id":"q"}', b'{"schema":"join-row.v1"}', b"\xff" * 64,
        encode_row(Join().opened()).replace(b'"seq":5', b'"seq":"five"'),
        whole.replace(b'"q"', b'"\xc0\x80"'), b"[" * 50_000, whole[:-1] + b',"a":' + b"[" * 50_000,
    ):  # fmt: skip
        with pytest.raises(UnreadableRecord, match="rebuild the table"):
            decode_row(bad)


RECORDS = [
    decision(),
    decision(reference="4"),
    answer(),
    answer("failed"),
    Answer(query_id="q", status="expired", by="aggregator", error="silent"),
    feedback(1.0),
    feedback(0.0),
]


@settings(max_examples=150, deadline=None)
@given(
    order=st.lists(st.sampled_from(RECORDS), min_size=1, max_size=8),
    gaps=st.lists(st.integers(0, 40_000), min_size=12, max_size=12),
    fires=st.lists(st.booleans(), min_size=12, max_size=12),
    crashes=st.lists(st.booleans(), min_size=12, max_size=12),
    correct=st.sampled_from([None, 0.0, 1.0]),
)
def test_any_order_repetition_or_crash_rewards_once(
    order: list[Decision | Answer | Feedback],
    gaps: list[int],
    fires: list[bool],
    crashes: list[bool],
    correct: float | None,
) -> None:
    join, now = Join(correct), 1_000
    seen: list[tuple[Decision | Answer | Feedback | Due, int]] = []
    answers: list[Answer] = []

    def deliver(record: Decision | Answer | Feedback | Due, crash: bool) -> None:
        if crash:
            # The records went out, the row was not stored: the same record comes again and says the same.
            assert join.transition(record, now) == join.transition(record, now)
        transition = join.take(record, now)
        answers.extend(out for out in transition.out if isinstance(out, Answer))
        seen.append((record, now))
        # Whatever was seen before changes nothing and says nothing, at once and later.
        for old, at_ms in seen:
            again = join.transition(old, at_ms)
            assert (again.row, again.out) == (join.row, ())

    for record, gap, fire, crash in zip(order, gaps, fires, crashes, strict=False):
        now += gap
        if fire and join.row is not None:
            for deadline in dues(join.row):
                if deadline.kind != "forget" and deadline.deadline_ms <= now:
                    deliver(Due(query_id="q", kind=deadline.kind, deadline_ms=deadline.deadline_ms), crash)
        deliver(record, crash)
    # Let time pass: every deadline is sent, and what the aggregator answered comes back to it.
    for _ in range(4):
        for pending in answers:
            deliver(pending, False)
        if join.row is None:
            break
        for deadline in dues(join.row):
            if deadline.kind != "forget":
                now = max(now, deadline.deadline_ms)
                deliver(Due(query_id="q", kind=deadline.kind, deadline_ms=deadline.deadline_ms), False)
                break

    ids = [reward.reward_id for reward in join.rewards]
    assert len(set(ids)) == len(ids)
    closing = [reward for reward in join.rewards if reward.kind in CLOSING]
    opened = any(isinstance(record, Decision) for record in order)
    assert len(closing) == opened
    if len(join.rewards) == 2:
        assert join.rewards[0].kind == "provisional"
        assert join.rewards[1].kind in ("correction", "default")
        assert join.rewards[0].score == join.rewards[1].score
    assert not join.rewards or join.rewards[-1] is closing[0]


# What counts, and what becomes of feedback, by append times alone.

AWAITED: dict[str, Sequence[type]] = {
    "feedback": [Feedback],
    "parked": [Answer, Decision],
    "forget": [Decision],
}
"""The topics of which the timer has seen all, up to a deadline, before it sends its Due (`AggregatorService`)."""

Appended = tuple[Decision | Answer | Feedback, int]


def read(
    records: Sequence[Appended], fires: Sequence[bool], timeouts: Timeouts, correct: float | None
) -> tuple[Join, str]:
    """Return the join that read records in this order, and what became of their Feedback.

    Args:
        records: With their append times.
        fires: After which of them the timer sends each Due that it may; it does so after the last in any case.
        timeouts: Of the deployment.
        correct: What a reference says.
    """
    join, unread = Join(correct, timeouts), list(records)
    fates: list[str] = []

    def take(record: Decision | Answer | Feedback | Due, at_ms: int) -> None:
        closed = "q" in join.closed
        transition = join.take(record, at_ms)
        fates.extend("dead letter" for out in transition.out if isinstance(out, Orphan))
        if "late_feedback" in transition.counts or (closed and isinstance(record, Feedback)):
            fates.append("late")
        fates.extend(
            "counts" for out in transition.out if isinstance(out, Reward) and out.kind == "correction"
        )

    for record, at_ms, fire in [(*each, fire) for each, fire in zip(records, fires, strict=True)]:
        take(record, at_ms)
        unread.pop(0)
        while (fire or not unread) and join.row is not None:
            ready = [
                due
                for due in dues(join.row)
                # An Answer at the deadline of a query is a record like any other.
                if due.kind != "timeout"
                and not any(ms <= due.deadline_ms and type(each) in AWAITED[due.kind] for each, ms in unread)
            ]
            if not ready:
                break
            kind, deadline_ms = ready[0]
            take(Due(query_id="q", kind=kind, deadline_ms=deadline_ms), deadline_ms)
    (fate,) = fates
    return join, fate


@settings(max_examples=150, deadline=None)
@given(
    times_s=st.tuples(*[st.integers(1, 70)] * 3),
    wait_s=st.sampled_from([0, 3, 30, 60]),
    deployment_s=st.sampled_from([0, 3, 30, 60]),
    end=st.sampled_from(["ok", "ok", "ok", "graded", "failed", "cancelled"]),
    learn=st.booleans(),
    fires=st.tuples(*[st.booleans()] * 3),
)
# The Decision read last: feedback in time, and too late. Feedback that the Answer comes too late for.
@example(times_s=(1, 3, 4), wait_s=60, deployment_s=0, end="ok", learn=True, fires=(True, True, True))
@example(times_s=(1, 3, 50), wait_s=30, deployment_s=30, end="ok", learn=True, fires=(True, True, True))
@example(times_s=(1, 40, 2), wait_s=3, deployment_s=30, end="ok", learn=True, fires=(False, False, False))
# The Decision comes too long after the feedback, and the query's wait is the shorter one.
@example(times_s=(10, 20, 2), wait_s=60, deployment_s=3, end="ok", learn=True, fires=(False, False, False))
@example(times_s=(1, 20, 2), wait_s=3, deployment_s=60, end="ok", learn=True, fires=(False, False, False))
def test_append_times_alone_decide_rewards_and_feedback(
    times_s: tuple[int, int, int],
    wait_s: int,
    deployment_s: int,
    end: str,
    learn: bool,
    fires: tuple[bool, ...],
) -> None:
    """One corner is left for a single Feedback, and changes no Reward.

    Where Answer or Decision came too long after it, and it is read once its query is closed, no row is left to say so:
    it counts as late, and is no dead letter. Of two, the second may count only where the first is a dead letter before
    the second is read: a row keeps one. That may change the Reward, and is not drawn here.
    """
    timeouts = Timeouts(timeout_ms=60_000, feedback_ms=1000 * deployment_s, keep_ms=1_000_000)
    decided_ms, answered_ms, told_ms = (1000 * time_s for time_s in times_s)
    told = replace(feedback(), learn=learn)
    ended = CANCELLED if end == "cancelled" else answer("failed" if end == "failed" else "ok")
    records: list[Appended] = [
        (decision(feedback_wait_s=wait_s), decided_ms), (ended, answered_ms), (told, told_ms),
    ]  # fmt: skip
    correct = 1.0 if end == "graded" else None
    unmet = answered_ms > told_ms + 1000 * wait_s or decided_ms > told_ms + 1000 * deployment_s
    closes = end != "ok" or wait_s == 0
    late = closes or told_ms > answered_ms + 1000 * wait_s
    fate = "dead letter" if unmet else "late" if late else "counts"

    in_order, _ = read(sorted(records, key=lambda each: each[1]), (True, True, True), timeouts, correct)
    for order in permutations(records):
        for each in ((True, True, True), (False, False, False), fires):
            join, became = read(order, each, timeouts, correct)
            assert join.rewards == in_order.rewards
            assert became == fate or (fate, became, order[-1]) == ("dead letter", "late", records[2])
    first = ["final"] if end == "graded" else ["default"] if closes else ["provisional"]
    last = [] if closes else ["correction" if fate == "counts" else "default"]
    assert in_order.kinds() == first + last


GOLDEN_ROW = (
    b'{"schema":"join-row.v1","query_id":"q","opened":{"seq":5,"action":{"model":"m","qp":1,"cp":1,"bs":1},'
    b'"objective":{"weights":{"correct":0.4,"score":0.4,"cost":0.2},"cost_range":{"low":1.0,'
    b'"high":100.0},"name":null,"version":-1},"appended_ms":1000,"timeout_ms":60000,"feedback_ms":30000},'
    b'"answered_ms":3000,"valued":{"status":"ok","score":0.5,"price":{"cost":10.0,"prefill_eflops":1.0,'
    b'"decoding_eflops":6.0,"verifier_eflops":3.0,"compute_flops":4.0,"memory_bytes":2.0,"intensity":3.0},'
    b'"grader":"g 1"},"provisional":true}'
)


def test_a_row_of_the_first_version_is_read_for_ever() -> None:
    join = Join().answered()
    assert join.row is not None
    assert join.row.decision is not None
    decision = replace(join.row.decision, decided_ms=0)  # which it did not keep
    assert decode_row(GOLDEN_ROW) == replace(join.row, decision=decision, seen=(-1, -1, -1, -1))


def test_feedback_parked_without_append_time_uses_the_row() -> None:
    for answered_ms, kinds in ((2_000, ["provisional", "correction"]), (5_001, ["provisional"])):
        join = Join()
        join.row = decode_row(
            b'{"schema":"join-row.v1","query_id":"q","parked":{"feedback":{"schema":"feedback.v1",'
            b'"query_id":"q","correct":true},"until_ms":5000}}'
        )
        join.take(decision(feedback_wait_s=1), 1_100)
        assert join.row is not None
        assert Deadline("parked", 5_000) in dues(join.row)
        join.take(answer(), answered_ms)
        assert join.kinds() == kinds


# Rows that would be too large, and what a row keeps for the price.

SMALL = Timeouts(timeout_ms=60_000, feedback_ms=30_000, keep_ms=1_000_000, row_bytes=2_000)


def test_oversized_feedback_is_a_dead_letter() -> None:
    join = Join(timeouts=SMALL)
    join.take(decision(), 1_100)
    large = Feedback(query_id="q", correct=1.0, metadata={"note": "x" * 3_000})
    transition = join.take(large, 1_200)
    assert transition.out == (Orphan(large, ORIGIN, "oversized"),)
    assert transition.counts == ("oversized",)
    # Delivered again it changes nothing, and every deadline of the row is still met.
    assert join.take(large, 1_300).out == ()
    join.take(answer(), 3_000)
    join.due("feedback")
    assert join.kinds() == ["provisional", "default"]


def test_oversized_early_answer_closes_without_a_price() -> None:
    join = Join(timeouts=SMALL)
    transition = join.take(replace(answer(), text="x" * 3_000), 900)
    assert transition.counts == ("oversized",)
    join.take(decision(reference="4"), 1_100)
    (reward,) = join.rewards
    assert (reward.kind, reward.correct, reward.price, reward.learnable) == ("default", None, None, False)
    assert "does not fit a row of 2000 bytes" in reward.missing


def test_a_reference_that_does_not_fit_is_left_out() -> None:
    join = Join(timeouts=SMALL)
    join.take(decision(reference="x" * 3_000), 1_100)
    assert join.counts == ["oversized"]
    join.take(answer(), 3_000)
    join.due("feedback")
    assert join.kinds() == ["provisional", "default"]


@given(
    sizes=st.tuples(*[st.integers(0, 4_000)] * 3),
    order=st.permutations(range(3)),
    most=st.integers(1_500, 9_000),
)
@example(sizes=(0, 1293, 0), order=[1, 0, 2], most=1_500)
@example(sizes=(3343, 1650, 1585), order=[1, 0, 2], most=1_500)
def test_a_row_always_fits(sizes: tuple[int, int, int], order: list[int], most: int) -> None:
    timeouts = Timeouts(timeout_ms=60_000, feedback_ms=30_000, keep_ms=1_000_000, row_bytes=most)
    join = Join(timeouts=timeouts)
    records = (
        decision(reference="r" * max(1, sizes[0])),
        replace(answer(), text="t" * max(1, sizes[1])),
        Feedback(query_id="q", correct=1.0, metadata={"note": "n" * sizes[2]}),
    )
    for at, index in enumerate(order):
        join.closed = RecentIds(200_000)  # nobody tells the join which queries are closed
        join.take(records[index], 1_000 + at)
        assert join.row is None or len(encode_row(join.row)) <= most
    for _ in range(3):
        for kind in [due.kind for due in dues(join.row)] if join.row else []:
            if join.row and kind in {due.kind for due in dues(join.row)} and kind != "forget":
                join.due(kind)
    if join.row is not None:  # of feedback after the close, which waited for its query
        assert join.row.orphaned is not None
        assert join.row.decision is None
        join.due("forget")
    assert join.row is None
    assert sum(kind in CLOSING for kind in join.kinds()) == 1


def test_architecture_is_kept_until_the_answer_is_priced() -> None:
    generator = Architecture(parameters=1000, layers=2, query_heads=4, kv_heads=2, head_dim=8)
    transition = on(None, Arrival(decision(), 1_100, ORIGIN), WAITS, None, generator)
    assert transition.row is not None
    row = decode_row(encode_row(transition.row))
    assert row.decision is not None
    assert row.decision.generator == generator
    settled = on(row, Arrival(answer(), 3_000, ORIGIN), WAITS, scored(answer(), None))
    assert settled.row is not None
    assert settled.row.decision is not None
    assert settled.row.decision.generator is None


# Searches that their client ended, by hanging up or by its own bounds: they cost what they spent, and no more.

CANCELLED = Answer(query_id="q", status="cancelled", by="executor", text="so 4", score=0.5)


def unasked(rule: Rule, request: object) -> Verdict:
    raise AssertionError("a cancelled answer is not graded")


def test_a_cancelled_search_is_priced_and_never_learned_from() -> None:
    cost_model = CostModel(generators={}, verifiers={}, verifier="")
    scored = value("4", CANCELLED, cost_model=cost_model, ask=unasked)
    assert (scored.status, scored.score, scored.correct) == ("cancelled", None, None)
    opened = on(None, Arrival(decision(reference="4"), 1_100, ORIGIN), WAITS).row
    transition = on(opened, Arrival(CANCELLED, 3_000, ORIGIN), WAITS, replace(scored, price=PRICE))
    (reward,) = [out for out in transition.out if isinstance(out, Reward)]
    assert (reward.kind, reward.status, reward.correct, reward.score) == ("default", "cancelled", None, None)
    assert reward.price == PRICE
    assert reward.log_cost is not None
    assert not reward.learnable
    assert transition.row is None, "it is closed"


@pytest.mark.parametrize(
    ("finish", "complete", "bounded"),
    [("max_tokens", False, True), ("stop", True, True), ("length", False, False), ("eos", True, False)],
)
def test_answer_cut_by_client_bounds_teaches_cost_only(finish: Any, complete: bool, bounded: bool) -> None:
    """Neither the reference nor a judgement of the user counts: the configuration was not let finish."""
    trace = (
        Draft(parent=-1, depth=1, tokens=3, finish=finish, score=0.5, fate="finished" if complete else "cut"),
    )
    answer = Answer(
        query_id="q", status="ok" if complete else "unfinished", by="executor", action=ACTION, text="so", score=0.5,
        complete=complete, path=(0,), trace=trace,
    )  # fmt: skip
    cost_model = CostModel(generators={}, verifiers={}, verifier="")
    scored = replace(value("4", answer, cost_model=cost_model, ask=unasked), price=PRICE)
    assert (scored.bounded, scored.score, scored.correct) == (bounded, 0.5, None if bounded else 0.0)
    for early in (False, True):
        row = on(None, Arrival(decision(reference="4"), 1_100, ORIGIN), WAITS).row
        if early:
            row = on(row, Arrival(Feedback(query_id="q", correct=False), 1_200, ORIGIN), WAITS).row
        transition = on(row, Arrival(answer, 3_000, ORIGIN), WAITS, scored)
        (reward,) = [out for out in transition.out if isinstance(out, Reward)]
        assert reward.log_cost is not None
        assert reward.bounded is bounded
        assert (reward.kind, reward.correct) == (("default", None) if bounded else ("final", 0.0))
        assert transition.row is None, "it is closed"


# A query that is decided again: two Decisions, and an Answer of either.

LARGE = Action.parse("large/1/1/1")


def attempts() -> tuple[Decision, Decision]:
    """Return the Decision of an attempt that failed, and the one that followed."""
    first = decision()
    failed = EarlierAttempt(attempt=1, seq=first.seq, action=first.action, fault="infrastructure", cost=40.0)
    return first, replace(first, seq=9, action=LARGE, attempt=2, excluded=("m",), earlier=(failed,))


def answered_by(made: Decision) -> Answer:
    return replace(answer(), action=made.action, attempt=made.attempt, seq=made.seq)


def named(join: Join) -> list[tuple[int, int, str, float | None]]:
    """Return attempt, sequence number, action and cost of each reward."""
    return [(each.attempt, each.seq, each.action.id, each.cost) for each in join.rewards]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1), (2, 1, 0), (1, 2, 0), (1, 0, 2)], ids=str)
def test_answer_of_a_second_attempt_waits_for_its_decision(order: tuple[int, ...]) -> None:
    first, second = attempts()
    join, records = Join(correct=1.0), (first, second, answered_by(second))
    for at in order:
        join.take(records[at], 2_000)
    assert join.kinds() in (["final"], ["provisional"])
    assert named(join) == [(2, 9, LARGE.id, 40.0 + PRICE.cost)]


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_first_attempt_may_answer_beside_the_second(late: bool) -> None:
    """Its search ran twice: what it came to is the Answer, and no attempt was made before it."""
    first, second = attempts()
    join, last = Join(correct=1.0), replace(answered_by(first), attempt=1)
    join.take(first, 1_100)
    join.take(second, 2_000)
    join.take(last, 3_000)
    assert named(join) == [(1, first.seq, ACTION.id, PRICE.cost)]
    if late:
        join.take(answered_by(second), 4_000)
    assert len(join.rewards) == 1


def test_decision_that_an_attempt_has_followed_is_a_duplicate() -> None:
    first, second = attempts()
    join = Join()
    join.take(second, 2_000)
    before = join.row
    for again in (first, second):
        join.take(again, 3_000)
    assert join.row == before
    assert join.counts == ["duplicate_decision"] * 2


def test_no_attempt_follows_an_expiry_or_an_answer() -> None:
    first, second = attempts()
    expired, provisional = Join(), Join()
    expired.take(first, 1_100)
    expired.due("timeout")
    provisional.take(first, 1_100)
    provisional.take(answered_by(first), 2_000)
    assert provisional.kinds() == ["provisional"]
    for join in (expired, provisional):
        join.take(second, 90_000)
        assert join.counts[-1] == "duplicate_decision"
        assert join.row is not None
        assert join.row.decision is not None
        assert join.row.decision.attempt == 1


def test_a_query_that_expires_names_its_last_attempt() -> None:
    first, second = attempts()
    join = Join()
    join.take(first, 1_100)
    join.take(second, 2_000)
    [out] = join.due("timeout").out
    assert isinstance(out, Answer)
    assert (out.status, out.attempt, out.seq, out.action) == ("expired", 2, 9, LARGE)
    join.take(out, 62_000)
    assert named(join) == [(2, 9, LARGE.id, 40.0)]
