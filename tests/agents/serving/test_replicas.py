"""Several servers of one model: which of them gets a request, and what one that is down does to the others."""

import asyncio
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from agents.catalogue.file import decode_model
from agents.catalogue.models import Model
from agents.serving.engine import Prefix, conversation_of
from agents.serving.errors import (
    EndpointSuspendedError,
    EngineReplyError,
    EngineUnreachableError,
    ServingError,
)
from agents.serving.health_checks import MOST_FAILED, ProbeRules
from agents.serving.http import JsonServer, ServerSettings
from agents.serving.registry import HostingOptions, ModelRegistry, connected
from agents.serving.replicas import CONVERSATIONS, Replicas
from agents.serving.retries import Retries
from schemas.control import ModelHealth
from schemas.query import Message
from tests.support.upstream import Body, Upstream

OPTIONS = HostingOptions(retries=Retries(attempts=2, pause_s=0.0), probes=ProbeRules(per_minute=60))


@pytest.fixture
def two() -> Iterator[tuple[Upstream, Upstream]]:
    """Two servers of one model, the first of which says `a`."""
    a, b = Upstream(says=lambda body: "a"), Upstream(says=lambda body: "b")
    yield a, b
    a.close()
    b.close()


def entry(*servers: Upstream, busy: int = 64) -> Model:
    urls = tuple(each.url for each in servers)
    endpoint = {"kind": "chat", "urls": urls, "model": "hosted", "max_output_tokens": 32}
    content = {"name": "m", "endpoint": endpoint, "price": {"input": 0.1, "output": 0.2}}
    return decode_model({**content, "engine": {"max_sequences": busy}}, "test")


class Fleet(ModelRegistry):
    """The model, as an executor has it."""

    def __init__(self, model: Model, options: HostingOptions) -> None:
        super().__init__(lambda model: connected(model, options), probes=options.probes)
        self.model = model

    async def __aenter__(self) -> "Fleet":
        self.want([self.model])
        await self.settled()
        await self.probe()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ask(self, *said: str) -> str:
        """Return the answer to a conversation in which these were said in turn."""
        roles = ("user", "assistant")
        messages = tuple(Message(role=roles[at % 2], content=each) for at, each in enumerate(said))
        engine = await self.get(self.model)
        [draft] = await engine.generate("q/1", [Prefix(messages=messages)], 1, [0], self.model.sampling)
        return draft.text

    @property
    def state(self) -> ModelHealth:
        [found] = self.health()
        return found


async def test_conversations_alternate_and_stay_with_their_server(two: tuple[Upstream, Upstream]) -> None:
    async with Fleet(entry(*two), OPTIONS) as fleet:
        first = [await fleet.ask(f"How much is {number}?") for number in range(4)]
        assert sorted(first) == ["a", "a", "b", "b"]
        later = [await fleet.ask(f"How much is {number}?", "4", "And then?") for number in range(4)]
        assert later == first
        assert (fleet.state.state, fleet.state.servers_down) == ("ready", 0)


def holding(server: Upstream, name: str) -> Event:
    """Have a server keep what ends in `hold` until the returned event is set."""
    go = Event()

    def says(body: Body) -> str:
        if body["messages"][-1]["content"].endswith("hold"):
            go.wait(10)
        return name

    server.says = says
    return go


def held_at(server: Upstream) -> int:
    """Return how many requests a server keeps, or kept."""
    return sum(body["messages"][-1]["content"].endswith("hold") for body in server.requests)


async def until_held(*servers: Upstream, count: int) -> None:
    while sum(map(held_at, servers)) < count:  # noqa: ASYNC110 - servers in other threads
        await asyncio.sleep(0.01)


async def test_new_conversation_goes_to_the_least_busy(two: tuple[Upstream, Upstream]) -> None:
    gos = [holding(server, name) for server, name in zip(two, "ab", strict=True)]
    async with Fleet(entry(*two), OPTIONS) as fleet:
        held = [asyncio.create_task(fleet.ask(f"{number}, hold")) for number in range(3)]
        await until_held(*two, count=3)
        less = "a" if held_at(two[0]) == 1 else "b"
        assert [await fleet.ask("free"), await fleet.ask("as free")] == [less, less]
        for go in gos:
            go.set()
        assert sorted(await asyncio.gather(*held)).count(less) == 1


async def test_conversation_leaves_a_busy_server(two: tuple[Upstream, Upstream]) -> None:
    gos = [holding(server, name) for server, name in zip(two, "ab", strict=True)]
    async with Fleet(entry(*two, busy=2), OPTIONS) as fleet:
        home = await fleet.ask("long")
        held = [asyncio.create_task(fleet.ask("long", "yes", f"{at}, hold")) for at in range(2)]
        await until_held(*two, count=2)
        assert await fleet.ask("long", "yes", "more") != home
        for go in gos:
            go.set()
        assert await asyncio.gather(*held) == [home, home]


