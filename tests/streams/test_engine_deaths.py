"""An engine or verifier that dies or hangs: the question at fault is found, and no other is answered `failed`."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from agents.catalogue.models import Model, Sampling
from agents.serving.engine import Drafted, Prefix
from agents.serving.errors import EngineDiedError, ServingError
from agents.serving.recorded import RecordedEngine, Recording
from agents.serving.registry import GroupEngines, HostingOptions, Loaded
from agents.verifier.prm import RecordedVerifier
from schemas.answer import Answer
from schemas.query import Query
from schemas.search import Scored
from streams.runtime.errors import Crash
from streams.runtime.handler_guard import LIMIT
from streams.runtime.memory_cluster import Cluster
from streams.runtime.runtime import Runtime, ServiceSpec
from streams.services import SERVICES, executor, verifier
from tests.support.cluster import Ask, Audit, InMemory, read, running, send
from tests.support.recorded import recorded_paths

LOADING_S = 5.0
STEP_S = 3.0

KILL = Query(query_id="kill", text="Kill the engine, please.", timeout_s=6 * 3600.0, learn=False)


class Host:
    """vLLM in this process, as far as a step that hangs shows."""

    def __init__(self) -> None:
        self.began_s: float | None = None

    @property
    def hung_s(self) -> float:
        return 0.0 if self.began_s is None else asyncio.get_running_loop().time() - self.began_s


class World:
    """What happens to engines and verifiers: at every question, at some, or while nothing is asked."""

    def __init__(self) -> None:
        self.recording = Recording(recorded_paths(12, samples=3, steps=(1, 3)))
        self.hangs = False
        self.broken: set[str] = set()  # services of which every engine dies at whatever it is asked
        self.engines: list[Engine] = []

    async def ask(self, service: str, texts: str, host: Host, kills: str) -> None:
        await asyncio.sleep(STEP_S)
        if host.began_s is not None:
            await asyncio.Future()  # one thread makes the steps of all
        if service in self.broken:
            raise EngineDiedError("CUDA error: device-side assert triggered")
        if service == kills and "Kill" in texts:
            if not self.hangs:
                raise EngineDiedError("CUDA error: device-side assert triggered")
            host.began_s = asyncio.get_running_loop().time()
            await asyncio.Future()


class Engine(RecordedEngine):
    def __init__(self, world: World, kills: str, model: str, host: Host) -> None:
        super().__init__(world.recording, model)
        self.world, self.kills, self.host = world, kills, host
        self.dead = False
        world.engines.append(self)

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        if self.dead:
            raise EngineDiedError("it has died before")
        texts = " ".join(message.text for prefix in prefixes for message in prefix.messages)
        await self.world.ask("executor", texts, self.host, self.kills)
        return await super().generate(step_id, prefixes, n, seeds, sampling)


class Engines(GroupEngines):
    def __init__(self, world: World, kills: str) -> None:
        super().__init__(HostingOptions(), world.recording, asyncio.get_running_loop().time)
        self.world, self.kills = world, kills
        self.host: Any = Host()

    async def _started(self, model: Model) -> Loaded:
        await asyncio.sleep(LOADING_S)
        return Loaded(Engine(self.world, self.kills, model.name, self.host))

    async def close(self) -> None:
        self.host = None
        await super().close()


class Verifier(RecordedVerifier):
    def __init__(self, world: World, kills: str) -> None:
        super().__init__(world.recording)
        self.world, self.kills = world, kills
        self.host: Any = Host()

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        await self.world.ask("verifier", question, self.host, self.kills)
        return await super().score(question, paths)


@pytest.fixture(params=["executor", "verifier"])
def kills(request: pytest.FixtureRequest) -> str:
    """Return the service whose engine dies of the question."""
    return str(request.param)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, kills: str) -> World:
    """Return the world in which services are built."""
    made = World()

    async def verifier_of(*_: object) -> Verifier:
        await asyncio.sleep(LOADING_S)
        return Verifier(made, kills)

    monkeypatch.setattr(executor, "engines_of", lambda *_: Engines(made, kills))
    monkeypatch.setattr(verifier, "verifier_of", verifier_of)
    return made


def supervised(spec: ServiceSpec) -> ServiceSpec:
    """Return a service that is started again when it cannot start, as its process is."""

    async def build(runtime: Runtime) -> object:
        try:
            return await spec.build(runtime)
        except ServingError as error:
            raise Crash(f"{spec.name} cannot start: {error}") from error

    return structs.replace(spec, build=build)


SUPERVISED = {name: supervised(spec) for name, spec in SERVICES.items()}


def statuses(cluster: Cluster) -> dict[str, str]:
    """Return the status of the first Answer of each query."""
    return {each.query_id: each.status for each in reversed(read(cluster, cluster.topics.answer, Answer))}


async def all_answered(cluster: Cluster, count: int) -> dict[str, str]:
    """Wait until so many queries have an Answer, looking every ten seconds; return their statuses."""
    for _ in range(360):
        cluster.check()
        if len(found := statuses(cluster)) == count:
            return found
        await asyncio.sleep(10.0)
    raise TimeoutError(f"{len(found)} of {count} are answered; deaths: {cluster.deaths[-3:]}")


def beside(ask: Ask, count: int) -> list[Query]:
    return [ask(n, query_id=f"h{n}", timeout_s=6 * 3600.0) for n in range(count)]


@pytest.mark.parametrize("count", [0, 60])
async def test_question_that_kills_engines_fails_within_eight_deaths(
    in_memory: InMemory, ask: Ask, audited: Audit, world: World, kills: str, count: int
) -> None:
    settings = in_memory(policy="random", max_in_flight=256)
    honest = beside(ask, count)
    async with running(settings, seed=5) as cluster:
        send(cluster, *honest[: count // 2], KILL, *honest[count // 2 :])
        found = await all_answered(cluster, count + 1)
        await asyncio.sleep(10.0)
        audited(cluster)
        assert Counter(found.values()) == Counter({"failed": 1, **({"ok": count} if count else {})})
        [answer] = [each for each in read(cluster, cluster.topics.answer, Answer) if each.query_id == "kill"]
        assert (answer.status, answer.by) == ("failed", kills)
        assert "with this record in flight (CUDA error: device-side assert triggered)" in (answer.error or "")
        assert LIMIT <= len(cluster.deaths) <= 8


async def test_a_question_at_which_vllm_hangs_is_found_in_the_same_way(
    in_memory: InMemory, ask: Ask, world: World, kills: str
) -> None:
    world.hangs = True
    settings = in_memory(policy="random", max_in_flight=256)
    async with running(settings, seed=5) as cluster:
        send(cluster, *beside(ask, 6), KILL)
        found = await all_answered(cluster, 7)
        assert found.pop("kill") == "failed"
        assert set(found.values()) == {"ok"}
        assert all(str(each).startswith("vLLM has not ended a step for 30") for each in cluster.deaths)
        assert LIMIT <= len(cluster.deaths) <= 8


async def test_engine_that_dies_of_everything_fails_no_query(
    in_memory: InMemory, ask: Ask, world: World, kills: str
) -> None:
    settings = in_memory(policy="random", max_in_flight=256)
    async with running(settings, SUPERVISED, seed=5) as cluster:
        patient = beside(ask, 8)
        send(cluster, *patient[:4])
        await asyncio.sleep(STEP_S)
        world.broken.add(kills)
        await asyncio.sleep(STEP_S)
        send(cluster, *patient[4:], ask(9, query_id="late", timeout_s=60.0))
        await asyncio.sleep(600.0)
        assert {each.by for each in read(cluster, cluster.topics.answer, Answer)} <= {
            "executor",
            "aggregator",
        }
        assert "failed" not in statuses(cluster).values()
        assert len(cluster.deaths) > 2 * LIMIT, "it is started again and again, with nothing in flight"
        world.broken.clear()
        found = await all_answered(cluster, 9)
        assert found.pop("late") == "expired"
        assert set(found.values()) == {"ok"}


@pytest.mark.parametrize("kills", ["executor"], indirect=True)
async def test_finding_a_dead_engine_is_no_fault_of_the_query(
    in_memory: InMemory, ask: Ask, world: World, kills: str
) -> None:
    settings = in_memory(policy="random", max_in_flight=256)
    async with running(settings, seed=5) as cluster:
        for n in range(2 * LIMIT):
            for engine in world.engines:
                engine.dead = True
            send(cluster, ask(n))
            await all_answered(cluster, n + 1)
        assert set(statuses(cluster).values()) == {"ok"}
        assert len(cluster.deaths) == 2 * LIMIT
