"""Whatever is done to a sound log, one check names it, and each check has a forgery that no other check sees."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import orjson
import pytest

from agents.decider.rows import Row, decode_row, encode_row, without_question
from agents.decider.snapshot import SNAPSHOT_KEY
from agents.reward.join_row import decode_row as decode_join
from agents.reward.join_row import encode_row as encode_join
from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.chat import ChatOptions
from schemas.decision import Decision
from schemas.failure import EarlierAttempt
from schemas.forest import Limits
from schemas.query import Query, QueryContext
from schemas.record import decode, encode, quick_id
from schemas.reward import Feedback, Reward, reward_id
from streams.audit.reading import Raw, statements
from streams.runtime.queues import WINDOW
from tests.support.topic_lists import TopicLists

replace = msgspec.structs.replace


def test_a_sound_log_is_accounted_for(log: TopicLists) -> None:
    report = log.audit()
    assert report.wrong == 0, report.discrepancies
    assert report.states == {"answered and learned": 180, "answered, not learnable (failed)": 20}
    assert report.queries == sum(report.states.values()) == 200
    assert (report.pending, report.overdue, report.repeated, report.unreadable) == ([], 0, 0, {})
    assert report.learner == {"updates": 200, "applied": 200}


def test_answers_without_a_score_are_accounted_for(log: TopicLists) -> None:
    """One was graded, so its score is its correctness; of the other only the cost can be learned."""
    for query_id in ("h21", "h22"):
        log.change(log.topics.answer, Answer, query_id, score=None)
    real = log.find(log.topics.reward, Reward, "h21")
    scalar = real.objective.reward(real.correct, real.correct, real.log_cost)
    log.change(log.topics.reward, Reward, "h21", score=None, unscored=True, reward=scalar)
    learned(log, "h21", score=real.correct)
    unknown = {"kind": "default", "reward_id": reward_id("h22", "default"), "graded_by": "", "grader": ""}
    unknown["missing"] = "correct: no grader was free"
    log.change(
        log.topics.reward, Reward, "h22", **unknown, correct=None, score=None, unscored=True, reward=None
    )
    row = row_of(log, "h22")
    learned(
        log,
        "h22",
        stage="priced",
        kinds=("default",),
        ended_seq=row.learned_seq,
        learned_seq=-1,
        correct=None,
    )
    report = log.audit()
    assert report.states["answered, not learnable (neither scored nor graded)"] == 1
    assert report.checks <= {"policy_version"}, report.discrepancies


def test_a_model_s_failure_is_accounted_for(log: TopicLists) -> None:
    log.change(log.topics.answer, Answer, "h199", fault="model", cause="timeout")
    failed_in_the_reward(log, "h199")
    row = {"learned_seq": row_of(log, "h199").ended_seq, "ended_seq": -1, "kinds": ("final",)}
    learned(log, "h199", stage="failed", correct=0.0, **row)
    report = log.audit()
    assert report.wrong == 0, report.discrepancies
    assert report.states["answered and learned (its model failed)"] == 1


# What is done, and to whom. A forger who knows the system changes whatever else would give a forgery away.

Forge = Callable[[TopicLists], set[str]]
FORGERIES: dict[str, list[Forge]] = {}


def names(check: str) -> Callable[[Forge], Forge]:
    """Say which check alone names a forgery; it returns the subjects that are named."""

    def note(forge: Forge) -> Forge:
        FORGERIES.setdefault(check, []).append(forge)
        return forge

    return note


def never_decided(log: TopicLists, value: bytes | None = None) -> str:
    """Append a Query that its embedder passed over, and one a window after it that the embedder took up."""
    skipped = Query(query_id="skipped", text="Was this ever asked?")
    log.append(log.topics.query, b"skipped", encode(skipped) if value is None else value)
    skipped_at = log.records[log.topics.query, 0][-1].offset
    taken_up(log, skipped_at + WINDOW * log.settings.kafka.concurrency)
    return f"{log.topics.query}/0/{skipped_at}"


def taken_up(log: TopicLists, at: int) -> None:
    """Append a Query at an offset, and its Context."""
    real = log.find(log.topics.context, QueryContext, "h199")
    taken = Query(query_id="taken", text="And this?")
    log.put(log.topics.query, "taken", taken)
    raws = log.records[log.topics.query, 0]
    raws[-1] = raws[-1]._replace(offset=at)
    log.put(log.topics.context, "0", replace(real, query=taken, origin=replace(real.origin, offset=at)))


@names("query_passed_over")
def skipped_query(log: TopicLists) -> set[str]:
    never_decided(log)
    return {"skipped"}


@names("unreadable_query_passed_over")
def skipped_bytes(log: TopicLists) -> set[str]:
    return {never_decided(log, b"{")}


@names("context_passed_over")
def skipped_context(log: TopicLists) -> set[str]:
    skipped = Query(query_id="skipped", text="Was this ever asked?")
    log.put(log.topics.query, "skipped", skipped)
    at = log.records[log.topics.query, 0][-1].offset
    raws = log.records[log.topics.context, 0]
    context = decode(raws[50].value, QueryContext)
    instead = replace(context, query=skipped, origin=replace(context.origin, offset=at))
    raws[50] = raws[50]._replace(value=encode(instead))
    return {"skipped"}


@names("decisions_differ")
def two_decisions(log: TopicLists) -> set[str]:
    real = log.find(log.topics.decision, Decision, "h40")
    log.put(log.topics.decision, "h40", replace(real, seq=real.seq + 1))
    return {"h40"}


@names("decision_for_no_query")
def another_record_in_its_place(log: TopicLists) -> set[str]:
    raws = log.records[log.topics.query, 0]
    raws[41] = raws[41]._replace(key=raws[40].key, value=raws[40].value)
    return {"h41"}


@names("decision_for_another_question")
def changed_question(log: TopicLists) -> set[str]:
    log.change(log.topics.query, Query, "h42", text="Another question?")
    return {"h42"}


def decided_with(log: TopicLists, query_id: str, **fields: Any) -> set[str]:
    """Let a query have been decided with other fields."""
    log.change(log.topics.decision, Decision, query_id, **fields)
    real = log.find(log.topics.decision, Decision, query_id)
    learned(log, query_id, decision=msgspec.Raw(without_question(real)))
    return {query_id}


@names("decision_unable")
def model_without_what_is_required(log: TopicLists) -> set[str]:
    model = log.find(log.topics.decision, Decision, "h36").action.model
    return decided_with(log, "h36", required=("tools",), unable_models=(model,))


@names("decision_unable")
def several_samples_in_place_of_one(log: TopicLists) -> set[str]:
    wide = next(d for d in log.all(log.topics.decision, Decision) if d.action.samples > 1)
    return decided_with(log, wide.query_id, required=("sampling", "greedy"))


@names("decision_unable")
def requirement_that_was_forgotten(log: TopicLists) -> set[str]:
    options = ChatOptions(response_format={"type": "json_object"})
    log.change(log.topics.query, Query, "h37", options=options)
    query = log.find(log.topics.decision, Decision, "h37").query
    return decided_with(log, "h37", query=replace(query, options=options))


@names("decision_missing")
def lost_decision(log: TopicLists) -> set[str]:
    log.cut(log.topics.decision, lambda raw: raw.key != b"h38")
    return {"h38"}


@names("answers_differ")
def another_answer(log: TopicLists) -> set[str]:
    real = log.find(log.topics.answer, Answer, "h28")
    log.put(log.topics.answer, "h28", replace(real, text="It is \\boxed{0}", extracted="0"))
    return {"h28"}


@names("expired_early")
def expired_at_once(log: TopicLists) -> set[str]:
    log.change(log.topics.answer, Answer, "h9", status="expired")
    log.change(log.topics.reward, Reward, "h9", status="expired")
    return {"h9"}


@names("answer_score")
def changed_score_of_a_draft(log: TopicLists) -> set[str]:
    real = log.find(log.topics.answer, Answer, "h30")
    first = replace(real.trace[0], score=real.trace[0].score / 2)
    log.change(log.topics.answer, Answer, "h30", trace=(first, *real.trace[1:]))
    return {"h30"}


@names("answer_without_decision")
def answer_of_nobody(log: TopicLists) -> set[str]:
    real = log.find(log.topics.answer, Answer, "h22")
    log.put(log.topics.answer, "nobody", replace(real, query_id="nobody"))
    return {"nobody"}


@names("answer_to_another_decision")
def another_action(log: TopicLists) -> set[str]:
    real = log.find(log.topics.answer, Answer, "h31")
    log.change(log.topics.answer, Answer, "h31", action=replace(real.action, bs=real.action.bs + 1))
    return {"h31"}


@names("answer_to_another_decision")
def changed_price_factor(log: TopicLists) -> set[str]:
    """Answer, Reward and row agree with one another, and not with what was decided."""
    real = log.find(log.topics.reward, Reward, "h50")
    paid = ("cost", "prefill_eflops", "decoding_eflops", "verifier_eflops")
    price = replace(real.price, **{name: 3.0 * getattr(real.price, name) for name in paid}, factor=3.0)
    log.change(
        log.topics.answer, Answer, "h50", limits=Limits(depth_limit=8, step_tokens=64, price_factor=3.0)
    )
    said_and_learned(log, "h50", price=price, log_cost=math.log(price.cost))
    return {"h50"}


@names("rewards_differ")
def repeated_reward(log: TopicLists) -> set[str]:
    real = log.find(log.topics.reward, Reward, "h20")
    log.put(log.topics.reward, "0", replace(real, grader="another"))
    return {"h20"}


@names("reward_kinds")
def closed_twice(log: TopicLists) -> set[str]:
    real = log.find(log.topics.reward, Reward, "h23")
    again = replace(real, kind="correction", reward_id=reward_id("h23", "correction"))
    log.put(log.topics.reward, "0", again)
    return {"h23"}


@names("reward_kinds")
def provisional_after_its_final(log: TopicLists) -> set[str]:
    real = log.find(log.topics.reward, Reward, "h23")
    to = {"kind": "provisional", "reward_id": reward_id("h23", "provisional")}
    log.put(log.topics.reward, "0", replace(real, **to, correct=None, graded_by="", reward=None))
    return {"h23"}


@names("reward_without_decision")
def reward_of_nobody(log: TopicLists) -> set[str]:
    real = log.find(log.topics.reward, Reward, "h22")
    nobody = replace(real, query_id="nobody", reward_id=reward_id("nobody", "final"))
    log.put(log.topics.reward, "0", nobody)
    row = decode_join(next(raw for raw in log.records[log.join, 0] if raw.key == b"h22").value)
    log.append(log.join, b"nobody", encode_join(replace(row, query_id="nobody")))
    return {"nobody"}


@names("reward_of_another_decision")
def another_objective(log: TopicLists) -> set[str]:
    real = log.find(log.topics.reward, Reward, "h60")
    log.change(log.topics.reward, Reward, "h60", objective=replace(real.objective, name="another"))
    return {"h60"}


@names("reward_without_answer")
def lost_answer(log: TopicLists) -> set[str]:
    log.cut(log.topics.answer, lambda raw: raw.key != b"h61")
    return {"h61"}


@names("reward_of_another_answer")
def another_status(log: TopicLists) -> set[str]:
    log.change(log.topics.reward, Reward, "h62", status="expired")
    return {"h62"}


@names("reward_of_another_answer")
def score_left_out(log: TopicLists) -> set[str]:
    """The learner takes the grade for a score that the Answer has."""
    real = log.find(log.topics.reward, Reward, "h23")
    scalar = real.objective.reward(real.correct, real.correct, real.log_cost)
    log.change(log.topics.reward, Reward, "h23", score=None, unscored=True, reward=scalar)
    learned(log, "h23", score=real.correct)
    return {"h23"}


@names("reward_log_cost")
def changed_log_cost(log: TopicLists) -> set[str]:
    real = log.find(log.topics.reward, Reward, "h25")
    said_and_learned(log, "h25", log_cost=real.log_cost + 1e-6)
    return {"h25"}


@names("reward_log_cost")
def price_of_nothing(log: TopicLists) -> set[str]:
    real = log.find(log.topics.reward, Reward, "h52")
    log.change(log.topics.reward, Reward, "h52", price=replace(real.price, cost=0.0))
    return {"h52"}


@names("reward_price")
def changed_price(log: TopicLists) -> set[str]:
    real = log.find(log.topics.reward, Reward, "h24")
    price = replace(real.price, decoding_eflops=real.price.decoding_eflops * 1.001)
    log.change(log.topics.reward, Reward, "h24", price=price)
    return {"h24"}


@names("reward_price")
def changed_trace(log: TopicLists) -> set[str]:
    real = log.find(log.topics.answer, Answer, "h26")
    first = replace(real.trace[0], tokens=real.trace[0].tokens + 1)
    log.change(log.topics.answer, Answer, "h26", trace=(first, *real.trace[1:]))
    return {"h26"}


@names("reward_grade")
def changed_grade(log: TopicLists) -> set[str]:
    real = log.find(log.topics.reward, Reward, "h21")
    said_and_learned(log, "h21", correct=1.0 - real.correct)
    return {"h21"}


@names("reference_ungraded")
def reference_forgotten(log: TopicLists) -> set[str]:
    to = {"kind": "default", "reward_id": reward_id("h22", "default"), "graded_by": "", "grader": ""}
    log.change(log.topics.reward, Reward, "h22", **to, correct=None, reward=None)
    learned(log, "h22", kinds=("default",), correct=None)
    return {"h22"}


@names("feedback_uncounted")
def feedback_forgotten(log: TopicLists) -> set[str]:
    answered_ms = next(raw.timestamp_ms for raw in log.records[log.topics.answer, 0] if raw.key == b"h68")
    log.put(log.topics.feedback, "h68", Feedback(query_id="h68", correct=True))
    raws = log.records[log.topics.feedback, 0]
    raws[-1] = raws[-1]._replace(timestamp_ms=answered_ms + 1000)
    return {"h68"}


@names("default_early")
def wait_cut_short(log: TopicLists) -> set[str]:
    query = log.find(log.topics.decision, Decision, "h68").query
    log.change(log.topics.decision, Decision, "h68", query=replace(query, feedback_wait_s=60.0))
    return {"h68"}


@names("feedback_uncounted")
def feedback_before_the_answer_forgotten_by_a_reward_that_was_closed_early(log: TopicLists) -> set[str]:
    answered_ms = next(raw.timestamp_ms for raw in log.records[log.topics.answer, 0] if raw.key == b"h68")
    log.change_kind("h68", "default", closed_early=True)
    log.put(log.topics.feedback, "h68", Feedback(query_id="h68", correct=True))
    raws = log.records[log.topics.feedback, 0]
    raws[-1] = raws[-1]._replace(timestamp_ms=answered_ms - 500)
    return {"h68"}


@names("closed_early_alone")
def closed_early_though_nothing_was_awaited(log: TopicLists) -> set[str]:
    log.change_kind("h9", "default", closed_early=True)
    return {"h9"}


@names("reward_feedback")
def lost_feedback(log: TopicLists) -> set[str]:
    log.cut(log.topics.feedback, lambda raw: raw.key != b"h67")
    return {"h67"}


@names("reward_feedback")
def another_source(log: TopicLists) -> set[str]:
    log.change(log.topics.reward, Reward, "h67", graded_by="judge")
    return {"h67"}


@names("reward_known")
def grade_left_out(log: TopicLists) -> set[str]:
    wrong = next(
        r for r in log.all(log.topics.reward, Reward) if r.kind == "final" and r.correct == 0.0 and r.score
    )
    raws = log.records[log.topics.reward, 0]
    for at, raw in enumerate(raws):
        plain = orjson.loads(raw.value)
        if plain["query_id"] == wrong.query_id:
            # The product writes no such Reward.
            plain |= {"correct": None, "reward": None, "graded_by": ""}
            raws[at] = raw._replace(value=orjson.dumps(plain))
    return {wrong.query_id}


@names("reward_scalar")
def changed_scalar(log: TopicLists) -> set[str]:
    real = log.find(log.topics.reward, Reward, "h63")
    log.change(log.topics.reward, Reward, "h63", reward=real.reward + 1e-6)
    return {"h63"}


@names("row_missing")
def removed_row(log: TopicLists) -> set[str]:
    log.append(log.learner, b"h32", None)
    return {"h32"}


@names("row_missing")
def lost_row(log: TopicLists) -> set[str]:
    log.cut(log.learner, lambda raw: raw.key != b"h33")
    return {"h33"}


@names("row_of_another_decision")
def another_decision_in_the_row(log: TopicLists) -> set[str]:
    real = log.find(log.topics.decision, Decision, "h64")
    learned(log, "h64", decision=msgspec.Raw(encode(replace(real, reason="control"))))
    return {"h64"}


@names("row_embedding")
def changed_embedding(log: TopicLists) -> set[str]:
    real = log.find(log.topics.context, QueryContext, "h43")
    log.change(log.topics.context, QueryContext, "h43", embedding=real.embedding[4:] + real.embedding[:4])
    return {"h43"}


@names("reward_passed_over")
def correction_never_learned(log: TopicLists) -> set[str]:
    """Another row says that the learner has read on, far beyond a Reward that it had to apply."""
    real = log.find(log.topics.reward, Reward, "h65")
    first = {"kind": "provisional", "reward_id": reward_id("h65", "provisional")}
    first["missing"] = "correct: no grader was free"
    log.change(log.topics.reward, Reward, "h65", **first, correct=None, reward=None, graded_by="", grader="")
    learned(log, "h65", stage="learned", kinds=("provisional",), correct=None)
    log.put(
        log.topics.reward, "0", replace(real, kind="correction", reward_id=reward_id("h65", "correction"))
    )
    learned(log, "h199", reward_offset=log.records[log.topics.reward, 0][-1].offset + 64)
    return {"h65"}


@names("row_stage")
def another_kind_in_the_row(log: TopicLists) -> set[str]:
    learned(log, "h66", kinds=("default",))
    return {"h66"}


@names("row_updates")
def learned_twice(log: TopicLists) -> set[str]:
    learned(log, "h68", corrected_seq=max(row.last_seq for row in rows(log)) + 1)
    return {"h68"}


@names("row_terms")
def changed_grade_in_the_row(log: TopicLists) -> set[str]:
    learned(log, "h34", correct=1.0 - row_of(log, "h34").correct)
    return {"h34"}


@names("row_terms")
def changed_cost_in_the_row(log: TopicLists) -> set[str]:
    learned(log, "h35", log_cost=row_of(log, "h35").log_cost + 0.5)
    return {"h35"}


@names("row_terms")
def changed_factor_in_the_row(log: TopicLists) -> set[str]:
    learned(log, "h51", price_factor=3.0)
    return {"h51"}


@names("sequence_twice")
def one_number_for_two_changes(log: TopicLists) -> set[str]:
    learned(log, "h70", ended_seq=row_of(log, "h71").seq)
    return {"h70", "h71"}


@names("sequence_gap")
def query_without_a_trace(log: TopicLists) -> set[str]:
    """A query of which no record is left."""
    row = row_of(log, "h195")
    kinds = {log.topics.context: QueryContext, log.topics.reward: Reward}

    def another(raw: Raw) -> bool:
        return (query_id(raw.value, kinds[topic]) if topic in kinds else raw.key) != b"h195"

    for topic, _ in list(log.records):
        log.cut(topic, another)
    return {f"seq {seq}" for seq in row.seqs if seq >= 0}


@names("reward_fault")
def blamed_after_the_reward(log: TopicLists) -> set[str]:
    log.change(log.topics.answer, Answer, "h19", fault="model", cause="timeout")
    return {"h19"}


@names("blamed_without_probe")
def blamed_for_a_question(log: TopicLists) -> set[str]:
    """The schema refuses to write such an Answer."""
    plain = msgspec.to_builtins(log.find(log.topics.answer, Answer, "h29"))
    blamed = orjson.dumps(plain | {"fault": "model", "cause": "refused", "probe": {"passed": True}})
    raws = log.records[log.topics.answer, 0]
    (at,) = (i for i, raw in enumerate(raws) if raw.key == b"h29")
    raws[at] = raws[at]._replace(value=blamed)
    failed_in_the_reward(log, "h29")
    learned(log, "h29", weight=0, kinds=("final",))
    return {"h29"}


@names("row_failed")
def cost_of_a_failure_in_the_row(log: TopicLists) -> set[str]:
    """Of the last query: no policy version counts what came of it."""
    log.change(log.topics.answer, Answer, "h199", fault="model", cause="timeout")
    failed_in_the_reward(log, "h199")
    row = {"learned_seq": row_of(log, "h199").ended_seq, "ended_seq": -1, "kinds": ("final",)}
    learned(log, "h199", stage="failed", correct=0.0, log_cost=1.0, **row)
    return {"h199"}


def failed_in_the_reward(log: TopicLists, query_id: str) -> None:
    """Let the Reward of a query say that its model failed."""
    final = {"kind": "final", "reward_id": reward_id(query_id, "final"), "correct": 0.0, "graded_by": ""}
    log.change(log.topics.reward, Reward, query_id, fault="model", **final)


def failed_before(
    log: TopicLists, query_id: str, *, cost: float = 0.0
) -> tuple[AttemptFailed, EarlierAttempt]:
    """Return how an attempt at a query failed that now counts as its second."""
    real = log.find(log.topics.decision, Decision, query_id)
    answer = Answer(
        query_id=query_id, status="failed", by="executor", action=real.action, seq=5_000, error="429"
    )
    earlier = EarlierAttempt(attempt=1, seq=5_000, action=real.action, cost=cost)
    return AttemptFailed(answer=answer), earlier


def second_attempt(log: TopicLists, query_id: str, earlier: EarlierAttempt) -> None:
    """Let a query have been answered by its second attempt."""
    second = {"attempt": 2, "earlier": (earlier,)}
    real = replace(log.find(log.topics.decision, Decision, query_id), **second)
    log.change(log.topics.decision, Decision, query_id, **second)
    log.change(log.topics.answer, Answer, query_id, attempt=2)
    log.change(log.topics.reward, Reward, query_id, **second)
    row = replace(row_of(log, query_id), attempt=2, decision=msgspec.Raw(encode(real)))
    log.append(log.learner, row.key, encode_row(row))
    log.append(log.learner, query_id.encode(), None)


@names("attempt_passed_over")
def failure_that_nothing_followed(log: TopicLists) -> set[str]:
    """Another row says that the learner has read on, far beyond it."""
    row, answer = row_of(log, "h72"), failed_before(log, "h72")[0].answer
    blamed = replace(answer, seq=row.seq, fault="model", cause="timeout")
    log.append(log.topics.attempt_failed, b"0", encode(AttemptFailed(answer=blamed)))
    for topic in (log.topics.answer, log.topics.reward):
        log.cut(topic, lambda raw: quick_id(raw.value) != "h72")
    none = {"correct": 0.0, "score": 0.0, "log_cost": 0.0, "kinds": (), "reward_offset": -1}
    learned(log, "h72", stage="failed", failure_offset=0, **none)
    learned(log, "h199", failure_offset=64)
    return {"h72"}


@names("decision_without_failure")
def second_attempt_without_a_failure(log: TopicLists) -> set[str]:
    _, earlier = failed_before(log, "h73")
    log.append(log.topics.attempt_failed, b"0", encode(failed_before(log, "h74")[0]))
    second_attempt(log, "h73", earlier)
    return {"h73"}


@names("reward_of_other_attempts")
def forgotten_attempt(log: TopicLists) -> set[str]:
    failure, earlier = failed_before(log, "h75")
    log.append(log.topics.attempt_failed, b"0", encode(failure))
    second_attempt(log, "h75", earlier)
    log.change(log.topics.reward, Reward, "h75", earlier=())
    return {"h75"}


@names("reward_of_other_attempts")
def cost_of_another_attempt(log: TopicLists) -> set[str]:
    failure, earlier = failed_before(log, "h75", cost=1e9)
    log.append(log.topics.attempt_failed, b"0", encode(failure))
    second_attempt(log, "h75", earlier)
    return {"h75"}


def test_a_second_attempt_is_accounted_for(log: TopicLists) -> None:
    failure, earlier = failed_before(log, "h75")
    log.append(log.topics.attempt_failed, b"0", encode(failure))
    second_attempt(log, "h75", earlier)
    report = log.audit()
    assert report.wrong == 0, report.discrepancies


@names("policy_version")
def changed_version(log: TopicLists) -> set[str]:
    real = max(log.all(log.topics.decision, Decision), key=lambda d: d.seq)
    policy = replace(real.policy, version=real.policy.version - 1)
    log.change(log.topics.decision, Decision, real.query_id, policy=policy)
    learned(log, real.query_id, decision=msgspec.Raw(encode(replace(real, policy=policy))))
    return {real.query_id}


@names("snapshot_damaged")
def flipped_bit(log: TopicLists) -> set[str]:
    raws = log.records[log.topics.snapshot, 0]
    at = max(i for i, raw in enumerate(raws) if raw.key.startswith(SNAPSHOT_KEY) and raw.key.endswith(b"/0"))
    raws[at] = raws[at]._replace(value=raws[at].value[:-1] + bytes([raws[at].value[-1] ^ 1]))
    return {"snapshot " + raws[at].key.removeprefix(SNAPSHOT_KEY).split(b"/")[0].decode()}


def query_id(value: bytes | None, kind: type[Any]) -> bytes:
    record = decode(value, kind)
    return str(record.query.query_id if isinstance(record, QueryContext) else record.query_id).encode()


def rows(log: TopicLists) -> Iterator[Row]:
    """Yield the newest row of each query."""
    newest = {raw.key: raw.value for raw in log.records[log.learner, 0] if not raw.key.startswith(b"\x00")}
    for key, value in newest.items():
        row = decode_row(key, value)
        assert isinstance(row, Row)
        yield row


def row_of(log: TopicLists, query_id: str) -> Row:
    return next(row for row in rows(log) if row.query_id == query_id)


def learned(log: TopicLists, query_id: str, **fields: Any) -> None:
    """Append a learner's row with some fields changed."""
    log.append(log.learner, query_id.encode(), encode_row(replace(row_of(log, query_id), **fields)))


