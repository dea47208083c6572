"""Whatever is done to a sound log, the audit names the queries it was done to, and no other."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pytest

from agents.decider.log import Row, decode_row, encode_row
from agents.decider.snapshot import SNAPSHOT_KEY
from agents.reward.join import decode_row as decode_join
from agents.reward.join import encode_row as encode_join
from schemas.action import Action
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.forest import Limits
from schemas.query import Context, Query
from schemas.record import encode
from schemas.reward import Reward, reward_id


def test_a_sound_log_is_accounted_for(log: Any) -> None:
    report = log.audit()
    assert report.wrong == 0, report.discrepancies
    assert report.states == {"answered and learned": 180, "answered, not learnable (failed)": 20}
    assert report.queries == sum(report.states.values()) == 200
    assert (report.pending, report.overdue, report.repeated, report.unreadable) == ([], 0, 0, {})
    assert report.learner["updates"] == report.learner["applied"] == 200
    assert report.learner["max_difference"] < 1e-9
    assert "sums" in report.learner["compared"]


def forged_reward(log: Any) -> None:
    real = log.find(log.topics.reward, Reward, "h20")
    log.put(log.topics.reward, "0", msgspec.structs.replace(real, correct=1.0 - real.correct))


def changed_correctness(log: Any) -> None:
    real = log.find(log.topics.reward, Reward, "h21")
    log.change(log.topics.reward, Reward, "h21", correct=1.0 - real.correct)


def reward_of_nobody(log: Any) -> None:
    real = log.find(log.topics.reward, Reward, "h22")
    log.put(
        log.topics.reward,
        "0",
        msgspec.structs.replace(real, query_id="nobody", reward_id=reward_id("nobody", "final")),
    )


def closed_twice(log: Any) -> None:
    real = log.find(log.topics.reward, Reward, "h23")
    again = msgspec.structs.replace(real, kind="correction", reward_id=reward_id("h23", "correction"))
    log.put(log.topics.reward, "0", again)


def changed_price(log: Any) -> None:
    real = log.find(log.topics.reward, Reward, "h24")
    price = msgspec.structs.replace(real.price, decoding_eflops=real.price.decoding_eflops * 1.001)
    log.change(log.topics.reward, Reward, "h24", price=price)


def price_of_nothing(log: Any) -> None:
    real = log.find(log.topics.reward, Reward, "h52")
    log.change(log.topics.reward, Reward, "h52", price=msgspec.structs.replace(real.price, eflops=0.0))


def changed_price_factor(log: Any) -> None:
    # Answer and Reward agree with each other, and not with what was decided.
    real = log.find(log.topics.reward, Reward, "h50")
    three = {name: 3.0 * getattr(real.price, name) for name in _PAID} | {"factor": 3.0}
    price = msgspec.structs.replace(real.price, **three)
    log.change(log.topics.reward, Reward, "h50", price=price, log_cost=math.log(price.eflops))
    log.change(
        log.topics.answer, Answer, "h50", limits=Limits(depth_limit=8, step_tokens=64, price_factor=3.0)
    )
    rewritten(log, "h50", log_cost=lambda _: math.log(price.eflops), price_factor=lambda _: 3.0)


_PAID = ("eflops", "prefill_eflops", "decoding_eflops", "verifier_eflops")


def changed_log_cost(log: Any) -> None:
    real = log.find(log.topics.reward, Reward, "h25")
    log.change(log.topics.reward, Reward, "h25", log_cost=real.log_cost + 1e-6)


def changed_trace(log: Any) -> None:
    real = log.find(log.topics.answer, Answer, "h26")
    first = msgspec.structs.replace(real.trace[0], tokens=real.trace[0].tokens + 1)
    log.change(log.topics.answer, Answer, "h26", trace=(first, *real.trace[1:]))


def doubled_answer(log: Any) -> None:
    log.put(log.topics.answer, "h27", log.find(log.topics.answer, Answer, "h27"))


def another_answer(log: Any) -> None:
    real = log.find(log.topics.answer, Answer, "h28")
    log.put(log.topics.answer, "h28", msgspec.structs.replace(real, text="It is \\boxed{0}", extracted="0"))


def changed_score(log: Any) -> None:
    log.change(log.topics.answer, Answer, "h30", score=0.999)


def another_action(log: Any) -> None:
    action = Action(model="large", qp=4, cp=16, bs=4)
    real = log.find(log.topics.answer, Answer, "h31")
    assert real.action != action
    log.change(log.topics.answer, Answer, "h31", action=action)


def removed_row(log: Any) -> None:
    log.append(log.learner, b"h32", None)


def lost_row(log: Any) -> None:
    log.cut(log.learner, lambda raw: raw.key != b"h33")


def changed_row(log: Any) -> None:
    rewritten(log, "h34", correct=lambda row: 1.0 - row.correct)


def row_learned_twice(log: Any) -> None:
    rewritten(log, "h35", log_cost=lambda row: row.log_cost + 0.5)


def changed_factor_of_a_row(log: Any) -> None:
    rewritten(log, "h51", price_factor=lambda row: 3.0)


def removed_join_row(log: Any) -> None:
    log.append(log.join, b"h36", None)


def lost_reward(log: Any) -> None:
    log.cut(log.topics.reward, lambda raw: b'"h37"' not in raw.value)


def lost_decision(log: Any) -> None:
    log.cut(log.topics.decision, lambda raw: raw.key != b"h38")


def two_decisions(log: Any) -> None:
    real = log.find(log.topics.decision, Decision, "h40")
    log.put(log.topics.decision, "h40", msgspec.structs.replace(real, seq=real.seq + 1))


def lost_query(log: Any) -> None:
    at = next(r.offset for r in log.records[log.topics.query, 0] if r.key == b"h41")
    other = Query(query_id="stranger", text="Another question in its place?")
    log.records[log.topics.query, 0][at] = log.records[log.topics.query, 0][at]._replace(
        key=b"stranger", value=msgspec.json.encode(other)
    )


def lost_context(log: Any) -> None:
    # A query that was never taken up, long before others that were.
    for topic, kind in ((log.topics.context, Context), (log.topics.decision, Decision), (log.topics.answer, Answer),
                        (log.topics.reward, Reward)):  # fmt: skip
        gone = [r.offset for r in log.records[topic, 0] if msgspec_id(r.value, kind) == "h42"]
        log.cut(topic, lambda raw, gone=gone: raw.offset not in gone)
    log.cut(log.join, lambda raw: raw.key != b"h42")


def changed_embedding(log: Any) -> None:
    real = log.find(log.topics.context, Context, "h43")
    log.change(log.topics.context, Context, "h43", embedding=real.embedding[4:] + real.embedding[:4])


def changed_mean(log: Any) -> None:
    real = max((d for d in log.all(log.topics.decision, Decision) if d.mean is not None), key=lambda d: d.seq)
    victim.append(real.query_id)
    log.change(log.topics.decision, Decision, real.query_id, mean=real.mean + 1e-3)
    row = next(r for r in log.records[log.learner, 0] if r.key == real.query_id.encode())
    plain = orjson.loads(row.value)
    assert plain["decision"]["mean"] == real.mean
    for at, raw in enumerate(log.records[log.learner, 0]):
        if raw.key == real.query_id.encode():
            plain = orjson.loads(raw.value)
            plain["decision"]["mean"] = real.mean + 1e-3
            log.records[log.learner, 0][at] = raw._replace(value=orjson.dumps(plain))


victim: list[str] = []


def msgspec_id(value: bytes, kind: type[Any]) -> str:
    from schemas.record import decode

    return str(decode(value, kind).query_id)


def rewritten(log: Any, query_id: str, **changes: Callable[[Row], Any]) -> None:
    """Append a learner's row with some fields changed."""
    last = [r for r in log.records[log.learner, 0] if r.key == query_id.encode()][-1]
    row = decode_row(last.key, last.value)
    assert isinstance(row, Row)
    changed = msgspec.structs.replace(row, **{name: change(row) for name, change in changes.items()})
    log.append(log.learner, last.key, encode_row(changed))


