"""What must hold for one query: Decision, Answer, Reward and row agree, prices follow from traces, nothing is skipped.

A record before the first capture of the ends must agree with the records before the second (see `run`). A missing
record is a discrepancy only if a later record of the same room proves that the room has moved past it; until then the
query is pending. A record that retention has removed does not count as missing.
"""

import math
from collections.abc import Iterator

import orjson

from streams.audit.reading.records import Answer, Context, Decision, Feedback, Query, Reward
from streams.audit.rows import row_discrepancies
from streams.audit.stories import CLOSING, Story
from streams.audit.world import BATCH, World

CLOSE = 1e-9
"""Relative difference allowed between two ways of adding the same numbers."""

KEPT_MS = 6 * 24 * 3_600_000
"""A closed row of the join stays for seven days; one day less allows for clocks that differ."""


def discrepancies(story: Story, world: World) -> Iterator[str]:
    """Yield what is wrong with one query, in words."""
    yield from _asked(story, world)
    yield from _decided(story, world)
    yield from _answered(story, world)
    yield from _rewarded(story, world)
    yield from row_discrepancies(story, world)
    yield from _joined(story, world)


def _asked(s: Story, w: World) -> Iterator[str]:
    known = {(c.q_part, c.q_off) for c in (*s.contexts, *s.refused(Context))}
    known |= {(q.part, q.off) for q in s.refused(Query)}
    for q in s.queries:
        past = q.early and w.facts.queries_done.get(q.part, -1) > q.off and w.keeps(Context, q.ts)
        if past and (q.part, q.off) not in known and not s.answers:
            yield "its Query was passed over: no Context, no Answer, no dead letter"
    for c in s.contexts:
        if not c.early or c.off + BATCH > w.facts.contexts_done or s.answers:
            continue
        if s.row is None or (s.row.q_part, s.row.q_off) != (c.q_part, c.q_off):
            yield "its Context was passed over: no Decision, no Answer, no dead letter"


def _decided(s: Story, w: World) -> Iterator[str]:
    if len({d.whole for d in s.decisions}) > 1:
        yield "two Decisions that differ"
    d, row = s.decision, s.row
    if d is not None and d.early:
        if s.query is None:
            if w.holds(Query, d.q_part, d.q_off):
                yield f"its Decision names a Query at {d.q_part}/{d.q_off}, where there is another record"
        elif s.query.asked is not None and s.query.asked != d.asked:
            yield "the question in its Decision is not that of its Query"
        kept = w.holds(Query, d.q_part, d.q_off) or s.contexts
        if row is None and kept and s.query_id not in w.ended:
            yield "the learner's row is missing"
    if row is not None and d is None and row.early and not s.refused(Decision):
        past = row.clock + BATCH <= w.facts.decisions_done or any(r.early for r in s.rewards)
        if past and w.keeps(Decision, s.since_ms):
            yield "the learner's row has no Decision"


def _answered(s: Story, w: World) -> Iterator[str]:
    a, d = s.answer, s.decision
    if a is None or not a.early:
        return
    for other in s.answers[1:]:
        if other.early and other.timed and other.whole in {each.whole for each in s.answers if each != other}:
            yield "its Answer exists twice with the same measured seconds: a copy, not a second search"
        elif other.early and other.status == a.status and other.room == a.room and other.said != a.said:
            yield f"two Answers with status {a.status} that differ"
    if a.path_score is not None and a.score is not None and not _close(a.path_score, a.score):
        yield f"the Answer's score is {a.score}, the mean of its path {a.path_score}"
    if d is None:
        if (
            a.seq is not None
            and w.keeps(Decision, min([a.ts, *(q.ts for q in s.queries)]))
            and not s.refused(Decision)
        ):
            yield "an Answer without a Decision"
    elif a.action not in (None, d.action):
        yield f"the Answer ran {a.action}, but {d.action} was decided"
    elif a.seq not in (None, d.seq):
        yield f"the Answer has sequence number {a.seq}, its Decision {d.seq}"
    elif a.factor not in (None, d.factor):
        yield f"the Answer is priced at {a.factor} per eFLOP, its Decision says {d.factor}"


