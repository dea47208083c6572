"""On a running system what is under way is pending, and what comes between two questions raises no alarm."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agents.decider import snapshot
from agents.decider.snapshot import IDS_KEY, RESET_KEY, SNAPSHOT_KEY, EndedIds, versions
from bench.history import SyntheticHistory
from schemas.answer import Answer
from schemas.control import CatalogueEntry
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Origin, Query, QueryContext
from schemas.record import decode, encode
from schemas.reward import Feedback, Reward
from streams.audit.reading import Raw, Span
from streams.audit.run import Report, audit
from streams.runtime.queues import WINDOW
from tests.support.recorded import CATALOGUE
from tests.support.topic_lists import History, TopicLists


def sound(log: TopicLists) -> Report:
    """Return the audit of a log that has no discrepancy."""
    report: Report = log.audit()
    assert report.wrong == 0, report.discrepancies[:5]
    return report


def test_every_prefix_of_a_growing_log_is_without_discrepancy(lived: History, log: TopicLists) -> None:
    """The records in the order they were written, cut anywhere: the ends of all topics at one moment."""
    settings, _ = lived
    cuts = {37, 150, 400, 401, 402, 777, 1203, 1500, 1777}
    grown = type(log)(settings, {})
    for at, w in enumerate(SyntheticHistory(settings, 1_700_000_000_000).records(200)):
        grown.append(w.topic, w.key, w.value)
        if at in cuts:
            report = sound(grown)
            assert sum(report.states.values()) == report.queries
            cuts.discard(at)
    assert not cuts


@pytest.mark.parametrize("at", [300, 611, 900, 1402])
def test_what_arrives_between_the_two_captures_raises_no_alarm(
    lived: History, log: TopicLists, at: int
) -> None:
    """Some topics are asked before hundreds of records come, others after."""
    settings, _ = lived
    grown = type(log)(settings, {})
    made = list(SyntheticHistory(settings, 1_700_000_000_000).records(200))
    for w in made[:at]:
        grown.append(w.topic, w.key, w.value)
    torn = Torn(grown, made[at : at + 400])
    report = audit(torn, settings)
    assert torn.asked == 2
    assert report.wrong == 0, report.discrepancies[:3]


class Torn:
    """A log that grows by a share of what is to come each time the ends of one topic are asked."""

    def __init__(self, log: TopicLists, to_come: list[Any]) -> None:
        self.log, self.to_come, self.asked = log, to_come, 0

    def spans(self, topics: Iterable[str]) -> dict[tuple[str, int], Span]:
        self.asked += 1
        found: dict[tuple[str, int], Span] = {}
        for topic in list(topics):
            found |= self.log.spans([topic])
            share, self.to_come = self.to_come[:20], self.to_come[20:]
            for w in share:
                self.log.append(w.topic, w.key, w.value)
        return found

    def read(self, part: tuple[str, int], span: Span) -> Iterator[Raw]:
        return self.log.read(part, span)


def test_open_query_is_pending_with_its_service_and_deadline(log: TopicLists) -> None:
    log.put(log.topics.query, "new", Query(query_id="new", text="What is 2 + 2?", timeout_s=90))
    report = sound(log)
    assert report.states["pending"] == 1
    (pending,) = report.pending
    assert (pending.query_id, pending.waits_for) == ("new", "embedder")
    assert 0 <= pending.age_s < 30
    assert 60 < pending.due_in_s <= 90
    assert report.overdue == 0


def test_query_overtaken_in_admission_raises_no_alarm(log: TopicLists) -> None:
    """Admission takes the tenants by turns, and a partition is read on for a window beyond its lowest open Query."""
    waits = Query(query_id="waits", text="Is there room?", tenant="busy")
    log.put(log.topics.query, "waits", waits)
    window = WINDOW * log.settings.kafka.concurrency
    real = log.all(log.topics.context, QueryContext)[-1]
    for ahead in (1, window - 1):
        later = Query(query_id=f"later{ahead}", text="Next?", tenant="other")
        log.put(log.topics.query, later.query_id, later)
        raws = log.records[log.topics.query, 0]
        at = 200 + ahead
        raws[-1] = raws[-1]._replace(offset=at)
        origin = msgspec.structs.replace(real.origin, offset=at)
        log.put(log.topics.context, "0", msgspec.structs.replace(real, query=later, origin=origin))
    report = sound(log)
    assert ("waits", "embedder") in {(each.query_id, each.waits_for) for each in report.pending}


def test_answer_without_reward_is_pending_then_overdue(log: TopicLists) -> None:
    log.cut(log.topics.reward, lambda raw: b'"h199"' not in raw.value)
    log.cut(log.topics.reward, lambda raw: b'"h198"' not in raw.value)
    for topic in (log.join, log.learner):
        first = next(r for r in log.records[topic, 0] if r.key == b"h198")
        log.cut(topic, lambda raw: raw.key not in (b"h198", b"h199") or raw == first)  # noqa: B023
    pending = {each.query_id: each for each in log.audit(timeout_s=10.0).pending}
    assert pending["h198"].waits_for == "aggregator"
    assert pending["h198"].due_in_s < 0


def test_a_reward_the_learner_has_not_read_is_pending(log: TopicLists) -> None:
    last = next(r.offset for r in log.records[log.learner, 0] if r.key == b"h190")
    rows = log.records[log.learner, 0]
    log.records[log.learner, 0] = [r for r in rows if r.key != b"h190" or r.offset == last]
    report = log.audit()
    # Later rows have moved on, but by less than a batch: the learner may be writing this very row.
    assert "h190" in {each.query_id for each in report.pending} | set(report.ids)


def test_repeated_records_are_counted_and_harmless(log: TopicLists) -> None:
    for topic, kind, query_id in ((log.topics.decision, Decision, "h5"), (log.topics.reward, Reward, "h6")):
        log.put(topic, query_id, log.find(topic, kind, query_id))
    answer = log.find(log.topics.answer, Answer, "h7")
    spent = msgspec.structs.replace(answer.spent, verify_s=9.0)
    log.put(log.topics.answer, "h7", msgspec.structs.replace(answer, spent=spent))
    late = Answer(query_id="h8", status="expired", by="aggregator", error="no answer within 10 s")
    log.put(log.topics.answer, "h8", late)
    report = sound(log)
    assert report.repeated == 4


def test_rejected_and_unreadable_queries_have_dead_letters(log: TopicLists) -> None:
    log.append(log.topics.query, b"bad", b'{"schema":"query.v1","query_id":"bad","text":7}')
    log.append(log.topics.query, b"", b"{")
    ends = len(log.records[log.topics.query, 0])
    for offset, value in ((ends - 2, b"{}"), (ends - 1, b"{")):
        origin = Origin(topic=log.topics.query, partition=0, offset=offset)
        letter = DeadLetter.of(value, ValueError("no"), service="embedder", origin=origin)
        log.append(log.topics.dead_letter, letter.key.encode(), encode(letter))
    log.put(log.topics.answer, "bad", Answer(query_id="bad", status="rejected", by="embedder", error="text"))
    report = sound(log)
    assert report.states["rejected (ValueError)"] == 1
    assert report.unreadable == {"query": 1}


def test_unreadable_query_without_dead_letter_is_named(log: TopicLists) -> None:
    raws = log.records[log.topics.query, 0]
    raws[100] = raws[100]._replace(value=b"{")
    assert f"{log.topics.query}/0/100" in log.audit(concurrency=8).ids


def test_an_expired_query_is_a_state_of_its_own(log: TopicLists) -> None:
    for query_id in ("h9", "h19"):
        log.change(log.topics.answer, Answer, query_id, status="expired")
        log.change(log.topics.reward, Reward, query_id, status="expired")
    report = log.audit(timeout_s=1.0)
    assert report.wrong == 0, report.discrepancies
    assert report.states["expired"] == 2


@pytest.mark.parametrize(
    "why",
    [
        "late", "given up", "given up and expired", "in another partition", "cancelled", "not waited for", "cut short",
    ],
)  # fmt: skip
def test_feedback_that_need_not_count_raises_no_alarm(log: TopicLists, why: str) -> None:
    answered_ms = next(r.timestamp_ms for r in log.records[log.topics.answer, 0] if r.key == b"h68")
    log.put(log.topics.feedback, "h68", Feedback(query_id="h68", correct=True))
    raws = log.records[log.topics.feedback, 0]
    raws[-1] = raws[-1]._replace(timestamp_ms=answered_ms + (1001 if why == "late" else 1000))
    assert log.audit().checks == (set() if why == "late" else {"feedback_uncounted"})
    match why:
        case "given up":
            origin = Origin(topic=log.topics.feedback, partition=0, offset=raws[-1].offset)
            letter = DeadLetter.of(b"{}", ValueError("no"), service="aggregator", origin=origin)
            log.append(log.topics.dead_letter, letter.key.encode(), encode(letter))
        case "given up and expired":
            origin = Origin(topic=log.topics.feedback, partition=0, offset=raws[0].offset)
            given_up = encode(Feedback(query_id="h68", correct=False))
            letter = DeadLetter.of(given_up, ValueError("no"), service="aggregator", origin=origin)
            log.append(log.topics.dead_letter, letter.key.encode(), encode(letter))
            assert log.audit().checks == {"feedback_uncounted"}  # as long as the topic holds that offset
            log.begins[log.topics.feedback, 0] = raws[0].offset + 1
        case "in another partition":
            log.records[log.topics.feedback, 1] = [raws.pop()]
        case "cancelled":
            for topic, kind in ((log.topics.answer, Answer), (log.topics.reward, Reward)):
                log.change(topic, kind, "h68", status="cancelled")
            log.change(log.topics.reward, Reward, "h68", score=None, reward=None)
            assert "feedback_uncounted" not in log.audit().checks
            return
        case "cut short":
            log.change_kind("h68", "default", closed_early=True)
        case "not waited for":
            query = log.find(log.topics.decision, Decision, "h68").query
            query = msgspec.structs.replace(query, feedback_wait_s=0.0)
            log.change(log.topics.decision, Decision, "h68", query=query)
    sound(log)


def test_a_reward_that_was_closed_early_ends_before_its_time(log: TopicLists) -> None:
    query = log.find(log.topics.decision, Decision, "h68").query
    query = msgspec.structs.replace(query, feedback_wait_s=3600.0)
    log.change(log.topics.decision, Decision, "h68", query=query)
    assert log.audit().checks == {"default_early"}
    log.change_kind("h68", "default", closed_early=True)
    sound(log)


def test_feedback_whose_source_may_not_teach_raises_no_alarm(log: TopicLists) -> None:
    log.change(log.topics.feedback, Feedback, "h67", learn=False)
    raws = log.records[log.topics.reward, 0]
    for at, raw in enumerate(raws):
        reward = decode(raw.value, Reward)
        if reward.query_id == "h67" and reward.kind == "correction":
            raws[at] = raw._replace(value=encode(msgspec.structs.replace(reward, learn=False)))
    assert log.audit().checks <= {"row_updates", "row_terms"}, "the row here has learned from it"


def test_decisions_before_a_reset_need_no_row(log: TopicLists) -> None:
    """`learner reset` leaves where the Decisions ended; those that come later need their rows again."""
    for topic in (log.learner, log.topics.snapshot):
        for key in {raw.key for raw in log.records[topic, 0]}:
            log.append(topic, key, None)
    assert log.audit().checks == {"row_missing"}
    log.append(log.topics.snapshot, RESET_KEY, b"{")
    assert log.audit().checks == {"row_missing"}
    end = log.records[log.topics.decision, 0][-1].offset + 1
    log.append(log.topics.snapshot, RESET_KEY, b'{"0":%d}' % end)
    sound(log)
    log.append(log.topics.snapshot, RESET_KEY, b'{"0":%d}' % (end - 1))
    assert log.audit().ids == ["h199"]


def test_query_in_flight_at_a_reset_is_pending(log: TopicLists) -> None:
    before = log.records[log.topics.decision, 0][:100]
    ids = {decode(raw.value, Decision).query.query_id.encode() for raw in before}
    for key in {raw.key for raw in log.records[log.topics.snapshot, 0]}:
        log.append(log.topics.snapshot, key, None)
    for key in ids & {raw.key for raw in log.records[log.learner, 0]}:
        log.append(log.learner, key, None)
    log.append(log.topics.snapshot, RESET_KEY, b'{"0":%d}' % (before[-1].offset + 1))
    answers, rewards = log.records[log.topics.answer, 0], log.records[log.topics.reward, 0]
    answers[:] = [raw for raw in answers if decode(raw.value, Answer).query_id != "h3"]
    rewards[:] = [raw for raw in rewards if decode(raw.value, Reward).query_id != "h3"]
    assert "h3" in {each.query_id for each in log.audit().pending}
    assert "h3" not in log.audit().ids


def test_model_gone_from_the_catalogue_is_reported_unpriced(log: TopicLists, tmp_path: Path) -> None:
    catalogue = yaml.safe_load(CATALOGUE)
    gone = catalogue["models"].pop()["name"]
    path = tmp_path / "catalogue.yaml"
    path.write_text(yaml.safe_dump(catalogue))
    report = log.audit(catalogue=str(path))
    assert report.wrong == 0, report.discrepancies[:3]
    answers = log.all(log.topics.answer, Answer)
    assert report.unpriced == {gone: sum(bool(a.trace) and a.action.model == gone for a in answers)}


def test_what_retention_has_removed_is_not_missing(log: TopicLists) -> None:
    for topic in (log.topics.query, log.topics.context):
        log.cut_before(topic, 60)
    sound(log)
    for topic in (log.topics.answer, log.topics.decision, log.topics.reward, log.topics.feedback):
        log.cut_before(topic, 10 if topic == log.topics.feedback else 70)
    report = sound(log)
    assert report.queries == 200


def test_prices_of_compacted_entries_are_not_checked(log: TopicLists, tmp_path: Path) -> None:
    """One model came by `catalogue add`; compaction leaves its last entry alone."""
    catalogue = yaml.safe_load(CATALOGUE)
    (small, large) = catalogue["models"]
    path = tmp_path / "catalogue.yaml"
    path.write_text(yaml.safe_dump({**catalogue, "models": [small]}))
    other = msgspec.structs.replace(log.settings, catalogue=str(path))
    added = CatalogueEntry(name="large", op="add", model={**catalogue["defaults"]["models"], **large})
    twice = {**large["architecture"], "parameters": 2 * large["architecture"]["parameters"]}
    replaced = CatalogueEntry(name="large", op="add", model={**large, "architecture": twice})

    def audited(*entries: tuple[int, CatalogueEntry]) -> set[str]:
        seen = type(log)(other, log.records)
        raws = [Raw(at, ms, e.key.encode(), encode(e)) for at, (ms, e) in enumerate(entries)]
        seen.records[log.topics.control, 0] = raws
        return seen.audit().checks

    later_ms = log.records[log.topics.answer, 0][-1].timestamp_ms + 1
    removed = CatalogueEntry(name="large", op="remove")
    assert audited((0, added), (later_ms, removed)) == set()
    assert audited((later_ms, removed)) == set()
    assert audited((later_ms, replaced)) == set()
    assert audited((0, replaced)) == {"reward_price"}


def test_rows_that_left_the_log_are_held_by_the_oldest_snapshot(log: TopicLists) -> None:
    for topic in (log.topics.query, log.topics.context):
        log.cut_before(topic, 60)
    for number in range(40):
        log.append(log.learner, f"h{number}".encode(), None)
    sound(log)


def test_row_may_leave_once_both_snapshots_hold_its_end(log: TopicLists) -> None:
    """Its Query and Context are still there; h0 to h39 have ended in both snapshots, h40 has not in the older."""
    records = {raw.key: raw.value for raw in log.records[log.topics.snapshot, 0]}
    both = sorted(versions(records))
    assert len(both) == 2
    for version, until in zip(both, (40, 60), strict=True):
        own = {k: v for k, v in records.items() if k.startswith(SNAPSHOT_KEY + b"%d/" % version)}
        states: list[bytes] = []
        found, _ = snapshot.read(own, states.append)
        assert found is not None
        ended = EndedIds()
        for number in range(until):
            ended.add(f"h{number}", Origin(topic=log.topics.query, partition=0, offset=number), number)
        stated = found.manifest
        for key, value in snapshot.write(
            states[0], version=version, clock=stated.clock, context_offset=stated.context_offset,
            reward_offset=stated.reward_offset, carried=snapshot.Carried(0, (), ended),
        ):  # fmt: skip
            log.append(log.topics.snapshot, key, value)
    for number in range(40):
        log.append(log.learner, f"h{number}".encode(), None)
    report = sound(log)
    assert report.queries == 200
    log.append(log.learner, b"h40", None)
    said = [each["what"] for each in log.audit().discrepancies if each["query_id"] == "h40"]
    assert "the learner's row is missing" in said
    key = next(raw.key for raw in log.records[log.topics.snapshot, 0] if raw.key.startswith(IDS_KEY))
    log.append(log.topics.snapshot, key, b"?")
    assert any("ids of ended queries" in each["what"] for each in log.audit().discrepancies)


def test_hostile_bytes_on_every_topic_end_nothing(log: TopicLists) -> None:
    nested = b'{"query_id":"deep","metadata":' + b"[" * 900 + b"]" * 900 + b"}"
    odd = (
        b'{"query_id":["h1"],"seq":{"a":1},"kind":7,"origin":3,"trace":[{"parent":9}],"path":[4],"action":{}}'
    )
    huge = b'{"query_id":"h1","seq":99999999999999999999999,"status":"ok"}'
    frame = b"\x28\xb5\x2f\xfd" + b"\x00" * 40
    # As a dead letter's error: JSON reads 1,000 levels, Python does not write them.
    letter = (
        b'{"origin":{"topic":"t","partition":0,"offset":0},"error":' + b'{"a":' * 1000 + b"1" + b"}" * 1001
    )
    for part in list(log.records):
        for value in (b"", b"{", b"[]", b"null", b"\xff\xfe", nested, odd, huge, frame):
            log.append(part[0], b"hostile", value)
    log.append(log.topics.dead_letter, b"hostile", letter)
    report = log.audit()
    assert report.queries >= 200
    assert sum(report.unreadable.values()) > 20


@pytest.mark.parametrize("policy", ["random", "knn"])
def test_the_log_of_another_policy_is_accounted_for(
    lived: History, log: TopicLists, tmp_path: Path, policy: str
) -> None:
    settings = lived[0].replace(policy=policy, state_dir=str(tmp_path))
    other = type(log)(settings, {})
    for w in SyntheticHistory(settings, int(time.time() * 1000) - 60_000).records(80):
        other.append(w.topic, w.key, w.value)
    report = sound(other)
    assert report.learner == {"updates": 80, "applied": 80}
