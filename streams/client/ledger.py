"""The log of a run, read back: every record of every query, in order, with its append time.

What is said about a run (demo, explain, monitor, tests) is computed from here and from nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from schemas.answer import Answer
from schemas.base import Record as Message
from schemas.base import decode
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.errors import UniscaleError
from schemas.query import Context, Query
from schemas.reward import Reward
from schemas.search import SearchStep, Verification
from streams.runtime.kafka import connections
from streams.settings import Settings
from streams.topics import Topics

M = TypeVar("M", bound=Message)


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
    # Append times in ms, by stage: query, context, decision, step/1, verification/1, …, answer, reward/<kind>.
    at_ms: dict[str, int] = field(default_factory=dict)

    @property
    def decision(self) -> Decision | None:
        """The Decision that counts."""
        return self.decisions[0] if self.decisions else None

    @property
    def answer(self) -> Answer | None:
        """The Answer that counts."""
        return self.answers[0] if self.answers else None

    @property
    def closing(self) -> Reward | None:
        """The Reward that closed the query."""
        return next((r for r in self.rewards if r.closes), None)

    @property
    def repeats(self) -> int:
        """How many records say what another one had said before."""
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
        """Return the story of a query, a new one when it was not heard of."""
        return self.stories.setdefault(query_id, Story(query_id))

    def add(self, topics: Topics, record: Any, about: str | None = None) -> None:
        """Take one raw record of any topic; with `about`, only one of that query."""
        kind = _kinds(topics).get(record.topic) or _group_kind(topics, record.topic)
        if kind is None or record.value is None:
            return
        if about is not None and not _concerns(topics, record, about.encode()):
            return
        self.bytes += len(record.value)
        try:
            message = decode(record.value, kind)
        except UniscaleError:
            self.unreadable += 1
            return
        if isinstance(message, DeadLetter):
            self.dead_letters.append(message)
            return
        self._file(message, record.timestamp)

    def _file(self, message: Any, at_ms: int) -> None:
        story = self.story(message.query_id)
        match message:
            case Query():
                story.query = story.query or message
                stage = "query"
            case Context():
                story.contexts.append(message)
                stage = "context"
            case Decision():
                story.decisions.append(message)
                stage = "decision"
            case SearchStep():
                story.steps.append(message)
                stage = f"step/{message.step}"
            case Verification():
                story.verifications.append(message)
                stage = f"verification/{message.step}"
            case Answer():
                story.answers.append(message)
                stage = "answer"
            case Reward():
                story.rewards.append(message)
                stage = f"reward/{message.kind}"
            case _:
                return
        story.at_ms.setdefault(stage, at_ms)


def read_ledger(
    settings: Settings, groups: Iterable[str], only: Sequence[str] = (), about: str | None = None
) -> Ledger:
    """Read all topics of a deployment from their beginnings.

    Args:
        settings: Where.
        groups: Its executor groups.
        only: Topic names to read instead of all.
        about: Take the records of this query alone; the others are passed over undecoded.
    """
    topics = Topics(settings)
    names = list(only) or [
        topics.query, topics.context, topics.decision, topics.search_step,
        *(topics.verification_for(g) for g in groups), topics.answer, topics.reward, topics.dead_letter,
    ]  # fmt: skip
    ledger = Ledger()
    for record in connections.read_all(settings, names, timeout_ms=500):
        ledger.add(topics, record, about)
    return ledger


def _concerns(topics: Topics, record: Any, query_id: bytes) -> bool:
    """Say whether a record may be about a query: by its key, or, where that is another thing, its text."""
    if record.topic in (topics.context, topics.reward, topics.dead_letter):
        return query_id in record.value
    return bool(record.key == query_id)


def _kinds(topics: Topics) -> dict[str, type[Message]]:
    return {
        topics.query: Query,
        topics.context: Context,
        topics.decision: Decision,
        topics.search_step: SearchStep,
        topics.answer: Answer,
        topics.reward: Reward,
        topics.dead_letter: DeadLetter,
    }


def _group_kind(topics: Topics, name: str) -> type[Message] | None:
    return Verification if name.startswith(topics.verification_for("")) else None
