"""What must hold for one query: one state, records and rows that agree, prices that follow from traces."""

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import orjson

from streams.audit.reading import (
    PER_QUERY,
    Answer,
    Context,
    Decision,
    Facts,
    Feedback,
    JoinRow,
    Ledger,
    Part,
    Query,
    Reward,
    Row,
    Span,
)

# What the checks know besides the query itself: how far each room had come, and what retention has removed.

BATCH = 64
"""More records than the decider handles at once: it has finished with whatever lies this far behind its newest row."""


@dataclass(slots=True)
class World:
    """What the checks know besides the query itself.

    Attributes:
        facts: How far each room had come by the first capture.
        names: Topic of each kind of record.
        spans: The offsets that each partition holds.
        oldest_ms: Append time of the first record of each partition that has lost records to retention.
        now_ms: The time.
        ended: Queries that the learner's snapshots list as ended: their rows may have left its log.
    """

    facts: Facts
    names: dict[type, str]
    spans: dict[Part, Span]
    oldest_ms: dict[Part, int]
    now_ms: int
    ended: Container[str]

    def keeps(self, kind: type, ts: int) -> bool:
        """Return whether a record of a kind, appended after `ts`, must still be there."""
        topic = self.names[kind]
        return all(oldest < ts for (name, _), oldest in self.oldest_ms.items() if name == topic)

    def holds(self, kind: type, part: int, off: int) -> bool:
        """Return whether a partition still holds an offset."""
        span = self.spans.get((self.names[kind], part))
        return span is not None and span.begin <= off < span.end


# All facts of one query, and the one state that the query is in.
#
# answered and learned               it has an Answer, and its row entered the policy and is closed
# answered, not learnable (why)      it has an Answer, but no score, no price, or learn: false; or the client's own
#                                    bounds cut it, so that its cost alone was learned
# expired                            its deadline passed before an Answer came
# rejected (why)                     it could not be read, or nothing could be chosen for it
# pending                            anything else, with what it waits for, its age and its deadline

CLOSING: Final = ("final", "correction", "default")
ENDED: Final = ("closed", "priced", "abandoned")
_LONGEST_MS: Final = 60 * 24 * 3_600_000  # no query waits longer than this for its Answer and its feedback

Waits = Literal["embedder", "decider", "executor", "feedback", "aggregator", "learner"]


class State(NamedTuple):
    """The state of a query.

    Attributes:
        name: One of the terminal states, or `pending`.
        why: The reason, for states that have one.
        waits_for: What a pending query waits for.
        since_ms: When the query was asked.
        deadline_ms: When a pending query should have ended.
    """

    name: str
    why: str = ""
    waits_for: Waits | None = None
    since_ms: int = 0
    deadline_ms: int = 0

    def __str__(self) -> str:
        """Return the state with its reason."""
        return f"{self.name} ({self.why})" if self.why else self.name


@dataclass(slots=True)
class Story:
    """Everything known about one query_id. `given_up` holds the records that were given up, with their errors."""

    query_id: str
    queries: list[Query] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    row: Row | None = None
    join: JoinRow | None = None
    given_up: list[tuple[Any, str]] = field(default_factory=list)

    @property
    def decision(self) -> Decision | None:
        """Return the first Decision."""
        return self.decisions[0] if self.decisions else None

    @property
    def answer(self) -> Answer | None:
        """Return the Answer that counts: the first that was not given up."""
        return self.answers[0] if self.answers else None

    @property
    def query(self) -> Query | None:
        """Return the Query that was decided, or else the first; others with its id are duplicates."""
        at = self.decision or self.row
        if at is not None:
            for query in self.queries:
                if (query.part, query.off) == (at.q_part, at.q_off):
                    return query
            return None
        return self.queries[0] if self.queries else None

    @property
    def closing(self) -> Reward | None:
        """Return the Reward that closes the query."""
        return next((r for r in self.rewards if r.kind in CLOSING), None)

    @property
    def since_ms(self) -> int:
        """Return a time before which none of its records can have been written."""
        asked = [query.ts for query in self.queries]
        asked += [each.appended_ms or each.ts for each in self.decisions]
        if self.row is not None:
            asked.append(self.row.appended_ms or self.row.ts)
        if asked:
            return min(asked)
        others = (self.contexts, self.answers, self.rewards, [self.join] if self.join else [])
        return min((record.ts for records in others for record in records), default=0) - _LONGEST_MS

    def refused(self, kind: type[Any]) -> list[Any]:
        """Return the records of a kind that were given up."""
        return [record for record, _ in self.given_up if isinstance(record, kind)]

    def error(self, kind: type[Any]) -> str | None:
        """Return why a record of a kind was given up; None if none was."""
        return next((error for record, error in self.given_up if isinstance(record, kind)), None)


