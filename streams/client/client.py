"""The client: send queries, wait for their Answers, give feedback, follow and explain what happened."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from schemas.answer import Answer
from schemas.base import encode
from schemas.control import ControlRecord
from schemas.errors import UniscaleError
from schemas.query import Query
from schemas.reward import Feedback
from streams.client.asked import Asked
from streams.client.events import Kind
from streams.client.follow import Follower
from streams.client.ledger import Story, executor_groups, read_ledger
from streams.client.link import SEND_S, Link
from streams.client.pace import Pace
from streams.client.questions import query_from
from streams.settings import Settings
from streams.topics import Topics

# How long after a query's deadline to keep waiting: the rooms then still write an `expired` Answer.
_MARGIN_S = 60.0
# If all queries are answered and no record has arrived for this long, the open rewards wait for feedback.
_REWARDS_IDLE_S = 10.0
_POLL_S = 0.3


class NoAnswer(UniscaleError):
    """A query got no Answer in time. Check that the rooms are running (`python -m streams monitor`)."""


class IdTaken(UniscaleError):
    """A query was sent under an id that was already used; the first query keeps its Answer."""


class Client:
    """Connection to a deployment of UniScale-Streams, for programs that ask questions.

    A Client only produces and reads records, as any Kafka client could; it needs no access to the rooms or to
    the models. Use it as a context manager, or call `close`. Sending and feedback are safe from several
    threads; `ask` and `ask_all` run one at a time, and each follower belongs to the thread that reads it.

    Args:
        settings: The deployment: address, prefix, TLS and SASL. `Settings.from_env(os.environ)` reads the
            environment; the default is a broker on this machine.

    Raises:
        BrokerUnreachable: on first use, when no broker answers.
        UnknownTopic: on first use, when the deployment's topics do not exist.

    Example:
        with Client(Settings(kafka=Kafka(bootstrap="127.0.0.1:9092"))) as client:
            answer = client.ask("How much is 9 times 7?")
            print(answer.text, answer.action)
            client.feedback(answer.query_id, correct=True)
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.topics = Topics(self.settings)
        self._link = Link(self.settings, self.topics)
        self._asking = threading.Lock()

    def send(
        self,
        queries: Sequence[Query],
        pace: Pace | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Send queries in order and return when the broker has stored all of them.

        Args:
            queries: What to send. Every record is encoded before the first is sent.
            pace: When each is due; the default sends as fast as the broker accepts them.
            progress: Called with the number sent so far.

        Raises:
            RecordTooLarge: a query does not fit into a record; nothing has been sent.
            KafkaError: the broker refused one.
        """
        self._link.send(queries, pace or Pace(), progress or (lambda sent: None), time.sleep)

    def ask(
        self,
        question: str | Query,
        *,
        timeout_s: float | None = None,
        progress: Callable[[Asked], None] | None = None,
        **fields: Any,
    ) -> Answer:
        """Send one question and return its Answer, whatever its status.

        Args:
            question: The text, or a whole Query.
            timeout_s: Seconds until the query expires; the default is the query's own or the deployment's.
            progress: Called about three times a second while waiting.
            **fields: Further fields of the Query, for instance `reference="7"` or `objective="quality-priority"`.

        Raises:
            NoAnswer: no Answer had arrived one minute after the query's deadline.
            IdTaken: the Query's id was already used.
            InvalidField: a field does not fit; the message names it.
        """
        query = query_from(question, timeout_s=timeout_s, **fields)
        asked = self.ask_all([query], progress=progress)
        if asked.taken:
            raise IdTaken(
                f"{query.query_id}: this id was used before and keeps its first Answer; use a new one"
            )
        if asked.missing:
            raise NoAnswer(f"{query.query_id}: no Answer in {asked.wall_s:.0f} s; are the rooms running?")
        return asked.answers[query.query_id]

    def ask_all(
        self,
        queries: Iterable[Query],
        *,
        pace: Pace | None = None,
        rewards: bool = False,
        timeout_s: float | None = None,
        progress: Callable[[Asked], None] | None = None,
    ) -> Asked:
        """Send queries and wait until each has its Answer.

        Args:
            queries: What to send; every id must be different.
            pace: When each is due; the default sends as fast as the broker accepts them.
            rewards: Also wait until each reward is closed. Waiting ends when every query is answered and no reward has
                come for 10 s, because the others wait for feedback.
            timeout_s: Seconds to wait after the last send; the default is the longest deadline among the queries, plus
                one minute.
            progress: Called with the present state while sending and waiting.

        Returns:
            The outcome of each query. A query without an Answer raises nothing: see `Asked.missing`.

        Raises:
            RecordTooLarge: a query does not fit into a record; nothing has been sent.
            KafkaError: the broker refused one.
        """
        sending = list(queries)
        asked, tell = Asked(sending, rewards=rewards), progress or (lambda state: None)
        with self._asking:
            reader = self._link.at_the_end(rewards)

            def read(wait_s: float) -> None:
                for records in reader.poll(timeout_ms=int(wait_s * 1000)).values():
                    for raw in records:
                        asked.take(self.topics, raw)

            def sent(count: int) -> None:
                asked.sent = count
                tell(asked)

            asked.start()
            self._link.send(sending, pace or Pace(), sent, read)
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

    def answers(
        self,
        *,
        everything: bool = False,
        follow: bool = True,
        on_unreadable: Callable[[str, UniscaleError], None] | None = None,
    ) -> Iterator[Answer]:
        """Yield the first Answer of each query, which is the one that counts.

        Args:
            everything: Start with the oldest Answer still kept, instead of from now on.
            follow: Continue forever; False stops at the present end of the topic.
            on_unreadable: See Follower.
        """
        seen: set[str] = set()
        tail = -1 if everything else 0
        with Follower(self.settings, ["answer"], tail=tail, on_unreadable=on_unreadable) as follower:
            for event in follower if follow else follower.catch_up():
                if event.query_id not in seen:
                    seen.add(event.query_id)
                    yield event.record

    def feedback(
        self, query_id: str, correct: bool | float, *, source: str = "client", **metadata: Any
    ) -> None:
        """Say whether an Answer was right, at any time within the deployment's retention.

        Args:
            query_id: The query's id.
            correct: True, False, or a grade from 0 to 1.
            source: Who gives the grade.
            **metadata: Anything to store with it.

        Raises:
            InvalidField: the grade is outside 0 to 1.
        """
        record = Feedback(query_id=query_id, correct=correct, source=source, metadata=metadata)
        self._link.produce(self.topics.feedback, record.query_id.encode(), encode(record)).get(timeout=SEND_S)

    def steer(self, record: ControlRecord) -> int:
        """Write a control record, which every process follows; return its offset: the version of what it changes.

        Args:
            record: What to change: a price, an objective, a model.
        """
        sent = self._link.produce(self.topics.control, record.key.encode(), encode(record))
        return int(sent.get(timeout=SEND_S).offset)

    def explain(self, query_id: str) -> Story:
        """Return everything on record about one query, from its Decision to its Reward.

        Args:
            query_id: The query's id.

        Returns:
            Its story, which is empty if nothing is on record (see `Story.found`).
        """
        ledger = read_ledger(self.settings, executor_groups(self.settings), about=query_id)
        story = ledger.story(query_id)
        story.dead_letters = [letter for letter in ledger.dead_letters if letter.query_id == query_id]
        return story

    def follow(self, *kinds: Kind, groups: Iterable[str] = (), tail: int = 0) -> Follower:
        """Return an iterator over the records of some kinds, from now on.

        Args:
            *kinds: For instance `"decision"`, `"step"`, `"answer"`, `"reward"`.
            groups: The executor groups, needed for `verification` only.
            tail: Also deliver up to this many earlier records of each partition; -1 delivers everything kept.
        """
        return Follower(self.settings, kinds, groups=groups, tail=tail)

    def close(self) -> None:
        """Close the connections. Everything sent has been stored by then."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
