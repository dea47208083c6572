"""The audit: capture the end offsets twice, read every topic once up to there, then account for every query_id.

**Why twice.** Records keep arriving while the end offsets are being read. Records before the first capture must be
accounted for; records before the second may explain them. Every record before the first capture was written before the
second capture began, and so was everything that precedes it: its cause, and whatever its room had to finish first.
Within a capture, the ends of effects are read before those of their causes: the learner's log, its snapshots, then
rewards, answers, decisions, contexts, queries, dead letters. So a Reward, for instance, cannot seem to lack a Decision
that was written between the two reads.
"""

import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from streams.audit.checks import State, Story, World, discrepancies, state_of, stories, told
from streams.audit.learner import Ended, Fold, Learner, Setup
from streams.audit.price import Catalogue
from streams.audit.reading import (
    Answer,
    Chunk,
    Context,
    Decision,
    Facts,
    Feedback,
    JoinRow,
    Ledger,
    Log,
    Part,
    Query,
    Reward,
    Row,
    Span,
)
from streams.settings import Settings
from streams.topics import Topics

MOST_NAMED: Final = 10_000
"""Discrepancies that are listed; any more are only counted."""

_KINDS: Final[dict[str, type]] = {
    "learner": Row, "join": JoinRow, "reward": Reward, "feedback": Feedback, "answer": Answer, "decision": Decision,
    "context": Context, "query": Query,
}  # fmt: skip


class Pending(Struct, frozen=True):
    """A query that has not ended: what it waits for, its age, and the time left until its deadline."""

    query_id: str
    waits_for: str
    age_s: float
    due_in_s: float


class Report(Struct, kw_only=True):
    """What the audit found.

    Attributes:
        queries: Number of ids accounted for.
        states: Number of queries in each state.
        discrepancies: The query_id or sequence number of each, and what is wrong; at most MOST_NAMED.
        wrong: Number of discrepancies.
        pending: The hundred oldest.
        overdue: Number of queries pending past their deadline.
        repeated: Number of harmless repeats, which at-least-once delivery allows.
        unreadable: Number of records that could not be read, by kind of topic.
        learner: Updates counted in the learner's rows, applied rewards counted in the Rewards, and the fold's result.
        records: Number of records read.
        peak_mb: Peak resident memory of this process.
        seconds: Duration of the audit.
    """

    queries: int = 0
    states: dict[str, int] = {}
    discrepancies: list[dict[str, str]] = []
    wrong: int = 0
    pending: list[Pending] = []
    overdue: int = 0
    repeated: int = 0
    unreadable: dict[str, int] = {}
    learner: dict[str, Any] = {}
    records: int = 0
    peak_mb: float = 0.0
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """Return the report in one line."""
        most = self.learner["max_difference"]
        return (
            f"{self.queries:,} queries, {self.wrong:,} discrepancies, {self.states.get('pending', 0):,} pending "
            f"({self.overdue:,} overdue); learner: {self.learner['updates']:,} updates, "
            f"{self.learner['applied']:,} applied, difference {'not compared' if most is None else f'{most:.1e}'}; "
            f"{self.records:,} records in {self.seconds:.1f} s, {self.peak_mb:.0f} MB"
        )

    @property
    def ids(self) -> list[str]:
        """Return what the discrepancies concern, each once, in order."""
        return list(dict.fromkeys(each["query_id"] for each in self.discrepancies))

    def name(self, query_id: str, what: str) -> None:
        """Add a discrepancy."""
        self.wrong += 1
        if len(self.discrepancies) < MOST_NAMED:
            self.discrepancies.append({"query_id": query_id, "what": what})


def audit(log: Log, settings: Settings, now_ms: int | None = None) -> Report:
    """Account for every query of a deployment, running or not.

    Args:
        log: The deployment's topics.
        settings: The deployment's settings; prefix, catalogue, waits and policy are used.
        now_ms: The time in ms since the epoch; the default is the clock of this machine.

    Raises:
        LookupError: none of the topics exists.
    """
    began_s = time.monotonic()
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    names = _names(Topics(settings))
    first, second = log.spans(names.values()), log.spans(names.values())
    if not second:
        raise LookupError(
            f"{names['query']}: the topic does not exist; is the prefix {settings.kafka.prefix!r} right?"
        )
    report = Report()
    with tempfile.TemporaryDirectory(prefix="uniscale-audit-") as folder:
        ledger = Ledger(Path(folder))
        try:
            facts = Facts(ledger, Catalogue(Path(settings.catalogue)))
            oldest_ms = _read(log, names, first, second, facts, report)
            ledger.flush()
            kinds = {kind: names[name] for name, kind in _KINDS.items()}
            ended = Ended(ledger.of_kind(Chunk, "key"))
            world = World(facts, kinds, second, oldest_ms, now_ms, ended)
            _account(ledger, world, settings, report)
            setup = Setup.of(settings.policy.name, settings.policy.options)
            _learner(Fold(ledger, facts.actions, setup).run(), report)
            report.unreadable = facts.unreadable
        finally:
            ledger.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report.peak_mb = round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), 1)
    report.seconds = round(time.monotonic() - began_s, 3)
    return report


