"""Fetch sessions: the broker must know what is asked for, whatever is lost on the way."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka.errors import RequestTimedOutError
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v4, FetchRequest_v11
from aiokafka.protocol.metadata import MetadataRequest
from hypothesis import given
from hypothesis import strategies as st

from streams.runtime import kafka_consumer
from streams.runtime.kafka_consumer import FetchSessions
from streams.runtime.memory import run

Wanted = dict[tuple[str, int], tuple[int, int]]


class Broker:
    """Keeps sessions as KIP-227 says, as a client of aiokafka sees it."""

    def __init__(self, version: Any = FetchRequest_v11, keeps: bool = True) -> None:
        self.version = version
        self.keeps = keeps
        self.sessions: dict[int, tuple[int, Wanted]] = {}
        self.asked: Wanted = {}
        self.named = 0
        self._next = 100
        self.fail = False

    async def send(self, node_id: int, request: Any) -> Any:
        built = request.build(self.version)
        built.encode()
        if self.version.API_VERSION < 7:
            self.asked = self._of(built.topics)
            return SimpleNamespace(API_VERSION=self.version.API_VERSION)
        code, session = self._take(built)
        if self.fail:
            self.fail = False
            raise RequestTimedOutError
        return SimpleNamespace(API_VERSION=11, error_code=code, session_id=session)

    def _take(self, built: Any) -> tuple[int, int]:
        named = self._of(built.topics)
        self.named = len(named)
        if built.session_epoch == 0:
            self.sessions.pop(built.session_id, None)
            self.asked = named
            if not self.keeps:
                return 0, 0
            self._next += 1
            self.sessions[self._next] = 1, named
            return 0, self._next
        if built.session_id not in self.sessions:
            return 70, 0
        epoch, known = self.sessions[built.session_id]
        if epoch != built.session_epoch:
            return 71, 0
        gone = {(topic, p) for topic, partitions in built.forgotten_topics_data for p in partitions}
        assert gone <= known.keys()
        self.asked = {place: at for place, at in known.items() if place not in gone} | named
        self.sessions[built.session_id] = epoch + 1, self.asked
        return 0, built.session_id

    def _of(self, topics: Any) -> Wanted:
        if self.version.API_VERSION < 7:
            return {(topic, p): (at, most) for topic, partitions in topics for p, at, most in partitions}
        return {(topic, p): (at, most) for topic, partitions in topics for p, _, at, _, most in partitions}


def fetch(wanted: Wanted) -> FetchRequest:
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, partition), (at, most) in wanted.items():
        topics.setdefault(topic, []).append((partition, at, most))
    return FetchRequest(500, 1, 1000, 0, list(topics.items()))


class Lost(NamedTuple):
    """The answer to the next fetch does not arrive."""


class Forgotten(NamedTuple):
    """The broker needs the service of the session for another."""


wanted_ = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), st.tuples(st.integers(0, 5), st.just(1000))
)


@given(st.lists(st.one_of(wanted_, st.builds(Lost), st.builds(Forgotten))), st.booleans())
def test_the_broker_knows_what_is_asked_for_whatever_is_lost(story: list[Any], keeps: bool) -> None:
    async def main() -> None:
        broker = Broker(keeps=keeps)
        client = FetchSessions(broker)
        for each in story:
            match each:
                case Lost():
                    broker.fail = True
                case Forgotten():
                    broker.sessions.clear()
                case _:
                    try:
                        response = await client.send(0, fetch(each))
                    except RequestTimedOutError:
                        continue
                    assert response.error_code == 0
                    assert broker.asked == each

    asyncio.run(main())


def test_what_has_not_changed_is_not_named() -> None:
    async def main() -> None:
        broker = Broker()
        client = FetchSessions(broker)
        wanted: Wanted = {("t", p): (0, 1000) for p in range(64)}
        await client.send(0, fetch(wanted))
        assert broker.named == 64
        for at in range(1, 50):
            place = ("t", random.Random(at).randrange(64))
            wanted[place] = at, 1000
            await client.send(0, fetch(wanted))
            assert broker.named == 1
            assert broker.asked == wanted
        await client.send(1, fetch(wanted))
        assert broker.named == 64, "another node has a session of its own"

    asyncio.run(main())


def test_a_broker_before_sessions_is_asked_for_everything() -> None:
    async def main() -> None:
        broker = Broker(FetchRequest_v4)
        client = FetchSessions(broker)
        for at in range(3):
            wanted: Wanted = {("t", p): (at if p == 1 else 0, 1000) for p in range(4)}
            await client.send(0, fetch(wanted))
            assert broker.asked == wanted

    asyncio.run(main())


def test_other_requests_pass_unchanged() -> None:
    async def main() -> None:
        got: list[Any] = []

        class Plain:
            answer = 42

            async def send(self, node_id: int, request: Any) -> None:
                got.append(request)

        client, request = FetchSessions(Plain()), MetadataRequest([])
        await client.send(0, request)
        assert got == [request]
        assert client.answer == 42

    asyncio.run(main())


def test_two_fetches_from_one_node_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_consumer, "FETCH_INTERVAL_S", 0.05)

    async def main() -> None:
        began = asyncio.get_running_loop().time
        at: list[tuple[int, float]] = []

        class Fetcher:
            _client = None

            async def _proc_fetch_request(self, assignment: Any, node_id: int, request: Any) -> bool:
                at.append((node_id, began()))
                return True

        fetcher: Any = Fetcher()
        kafka_consumer.improve(fetcher)
        for node in (0, 1, 0):
            assert await fetcher._proc_fetch_request(None, node, None)
        times = dict.fromkeys((0, 1), 0.0) | dict(at[:2])
        assert times[1] - times[0] < 0.04, "the other node does not wait"
        assert at[2][1] - times[0] >= 0.045
        waiting = asyncio.ensure_future(fetcher._proc_fetch_request(None, 0, None))
        await asyncio.sleep(0)
        waiting.cancel()
        assert await waiting is False

    run(main())


def test_a_fetch_waits_briefly_while_positions_are_about_to_move() -> None:
    async def main() -> None:
        waits: list[int] = []

        class Fetcher:
            _client, _fetch_max_wait_ms = None, 1500

            async def _proc_fetch_request(self, assignment: Any, node_id: int, request: Any) -> bool:
                waits.append(request.build(FetchRequest_v11).max_wait_time)
                return True

        fetcher: Any = Fetcher()
        moving = iter([True, False, True])
        kafka_consumer.improve(fetcher, embedded=True, moving=lambda: next(moving))
        for asked in (fetch({("a", 0): (0, 1000)}), fetch({}), FetchRequest(20, 1, 1000, 0, [])):
            await fetcher._proc_fetch_request(None, 0, asked)
        assert waits == [kafka_consumer.MOVING_WAIT_MS, 500, 20]

    asyncio.run(main())
