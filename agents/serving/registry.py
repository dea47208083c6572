"""Loads the models of one process in the background and tracks the state of each."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec

from agents.catalogue.models import Model, VerifierModel
from agents.serving.chat_engine import ChatEngine
from agents.serving.engine import Engine
from agents.serving.errors import EndpointSuspendedError, EngineDiedError, EngineStartError, ServingError
from agents.serving.health_checks import Prober, ProbeRules, ask, first_token
from agents.serving.http import HttpEngine, JsonServer, Keys, Sender, ServerSettings
from agents.serving.prompts import ChatPrompts
from agents.serving.recorded import RecordedEngine, Recording
from agents.serving.replicas import Replicas
from agents.serving.retries import Retries
from agents.serving.vllm_engine import VllmEngine
from agents.serving.vllm_host import EngineHost
from agents.serving.vllm_settings import HostedModel, checkpoint_path, kv_cache_bytes
from schemas.answer import Probe
from schemas.control import ModelHealth

# Each model is loading, ready, suspended or failed, and the registry records why it is not ready.
#
# A model that fails to load does not affect the others. Loading is retried after `retry_s`, or as soon as the model's
# catalogue entry changes.

log = logging.getLogger(__name__)

MAX_WHY = 300
"""Maximum length of the reason why a model is not ready, in characters. Every heartbeat contains it."""

FIRST_ANSWER_S = 30.0
"""Maximum seconds that a query waits for a server that has not answered this process yet. (The model was chosen because
another process reported it as ready.) After that, the query may go to a different model."""

_FIRST_TOKENS = 8
"""Maximum tokens of an engine's answer to the operator's question. An engine in this process answers that question
before any query, so an engine that crashes on everything crashes then, and no client's record is blamed for it."""


@dataclass(frozen=True)
class Loaded:
    """The engine of a loaded model, and its server if the model is remote.

    Attributes:
        engine: The engine.
        server: Its server; None if the model runs in this process or has several servers.
        replicas: If the model has several servers, each with an engine that asks it alone, for probes.
    """

    engine: Engine
    server: JsonServer | None = None
    replicas: "tuple[Loaded, ...]" = ()

    @property
    def each(self) -> "tuple[Loaded, ...]":
        """Return the replicas; the model itself if it has only one."""
        return self.replicas or (self,)

    @property
    def servers(self) -> tuple[JsonServer, ...]:
        """Return the model's servers; empty if it runs in this process."""
        return tuple(each.server for each in self.each if each.server is not None)


@dataclass
class _Place:
    entry: Model
    task: "asyncio.Task[Loaded]" = field(init=False)
    probers: list[Prober] = field(default_factory=list)  # one for each replica, once the model is loaded
    ended_s: float | None = None
    why: str = field(default="")