def _rewarded(s: Story, w: World) -> Iterator[str]:
    kinds = {r.kind for r in s.rewards if r.early}
    for kind in sorted(kinds):
        if len({r.whole for r in s.rewards if r.kind == kind}) > 1:
            yield f"two Rewards {s.query_id}/{kind} that differ"
    if (
        len(kinds & set(CLOSING)) > 1
        or {"final", "provisional"} <= kinds
        or "correction" in kinds - {"provisional"} == kinds
    ):
        yield f"Rewards of kinds {', '.join(sorted(kinds))}: expected one, or a provisional and what resolves it"
    for r in s.rewards:
        if r.early:
            yield from _terms(s, r, w)


def _terms(s: Story, r: Reward, w: World) -> Iterator[str]:
    a, d, what = s.answer, s.decision, f"Reward {s.query_id}/{r.kind}"
    if d is None:
        if w.keeps(Decision, s.since_ms):
            yield f"{what} without a Decision"
    else:
        for name, found, wanted in (
            ("seq", r.seq, d.seq),
            ("action", r.action, d.action),
            ("learn", bool(r.learn), bool(d.learn)),
        ):
            if found != wanted:
                yield f"{what}: {name} is {found}, but {wanted} was decided"
        if r.objective != d.objective:
            yield f"{what}: its objective is not the Decision's"
    if a is None:
        if w.keeps(Answer, s.since_ms):
            yield f"{what} without an Answer"
    else:
        if r.status != a.status:
            yield f"{what}: status is {r.status}, the Answer's {a.status}"
        # Only the price of a cancelled search is known.
        score = a.score if a.text and a.status != "cancelled" else None
        if r.score != score:
            yield f"{what}: score is {r.score}, the Answer's {score}"
        yield from _price(r, a, what)
        if r.graded_by == "reference" and d is not None:
            grade = plain_grade(a, orjson.loads(d.reference))
            if grade is not None and r.correct != grade:
                yield f"{what}: correct is {r.correct}, but the Answer compared with its reference gives {grade}"
    if (
        r.graded_by == "feedback"
        and w.keeps(Feedback, s.since_ms)
        and r.correct not in {f.grade for f in s.feedback}
    ):
        yield f"{what}: correct is {r.correct}, but no Feedback says so"
    if (r.correct is None) != (r.kind in ("provisional", "default")):
        yield f"{what}: correct is {r.correct}"
    if (r.scalar is None) != (r.reward is None) or (
        r.scalar is not None and not _close(r.scalar, r.reward or 0.0)
    ):
        yield f"{what}: the scalar is {r.reward}, but its terms give {r.scalar}"


def _price(r: Reward, a: Answer, what: str) -> Iterator[str]:
    stated, worked = orjson.loads(r.price), orjson.loads(a.prices)
    if stated is None and r.log_cost is None:
        if worked:
            yield f"{what}: no price, the trace's is {worked[0][0]:.6g} eFLOPs"
        return
    paid = stated and stated["eflops"]
    if not paid or paid < 0 or r.log_cost is None or not _close(math.log(paid), r.log_cost):
        yield f"{what}: log_cost is {r.log_cost}, the price's {paid}"
    elif not any(all(map(_close, each, stated.values())) for each in worked):
        trace = f"{worked[0][0]:.6g}" if worked else "none"
        yield f"{what}: the price is {paid:.6g} eFLOPs, the trace's {trace}"


def _joined(s: Story, w: World) -> Iterator[str]:
    closed = s.join is not None and s.join.early and s.join.closed
    if closed and s.closing is None and not s.refused(Reward) and w.keeps(Reward, s.since_ms):
        yield f"closed by {closed} in the join, but there is no such Reward"
    if s.join is None and s.closing is not None and s.closing.early and s.closing.ts > w.now_ms - KEPT_MS:
        yield "the aggregator's row is missing"


def plain_grade(a: Answer, reference: object) -> float | None:
    """Return the grade of an Answer if comparing whole numbers is enough to tell; else None."""
    if not a.text or a.extracted is None:
        return 0.0
    gold, said = str(reference).strip(), a.extracted.strip()
    if not isinstance(reference, str | int) or len(gold) > 15 or len(said) > 15:
        return None
    if gold.isascii() and gold.isdigit() and said.isascii() and said.isdigit():
        return float(int(gold) == int(said))
    return None


def _close(one: float, two: float) -> bool:
    return abs(one - two) <= CLOSE * max(1.0, abs(one), abs(two))
