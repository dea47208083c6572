"""Models loaded in the background: their states, and what one that cannot be loaded does to the others."""

import asyncio
import socket
import threading
from typing import Any, cast

import pytest
from msgspec.structs import replace

from agents.catalogue.endpoints import Endpoint
from agents.catalogue.models import Architecture, BenchmarkScore, Model, Sampling
from agents.serving import http
from agents.serving.circuit_breaker import Breaker
from agents.serving.engine import Drafted
from agents.serving.errors import (
    EndpointSuspendedError,
    EngineDiedError,
    EngineStartError,
    RequestRefusedError,
)
from agents.serving.health_checks import ProbeRules
from agents.serving.http import JsonServer, ServerSettings
from agents.serving.registry import Loaded, ModelRegistry
from tests.support.http_servers import JsonHandler, Server, about_to_open

SHAPE = Architecture(parameters=1000, layers=1, query_heads=1, kv_heads=1, head_dim=8)


def model(name: str, checkpoint: str = "here") -> Model:
    sampling = Sampling(temperature=1.0, step_tokens=8, depth_limit=4)
    return Model(name=name, checkpoint=checkpoint, architecture=SHAPE, sampling=sampling)


class Engine:
    """Dies of whatever it is asked if its checkpoint is `deadly`, answers nothing if it is `stuck`.

    One that is `harmful` takes those of its process with it.
    """

    def __init__(self, entry: Model, process: set[str]) -> None:
        self.entry = entry
        self.closed = False
        self.process = process

    async def generate(self, step_id: str, *_: object) -> list[Drafted]:
        if self.entry.checkpoint == "stuck":
            await asyncio.Event().wait()
        if self.entry.checkpoint in ("deadly", "harmful"):
            self.process.add(self.entry.checkpoint)
            raise EngineDiedError("CUDA error")
        if "harmful" in self.process:
            raise EngineDiedError("its context is gone")
        raise RequestRefusedError("too short a question")

    async def close(self) -> None:
        self.closed = True


class Loader:
    """Loads any checkpoint but `broken`; `slow` waits for `go`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.loaded: list[str] = []
        self.process: set[str] = set()

    async def __call__(self, entry: Model) -> Loaded:
        self.loaded.append(entry.name)
        if entry.checkpoint == "slow":
            await self.go.wait()
        if entry.checkpoint == "broken":
            raise EngineStartError(f"{entry.name}: no such folder")
        if entry.checkpoint == "odd":
            raise OSError("disk")
        return Loaded(cast(Any, Engine(entry, self.process)))


class Slow(Server):
    """Answers when `go` is set."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), SlowHandler)
        self.go, self.status = threading.Event(), status


class SlowHandler(JsonHandler):
    server: Slow

    def do_GET(self) -> None:
        self.server.go.wait(10)
        self.reply({"ok": True}, self.server.status)

    def do_POST(self) -> None:
        self.body()
        self.do_GET()


async def engine_of(registry: ModelRegistry, entry: Model) -> Engine:
    engine: object = await registry.get(entry)
    assert isinstance(engine, Engine)
    return engine


def states(registry: ModelRegistry) -> dict[str, str]:
    return {each.model: each.state for each in registry.health()}


async def test_a_model_that_cannot_be_loaded_harms_nobody_and_says_why() -> None:
    registry = ModelRegistry(Loader())
    registry.want([model("a"), model("b", "broken"), model("c"), model("d", "odd")])
    await registry.settled()
    assert states(registry) == {"a": "ready", "b": "failed", "c": "ready", "d": "failed"}
    assert [each.why for each in registry.health() if each.why] == [
        "EngineStartError: b: no such folder",
        "OSError: disk",
    ]
    assert (await engine_of(registry, model("a"))).entry == model("a")
    for name, checkpoint in (("b", "broken"), ("d", "odd")):
        with pytest.raises(EngineStartError):
            await registry.get(model(name, checkpoint))
    await registry.close()


async def test_model_that_dies_on_its_first_question_is_not_served() -> None:
    registry = ModelRegistry(Loader())
    registry.want([model("a"), model("b", "deadly"), model("c")])
    await registry.settled()
    assert states(registry) == {"a": "ready", "b": "failed", "c": "ready"}
    [why] = [each.why for each in registry.health() if each.model == "b"]
    assert why == "EngineStartError: b: died on its first question: CUDA error"


