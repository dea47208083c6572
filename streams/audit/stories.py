"""All facts of one query, and the one state that the query is in.

answered and learned               it has an Answer, and its row entered the policy and is closed
answered, not learnable (why)      it has an Answer, but no score, no price, or learn: false; or the client's own
                                   bounds cut it, so that its cost alone was learned
expired                            its deadline passed before an Answer came
rejected (why)                     it could not be read, or nothing could be chosen for it
pending                            anything else, with what it waits for, its age and its deadline
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from streams.audit.reading.ledger import Ledger
from streams.audit.reading.records import (
    PER_QUERY,
    Answer,
    Context,
    Decision,
    Feedback,
    JoinRow,
    Query,
    Reward,
    Row,
)  # fmt: skip

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
