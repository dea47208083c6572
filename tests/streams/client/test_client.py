"""The Client against a real broker: a thread plays the services and writes the Answers."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from schemas.action import Action
from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.errors import InvalidField, RecordTooLarge
from schemas.query import Origin, Query
from schemas.record import decode, encode
from schemas.reward import Feedback
from streams.client import Client, IdTaken, NoAnswer, SendSchedule, SentQueries
from streams.client.events import EventFollower, Kind, Timelines
from streams.client.questions import query_from
from streams.local.broker import LocalBroker
from streams.local.deployment import settings_for
from streams.log import kafka_admin, kafka_clients
from streams.log.base import ConsumerRecord
from streams.log.blocking import BlockingLog
from streams.settings import Settings
from streams.topics import Topics
from tests.support.records import decision_for, reward_for

ACTION = Action(model="small", qp=1, cp=1, bs=1)


@pytest.fixture
def settings(embedded_broker: LocalBroker) -> Settings:
    found = settings_for(Settings().replace(timeout_s=20.0), embedded_broker).replace(
        prefix=f"c{uuid.uuid4().hex[:6]}."
    )
    kafka_admin.create(found, Topics(found).declared(["mini"]))
    return found


def answer_to(query: Query) -> list[tuple[str, Any]]:
    """What the services write about a query: its decision, its answer, twice, and its reward."""
    if query.text == "silence":
        return []
    if query.text == "again":
        return [("dead_letter", letter_for(query, None))]
    decision = decision_for(query, action=ACTION, group="mini", reason="policy")
    answer = Answer(query_id=query.query_id, status="ok", by="executor", action=ACTION, text="7", score=0.0)
    late = msgspec.structs.replace(answer, text="late")
    found: list[tuple[str, Any]] = [("decision", decision), ("answer", answer), ("answer", late)]
    return found if query.text == "no reward" else [*found, ("reward", reward_for(decision))]


def letter_for(query: Query, refused: Origin | None) -> DeadLetter:
    """The dead letter of a query whose id was used before; None stands for where it lies."""
    origin = Origin(topic="context", partition=0, offset=9)
    error = LookupError("used before")
    letter = DeadLetter.of(b"{}", error, service="decider", origin=origin, query_id=query.query_id)
    return msgspec.structs.replace(letter, error="DuplicateQuery", query_origin=refused)


class Services(threading.Thread):
    """Answers every query until it is told to stop."""

    def __init__(self, settings: Settings, reply: Callable[[Query], list[tuple[str, Any]]]) -> None:
        super().__init__(daemon=True)
        self.topics, self.reply = Topics(settings), reply
        self.log = BlockingLog(settings)
        self.reader = self.log.follow([self.topics.query])
        self.producer = kafka_clients.producer(settings, batch_size=0)
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            for raw in self.reader.poll(0.1):
                query = decode(raw.value, Query)
                for topic, record in self.reply(query):
                    name = getattr(self.topics, topic)
                    if isinstance(record, DeadLetter) and record.query_origin is None:
                        record = msgspec.structs.replace(record, query_origin=raw.origin)
                    self.producer.send(name, key=raw.key, value=encode(record)).get(timeout=30)


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    services = Services(settings, answer_to)
    services.start()
    with Client(settings) as found:
        yield found
    services.stopping.set()
    services.join()
    services.producer.close()
    services.log.close()


pytestmark = pytest.mark.broker


def test_ask_returns_the_first_answer_and_explain_the_story(client: Client) -> None:
    answer = client.ask("How many?", reference="7")
    assert (answer.status, answer.text, answer.score) == ("ok", "7", 0.0)
    again = client.ask("And now?")  # the connection is reused, and the earlier answers are not read again
    assert again.query_id != answer.query_id
    timeline = client.explain(answer.query_id)
    assert timeline.found
    assert timeline.query is not None
    assert timeline.query.reference == "7"
    assert timeline.decision is not None
    assert timeline.decision.action == ACTION
    assert timeline.answer == answer
    assert len(timeline.answers) == 2
    assert not client.explain("never-sent").found


def test_ask_names_the_unanswered_query_and_the_taken_id(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.client.client._MARGIN_S", 0.5)
    with pytest.raises(NoAnswer, match=r"ask-\w+: no Answer in \d+ s; are the services running"):
        client.ask("silence", timeout_s=0.5)
    with pytest.raises(IdTaken, match="q-1: this id was used before"):
        client.ask(Query(query_id="q-1", text="again"))
    with pytest.raises(InvalidField, match="text"):
        client.ask("")


@pytest.mark.parametrize("known_first", [True, False])
@pytest.mark.parametrize(("offset", "taken"), [(5, {"q"}), (4, set())], ids=["ours", "another program's"])
def test_an_id_is_taken_where_it_is_our_query_that_was_refused(
    known_first: bool, offset: int, taken: set[str]
) -> None:
    query, topics = Query(query_id="q", text="a"), Topics(Settings())
    letter = letter_for(query, Origin(topic=topics.query, partition=0, offset=5))
    raw = ConsumerRecord(topics.dead_letter, 0, 0, 0, b"", encode(letter))
    asked = SentQueries([query])
    steps = [lambda: asked.stored("q", 0, offset), lambda: asked.take(topics, raw)]
    for step in steps if known_first else reversed(steps):
        step()
    assert (asked.taken, asked.missing) == (taken, [] if taken else ["q"])


def test_the_first_answers_are_followed_in_bounded_memory(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.client.client._MOST_SEEN", 2)
    client.ask_all([Query(query_id=f"b{n}", text="a") for n in range(6)], rewards=True)
    found = [(answer.query_id, answer.text) for answer in client.answers(everything=True, follow=False)]
    assert sorted(found) == [(f"b{n}", "7") for n in range(6)]


def test_several_queries_are_asked_at_once_and_each_end_is_told(client: Client) -> None:
    texts = ["a", "silence", "again", "no reward", "b"]
    queries = [Query(query_id=f"q{n}", text=text) for n, text in enumerate(texts)]
    seen: list[tuple[int, int]] = []
    asked = client.ask_all(queries, timeout_s=3.0, progress=lambda a: seen.append((a.sent, a.answered)))
    assert asked.missing == ["q1"]
    assert asked.taken == {"q2"}
    assert list(asked.answers) == ["q0", "q3", "q4"]
    assert {a.text for a in asked.answers.values()} == {"7"}
    assert asked.ends == {"ok": 3, "id taken": 1}
    assert not asked.done
    assert seen[-1] == (5, 3)
    assert asked.wall_s >= 3.0


def test_rewards_are_waited_for_until_nothing_more_comes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = client.ask_all([Query(query_id=f"r{n}", text="a") for n in range(3)], rewards=True)
    assert done.rewards.keys() == {"r0", "r1", "r2"}
    assert done.done
    monkeypatch.setattr("streams.client.client._REWARDS_IDLE_S", 1.0)
    queries = [Query(query_id="r4", text="a"), Query(query_id="r5", text="no reward")]
    open_ = client.ask_all(queries, rewards=True, timeout_s=60.0)
    assert (set(open_.rewards), open_.missing) == ({"r4"}, [])
    assert open_.wall_s < 30.0


def test_sending_keeps_the_pace_and_answers_are_read_meanwhile(client: Client) -> None:
    # Far apart: on a busy machine the first answer takes seconds.
    queries = [Query(query_id=f"p{n}", text="a") for n in range(4)]
    early: list[int] = []

    def progress(asked: SentQueries) -> None:
        if asked.sent < asked.total:
            early.append(asked.answered)

    asked = client.ask_all(queries, pace=SendSchedule(per_s=0.4), progress=progress)
    assert asked.wall_s >= 7.5
    assert max(early) > 0


def test_a_query_that_is_too_large_is_refused_before_any_is_sent(client: Client, settings: Settings) -> None:
    small, large = Query(query_id="s", text="a"), Query(query_id="l", text="a")
    msgspec.structs.force_setattr(large, "text", "x" * 5_000_000)  # as no client could make it
    with pytest.raises(RecordTooLarge):
        client.send([small, large])
    with EventFollower(settings, ["query"], everything=True) as follower:
        assert list(follower.catch_up()) == []


def test_feedback_arrives_with_its_grade_and_source(client: Client, settings: Settings) -> None:
    client.feedback("q-9", 0.5, source="teacher", lesson=3)
    with EventFollower(settings, ["feedback"], everything=True) as follower:
        [event] = follower.catch_up()
    assert event.record == Feedback(query_id="q-9", correct=0.5, source="teacher", metadata={"lesson": 3})
    with pytest.raises(InvalidField, match="correct"):
        client.feedback("q-9", 2.0)


def test_follower_sees_each_kind_and_skips_unreadable_records(
    client: Client, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    kinds: tuple[Kind, ...] = ("query", "decision", "answer", "reward")
    with EventFollower(settings, kinds) as follower:
        producer = kafka_clients.producer(settings, batch_size=0)
        producer.send(Topics(settings).answer, key=b"x", value=b"not json").get(timeout=30)
        producer.close()
        query_id = client.ask("How many?").query_id
        seen: list[str] = []
        # Topics are read independently: the Reward may come before the Answer that it is for.
        until = time.monotonic() + 60.0
        while set(seen) != set(kinds) and time.monotonic() < until:
            seen += [event.kind for event in follower.poll() if event.query_id == query_id]
    assert sorted(set(seen)) == sorted(kinds)
    (bad,) = [each for each in caplog.messages if "cannot be read" in each]
    assert bad.startswith(Topics(settings).answer)


def test_answers_are_the_first_of_each_query(client: Client) -> None:
    asked = client.ask_all([Query(query_id=f"a{n}", text="a") for n in range(3)], rewards=True)
    assert asked.done
    found = list(client.answers(everything=True, follow=False))
    assert sorted(answer.query_id for answer in found) == ["a0", "a1", "a2"]
    assert {answer.text for answer in found} == {"7"}


def test_missing_topics_are_named_at_once(embedded_broker: LocalBroker) -> None:
    settings = settings_for(Settings(), embedded_broker).replace(prefix="none.")
    with Client(settings) as client, pytest.raises(LookupError, match="topics create"):
        client.send([Query(query_id="q", text="a")])


def test_a_text_becomes_a_query_under_an_id_of_its_own() -> None:
    first, second = query_from("a", objective=None, reference="7"), query_from("a")
    assert first.query_id != second.query_id
    assert (first.text, first.objective, first.reference) == ("a", None, "7")
    assert query_from(first, timeout_s=3.0).query_id == first.query_id


def test_a_query_under_a_key_of_its_clients_is_found_by_its_id() -> None:
    topics, timelines = Topics(Settings()), Timelines()
    for query_id in ("mine", "other"):
        value = encode(Query(query_id=query_id, text="What is 2 + 2?"))
        raw = ConsumerRecord(topics.query, 0, 0, 1, b"tenant-7", value)
        timelines.add(topics, raw, about="mine")
    assert timelines.by_id.keys() == {"mine"}
    assert timelines.timeline("mine").query is not None