# What is done, to whom, and words of what is said. A removed row also leaves a sequence number without a row.
FORGERIES: list[tuple[Callable[[Any], None], set[str], str]] = [
    (forged_reward, {"h20"}, "two Rewards h20/final that differ"),
    (changed_correctness, {"h21"}, "compared with its reference"),
    (reward_of_nobody, {"nobody"}, "without a Decision"),
    (closed_twice, {"h23"}, "final"),
    (changed_price, {"h24"}, "the trace's"),
    (price_of_nothing, {"h52"}, "the price's 0.0"),
    (changed_log_cost, {"h25"}, "log_cost"),
    (changed_price_factor, {"h50"}, "priced at 3.0 per eFLOP, its Decision says 1.0"),
    (changed_factor_of_a_row, {"h51"}, "price_factor is 3.0, its Reward's 1.0"),
    (changed_trace, {"h26"}, "the trace's"),
    (doubled_answer, {"h27"}, "twice"),
    (another_answer, {"h28"}, "differ"),
    (changed_score, {"h30"}, "the mean of its path"),
    (another_action, {"h31"}, "was decided"),
    (removed_row, {"h32"}, "row is missing"),
    (lost_row, {"h33"}, "row is missing"),
    (changed_row, {"h34"}, "correct is"),
    (row_learned_twice, {"h35"}, "log_cost is"),
    (removed_join_row, {"h36"}, "the aggregator's row is missing"),
    (lost_reward, {"h37"}, "there is no such Reward"),
    (lost_decision, {"h38"}, "without a Decision"),
    (two_decisions, {"h40"}, "two Decisions"),
    (lost_query, {"h41", "stranger"}, "where there is another record"),
    (lost_context, {"h42"}, "passed over"),
    (changed_embedding, {"h43"}, "embedding"),
]