async def test_model_stuck_on_its_first_question_delays_nobody() -> None:
    registry = ModelRegistry(Loader(), probes=ProbeRules(timeout_s=0.01))
    registry.want([model("a", "stuck"), model("b")])
    await registry.settled()
    assert states(registry) == {"a": "ready", "b": "ready"}


async def test_model_that_breaks_others_stops_the_start() -> None:
    registry = ModelRegistry(Loader())
    registry.want([model("a"), model("b", "harmful")])
    with pytest.raises(EngineStartError, match="a: died on its first question: its context is gone"):
        await registry.settled()


async def test_loading_goes_on_in_the_background() -> None:
    loader = Loader()
    registry = ModelRegistry(loader)
    registry.want([model("a")])
    await registry.settled()
    registry.want([model("a"), model("b", "slow")])
    await asyncio.sleep(0)
    assert states(registry) == {"a": "ready", "b": "loading"}
    waiting = asyncio.create_task(engine_of(registry, model("b", "slow")))
    given_up = asyncio.create_task(registry.get(model("b", "slow")))
    await asyncio.sleep(0)
    given_up.cancel()  # whoever stops waiting does not stop the loading
    loader.go.set()
    assert (await waiting).entry.name == "b"
    assert states(registry) == {"a": "ready", "b": "ready"}
    assert loader.loaded == ["a", "b"]
    await registry.close()


async def test_when_nothing_can_be_loaded_the_start_fails() -> None:
    registry = ModelRegistry(Loader())
    registry.want([model("a", "broken"), model("b", "broken")])
    with pytest.raises(EngineStartError, match="a: no such folder"):
        await registry.settled()


async def test_failed_model_is_retried_later_or_on_a_new_entry() -> None:
    now, loader = [0.0], Loader()
    registry = ModelRegistry(loader, clock=lambda: now[0], retry_s=60.0)
    for now_s, tried in ((0.0, 1), (59.0, 1), (60.0, 2), (61.0, 2)):
        now[0] = now_s
        registry.want([model("a", "broken"), model("b")])
        await registry.settled()
        assert loader.loaded.count("a") == tried
    registry.want([model("a")])
    await registry.settled()
    assert states(registry) == {"a": "ready", "b": "ready"}
    assert loader.loaded.count("b") == 1


async def test_changed_entry_is_reloaded_unless_only_described_anew() -> None:
    loader = Loader()
    registry = ModelRegistry(loader)
    first = await engine_of(registry, model("a"))
    described = replace(model("a"), anchors=(BenchmarkScore(label="math", score=50.0, source="x"),))
    assert await registry.get(described) is first
    assert await registry.get(replace(model("a"), price_factor=3.0)) is first
    second = await registry.get(model("a", "elsewhere"))
    assert second is not first
    await asyncio.sleep(0)
    assert first.closed
    assert loader.loaded == ["a", "a"]


async def test_replaced_engine_answers_before_it_closes() -> None:
    server = Slow()
    server.listen()
    connection = JsonServer(ServerSettings(url=server.url))
    connection.answered.set()  # it was up before

    class Remote(Engine):
        async def close(self) -> None:
            await connection.close()
            await super().close()

    async def load(entry: Model) -> Loaded:
        return Loaded(cast(Any, Remote(entry, set())), connection if entry.checkpoint == "here" else None)

    registry = ModelRegistry(load)
    first = await engine_of(registry, model("a"))
    asked = asyncio.create_task(connection.post("/v1/completions", {}, dict))
    await asyncio.sleep(0.05)
    assert await registry.get(model("a", "elsewhere")) is not first
    assert not first.closed
    server.go.set()
    assert await asked == {"ok": True}
    await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert first.closed
    await registry.close()
    server.close()


async def test_failure_of_a_corrected_entry_spares_its_successor() -> None:
    now, loader = [0.0], Loader()
    registry = ModelRegistry(loader, clock=lambda: now[0], retry_s=60.0)
    registry.want([model("a", "broken")])
    registry.want([model("a")])
    right = await registry.get(model("a"))
    now[0] = 60.0
    assert await registry.get(model("a")) is right


