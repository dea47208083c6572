"""The whole loop on a real broker: asserted on records, not on logs."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import orjson
import pytest

from agents.decider.rows import Row, decode_row, encode_row
from schemas.action import Action
from schemas.answer import Answer
from schemas.control import ObjectiveEntry
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.objective import Weights
from schemas.query import Query, QueryContext
from schemas.record import decode, encode, load
from schemas.reward import Feedback, Reward
from schemas.search import SearchStep, Verification
from streams.log import kafka_admin, kafka_clients
from streams.settings import Settings
from streams.topics import Topics
from tests.support.command_line import streams
from tests.support.deployment import Ask, Deploy, Deployment

pytestmark = pytest.mark.broker

QUERIES = 36


@pytest.fixture(scope="module")
def loop(deploy: Deploy, ask: Ask) -> Any:
    """A deployment that has answered some queries, feedback and bad input among them."""
    deployment = deploy(feedback_wait_s=30.0)
    # In two parts: the second is decided by a policy that has learned from the first.
    for begin, end in ((0, QUERIES // 2), (QUERIES // 2, QUERIES)):
        deployment.serve(*(ask(n) for n in range(begin, end)))
    return deployment


def asked(query_id: str, **fields: Any) -> Query:
    return Query(**{"query_id": query_id, "text": "What is 2 + 3, number 0?", "reference": "5", **fields})


def provisional(loop: Deployment, *ids: str) -> None:
    """Wait for a first reward of each query."""
    loop.until(lambda: {r.query_id for r in loop.read(loop.topics.reward, Reward)} >= {*ids}, "first rewards")


def firsts(loop: Deployment, name: str, kind: type[Any]) -> dict[str, bytes]:
    """Return the first record of each query on a topic."""
    found: dict[str, bytes] = {}
    for record in loop.raw(name):
        found.setdefault(decode(record.value, kind).query_id, record.value)
    return found


def by_id(records: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for record in records:
        found.setdefault(record.query_id, []).append(record)
    return found


def test_every_query_has_one_record_of_each_kind_under_its_id(loop: Deployment) -> None:
    t = loop.topics
    ids = {f"q{n}" for n in range(QUERIES)}
    contexts, decisions = loop.read(t.context, QueryContext), loop.read(t.decision, Decision)
    answers, rewards = loop.read(t.answer, Answer), loop.read(t.reward, Reward)
    steps, scored = loop.read(t.search_step, SearchStep), loop.read(t.verification_for("mini"), Verification)
    for records in (contexts, decisions, answers, rewards):
        assert Counter(r.query_id for r in records) == dict.fromkeys(ids, 1)
    assert {r.query_id for r in steps} == ids
    assert Counter((r.query_id, r.step) for r in steps) == Counter((r.query_id, r.step) for r in scored)
    assert loop.raw(t.dead_letter) == []


def test_the_decision_for_the_executors_is_the_same_bytes(loop: Deployment) -> None:
    t = loop.topics
    for_all = {r.key: r.value for r in loop.raw(t.decision)}
    for_group = {r.key: r.value for r in loop.raw(t.decision_for("mini"))}
    assert for_all == for_group


def test_log_reproduces_decisions_and_shows_a_forged_one(loop: Deployment) -> None:
    done = verify(loop.settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{QUERIES} decisions replayed, 0 mismatches\n")
    # The same log beside it, with one Decision altered as little as can be: it claims a runner-up was chosen.
    forged = loop.settings.replace(prefix=loop.settings.kafka.prefix + "forged.")
    kafka_admin.create(forged, Topics(forged).declared(["mini"]))
    log = loop.learner_log()
    victim, row, decision, claimed = next(runners_up(log))
    altered = msgspec.structs.replace(decision, action=claimed)
    log[victim] = encode_row(
        msgspec.structs.replace(row, action=claimed.id, decision=msgspec.Raw(encode(altered)))
    )
    producer = kafka_clients.producer(forged)
    for key, value in log.items():
        producer.send(Topics(forged).changelog("decider", "pending"), key=key, value=value).get(timeout=60)
    producer.close()
    done = verify(forged)
    assert done.returncode == 1, done.stderr
    assert f"{row.query_id} (sequence number {row.seq}): action is {claimed.id!r} in the log, " in done.stdout
    assert f"{QUERIES} decisions replayed, " in done.stdout


def runners_up(log: dict[bytes, bytes]) -> Iterator[tuple[bytes, Row, Decision, Action]]:
    """Yield rows whose Decision had a clear runner-up: of two that score alike, either is right."""
    for key, value in log.items():
        row = decode_row(key, value)
        if not isinstance(row, Row):
            continue
        decision = decode(bytes(row.decision), Decision)
        for other in decision.runners_up if decision.reason == "policy" else ():
            if other.score < decision.score - 1e-6:
                yield key, row, decision, Action.parse(other.action)


def verify(settings: Settings) -> subprocess.CompletedProcess[str]:
    """Run `verify-decisions` as an operator does."""
    return streams("verify-decisions", env={**os.environ, **settings.environ()})


def test_duplicates_of_any_record_change_no_result(loop: Deployment) -> None:
    t = loop.topics
    names = [
        t.query, t.context, t.decision, t.decision_for("mini"), t.search_step, t.verification_for("mini"),
        t.answer, t.reward,
    ]  # fmt: skip
    before = {name: loop.raw(name) for name in names}
    kinds: dict[str, type[Any]] = {t.answer: Answer, t.reward: Reward, t.decision: Decision}
    was = {name: firsts(loop, name, kind) for name, kind in kinds.items()}
    for name in names:
        for record in before[name][:6] + before[name][-6:]:
            loop.put(name, record.key, record.value)
    # What was sent last went through all services before a fresh query has its reward.
    loop.serve(asked("probe"))
    for name, kind in kinds.items():
        now = firsts(loop, name, kind)
        assert now == was[name] | {"probe": now["probe"]}, name
    rewards = Counter(r.reward_id for r in loop.read(t.reward, Reward))
    # The 12 that this test put there itself, and not one more.
    assert sum(rewards.values()) == QUERIES + 1 + 12
    # The policy counts 36 rewards and none twice: the probe's decision says so.
    probe_decision = next(d for d in loop.read(t.decision, Decision) if d.query_id == "probe")
    assert probe_decision.policy.version == QUERIES
    duplicate = [
        letter for letter in loop.read(t.dead_letter, DeadLetter) if letter.error == "DuplicateQuery"
    ]
    assert {letter.query_id for letter in duplicate} <= {f"q{n}" for n in range(QUERIES)}
    assert duplicate


# What comes behind the id of a query, and a word of the refusal.
BAD = {
    "no-question": (b"", "text"),
    "wrong-type": (b',"text":7', "text"),
    "empty-text": (b',"text":" "', "text"),
    "negative-weight": (b',"text":"x","weights":{"cost":-1}', "cost"),
    "all-zero": (b',"text":"x","weights":{}', "weights"),
    "unknown-model": (b',"text":"x","allowed_models":["no"]', "allowed_models"),
    "unknown-objective": (b',"text":"x","objective":"no"', "objective"),
    "unknown-action": (b',"text":"x","pin_action":"small/3/5/1"', "pin_action"),
    "past-deadline": (b',"text":"x","timeout_s":-5', "timeout_s"),
    "two-megabytes": (b',"text":"' + b"x" * 2_000_000 + b'"', "text"),
    "other-version": (b',"text":"x","schema":"query.v9"', "query.v9"),
    "not-utf8": (b',"text":"\xff"', "UTF-8"),
    "nan-weight": (b',"text":"x","weights":{"cost":NaN}', "JSON"),
    "not-json": (b",", "JSON"),
}
UNREADABLE = {"not-utf8", "nan-weight", "not-json"}


def test_bad_input_becomes_dead_letter_and_rejected_answer(loop: Deployment) -> None:
    t = loop.topics
    for name, (rest, _) in BAD.items():
        value = b'{"schema":"query.v1","query_id":"%s"%s}' % (name.encode(), rest)
        loop.put(t.query, name.encode(), value)
    loop.serve(asked("after-bad"))
    letters = [x for x in loop.read(t.dead_letter, DeadLetter) if x.error != "DuplicateQuery"]
    reasons = [letter.reason for letter in letters]
    for name, (_, words) in BAD.items():
        assert any(words in reason for reason in reasons), (name, words, reasons)
    assert len(letters) == len(BAD)
    answers = {a.query_id: a for a in loop.read(t.answer, Answer)}
    for query_id in BAD.keys() - UNREADABLE:
        assert answers[query_id].status == "rejected", query_id
        assert answers[query_id].error


def test_feedback_corrects_once_and_late_feedback_never(loop: Deployment) -> None:
    t = loop.topics
    loop.send(asked("told", reference=None, feedback_wait_s=30))
    provisional(loop, "told")
    loop.put(t.feedback, b"told", encode(Feedback(query_id="told", correct=True)))
    loop.rewarded(["told"])
    loop.put(t.feedback, b"told", encode(Feedback(query_id="told", correct=False)))
    loop.serve(asked("silent", reference=None, feedback_wait_s=1))
    kinds = {q: [r.kind for r in rs] for q, rs in by_id(loop.read(t.reward, Reward)).items()}
    assert kinds["told"] == ["provisional", "correction"]
    assert kinds["silent"] == ["provisional", "default"]
    told = [r for r in loop.read(t.reward, Reward) if r.query_id == "told"]
    assert [r.correct for r in told] == [None, 1.0]


def test_feedback_in_every_partition_but_its_querys_counts_once(loop: Deployment) -> None:
    t = loop.topics
    ids = ["astray0", "astray1", "astray2"]
    loop.send(*(asked(i, reference=None, feedback_wait_s=60) for i in ids))
    provisional(loop, *ids)
    home = {r.key.decode(): r.partition for r in loop.raw(t.decision)}
    assert {home[i] for i in ids} == {0, 1}, "both ways are taken"
    for query_id in ids:
        sent = encode(Feedback(query_id=query_id, correct=True))
        loop.put(t.feedback, None, sent, partition=1 - home[query_id])
    loop.rewarded(ids)
    assert {r.graded_by for r in loop.read(t.reward, Reward) if r.query_id in ids and r.closes} == {"person"}
    told = [(r.partition, decode(r.value, Feedback).query_id) for r in loop.raw(t.feedback)]
    assert sorted(at == home[i] for at, i in told if i in ids) == [False] * 3 + [True] * 3
    rows = {(r.partition, r.key) for r in loop.raw(t.changelog("aggregator", "join"))}
    keys = {i.encode() for i in ids}
    assert {at for at in rows if at[1] in keys} == {(home[i], i.encode()) for i in ids}


def test_an_objective_set_at_run_time_is_used_at_once(loop: Deployment) -> None:
    t = loop.topics
    entry = ObjectiveEntry(name="mine", op="set", weights=Weights(correct=1.0))
    loop.put(t.control, entry.key.encode(), encode(entry))
    loop.send(asked("objective", objective="mine"))
    loop.until(lambda: any(a.query_id == "objective" for a in loop.read(t.answer, Answer)), what="an answer")
    decision = next((d for d in loop.read(t.decision, Decision) if d.query_id == "objective"), None)
    assert decision is not None, "rejected: the objective was not there"
    assert decision.objective.weights == Weights(correct=1.0)


def test_a_query_that_nobody_searches_expires_with_an_answer(loop: Deployment) -> None:
    t = loop.topics
    loop.suspend("executor.mini")
    loop.serve(asked("alone", timeout_s=2))
    answer = next(a for a in loop.read(t.answer, Answer) if a.query_id == "alone")
    assert (answer.status, answer.by) == ("expired", "aggregator")
    loop.supervisor.kill("executor.mini")
    loop.supervisor.wait_ready(240)
    loop.serve(asked("again"))
    counted = [a for a in loop.read(t.answer, Answer) if a.query_id == "alone"]
    assert counted[0].status == "expired"
    report = loop.settled()
    assert report.states["expired"] == 1


def test_redelivery_after_restart_or_closing_changes_no_result(loop: Deployment) -> None:
    """Feedback and deadlines of closed queries, control as it stands, and steps to an executor with no memory."""
    t = loop.topics
    # The executor was started again by the test before: it has forgotten which steps are behind.
    names = [t.feedback, t.due, t.decision_for("mini"), t.verification_for("mini")]
    sent = {name: loop.raw(name)[:12] + loop.raw(name)[-12:] for name in names}
    sent[t.control] = list({r.key: r for r in loop.raw(t.control)}.values())
    assert all(sent.values()), {name: len(records) for name, records in sent.items()}
    kinds: dict[str, type[Any]] = {t.answer: Answer, t.decision: Decision}
    was = {name: firsts(loop, name, kind) for name, kind in kinds.items()}
    rewards = {r.reward_id for r in loop.read(t.reward, Reward)}
    for name, records in sent.items():
        for record in records:
            loop.put(name, record.key, record.value)
    loop.serve(asked("probe-2", objective="mine"))
    for name, kind in kinds.items():
        now = firsts(loop, name, kind)
        assert now == was[name] | {"probe-2": now["probe-2"]}, name
    assert {r.reward_id for r in loop.read(t.reward, Reward)} == rewards | {"probe-2/final"}
    decision = next(d for d in loop.read(t.decision, Decision) if d.query_id == "probe-2")
    assert decision.objective.weights == Weights(correct=1.0)
    # Every applied reward and correction counts one, and none of those sent again.
    applied = sum(1 for r in rewards if not r.startswith("silent/default"))
    assert decision.policy.version <= applied


def test_a_step_of_no_group_holds_up_no_other(loop: Deployment) -> None:
    """Steps name the topic that their scores go to: one that nobody has must not be waited for."""
    t = loop.topics
    step = loop.raw(t.search_step)[0]
    plain = load(step.value, "SearchStep", framed=True)
    for group in (" ", "nobody"):
        forged = orjson.dumps(plain | {"query_id": "forged-step", "group": group})
        for partition in range(loop.settings.kafka.group_partitions):
            loop.put(t.search_step, b"forged-step", forged, partition)
    loop.serve(asked("after-forged"))
    letters = [x for x in loop.read(t.dead_letter, DeadLetter) if x.query_id == "forged-step"]
    assert {letter.error for letter in letters} == {"InvalidField", "UnknownGroup"}
