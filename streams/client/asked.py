"""A set of queries: which have been sent, answered and rewarded, and how each ended."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from schemas.answer import Answer
from schemas.base import decode
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.query import Query
from schemas.reward import Reward
from streams.client.events import kind_of
from streams.topics import Topics


class Asked:
    """Progress and outcome of queries that a Client has sent and waits for.

    Answers are matched by key and decoded only when `answers` is read, so waiting costs next to nothing.

    Attributes:
        total: Number of queries.
        sent: Number passed to the producer so far.
        taken: Ids that were already used: the earlier query keeps its Answer, and this one was dropped.
        rewarded: Ids whose reward is closed; filled only if the Client waits for rewards.
        wall_s: Seconds from the first send until the last expected record arrived or waiting ended.
    """

    def __init__(self, queries: Iterable[Query], *, rewards: bool = False) -> None:
        self._ids = [query.query_id for query in queries]
        self._open = {query_id.encode(): query_id for query_id in self._ids}
        self._waiting = dict(self._open)
        self._raw: dict[str, bytes] = {}
        self._rewards = rewards
        self.total = len(self._ids)
        self.sent = 0
        self.taken: set[str] = set()
        self.rewarded: set[str] = set()
        self.wall_s = 0.0
        self._began = self._heard = time.monotonic()

    @property
    def answered(self) -> int:
        """How many queries have an Answer."""
        return len(self._raw)

    @property
    def missing(self) -> list[str]:
        """Ids without an Answer, in the order in which they were sent."""
        return [query_id for query_id in self._ids if query_id.encode() in self._waiting]

    @property
    def answers(self) -> Mapping[str, Answer]:
        """The Answer of each query that has one, by query_id."""
        return {q: decode(self._raw[q], Answer) for q in self._ids if q in self._raw}

    @property
    def ends(self) -> Mapping[str, int]:
        """Number of queries by how they ended: the status of their Answer, or `id taken`."""
        counts = Counter(answer.status for answer in self.answers.values())
        return {**dict(counts.most_common()), **({"id taken": len(self.taken)} if self.taken else {})}

    @property
    def waited_s(self) -> float:
        """Seconds since the first query was sent."""
        return time.monotonic() - self._began

    @property
    def idle_s(self) -> float:
        """Seconds since the last record that ended or rewarded one of the queries."""
        return time.monotonic() - self._heard

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        if self._waiting or self.sent < self.total:
            return False
        return not self._rewards or len(self.rewarded) + len(self.taken) >= self.total

    def start(self) -> None:
        """Start the clock."""
        self._began = self._heard = time.monotonic()

    def stop(self) -> None:
        """Stop the clock."""
        self.wall_s = self.waited_s

    def take(self, topics: Topics, raw: Any) -> None:
        """Record what a raw record of the topics `answer`, `dead-letter` or `reward` says about these queries."""
        match kind_of(topics, raw.topic):
            case "answer":
                query_id = self._waiting.pop(raw.key, None)
                if query_id is not None:  # the first Answer counts
                    self._raw[query_id] = raw.value
                    self._heard = time.monotonic()
            case "dead-letter":
                self._letter(raw.value)
            case "reward":
                self._reward(raw.value)

    def _letter(self, value: bytes) -> None:
        try:
            letter = decode(value, DeadLetter)
        except UniscaleError:
            return  # a letter of another release; our queries still end with their Answers
        if letter.error != "DuplicateQuery" or letter.query_id is None:
            return
        if self._waiting.pop(letter.query_id.encode(), None) is not None:
            self.taken.add(letter.query_id)
            self._heard = time.monotonic()

    def _reward(self, value: bytes) -> None:
        try:
            reward = decode(value, Reward)
        except UniscaleError:
            return
        if reward.closes and reward.query_id.encode() in self._open:
            self.rewarded.add(reward.query_id)
            self._heard = time.monotonic()