def said_and_learned(log: TopicLists, query_id: str, **fields: Any) -> None:
    """Change terms of a Reward, its scalar with them, and the same terms of the learner's row."""
    real = replace(log.find(log.topics.reward, Reward, query_id), **fields)
    scalar = real.objective.reward(real.correct, real.score, real.log_cost)
    log.change(log.topics.reward, Reward, query_id, **fields, reward=scalar)
    price = fields.pop("price", None)
    factor = {} if price is None else {"price_factor": price.factor}
    learned(log, query_id, **fields, **factor)


def test_each_check_has_a_forgery() -> None:
    assert set(FORGERIES) == set(statements("checks.sql"))


@pytest.mark.parametrize(
    ("check", "forge"),
    [pytest.param(check, forge, id=forge.__name__) for check, each in FORGERIES.items() for forge in each],
)
def test_a_forgery_is_named_by_one_check(log: TopicLists, check: str, forge: Forge) -> None:
    subjects = forge(log)
    report = log.audit()
    assert report.checks == {check}, report.discrepancies
    assert set(report.ids) == subjects


def test_decisions_forged_ahead_of_the_real_ones_are_named(log: TopicLists) -> None:
    topic = log.topics.decision
    real = log.records[topic, 0]
    forged = [replace(d, mean=None, width=None) for d in log.all(topic, Decision)]
    first = [raw._replace(value=encode(d)) for raw, d in zip(real, forged, strict=True)]
    log.records[topic, 0] = [raw._replace(offset=at) for at, raw in enumerate([*first, *real])]
    report = log.audit()
    assert {each["query_id"] for each in report.discrepancies if each["check"] == "decisions_differ"} == {
        d.query_id for d in log.all(topic, Decision) if d.mean is not None
    }
    assert "policy_version" not in report.checks