def _names(topics: Topics) -> dict[str, str]:
    """Return the topic of each kind, effects before causes."""
    return {
        "learner": topics.changelog("decider", "pending"), "snapshot": topics.snapshot,
        "join": topics.changelog("aggregator", "join"),
        "reward": topics.reward, "feedback": topics.feedback, "answer": topics.answer, "decision": topics.decision,
        "context": topics.context, "query": topics.query, "control": topics.control, "dead_letter": topics.dead_letter,
    }  # fmt: skip


def _read(
    log: Log,
    names: dict[str, str],
    first: dict[Part, Span],
    second: dict[Part, Span],
    facts: Facts,
    report: Report,
) -> dict[Part, int]:
    """Read everything once; return the append time of the first record in each partition that has lost records."""
    oldest_ms: dict[Part, int] = {}
    # The catalogue first: Answers are priced as they are read.
    for kind in sorted(names, key=lambda name: name != "control"):
        for part, span in second.items():
            if part[0] != names[kind]:
                continue
            if span.begin > 0:
                oldest_ms[part] = 1 << 62
            end = first[part].end if part in first else 0
            for raw in log.read(part, span):
                if span.begin > 0:
                    oldest_ms[part] = min(oldest_ms[part], raw.timestamp_ms)
                facts.take(kind, part[1], raw, raw.offset < end)
                report.records += 1
    return oldest_ms


def _account(ledger: Ledger, world: World, settings: Settings, report: Report) -> None:
    timeout_ms, wait_ms = int(settings.queries.timeout_s * 1000), int(settings.queries.feedback_wait_s * 1000)
    states: Counter[str] = Counter()
    pending: list[Pending] = []
    applied = 0
    letters = {kind: topic for kind, topic in world.names.items() if kind not in (Row, JoinRow)}
    for story in stories(ledger, letters):
        state = state_of(story, timeout_ms, wait_ms)
        states[str(state)] += 1
        report.queries += 1
        report.repeated += _repeated(story)
        if state.waits_for is not None:
            report.overdue += state.deadline_ms < world.now_ms
            pending.append(_pending(story.query_id, state, world.now_ms))
            if len(pending) > 1000:
                pending = sorted(pending, key=lambda each: -each.age_s)[:100]
        if story.row is not None:
            known = world.keeps(Reward, story.since_ms)
            entered = (story.row.learned >= 0) + (story.row.corrected >= 0)
            applied += len(told(story, story.row)[2]) if known else entered
        for what in discrepancies(story, world):
            report.name(story.query_id, what)
    for query in ledger.of_kind(Query, "part, off"):
        past = query.early and world.facts.queries_done.get(query.part, -1) > query.off
        where = (world.names[Query], query.part, query.off)
        if query.query_id is None and past and ledger.letter(*where) is None:
            report.name(
                "/".join(map(str, where)), "an unreadable Query was passed over without a dead letter"
            )
    report.states = dict(sorted(states.items()))
    report.pending = sorted(pending, key=lambda each: -each.age_s)[:100]
    report.learner = {"applied": applied}


def _learner(found: Learner, report: Report) -> None:
    applied = report.learner["applied"]
    report.learner = {
        "updates": found.updates, "applied": applied, "max_difference": found.max_difference,
        "compared": found.compared,
    }  # fmt: skip
    for who, what in found.discrepancies:
        report.name(who, what)
    if found.updates != applied:
        report.name("learner", f"its rows count {found.updates} updates, the Rewards make {applied}")


def _pending(query_id: str, state: State, now_ms: int) -> Pending:
    age_s, due_in_s = (now_ms - state.since_ms) / 1000, (state.deadline_ms - now_ms) / 1000
    return Pending(query_id, str(state.waits_for), round(age_s, 1), round(due_in_s, 1))


def _repeated(story: Story) -> int:
    own = story.query
    others = sum(1 for query in story.queries if own is not None and query != own)
    rewards = len(story.rewards) - len({reward.kind for reward in story.rewards})
    return (
        others
        + sum(max(0, len(each) - 1) for each in (story.contexts, story.decisions, story.answers))
        + rewards
    )