def stories(ledger: Ledger, topics: dict[type[Any], str]) -> Iterator[Story]:
    """Yield every query's story, sorted by id.

    Args:
        ledger: Flushed.
        topics: The topic of each kind of record that may be given up.
    """
    by_kind = {kind: _Sorted(ledger.of_kind(kind)) for kind in PER_QUERY}
    letters = bool(ledger.one("SELECT 1 FROM Letter LIMIT 1"))
    for query_id in ledger.query_ids():
        found: dict[type[Any], list[Any]] = {kind: each.take(query_id) for kind, each in by_kind.items()}
        given_up = []
        for kind, topic in topics.items() if letters else ():
            lost = [(each, e) for each in found[kind] if (e := ledger.letter(topic, each.part, each.off))]
            given_up += lost
            if lost and kind is not Query:
                gone = [each for each, _ in lost]
                found[kind] = [each for each in found[kind] if each not in gone]
        yield Story(
            query_id, found[Query], found[Context], found[Decision], found[Answer], found[Reward], found[Feedback],
            next(iter(found[Row]), None), next(iter(found[JoinRow]), None), given_up,
        )  # fmt: skip


def state_of(story: Story, timeout_ms: int, wait_ms: int) -> State:
    """Return the one state of a query.

    Args:
        story: Its facts.
        timeout_ms: How long a query waits for its Answer, unless it says otherwise.
        wait_ms: How long an Answer waits for feedback, unless its query says otherwise.
    """
    query, decision, answer = story.query, story.decision, story.answer
    since = query.ts if query else decision.appended_ms if decision else story.since_ms
    said = decision or query
    own = said.timeout_ms if said else None
    deadline = since + (timeout_ms if own is None else own)

    def pending(waits_for: Waits, until: int = deadline) -> State:
        return State("pending", "", waits_for, since, until)

    if answer is None:
        if (error := story.error(Answer)) is not None:
            return State("answered, not learnable", error)
        if decision is None and story.row is None and (error := story.error(Context) or story.error(Query)):
            return State("rejected", error)
        if story.closing is not None or (story.row and story.row.stage in ENDED):
            return _ended(story, story.closing.status if story.closing else "its Answer is no longer kept")
        if decision is not None:
            return pending("executor")
        return pending("decider" if story.contexts or story.row else "embedder")
    if answer.status == "rejected":
        return State("rejected", story.error(Query) or story.error(Context) or f"by the {answer.room}")
    ends = "expired" if answer.status == "expired" else "answered, not learnable"
    closing = story.closing
    if closing is None:
        if decision is None and not story.rewards and story.row is None:
            return State(
                ends, "" if ends == "expired" else answer.status
            )  # nothing was chosen: nothing to learn
        if (error := story.error(Decision) or story.error(Reward)) is not None:
            return State(ends, error)
        if story.rewards:
            own = said.wait_ms if said else None
            return pending("feedback", answer.ts + (wait_ms if own is None else own))
        return pending("aggregator")
    if story.row is not None and story.row.stage not in ENDED:
        return State(ends, error) if (error := story.error(Reward)) is not None else pending("learner")
    return _ended(story, answer.status)


def _ended(story: Story, status: str) -> State:
    """Return the state of a query that is closed, from its row, or from its Reward if the row has left the log."""
    if status == "expired":
        return State("expired")
    row, closing = story.row, story.closing
    if row is not None:
        learned = row.learned >= 0
    else:
        learned = (
            closing is not None
            and closing.score is not None
            and closing.log_cost is not None
            and closing.learn
            and not closing.bounded
        )
    if not learned and closing is not None and not closing.learn:
        status = "learn: false"
    elif not learned and closing is not None and closing.bounded:
        status = "cut by its client"
    return State("answered and learned") if learned else State("answered, not learnable", status)


class _Sorted:
    """Facts sorted by query, handed out query by query."""

    def __init__(self, facts: Iterator[Any]) -> None:
        self._facts = facts
        self._next = next(facts, None)

    def take(self, query_id: str) -> list[Any]:
        """Return the facts of a query; those of earlier ids are skipped."""
        taken = []
        while self._next is not None and (self._next.query_id is None or self._next.query_id <= query_id):
            if self._next.query_id == query_id:
                taken.append(self._next)
            self._next = next(self._facts, None)
        return taken