class ModelRegistry:
    """Loads models and tracks their states.

    Args:
        load: Loads or connects one model; called for one model at a time.
        clock: Seconds, monotonic.
        retry_s: Seconds until a model that failed to load is tried again.
        probes: Settings for probing models whose queries fail.

    Attributes:
        probed: Called with the name of a model and whether it passed a probe.
    """

    def __init__(
        self,
        load: Callable[[Model], Awaitable[Loaded]],
        *,
        clock: Callable[[], float] = time.monotonic,
        retry_s: float = 60.0,
        probes: ProbeRules | None = None,
    ) -> None:
        self.probed: Callable[[str, bool], None] = lambda model, passed: None
        self._probes = probes or ProbeRules()
        self._load = load
        self._clock = clock
        self._retry_s = retry_s
        self._places: dict[str, _Place] = {}
        self._one = asyncio.Lock()
        self._replaced: dict[Loaded, asyncio.Task[None]] = {}

    def want(self, models: Iterable[Model]) -> None:
        """Start loading models that are new, have changed, or failed at least `retry_s` ago. Do not wait for them."""
        for model in models:
            place = self._places.get(model.name)
            if place is None or _runs_differently(place.entry, model) or self._is_due(place):
                new = self._places[model.name] = _Place(model)
                new.task = asyncio.create_task(self._loaded(new, place))
                # Retrieve the exception; otherwise asyncio warns if no caller awaits the task.
                new.task.add_done_callback(lambda done: done.cancelled() or done.exception())
            else:
                place.entry = model  # its sampling may have changed

    async def get(self, model: Model) -> Engine:
        """Return the engine of a model once the model is loaded and its server, if any, has answered.

        Raises:
            EngineStartError: The model cannot be loaded.
            EndpointSuspendedError: The model has failed too many probes, or its server does not answer.
        """
        self.want([model])
        place = self._places[model.name]
        loaded = await asyncio.shield(place.task)
        if loaded.servers:
            await _answered(model.name, loaded.servers)
        if place.probers and all(each.suspended for each in place.probers):
            raise EndpointSuspendedError(
                f"{model.name}: is not asked before it passes a probe: {place.probers[0].why}"
            )
        return loaded.engine

    async def verdict(self, model: str, server: str = "") -> Probe | None:
        """Return the result of a model's recent or new probe; None if there is none (see `Prober.verdict`).

        Args:
            model: The model.
            server: If the model has several servers, the one to probe (`ServingError.server`).
        """
        place = self._places.get(model)
        if place is None or not place.probers:
            return None
        urls = [each.settings.url for each in place.task.result().servers]
        return await place.probers[urls.index(server) if server in urls else 0].verdict()

    def suspect(self, model: str) -> None:
        """Schedule a probe of a model that failed a query, at each of its servers."""
        place = self._places.get(model)
        for prober in () if place is None else place.probers:
            prober.suspect()

    async def settled(self) -> None:
        """Wait until every model is ready or has failed.

        Raises:
            ServingError: No model is ready (the error is the first model's), or one crashed on its first question and
                took others in this process with it.
        """
        places = self._places.values()
        outcomes = await asyncio.gather(*(place.task for place in places), return_exceptions=True)
        failures = [each for each in outcomes if isinstance(each, BaseException)]
        if any(isinstance(each.__cause__, EngineDiedError) for each in failures):
            for place in places:
                if _is_ready(place.task):
                    await _ask(place.task.result(), place.entry, self._probes)
        if failures and len(failures) == len(outcomes):
            raise failures[0]

    async def probe(self) -> None:
        """Check endpoints that have not answered yet or whose breaker is half-open; start the probes that are due."""
        for prober in self._probers():
            prober.tick()
        servers = [server for each in self._ready() for server in each.servers]
        await asyncio.gather(*(ask() for server in servers for ask in (server.knock, server.probe)))

    def health(self) -> tuple[ModelHealth, ...]:
        """Return the state of every model, by name."""
        return tuple(self._health(name, place) for name, place in sorted(self._places.items()))

    async def close(self) -> None:
        """Stop loading, and close the engines that are loaded."""
        tasks = [*(place.task for place in self._places.values()), *self._replaced.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(each.close() for each in self._probers()), return_exceptions=True)
        for loaded in (*self._ready(), *self._replaced):
            await loaded.engine.close()

    async def _loaded(self, place: _Place, before: _Place | None) -> Loaded:
        model = place.entry
        async with self._one:
            if before is not None and _is_ready(before.task):
                for prober in before.probers:
                    await prober.close()
                loaded = before.task.result()
                self._replaced[loaded] = asyncio.create_task(self._close_idle(loaded))
            try:
                loaded = await self._load(model)
                await _ask(loaded, model, self._probes)
                place.probers = [self._prober(place, each) for each in loaded.each]
                return loaded
            except Exception as error:
                place.ended_s, place.why = self._clock(), f"{type(error).__name__}: {error}"[:MAX_WHY]
                log.error("%s cannot be served: %s", model.name, error)
                if isinstance(error, ServingError):
                    raise
                raise EngineStartError(f"{model.name}: {type(error).__name__}: {error}") from error

    def _prober(self, place: _Place, replica: Loaded) -> Prober:
        def told(passed: bool) -> None:
            if replica.server is not None:
                replica.server.barred = prober.why if prober.suspended else ""
            self.probed(place.entry.name, passed)

        prober = Prober(replica.engine, lambda: place.entry.sampling, self._probes, self._clock, told)
        return prober

    async def _close_idle(self, loaded: Loaded) -> None:
        """Close a replaced engine once its requests in flight are answered."""
        for server in loaded.servers:
            await server.idle()
        await loaded.engine.close()
        del self._replaced[loaded]

    def _is_due(self, place: _Place) -> bool:
        return place.ended_s is not None and self._clock() - place.ended_s >= self._retry_s

    def _probers(self) -> list[Prober]:
        return [prober for place in self._places.values() for prober in place.probers]

    def _ready(self) -> list[Loaded]:
        return [place.task.result() for place in self._places.values() if _is_ready(place.task)]

    def _health(self, name: str, place: _Place) -> ModelHealth:
        if not place.task.done():
            return ModelHealth(model=name, state="loading")
        if not _is_ready(place.task):
            return ModelHealth(model=name, state="failed", why=place.why)
        replicas = place.task.result().each
        found = [_state(each.server, prober) for each, prober in zip(replicas, place.probers, strict=True)]
        states = [state for state, _ in found]
        why = "; ".join(why for _, why in found if why)
        down = 0 if len(found) == 1 else len(found) - states.count("ready")
        if down:
            why = f"{down} of {len(found)} servers get no queries: {why or 'no reply yet'}"
        state = next(each for each in _BEST if each in states)
        return ModelHealth(model=name, state=state, why=why[:MAX_WHY], servers_down=down)


