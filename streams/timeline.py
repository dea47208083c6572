"""A query's timeline: every known record about it, with append times.

A client builds timelines from the topics (`streams.client.events`), and the gateway from its index. The audit builds
its own, in `streams/audit/timeline.sql`, because it shares no code with the services that it checks.
"""

from dataclasses import dataclass, field

from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Query, QueryContext
from schemas.record import Record
from schemas.reward import Feedback, Reward
from schemas.search import SearchStep, Verification


@dataclass(slots=True)
class Timeline:
    """Everything on record about one query. Lists are in offset order; of repeated records, only the first is used.

    Attributes:
        query: The Query that was decided; before there is a Decision, the first Query on record.
        at_ms: Append times in ms since the epoch, by stage: query, context, decision, step/1, verification/1, …,
            answer, feedback, reward/<kind>. The stages of further attempts include the number, as in `decision (2)`.
    """

    query_id: str
    query: Query | None = None
    contexts: list[QueryContext] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    steps: list[SearchStep] = field(default_factory=list)
    verifications: list[Verification] = field(default_factory=list)
    failures: list[AttemptFailed] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    at_ms: dict[str, int] = field(default_factory=dict)

    def add(self, record: Record, at_ms: int) -> None:
        """Add a record with its append time in ms; other kinds are ignored."""
        match record:
            case Query():
                self.query, stage = self.query or record, "query"
            case QueryContext():
                self.contexts.append(record)
                stage = "context"
            case Decision():
                if not self.decisions:  # if two Queries have this id, keep the one that was not refused
                    self.query = record.query
                    if record.appended_ms:
                        self.at_ms["query"] = record.appended_ms
                self.decisions.append(record)
                stage = _stage("decision", record.attempt)
            case SearchStep():
                self.steps.append(record)
                stage = _stage(f"step/{record.step}", record.attempt)
            case Verification():
                self.verifications.append(record)
                stage = _stage(f"verification/{record.step}", record.search.attempt)
            case AttemptFailed():
                self.failures.append(record)
                stage = _stage("attempt-failed", record.attempt)
            case Answer():
                self.answers.append(record)
                stage = "answer"
            case Feedback():
                self.feedback.append(record)
                stage = "feedback"
            case Reward():
                self.rewards.append(record)
                stage = f"reward/{record.kind}"
            case DeadLetter():
                self.dead_letters.append(record)
                return
            case _:
                return
        self.at_ms.setdefault(stage, at_ms)

    @property
    def found(self) -> bool:
        """Whether anything about the query is on record."""
        return bool(self.at_ms or self.dead_letters)

    @property
    def decision(self) -> Decision | None:
        """The first Decision for the Answer's attempt or, without an Answer, for the last attempt."""
        answer = self.answer
        ended = (d for d in self.decisions if answer is not None and d.seq == answer.seq)
        return next(ended, max(self.decisions, key=lambda d: d.attempt, default=None))

    @property
    def answer(self) -> Answer | None:
        """The first Answer, which is the one that counts."""
        return self.answers[0] if self.answers else None

    @property
    def reward(self) -> Reward | None:
        """The last Reward, which is the most complete one."""
        return self.rewards[-1] if self.rewards else None

    @property
    def closing(self) -> Reward | None:
        """The Reward that closed the query."""
        return next((r for r in self.rewards if r.closes), None)

    @property
    def seq(self) -> int:
        """The query's sequence number; 0 without a Decision."""
        return self.decision.seq if self.decision else 0

    @property
    def eflops(self) -> float | None:
        """The query's cost according to its closing Reward; None before that, or if nothing ran."""
        closing = self.closing
        return None if closing is None else closing.cost

    @property
    def total_s(self) -> float | None:
        """Seconds between appending the Query and appending the Answer; None unless both are known."""
        asked_ms, answered_ms = self.at_ms.get("query"), self.at_ms.get("answer")
        return None if asked_ms is None or answered_ms is None else (answered_ms - asked_ms) / 1000

    @property
    def repeats(self) -> int:
        """How many records repeat an earlier one."""
        extra = sum(max(0, len(records) - 1) for records in (self.contexts, self.answers))
        extra += len(self.decisions) - len({d.attempt for d in self.decisions})
        extra += len(self.steps) - len({(s.attempt, s.step) for s in self.steps})
        extra += len(self.verifications) - len({(v.search.attempt, v.step) for v in self.verifications})
        return extra + len(self.rewards) - len({r.kind for r in self.rewards})


def _stage(name: str, attempt: int) -> str:
    return name if attempt == 1 else f"{name} ({attempt})"
