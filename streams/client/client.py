"""The client: send queries, wait for Answers, send feedback, follow records and explain a query."""

import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Self

from schemas.answer import Answer
from schemas.control import ControlRecord
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.query import Origin, Query
from schemas.record import decode, encode
from schemas.reward import Feedback, GradeSource, Reward
from streams.client.events import (
    EventFollower,
    Kind,
    concerns,
    event_of,
    executor_groups,
    kind_of,
    read_timelines,
)
from streams.client.questions import query_from
from streams.client.replay import Replay, SendSchedule
from streams.log import kafka_clients
from streams.log.base import ConsumerRecord
from streams.log.blocking import BlockingLog, Follower, require_topics
from streams.settings import Settings
from streams.timeline import Timeline
from streams.topics import Topics

# A set of queries: which ones were sent, answered and rewarded, and how each ended.


class SentQueries:
    """Progress and outcome of the queries that a Client has sent and is waiting for.

    Answers are matched by key and decoded only when `answers` is read, so waiting costs next to nothing.

    Attributes:
        total: Number of queries.
        sent: Number passed to the producer so far.
        taken: Ids that were already in use: the earlier query keeps its Answer, and this one was dropped.
        rewards: The closing Reward by query_id; filled only if the Client waits for rewards.
        wall_s: Seconds from the first send until the last expected record arrived or waiting ended.
    """

    def __init__(self, queries: Iterable[Query], *, rewards: bool = False) -> None:
        self._ids = [query.query_id for query in queries]
        self._open = {query_id.encode(): query_id for query_id in self._ids}
        self._waiting = dict(self._open)
        self._raw: dict[str, bytes] = {}
        self._await_rewards = rewards
        self.total = len(self._ids)
        self.sent = 0
        self.taken: set[str] = set()
        # By query id: the position of our record, and the positions of records refused because the id was taken.
        self._stored: dict[str, tuple[int, int]] = {}
        self._refused: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
        self.rewards: dict[str, Reward] = {}
        self.wall_s = 0.0
        self._began = self._heard = time.monotonic()

    @property
    def answered(self) -> int:
        """How many queries have an Answer."""
        return len(self._raw)

    @property
    def missing(self) -> list[str]:
        """Ids without an Answer, in the order they were sent."""
        return [query_id for query_id in self._ids if query_id.encode() in self._waiting]

    @property
    def answers(self) -> Mapping[str, Answer]:
        """The Answer of each query that has one, by query_id."""
        return {q: decode(self._raw[q], Answer) for q in self._ids if q in self._raw}

    @property
    def ends(self) -> Mapping[str, int]:
        """The number of queries that ended in each way: with an Answer of some status, or as `id taken`."""
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
        """Whether there is nothing left to wait for."""
        if self._waiting or self.sent < self.total:
            return False
        return not self._await_rewards or len(self.rewards) + len(self.taken) >= self.total

    def start(self) -> None:
        """Start the clock."""
        self._began = self._heard = time.monotonic()

    def stop(self) -> None:
        """Stop the clock."""
        self.wall_s = self.waited_s

    def take(self, topics: Topics, raw: ConsumerRecord) -> None:
        """Record what a raw record from the topics `answer`, `dead-letter` or `reward` says about these queries."""
        if kind_of(topics, raw.topic) == "answer":
            if (query_id := self._waiting.pop(raw.key or b"", None)) is not None:  # the first Answer counts
                self._raw[query_id] = raw.value or b""
                self._heard = time.monotonic()
            return
        try:
            event = event_of(topics, raw)
        except UniscaleError:
            return  # written by a different release; our queries still end with their Answers
        match event and event.record:
            case DeadLetter(error="DuplicateQuery", query_id=str(query_id), query_origin=Origin() as origin):
                if query_id.encode() in self._waiting:
                    self._refused[query_id].add((origin.partition, origin.offset))
                    self._check_taken(query_id)
            case Reward(closes=True, query_id=query_id) as reward if query_id.encode() in self._open:
                self.rewards.setdefault(query_id, reward)
                self._heard = time.monotonic()

    def stored(self, query_id: str, partition: int, offset: int) -> None:
        """Record the position of a query, because another program's query with the same id may have been refused."""
        self._stored[query_id] = (partition, offset)
        self._check_taken(query_id)

    def _check_taken(self, query_id: str) -> None:
        ours = self._stored.get(query_id) in self._refused.get(query_id, ())
        if ours and self._waiting.pop(query_id.encode(), None) is not None:
            self.taken.add(query_id)
            self._heard = time.monotonic()