@pytest.mark.parametrize(
    ("forge", "victims", "words"), FORGERIES, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_forgery_is_named(log: Any, forge: Callable[[Any], None], victims: set[str], words: str) -> None:
    forge(log)
    report = log.audit()
    named = {each for each in report.ids if not each.startswith(("seq ", "learner", "snapshot"))}
    assert named == victims, report.discrepancies
    assert any(words in each["what"] for each in report.discrepancies), report.discrepancies


def test_a_mean_that_the_log_does_not_call_for_is_named(log: Any) -> None:
    victim.clear()
    changed_mean(log)
    report = log.audit()
    assert report.ids == ["learner"]
    assert victim[0] in report.discrepancies[0]["what"]
    assert "is not the fold of the log" in report.discrepancies[0]["what"]
    assert report.learner["max_difference"] > 1e-4


def test_decisions_forged_ahead_of_the_real_ones_are_named_and_not_compared_with_the_sums(log: Any) -> None:
    topic = log.topics.decision
    real = log.records[topic, 0]
    forged = [msgspec.structs.replace(d, mean=None, width=None) for d in log.all(topic, Decision)]
    first = [raw._replace(value=encode(d)) for raw, d in zip(real, forged, strict=True)]
    log.records[topic, 0] = [raw._replace(offset=at) for at, raw in enumerate([*first, *real])]
    report = log.audit()
    assert {each["query_id"] for each in report.discrepancies if "two Decisions" in each["what"]} == {
        d.query_id for d in log.all(topic, Decision) if d.mean is not None
    }
    assert report.learner["max_difference"] < 1e-9
    assert "learner" not in report.ids


def test_a_damaged_snapshot_is_named(log: Any) -> None:
    raws = log.records[log.topics.snapshot, 0]
    at = next(i for i, raw in enumerate(raws) if raw.key.startswith(SNAPSHOT_KEY) and raw.key.endswith(b"/0"))
    raws[at] = raws[at]._replace(value=raws[at].value[:-1] + bytes([raws[at].value[-1] ^ 1]))
    report = log.audit()
    assert report.wrong == 1
    assert "SHA-256" in report.discrepancies[0]["what"]


def test_a_reward_learned_by_nobody_is_a_difference_of_the_counts(log: Any) -> None:
    """The rows say so, but the version in the next Decision does not."""
    last = [r for r in log.records[log.learner, 0] if r.key == b"h50"][-1]
    row = decode_row(last.key, last.value)
    assert isinstance(row, Row)
    assert row.stage == "closed"
    log.append(
        log.learner, last.key, encode_row(msgspec.structs.replace(row, corrected_seq=row.learned_seq + 1))
    )
    report = log.audit()
    assert {"h50", "learner"} <= set(report.ids)


def test_a_join_row_that_is_older_than_its_reward_is_no_discrepancy(log: Any) -> None:
    """A crash between the Reward and the row: the same records make the same Reward again."""
    last = [r for r in log.records[log.join, 0] if r.key == b"h51"][-1]
    row = decode_join(last.value)
    log.append(
        log.join,
        b"h51",
        encode_join(msgspec.structs.replace(row, closed=None, valued=None, answered_ms=None)),
    )
    assert log.audit().wrong == 0
