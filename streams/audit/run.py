"""The audit captures the end offsets twice, reads every topic once up to them, and accounts for every query_id.

**Why twice.** Records keep arriving while the end offsets are being read. Records before the first capture must be
accounted for; records before the second may explain them. Every record before the first capture was written before the
second capture began, and so was everything that precedes it: its cause, and whatever its service had to finish first.
Within a capture, the end offsets of effects are read before those of their causes: the learner's log, its snapshots,
rewards, answers, decisions, contexts, queries, and finally dead letters. So a Reward, for instance, cannot seem to lack
a Decision that was written between the two reads.
"""

import resource
import sys
import time
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from streams.audit.checks import WINDOW, Checks, Discrepancy
from streams.audit.price import PriceList
from streams.audit.reading import Facts, Ledger, Log, Part, Span
from streams.settings import Settings
from streams.topics import Topics
from streams.words import counted

MOST_NAMED: Final = 10_000
"""Maximum number of discrepancies to list; any more are only counted."""

_EVER_MS: Final = 1 << 62


class OpenQuery(Struct, frozen=True):
    """An open query: what it is waiting for, its age, and the time left until its deadline."""

    query_id: str
    waits_for: str
    age_s: float
    due_in_s: float


class Report(Struct, kw_only=True):
    """The audit's findings.

    Attributes:
        queries: Number of ids accounted for.
        states: Number of queries in each state.
        discrepancies: At most MOST_NAMED discrepancies, each with its query_id or other subject, the check that found
            it, and a description.
        wrong: Number of discrepancies.
        pending: The hundred oldest pending queries.
        overdue: Number of queries that are pending past their deadline.
        repeated: Number of harmless repeats, which at-least-once delivery allows.
        unreadable: Number of records that could not be read, by kind of topic.
        unpriced: By model, the number of Answers whose cost was not checked because the catalogue lacks the model.
        learner: The number of updates according to the learner's rows, and of applied rewards according to the Rewards.
        records: Number of records read.
        peak_mb: Peak resident memory of this process.
        seconds: Duration of the audit.
    """

    queries: int = 0
    states: dict[str, int] = {}
    discrepancies: list[dict[str, str]] = []
    wrong: int = 0
    pending: list[OpenQuery] = []
    overdue: int = 0
    repeated: int = 0
    unreadable: dict[str, int] = {}
    unpriced: dict[str, int] = {}
    learner: dict[str, int] = {}
    records: int = 0
    peak_mb: float = 0.0
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """Return the report as one line."""
        return (
            f"{counted(self.queries, 'query', 'queries')}, {counted(self.wrong, 'discrepancy', 'discrepancies')}, "
            f"{self.states.get('pending', 0):,} pending ({self.overdue:,} overdue); "
            f"learner: {counted(self.learner['updates'], 'update')}, "
            f"{self.learner['applied']:,} applied; "
            f"{counted(self.records, 'record')} in {self.seconds:.1f} s, {self.peak_mb:.0f} MB"
        )

    @property
    def ids(self) -> list[str]:
        """Return the distinct subjects of the discrepancies, in order."""
        return list(dict.fromkeys(each["query_id"] for each in self.discrepancies))

    @property
    def checks(self) -> set[str]:
        """Return the names of the failed checks."""
        return {each["check"] for each in self.discrepancies}

    def name(self, each: Discrepancy) -> None:
        """Add a discrepancy."""
        self.wrong += 1
        if len(self.discrepancies) < MOST_NAMED:
            self.discrepancies.append(each._asdict())

    def settle(self) -> None:
        """Count each pending query as a discrepancy, and list the oldest of them."""
        for each in self.pending:
            self.name(Discrepancy("settled", each.query_id, f"is pending: it waits for the {each.waits_for}"))
        self.wrong += self.states.get("pending", 0) - len(self.pending)