async def test_one_that_is_down_fails_no_query(two: tuple[Upstream, Upstream]) -> None:
    a, b = two
    async with Fleet(entry(a, b), OPTIONS) as fleet:
        a.close()
        assert [await fleet.ask(f"{number}") for number in range(12)] == ["b"] * 12
        health = fleet.state
        assert (health.state, health.servers_down) == ("ready", 1)
        assert health.why.startswith(f"1 of 2 servers get no queries: {a.url}/v1/chat/completions: ")
        b.close()
        with pytest.raises(EngineUnreachableError, match=r"is its address right\? .after 2 attempts"):
            await fleet.ask("more")
        for _ in range(4):
            with pytest.raises(ServingError):
                await fleet.ask("more")
        with pytest.raises(EndpointSuspendedError, match="no requests for another"):
            await fleet.ask("more")
        assert (fleet.state.state, fleet.state.servers_down) == ("suspended", 2)


NOT_TAKEN: dict[str, Any] = {
    "overloaded": (429, {"error": {"message": "slow down"}}, {}),
    "overloaded for long": (429, {"error": {"message": "slow down"}}, {"Retry-After": "60"}),
    "broken": (500, b"oops", {}),
    "without our key": (401, {"error": {"message": "no such key"}}, {}),
    "without the model": (404, {"error": {"message": "no such model"}}, {}),
    "hanging up": "hang-up",
}


@pytest.mark.parametrize("fault", NOT_TAKEN)
async def test_request_that_one_does_not_take_goes_to_another(
    two: tuple[Upstream, Upstream], fault: str
) -> None:
    a, b = two
    async with Fleet(entry(a, b), OPTIONS) as fleet:
        a.spoilt[:] = [NOT_TAKEN[fault]] * 100
        asked = len(a.requests)
        assert [await fleet.ask(f"{number}") for number in range(4)] == ["b"] * 4
        assert len(a.requests) > asked


async def test_reply_that_may_be_billed_is_not_asked_for_again(two: tuple[Upstream, Upstream]) -> None:
    a, b = two
    async with Fleet(entry(a, b), OPTIONS) as fleet:
        a.spoilt[:] = b.spoilt[:] = [(200, {"choices": []}, {})]
        asked = len(a.requests) + len(b.requests)
        with pytest.raises(EngineReplyError) as raised:
            await fleet.ask("once")
        assert raised.value.server in (a.url, b.url)
        assert len(a.requests) + len(b.requests) == asked + 1


async def test_probe_bars_the_server_that_fails_it(two: tuple[Upstream, Upstream]) -> None:
    a, b = two
    async with Fleet(entry(a, b), OPTIONS) as fleet:
        a.spoilt[:] = [(400, {"error": {"message": "unknown parameter"}}, {})] * MOST_FAILED
        passed, failed = await fleet.verdict("m", b.url), await fleet.verdict("m", a.url)
        assert passed is not None
        assert failed is not None
        assert (passed.passed, failed.passed) == (True, False)
        for prober in fleet._probers():
            while prober.why and not prober.suspended:
                prober._ended_s = None  # its last probe is old
                await prober.verdict()
        assert fleet.state.state == "ready"
        assert "1 of 2 servers get no queries: RequestRefusedError" in fleet.state.why
        assert [await fleet.ask(f"{number}") for number in range(4)] == ["b"] * 4


async def test_model_is_ready_with_its_first_server(two: tuple[Upstream, Upstream]) -> None:
    a, b = two
    b.key = "another"
    async with Fleet(entry(a, b), OPTIONS) as fleet:
        assert (fleet.state.state, fleet.state.servers_down) == ("ready", 1)
        assert "HTTP 401" in fleet.state.why
        assert [await fleet.ask(f"{number}") for number in range(3)] == ["a"] * 3
        b.key = ""
        await fleet.probe()
        assert (fleet.state.state, fleet.state.servers_down, fleet.state.why) == ("ready", 0, "")
        assert "b" in [await fleet.ask(f"later {number}") for number in range(2)]


async def test_conversations_remembered_are_bounded() -> None:
    servers = [JsonServer(ServerSettings(url=f"http://127.0.0.1:{port}")) for port in (1, 2)]
    replicas = Replicas(servers, 1)
    for each in servers:
        each.answered.set()
    for number in range(CONVERSATIONS + 5):
        replicas._chosen(b"%d" % number, servers)
    assert len(replicas._last) == CONVERSATIONS
    await replicas.close()


def test_turns_of_one_conversation() -> None:
    system = Message(role="system", content="Be brief.")
    first, other = (Message(role="user", content=each) for each in ("How much is 2 plus 3?", "And now?"))
    reply = Message(role="assistant", content="5")
    assert conversation_of([system, first]) == conversation_of([system, first, reply, other])
    assert conversation_of([system, first]) != conversation_of([system, other])
    assert conversation_of([system]) != conversation_of([first])