State = Literal["ready", "suspended", "loading"]

_BEST: tuple[State, ...] = ("ready", "suspended", "loading")
"""The state of a model is the first of these that one of its replicas has."""


def _state(server: JsonServer | None, prober: Prober) -> tuple[State, str]:
    """Return the state of one replica, and why it is not ready."""
    if server is not None and not server.answered.is_set():
        return "loading", server.why
    if server is not None and server.breaker.state == "open":
        return "suspended", server.breaker.why
    return ("suspended", prober.why) if prober.suspended else ("ready", "")


async def _ask(loaded: Loaded, model: Model, rules: ProbeRules) -> None:
    """Ask an engine in this process its first question. Only a crash counts, not a bad or late answer.

    Raises:
        EngineStartError: The engine crashed.
    """
    if loaded.servers:
        return  # a remote engine cannot crash this process
    try:
        await ask(loaded.engine, model.sampling, rules, step_id="first question", max_tokens=_FIRST_TOKENS)
    except EngineDiedError as error:
        raise EngineStartError(f"{model.name}: died on its first question: {error}") from error
    except ServingError:
        pass  # it did not crash


async def _answered(name: str, servers: Sequence[JsonServer]) -> None:
    """Wait until one of a model's servers has answered this process once.

    Raises:
        EndpointSuspendedError: None has answered within `FIRST_ANSWER_S`.
    """
    if any(each.answered.is_set() for each in servers):
        return
    waiting = [asyncio.create_task(each.answered.wait()) for each in servers]
    try:
        done, _ = await asyncio.wait(waiting, timeout=FIRST_ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
    if not done:
        why = "; ".join(each.why for each in servers if each.why) or "no reply yet"
        raise EndpointSuspendedError(f"{name}: its server has not answered for {FIRST_ANSWER_S:g} s: {why}")


def _is_ready(task: "asyncio.Task[Loaded]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _runs_differently(before: Model, after: Model) -> bool:
    """Return whether a model runs differently with a changed entry. A new description or price does not matter."""
    return any(
        getattr(before, name) != getattr(after, name) for name in ("checkpoint", "endpoint", "engine")
    ) or (before.sampling.thinking != after.sampling.thinking)


# Where a generator or verifier runs: in this process, on vLLM, or on another server.

CPU_BLOCK_TOKENS = (
    32  # vLLM's default of 128 exceeds most prompts of the mini family, so no prefix would be shared
)


class HostingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deployment's settings for running models; the rest is in the catalogue.

    Attributes:
        folder: The folder to which relative checkpoint paths refer, usually the repository root.
        device: `cpu`, or `gpu` to leave block sizes to vLLM.
        offline: Whether access to the Hugging Face hub is forbidden, so that every checkpoint must be a folder.
        threads: Torch threads of the engine thread; None leaves torch's default.
        keys: API keys of HTTP endpoints, by host.
        retries: Number of attempts per request to a model, and the pauses between them.
        instruction: A system message for conversations without one, e.g. to reason step by step. The mini family is
            trained without one.
        verifier_system: The verifier's system message, if it was trained with one (Qwen2.5-Math-PRM).
        probes: Settings for probing models whose queries fail.
    """

    folder: str = "."
    device: Literal["cpu", "gpu"] = "cpu"
    offline: bool = True
    threads: int | None = None
    keys: Keys = Keys()
    retries: Retries = Retries()
    instruction: str = ""
    verifier_system: str = ""
    probes: ProbeRules = ProbeRules()


def hosted_model(entry: Model | VerifierModel, options: HostingOptions) -> HostedModel:
    """Return the settings for hosting a catalogue entry on vLLM in this process.

    The KV cache has the size that `kv_cache_bytes` returns.

    Raises:
        EngineStartError: The entry asks for several GPUs, but a single thread can drive only one.
    """
    engine, shape = entry.engine, entry.architecture
    assert shape is not None, "an entry of this process has one"
    if engine.tensor_parallel > 1:
        raise EngineStartError(
            f"{entry.name}: tensor_parallel is {engine.tensor_parallel}; serve it with `vllm serve` and give "
            "the catalogue an http endpoint"
        )
    block_tokens = engine.block_tokens or (CPU_BLOCK_TOKENS if options.device == "cpu" else None)
    verifies = isinstance(entry, VerifierModel)
    return HostedModel(
        name=entry.name,
        path=checkpoint_path(entry.checkpoint, options.folder),
        runner="pooling" if verifies else "generate",
        dtype=engine.dtype,
        context_tokens=engine.context_tokens,
        max_sequences=engine.max_sequences,
        kv_cache_bytes=kv_cache_bytes(shape, engine),
        block_tokens=block_tokens,
        # A verifier reads each prompt once, and vLLM does not use the cache for token classification anyway.
        prefix_caching=not verifies,
        step_tag_id=entry.step_tags.tag_id if isinstance(entry, VerifierModel) and entry.step_tags else None,
    )


def servers_of(entry: Model | VerifierModel, options: HostingOptions) -> tuple[JsonServer, ...]:
    """Return a client for each server in an entry's endpoint.

    Raises:
        EngineStartError: The key that the entry names is not set.
    """
    return tuple(_server(entry, url, options) for url in entry.endpoint.servers)


def _server(entry: Model | VerifierModel, url: str, options: HostingOptions) -> JsonServer:
    endpoint = entry.endpoint
    key = options.keys.of(url, endpoint.key_env)
    if endpoint.key_env and not key:
        raise EngineStartError(
            f"{entry.name}: endpoint.key_env is {endpoint.key_env}: this process has no such environment variable, or "
            "the entry is not of the catalogue file, for whose endpoints alone it is read; set it for the executor, or "
            "give UNISCALE_ENGINE_KEYS"
        )
    return JsonServer(
        ServerSettings(
            url=url,
            api_key=key,
            headers=endpoint.headers,
            read_timeout_s=endpoint.timeout_s,
            retries=options.retries,
            # A verifier gets many prompts in one request. A generator gets one request per draft, up to 64 for each
            # step.
            connections=4 * entry.engine.max_sequences,
        )
    )


def one_of(servers: Sequence[JsonServer], entry: Model | VerifierModel) -> Sender:
    """Return an entry's only server, or its servers as one."""
    return servers[0] if len(servers) == 1 else Replicas(servers, entry.engine.max_sequences)


def served_name(entry: Model | VerifierModel) -> str:
    """Return the name of an entry's model on its server."""
    return entry.endpoint.model or entry.endpoint.served_name or entry.checkpoint


def prompts_of(entry: Model | VerifierModel, options: HostingOptions) -> ChatPrompts:
    """Return the tokenizer and chat template of an entry.

    Raises:
        EngineStartError: They cannot be read.
    """
    path = checkpoint_path(entry.checkpoint, options.folder)
    if isinstance(entry, VerifierModel):
        needed = entry.family == "step-tags"
        return ChatPrompts.load(path, offline=options.offline, needs_template=needed)
    arguments = {"enable_thinking": entry.sampling.thinking}
    return ChatPrompts.load(path, template_arguments=arguments, offline=options.offline)


async def start_host(options: HostingOptions) -> EngineHost:
    """Start vLLM in this process, without any model.

    Raises:
        EngineStartError: It did not start in time.
        EngineEnvironmentError: This process cannot host vLLM.
    """
    host = EngineHost(offline=options.offline, threads=options.threads)
    return await asyncio.to_thread(host.start)


async def load_into(host: EngineHost, entry: Model | VerifierModel, options: HostingOptions) -> None:
    """Load an entry into a started host, replacing a model of the same name.

    Raises:
        EngineStartError: It could not be loaded. The host continues to serve its other models.
    """
    if entry.name in host.context_tokens:
        await asyncio.wrap_future(host.unload(entry.name))
    await asyncio.wrap_future(host.load(hosted_model(entry, options)))


# The engines of an executor: from catalogue entries, or from a recording.


class GroupEngines(ModelRegistry):
    """The engines of one executor group, loaded in the background at startup and when the catalogue changes.

    Args:
        options: The deployment's settings.
        recording: If given, drafts come from it instead of from the models.
        clock: Seconds, monotonic.

    Attributes:
        host: Host of the engines in this process; None while there are none.
    """

    def __init__(
        self,
        options: HostingOptions,
        recording: Recording | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(self._started, clock=clock, probes=options.probes)
        self.host: EngineHost | None = None
        self._options = options
        self._recording = recording

    async def close(self) -> None:
        """Close every engine, then the host."""
        await super().close()
        if self.host is not None:
            await asyncio.to_thread(self.host.close)

    async def _started(self, model: Model) -> Loaded:
        options = self._options
        if self._recording is not None:
            return Loaded(RecordedEngine(self._recording, model.name))
        if model.endpoint.kind != "in-process":
            return await connected(model, options)
        if self.host is None:
            self.host = await start_host(options)
        await load_into(self.host, model, options)
        return Loaded(await asyncio.to_thread(hosted_engine, model, options, self.host))


async def connected(model: Model, options: HostingOptions) -> Loaded:
    """Return the engine of a model on one or several servers. A chat endpoint is ready once it has generated one token.

    Raises:
        EngineStartError: The key that the entry names is not set, or the tokenizer cannot be read.
    """
    servers = servers_of(model, options)
    if model.endpoint.kind == "chat":

        def engine_at(server: Sender) -> ChatEngine | HttpEngine:
            return ChatEngine(server, model.name, model.endpoint, instruction=options.instruction)

    else:
        # Reading a tokenizer takes seconds; searches with other models continue meanwhile.
        prompts = await asyncio.to_thread(prompts_of, model, options)

        def engine_at(server: Sender) -> ChatEngine | HttpEngine:
            return HttpEngine(
                server,
                model.name,
                prompts,
                context_tokens=model.engine.context_tokens,
                served_name=served_name(model),
                instruction=options.instruction,
            )

    replicas = tuple(Loaded(engine_at(server), server) for server in servers)
    for each, server in zip(replicas, servers, strict=True):
        if model.endpoint.kind == "chat":
            server.first = partial(first_token, each.engine, model.sampling, options.probes)
    if len(replicas) == 1:
        return replicas[0]
    return Loaded(engine_at(one_of(servers, model)), replicas=replicas)


def hosted_engine(model: Model, options: HostingOptions, host: EngineHost) -> VllmEngine:
    """Return an engine for a model that the host has already loaded.

    Raises:
        EngineStartError: The tokenizer cannot be read.
    """
    prompts = prompts_of(model, options)
    return VllmEngine(host, model.name, prompts, instruction=options.instruction, retries=options.retries)
