"""A replay: when each recorded query is due, which queries are open, and their outcomes. Needs no broker or clock."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.query import Query
from schemas.reward import Reward
from streams.client.questions import renamed
from streams.client.recorded import Recorded

OPEN = 10_000
"""Maximum number of unanswered queries. At this limit the replay waits for the deployment, to bound its memory."""

_EXACT_S = 1e-6
"""Larger than the rounding error when summing floats."""


class SendSchedule(Struct, frozen=True):
    """When each query is due: at a steady rate, or as recorded.

    Attributes:
        per_s: Queries per second; 0 sends as fast as the broker accepts them. None keeps the recorded times, if any.
        speed: Speed-up relative to the recorded times.

    >>> SendSchedule(2.0).due_s(3), SendSchedule(speed=10.0).due_s(3, 20.0)
    (1.5, 2.0)
    """

    per_s: float | None = None
    speed: float = 1.0

    def due_s(self, index: int, after_s: float = 0.0) -> float:
        """Return when query `index`, recorded `after_s` seconds after the first, is due, in seconds from the start."""
        if self.per_s is None:
            return after_s / self.speed
        return index / self.per_s if self.per_s else 0.0


class Replay:
    """Progress of recorded queries through a deployment.

    Args:
        recorded: The recorded queries, in chronological order.
        run: The prefix for every id.
        pace: How fast to send them.
        learn: Whether the learner may learn from those that allow it.

    Attributes:
        sent: Number of queries sent.
        ends: Number of queries by their Answer's status, or by `id taken`.
        longest_s: The longest `timeout_s` among the queries sent.
        behind_s: How late the most recent query was sent, in seconds.
        costs: The costs of closed queries, summed by unit.
        priced, graded: How many closed queries have a cost, and how many have a grade.
        correct: The sum of the grades.
    """

    def __init__(
        self, recorded: Iterable[Recorded], run: str, pace: SendSchedule, *, learn: bool = True
    ) -> None:
        self.sent = self.priced = self.graded = 0
        self.ends: Counter[str] = Counter()
        self.costs: defaultdict[str, float] = defaultdict(float)
        self.longest_s = self.behind_s = self.correct = 0.0
        self._run, self._pace, self._learn = run, pace, learn
        self._left = iter(recorded)
        self._next = next(self._left, None)
        self._began_s = self._next.at_s if self._next else 0.0
        self._unanswered: set[str] = set()
        self._unclosed: set[str] = set()

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a query is due: infinity if none is left, or too many are unanswered.

        Args:
            now_s: Seconds since the replay started.
        """
        if self._next is None or len(self._unanswered) >= OPEN:
            return math.inf
        left_s = self._due_s(self._next) - now_s
        return left_s if left_s > _EXACT_S else 0.0

    def due(self, now_s: float) -> Iterator[Query]:
        """Yield the queries that are due, under their new ids."""
        while self._next is not None and not self.wait_s(now_s):
            self.behind_s = now_s - self._due_s(self._next)
            [query] = renamed([self._next.query], self._run)
            if not self._learn:
                query = replace(query, learn=False)
            self.sent += 1
            self.longest_s = max(self.longest_s, query.timeout_s or 0.0)
            self._unanswered.add(query.query_id)
            self._unclosed.add(query.query_id)
            self._next = next(self._left, None)
            yield query

    @property
    def all_sent(self) -> bool:
        """Whether no query is left to send."""
        return self._next is None

    @property
    def unanswered(self) -> int:
        """How many of the queries sent have no Answer yet."""
        return len(self._unanswered)

    @property
    def unclosed(self) -> int:
        """How many of the queries sent have no closing Reward yet."""
        return len(self._unclosed)

    def take(self, record: Any) -> None:
        """Record what an Answer, Reward or dead letter says about a query of this replay; only the first counts."""
        match record:
            case Answer(query_id=query_id, status=status) if query_id in self._unanswered:
                self._unanswered.remove(query_id)
                self.ends[status] += 1
                if status == "rejected":  # before a Decision: there will be no Reward
                    self._unclosed.discard(query_id)
            case DeadLetter(error="DuplicateQuery", query_id=str(query_id)) if query_id in self._unanswered:
                self._unanswered.remove(query_id)
                self._unclosed.discard(query_id)
                self.ends["id taken"] += 1
            case Reward(query_id=query_id, closes=True) if query_id in self._unclosed:
                self._unclosed.remove(query_id)
                if (cost := record.cost) is not None:
                    self.priced += 1
                    self.costs[record.objective.cost_range.unit] += cost
                if record.correct is not None:
                    self.graded += 1
                    self.correct += record.correct

    def _due_s(self, recorded: Recorded) -> float:
        return self._pace.due_s(self.sent, recorded.at_s - self._began_s)

    def report(self) -> str:
        """Return a summary of the outcomes, one line each."""
        ends = ", ".join(f"{end} {count}" for end, count in self.ends.most_common()) or "none"
        lines = [f"sent {self.sent}", f"answered {sum(self.ends.values())}: {ends}"]
        lines += [
            f"cost {total:.4g} {unit}, {total / self.priced:.4g} a query"
            for unit, total in self.costs.items()
        ]
        right = f"accuracy {self.correct / self.graded:.1%}" if self.graded else "no accuracy"
        return "\n".join([*lines, f"{right}: {self.graded} of {self.sent} are graded"])