# How long to keep waiting after a query's deadline, because the services still write its `expired` Answer then.
_MARGIN_S = 60.0
# If all queries are answered and no record has arrived for this long, the open rewards are waiting for feedback.
_REWARDS_IDLE_S = 10.0
_POLL_S = 0.3
# A record that the broker has not acknowledged after this many seconds counts as lost.
_SEND_S = 60.0
# Ids kept to recognise later Answers, which follow the first within the duration of a search.
_MOST_SEEN = 1_000_000


class NoAnswer(UniscaleError):
    """A query got no Answer in time. Check that the services are running, on the page or with each `/health/ready`."""


class IdTaken(UniscaleError):
    """A query was sent under an id that was already in use; the first query keeps its Answer."""


class Client:
    """Connection to a UniScale-Streams deployment.

    A Client only produces and reads records, as any Kafka client could; it needs no access to the services or to
    the models. Use it as a context manager, or call `close`. Queries and feedback may be sent from several threads;
    `ask` and `ask_all` run one at a time, and each follower belongs to the thread that reads it.

    Args:
        settings: The deployment: address, prefix, TLS and SASL. `Settings.from_env(os.environ)` reads the
            environment; the default is a broker on this machine.

    Raises:
        BrokerUnreachable: on first use, if no broker answers.
        UnknownTopic: on first use, if the deployment's topics do not exist.

    Example:
        with Client(Settings(kafka=KafkaSettings(bootstrap="127.0.0.1:9092"))) as client:
            answer = client.ask("How much is 9 times 7?")
            print(answer.text, answer.action)
            client.feedback(answer.query_id, correct=True)
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.topics = Topics(self.settings)
        self._producer: Any = None
        self._log: BlockingLog | None = None
        self._readers: dict[bool, Follower] = {}
        self._opening, self._asking = threading.Lock(), threading.Lock()

    def send(
        self,
        queries: Sequence[Query],
        pace: SendSchedule | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Send queries in order and return when the broker has stored all of them.

        Args:
            queries: The queries to send. All of them are encoded before the first is sent.
            pace: When each is due; the default sends as fast as the broker accepts them.
            progress: Called with the number sent so far.

        Raises:
            RecordTooLarge: a query does not fit into a record; nothing has been sent.
            KafkaError: the broker refused a record.
        """
        self._send(queries, pace, progress or (lambda sent: None), time.sleep)

    def ask(
        self,
        question: str | Query,
        *,
        timeout_s: float | None = None,
        progress: Callable[[SentQueries], None] | None = None,
        **fields: Any,
    ) -> Answer:
        """Send one question and return its Answer, whatever its status.

        Args:
            question: The text, or a complete Query.
            timeout_s: Seconds until the query expires; the default is the query's own timeout, or the deployment's.
            progress: Called about three times a second while waiting.
            **fields: Other fields of the Query, for instance `reference="7"`, `grader="exact"` or
                `objective="quality-priority"`.

        Raises:
            NoAnswer: no Answer had arrived one minute after the query's deadline.
            IdTaken: the Query's id was already in use.
            InvalidField: a field is invalid; the message names it.
        """
        query = query_from(question, timeout_s=timeout_s, **fields)
        asked = self.ask_all([query], progress=progress)
        if asked.taken:
            raise IdTaken(
                f"{query.query_id}: this id was used before and keeps its first Answer; use a new one"
            )
        if asked.missing:
            raise NoAnswer(f"{query.query_id}: no Answer in {asked.wall_s:.0f} s; are the services running?")
        return asked.answers[query.query_id]

    def ask_all(
        self,
        queries: Iterable[Query],
        *,
        pace: SendSchedule | None = None,
        rewards: bool = False,
        timeout_s: float | None = None,
        progress: Callable[[SentQueries], None] | None = None,
    ) -> SentQueries:
        """Send queries and wait until each has its Answer.

        Args:
            queries: The queries to send; every id must be different.
            pace: When each is due; the default sends as fast as the broker accepts them.
            rewards: Also wait until every query has its closing Reward. Waiting ends early if every query is answered
                and no Reward has arrived for 10 s, because the remaining rewards are then waiting for feedback.
            timeout_s: Seconds to wait after the last send; the default is the longest deadline among the queries, plus
                one minute.
            progress: Called with the current state while sending and waiting.

        Returns:
            The outcome of each query. No error is raised for a query without an Answer; see `SentQueries.missing`.

        Raises:
            RecordTooLarge: a query does not fit into a record; nothing has been sent.
            KafkaError: the broker refused a record.
        """
        sending = list(queries)
        asked, tell = SentQueries(sending, rewards=rewards), progress or (lambda state: None)
        with self._asking:
            reader = self._at_the_end(rewards)

            def read(wait_s: float) -> None:
                for raw in reader.poll(wait_s):
                    asked.take(self.topics, raw)

            def sent(count: int) -> None:
                asked.sent = count
                tell(asked)

            asked.start()
            for query, place in zip(sending, self._send(sending, pace, sent, read), strict=True):
                asked.stored(query.query_id, place.partition, place.offset)
            longest = max(
                (query.timeout_s or self.settings.queries.timeout_s for query in sending), default=0.0
            )
            deadline = time.monotonic() + (timeout_s if timeout_s is not None else longest + _MARGIN_S)
            while not asked.done and time.monotonic() < deadline:
                read(_POLL_S)
                tell(asked)
                if rewards and not asked.missing and asked.idle_s > _REWARDS_IDLE_S:
                    break
            asked.stop()
        return asked

    def replay(
        self, replay: Replay, *, wait: bool = True, progress: Callable[[Replay], None] | None = None
    ) -> None:
        """Send recorded queries when they are due, and record their outcomes.

        Args:
            replay: The queries; it also receives the outcomes.
            wait: After sending, also wait for open queries: for Answers until none has arrived for the longest timeout
                plus a minute, and for Rewards until none has arrived for 10 s (the rest are waiting for feedback).
            progress: Called with the current state, about three times a second.

        Raises:
            RecordTooLarge: a query does not fit into a record; those before it have been sent.
            KafkaError: the broker refused a record.
        """
        pending: deque[Any] = deque()
        with self._asking:
            reader = self._at_the_end(rewards=True)
            began_s = heard_s = time.monotonic()
            while True:
                for query in replay.due(time.monotonic() - began_s):
                    pending.append(self._produce(self.topics.query, query.query_id.encode(), encode(query)))
                    heard_s = time.monotonic()
                while pending and (replay.all_sent or pending[0].is_done):
                    pending.popleft().get(timeout=_SEND_S)
                wait_s = min(_POLL_S, replay.wait_s(time.monotonic() - began_s))
                for raw in reader.poll(wait_s):
                    with suppress(UniscaleError):  # from another release; our queries end with Answers
                        if event := event_of(self.topics, raw):
                            before = replay.unanswered, replay.unclosed
                            replay.take(event.record)
                            if before != (replay.unanswered, replay.unclosed):
                                heard_s = time.monotonic()
                if progress:
                    progress(replay)
                longest_s = max(replay.longest_s, self.settings.queries.timeout_s)
                patience_s = longest_s + _MARGIN_S if replay.unanswered else _REWARDS_IDLE_S
                if replay.all_sent and (
                    not wait or not replay.unclosed or time.monotonic() - heard_s > patience_s
                ):
                    return

    def answers(self, *, everything: bool = False, follow: bool = True) -> Iterator[Answer]:
        """Yield the first Answer to each query, which is the one that counts.

        Repeated Answers are recognised for the latest million queries.

        Args:
            everything: Start with the oldest Answer still available, rather than with new ones.
            follow: Continue forever; False stops at the current end of the topic.
        """
        seen: OrderedDict[str, None] = OrderedDict()
        with EventFollower(self.settings, ["answer"], everything=everything) as follower:
            for event in follower if follow else follower.catch_up():
                if event.query_id not in seen:
                    seen[event.query_id] = None
                    if len(seen) > _MOST_SEEN:
                        seen.popitem(last=False)
                    yield event.record

    def feedback(
        self,
        query_id: str,
        correct: bool | float,
        *,
        graded_by: GradeSource = "person",
        source: str = "client",
        **metadata: Any,
    ) -> None:
        """Send feedback on an Answer, at any time within the deployment's retention.

        Args:
            query_id: The query's id.
            correct: True, False, or a grade from 0 to 1.
            graded_by: The kind of source: a person, a judge, or your own reference.
            source: The name of the source.
            **metadata: Anything to store with the feedback.

        Raises:
            InvalidField: the grade is outside 0 to 1.
        """
        record = Feedback(
            query_id=query_id, correct=correct, graded_by=graded_by, source=source, metadata=metadata
        )
        self._produce(self.topics.feedback, record.query_id.encode(), encode(record)).get(timeout=_SEND_S)

    def steer(self, record: ControlRecord) -> int:
        """Write a control record, which every process applies; return its offset, which is the change's version.

        Args:
            record: The change: a price factor, an objective, a model.
        """
        sent = self._produce(self.topics.control, record.key.encode(), encode(record))
        return int(sent.get(timeout=_SEND_S).offset)

    def asked(self, query_id: str) -> bool:
        """Return whether a Query of this id is on record; reads the `query` topic, at most to its end."""
        sought = query_id.encode()
        with BlockingLog(self.settings) as log, closing(log.read([self.topics.query])) as records:
            return any(concerns(self.topics, record, sought) for record in records)

    def explain(self, query_id: str) -> Timeline:
        """Return everything on record about one query, from the Query to its Reward.

        Args:
            query_id: The query's id.

        Returns:
            The query's timeline, which is empty if nothing is on record (see `Timeline.found`).
        """
        timelines = read_timelines(self.settings, executor_groups(self.settings), about=query_id)
        timeline = timelines.timeline(query_id)
        timeline.dead_letters = [letter for letter in timelines.dead_letters if letter.query_id == query_id]
        return timeline

    def follow(
        self,
        *kinds: Kind,
        groups: Iterable[str] = (),
        everything: bool = False,
        since_ms: int | None = None,
    ) -> EventFollower:
        """Return an iterator over new records of some kinds.

        Args:
            *kinds: For instance `"decision"`, `"step"`, `"answer"`, `"reward"`.
            groups: The executor groups, needed for `verification` and `cancel` only.
            everything: Begin with the oldest record still available.
            since_ms: Begin with the first record appended at or after this time, in ms since the epoch.
        """
        return EventFollower(self.settings, kinds, groups=groups, everything=everything, since_ms=since_ms)

    def close(self) -> None:
        """Close the connections, once everything sent has been stored."""
        with self._opening:
            for connection in (self._producer, self._log):
                if connection is not None:
                    connection.close()
            self._producer, self._log, self._readers = None, None, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _send(
        self,
        queries: Sequence[Query],
        pace: SendSchedule | None,
        progress: Callable[[int], None],
        wait: Callable[[float], None],
    ) -> list[Any]:
        """Send queries, and return the position of each record."""
        values = [(query.query_id.encode(), encode(query)) for query in queries]
        began, pace, pending = time.monotonic(), pace or SendSchedule(), []
        for index, (key, value) in enumerate(values):
            while (left_s := pace.due_s(index) - (time.monotonic() - began)) > 0:
                wait(left_s)
            pending.append(self._produce(self.topics.query, key, value))
            progress(index + 1)
        return [delivery.get(timeout=_SEND_S) for delivery in pending]

    def _produce(self, topic: str, key: bytes, value: bytes) -> Any:
        """Return the future of a record being sent; its `get` waits for the broker."""
        with self._opening:
            if self._producer is None:
                # A producer silently waits a minute for a topic that does not exist.
                require_topics(self.settings, [self.topics.query, self.topics.feedback])
                self._producer = kafka_clients.producer(self.settings)
            producer = self._producer
        return producer.send(topic, key=key, value=value)

    def _at_the_end(self, rewards: bool) -> Follower:
        """Return a follower of new Answers and dead letters, and of rewards if requested."""
        reader = self._readers.get(rewards)
        if reader is None:
            names = [self.topics.answer, self.topics.dead_letter, *([self.topics.reward] if rewards else [])]
            with self._opening:
                self._log = self._log or BlockingLog(self.settings)
            reader = self._readers[rewards] = self._log.follow(names)
        else:
            reader.skip()
        return reader