def audit(log: Log, settings: Settings, now_ms: int | None = None) -> Report:
    """Account for every query of a deployment, running or not.

    Args:
        log: The deployment's topics.
        settings: The deployment's settings. The audit uses the prefix, the catalogue, the waits and the concurrency.
        now_ms: The current time, in ms since the epoch; by default, read from this machine's clock.

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
    ledger = Ledger()
    try:
        facts = Facts(ledger, PriceList(Path(settings.catalogue)))
        oldest_ms = _read(log, names, first, second, facts, report)
        for part, offset in facts.queries_done.items():
            ledger.add("Embedded", part, offset)
        for (topic, part), span in second.items():
            if topic in (names["query"], names["feedback"]):
                ledger.add("Held", topic, part, span.begin, span.end)
        known = _known(facts, names, oldest_ms, settings) | {"now_ms": now_ms}
        _account(Checks(ledger, names, known), report)
        report.unreadable, report.unpriced = facts.unreadable, facts.unpriced
    finally:
        ledger.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report.peak_mb = round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), 1)
    report.seconds = round(time.monotonic() - began_s, 3)
    return report


def _names(topics: Topics) -> dict[str, str]:
    """Return the name of each kind of topic, effects before causes."""
    return {
        "learner": topics.changelog("decider", "pending"),
        "snapshot": topics.snapshot,
        "join": topics.changelog("aggregator", "join"),
        "reward": topics.reward,
        "feedback": topics.feedback,
        "failure": topics.attempt_failed,
        "answer": topics.answer,
        "decision": topics.decision,
        "context": topics.context,
        "query": topics.query,
        "control": topics.control,
        "dead_letter": topics.dead_letter,
    }


def _read(
    log: Log,
    names: dict[str, str],
    first: dict[Part, Span],
    second: dict[Part, Span],
    facts: Facts,
    report: Report,
) -> dict[Part, int]:
    """Read everything once. Return the oldest append time in each partition that has lost records, in ms."""
    oldest_ms: dict[Part, int] = {}
    # The catalogue's entries come first, because Answers are priced as they are read.
    for kind in sorted(names, key=lambda name: name != "control"):
        for part, span in second.items():
            if part[0] != names[kind]:
                continue
            if span.begin > 0:
                oldest_ms[part] = _EVER_MS
            end = first[part].end if part in first else 0
            for raw in log.read(part, span):
                if span.begin > 0:
                    oldest_ms[part] = min(oldest_ms[part], raw.timestamp_ms)
                facts.take(kind, part[1], raw, raw.offset < end)
                report.records += 1
    return oldest_ms


def _known(
    facts: Facts, names: dict[str, str], oldest_ms: dict[Part, int], settings: Settings
) -> dict[str, Any]:
    """Return the parameters for the statements in `timeline.sql`, `checks.sql` and `summary.sql`.

    Records of a kind that were appended after kept_<kind> must still be there; retention may have deleted earlier ones.
    """
    known: dict[str, Any] = {
        "query_topic": names["query"],
        "feedback_topic": names["feedback"],
        "window": WINDOW * settings.kafka.concurrency,
        "contexts_done": facts.contexts_done,
        "rewards_done": facts.rewards_done,
        "failures_done": facts.failures_done,
        "timeout_ms": int(settings.queries.timeout_s * 1000),
        "wait_ms": int(settings.queries.feedback_waits_s(mixed=False) * 1000),
        "mixed_wait_ms": int(settings.queries.feedback_waits_s(mixed=True) * 1000),
    }
    for kind in ("context", "decision", "answer", "reward", "feedback", "failure"):
        oldest = (ms for (topic, _), ms in oldest_ms.items() if topic == names[kind])
        known[f"kept_{kind}"] = max(oldest, default=-_EVER_MS)
    return known


def _account(checks: Checks, report: Report) -> None:
    report.states = dict(checks.found("states"))
    report.queries = sum(report.states.values())
    report.pending = [OpenQuery(*each) for each in checks.found("oldest")]
    report.overdue, report.repeated = checks.number("overdue"), checks.number("repeated")
    report.learner = {name: checks.number(name) for name in ("updates", "applied")}
    for wrong in checks.wrong():
        report.name(wrong)
