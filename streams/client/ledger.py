"""The log of a run, read back: every record of every query, in order, with its append time.

The summaries of a run (demo, explain, monitor, tests) are computed from here and from nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.answer import Answer
from schemas.context import Context
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Query
from schemas.reward import Feedback, Reward
from schemas.search import SearchStep, Verification
from streams.client.events import KINDS, Event, event_of, topic_names
from streams.runtime.kafka.clients import connections
from streams.settings import Settings
from streams.topics import Topics


@dataclass
class Story:
    """Everything on record about one query. Lists are in offset order; the first of each identity counts."""

    query_id: str
    query: Query | None = None
    contexts: list[Context] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    steps: list[SearchStep] = field(default_factory=list)
    verifications: list[Verification] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    # Append times in ms, by stage: query, context, decision, step/1, verification/1, …, answer, reward/<kind>.
    at_ms: dict[str, int] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        """Whether anything is on record."""
        return bool(self.at_ms or self.dead_letters)

    @property
    def decision(self) -> Decision | None:
        """The Decision that counts: the first."""
        return self.decisions[0] if self.decisions else None

    @property
    def answer(self) -> Answer | None:
        """The Answer that counts: the first."""
        return self.answers[0] if self.answers else None

    @property
    def closing(self) -> Reward | None:
        """The Reward that closed the query."""
        return next((r for r in self.rewards if r.closes), None)

    @property
    def seq(self) -> int:
        """Its place in the order of decisions; 0 without a Decision."""
        return self.decision.seq if self.decision else 0

    @property
    def eflops(self) -> float | None:
        """What the query cost, by the Reward that closed it; None while that is open, and where nothing was run."""
        closing = self.closing
        return None if closing is None or closing.price is None else closing.price.eflops

    @property
    def repeats(self) -> int:
        """How many records repeat an earlier one."""
        extra = sum(max(0, len(records) - 1) for records in (self.contexts, self.decisions, self.answers))
        extra += len(self.steps) - len({s.step for s in self.steps})
        extra += len(self.verifications) - len({v.step for v in self.verifications})
        return extra + len(self.rewards) - len({r.kind for r in self.rewards})


@dataclass
class Ledger:
    """A run's stories by query_id, and its dead letters."""

    stories: dict[str, Story] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    unreadable: int = 0
    bytes: int = 0

    def story(self, query_id: str) -> Story:
        """Return the story of a query, a new one if there is none yet."""
        return self.stories.setdefault(query_id, Story(query_id))

    def add(self, topics: Topics, raw: Any, about: str | None = None) -> None:
        """Add one raw record of any topic; with `about`, only if it concerns that query."""
        if about is not None and not _concerns(topics, raw, about.encode()):
            return
        try:
            event = event_of(topics, raw)
        except UniscaleError:
            self.bytes += len(raw.value)
            self.unreadable += 1
            return
        if event is not None:
            self.take(event)

    def take(self, event: Event) -> None:
        """Add one decoded record."""
        self.bytes += event.bytes
        record = event.record
        if isinstance(record, DeadLetter):
            self.dead_letters.append(record)
            return
        story, stage = self.story(event.query_id), str(event.kind)
        match record:
            case Query():
                story.query = story.query or record
            case Context():
                story.contexts.append(record)
            case Decision():
                story.decisions.append(record)
            case SearchStep():
                story.steps.append(record)
                stage = f"step/{record.step}"
            case Verification():
                story.verifications.append(record)
                stage = f"verification/{record.step}"
            case Answer():
                story.answers.append(record)
            case Feedback():
                story.feedback.append(record)
            case Reward():
                story.rewards.append(record)
                stage = f"reward/{record.kind}"
        story.at_ms.setdefault(stage, event.at_ms)


def read_ledger(
    settings: Settings, groups: Iterable[str], only: Sequence[str] = (), about: str | None = None
) -> Ledger:
    """Read all topics of a deployment from their beginnings to their present ends.

    Args:
        settings: The deployment.
        groups: Its executor groups.
        only: Names of the topics to read; empty reads all.
        about: A query_id, to read only its records; the others are skipped without being decoded.

    Raises:
        BrokerUnreachable: no broker answers.
        UnknownTopic: none of the topics exists.
    """
    topics = Topics(settings)
    names = list(only) or topic_names(topics, [kind for kind in KINDS if kind != "feedback"], groups)
    ledger = Ledger()
    for raw in connections.read_all(settings, names, timeout_ms=500):
        ledger.add(topics, raw, about)
    return ledger


def executor_groups(settings: Settings) -> list[str]:
    """Return the executor groups that have topics on the broker."""
    start = Topics(settings).verification_for("")
    reader = connections.consumer(settings)
    try:
        return sorted(name.removeprefix(start) for name in reader.topics() if name.startswith(start))
    finally:
        reader.close()


def _concerns(topics: Topics, raw: Any, query_id: bytes) -> bool:
    """Return whether a record may concern a query: by its key, or by its text on topics with another key."""
    if raw.topic in (topics.context, topics.reward, topics.dead_letter):
        return query_id in (raw.value or b"")
    return bool(raw.key == query_id)