# What must hold for a query's row in the learner's log: it agrees with its Decision, its Context and its Rewards.


def row_discrepancies(s: Story, w: World) -> Iterator[str]:
    """Yield where the learner's row differs from its Decision, its Context or its Rewards."""
    row, d = s.row, s.decision
    if row is None:
        return
    if d is not None:
        for name, found, wanted in (("seq", row.seq, d.seq), ("action", row.action, d.action)):
            if found != wanted:
                yield f"the learner's row: {name} is {found}, the Decision's {wanted}"
        same = {
            "objective": row.objective == d.objective, "Decision": row.decision == d.whole,
            "Query": (row.q_part, row.q_off) == (d.q_part, d.q_off),
        }  # fmt: skip
        for name in (name for name, equal in same.items() if not equal):
            yield f"the learner's row: its {name} is not that of the Decision"
    for c in s.contexts:
        if (c.q_part, c.q_off) == (row.q_part, row.q_off) and c.vector != row.vector:
            yield "the learner's row: its embedding is not the Context's"
    if w.keeps(Reward, s.since_ms):
        yield from _applied(s, row, w)


def _applied(s: Story, row: Row, w: World) -> Iterator[str]:
    """Yield where the row differs from what its Rewards make of it."""
    stage, kinds, entered = told(s, row)
    after = [r for r in _own(s, row) if r.off > row.r_off and moved(stage, kinds, r) is not None]
    if after and after[0].early and after[0].off + BATCH <= w.facts.rewards_done:
        yield f"Reward {s.query_id}/{after[0].kind} was passed over by the learner"
    made = f"{row.stage} by {row.kinds or 'nothing'}"
    # A deployment may drop an answer that nobody graded.
    if (stage, ",".join(kinds)) != (row.stage, row.kinds) and (row.stage, kinds) != (
        "abandoned",
        ["default"],
    ):
        yield f"the learner's row is {made}; by its Rewards, {stage} by {','.join(kinds) or 'nothing'}"
    elif (row.learned >= 0) + (row.corrected >= 0) != len(entered):
        yield f"the learner's row has updates at {row.learned} and {row.corrected}, its Rewards make {len(entered)}"
    elif row.learned >= 0 and entered:
        said = next((r.correct for r in entered if r.correct is not None), None)
        # A deployment may count an answer that nobody graded as wrong.
        correct = 0.0 if said is None and row.correct == 0.0 else said
        price = orjson.loads(entered[0].price) or {}
        pairs = (
            ("score", row.score, entered[0].score),
            ("log_cost", row.log_cost, entered[0].log_cost),
            ("correct", row.correct, correct),
            ("price_factor", row.factor, price.get("factor", 1.0)),
        )
        for name, found, wanted in pairs:
            if found != wanted:
                yield f"the learner's row: {name} is {found}, its Reward's {wanted}"


def told(s: Story, row: Row) -> tuple[str, list[str], list[Reward]]:
    """Apply the Rewards in order, up to the row's last one.

    Returns:
        The stage, the kinds of Rewards applied, and the Rewards that entered the policy.
    """
    stage, kinds, entered = "pending", list[str](), list[Reward]()
    for r in _own(s, row):
        if r.off <= row.r_off and (after := moved(stage, kinds, r)) is not None:
            if after not in ("abandoned", "priced") and (stage == "pending" or r.correct is not None):
                entered.append(r)
            stage = after
            kinds.append(r.kind)
    return stage, kinds, entered


def _own(s: Story, row: Row) -> list[Reward]:
    return [r for r in s.rewards if (r.seq, r.action) == (row.seq, row.action)]


def moved(stage: str, kinds: list[str], r: Reward) -> str | None:
    """Return the stage of a row after a Reward; None if the Reward changes nothing."""
    if r.kind in kinds or stage in ENDED or (stage == "learned" and r.kind == "provisional"):
        return None
    if stage == "pending" and (not r.learn or r.score is None or r.log_cost is None):
        return "abandoned" if r.kind in CLOSING else None
    if stage == "pending" and r.bounded:
        return "priced"
    return "closed" if r.kind in CLOSING else "learned"


# What must hold for one query: Decision, Answer, Reward and row agree, prices follow from traces, nothing is skipped.
#
# A record before the first capture of the ends must agree with the records before the second (see `run`). A missing
# record is a discrepancy only if a later record of the same room proves that the room has moved past it; until then
# the query is pending. A record that retention has removed does not count as missing.

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