async def probed(server: Slow) -> Breaker:
    """Return the breaker of an endpoint after a probe at the end of its first pause."""
    server.listen()
    now = [0.0]
    breaker = about_to_open(lambda: now[0])
    connection = JsonServer(ServerSettings(url=server.url), breaker=breaker)
    breaker.failed("no connection")
    now[0] = 10.0
    await connection.probe()
    server.go.set()
    await connection.close()
    server.close()
    return breaker


@pytest.mark.parametrize(
    ("status", "state"), [(500, "open"), *((status, "half-open") for status in (200, 403, 404, 429))]
)
async def test_endpoint_that_lists_no_models_may_be_back(status: int, state: str) -> None:
    server = Slow(status)
    server.go.set()
    assert (await probed(server)).state == state


async def test_a_probe_gives_up_on_a_server_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PROBE_S", 0.2)
    server = Slow()
    breaker = await probed(server)
    assert (breaker.state, breaker.why) == ("open", f"{server.url}/v1/models: no reply in 0.2 s")


async def test_model_is_suspended_while_its_endpoint_fails() -> None:
    now = [0.0]
    breaker = about_to_open(lambda: now[0])
    # Nobody listens at port 9 of this machine.
    server = JsonServer(ServerSettings(url="http://127.0.0.1:9"), breaker=breaker)
    server.answered.set()  # it was up before
    entry = replace(model("a"), endpoint=Endpoint(kind="http", url="http://127.0.0.1:9"))

    async def load(entry: Model) -> Loaded:
        return Loaded(cast(Any, Engine(entry, set())), server)

    registry = ModelRegistry(load)
    await registry.get(entry)
    assert states(registry) == {"a": "ready"}
    breaker.failed("no connection")
    assert [(each.state, each.why) for each in registry.health()] == [("suspended", "no connection")]
    await registry.probe()  # not before the pause is over
    assert breaker.wait_s == 10.0
    now[0] = 10.0
    await registry.probe()
    assert states(registry) == {"a": "suspended"}
    assert breaker.wait_s == 20.0
    await server.close()


async def test_a_server_that_never_answered_keeps_no_query_waiting() -> None:
    """Its model was chosen before this process started: another can take the query."""
    server = JsonServer(ServerSettings(url="http://127.0.0.1:9"))
    entry = replace(model("a"), endpoint=Endpoint(kind="http", url="http://127.0.0.1:9"))

    async def load(entry: Model) -> Loaded:
        return Loaded(cast(Any, Engine(entry, set())), server)

    registry = ModelRegistry(load)
    with pytest.raises(EndpointSuspendedError, match="a: its server has not answered for 30 s: no reply yet"):
        await registry.get(entry)
    server.answered.set()
    assert await registry.get(entry)
    await server.close()


class Loading(Server):
    """A server whose weights are loading: all it says is 503, until `loaded`; then it has no list of its models."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), LoadingHandler)
        self.loaded = False


class LoadingHandler(JsonHandler):
    server: Loading

    def do_GET(self) -> None:
        self.reply(
            {"said": self.path}, (200 if self.path == "/health" else 404) if self.server.loaded else 503
        )


async def test_remote_model_is_loading_until_its_first_answer() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = JsonServer(ServerSettings(url=url))
    entry = replace(model("a"), endpoint=Endpoint(kind="http", url=url))

    async def load(entry: Model) -> Loaded:
        return Loaded(cast(Any, Engine(entry, set())), server)

    registry = ModelRegistry(load)
    registry.want([entry])
    await registry.settled()
    asked = asyncio.create_task(engine_of(registry, entry))
    await registry.probe()
    [health] = registry.health()
    assert (health.state, "is the server up, and is its address right?" in health.why) == ("loading", True), (
        "nobody listens there"
    )
    there = Loading(port)
    there.listen()
    await registry.probe()
    [health] = registry.health()
    assert (health.state, "HTTP 503" in health.why) == ("loading", True)
    assert not asked.done()
    assert server.breaker.state == "closed", "no request was sent"
    there.loaded = True
    await registry.probe()
    assert states(registry) == {"a": "ready"}
    assert (await asked).entry == entry
    await registry.close()
    there.close()
    await registry.probe()
    assert states(registry) == {"a": "ready"}, "from here on its breaker counts"
