"""The engines of an executor: from catalogue entries, or from a recording."""

import asyncio
from collections.abc import Sequence

from agents.executor.engine import Engine
from agents.executor.engines.http_engine import Dialect, HttpEngine
from agents.executor.engines.recorded_engine import RecordedEngine
from agents.executor.engines.vllm_engine import VllmEngine
from agents.serving.errors import EngineStartError
from agents.serving.fleet import Fleet, Loaded
from agents.serving.hosting import (
    HostingOptions,
    hosted_model,
    load_into,
    prompts_of,
    served_name,
    server_of,
    start_host,
)
from agents.serving.http.server import JsonServer
from agents.serving.recording import Recording
from agents.serving.vllm.host import EngineHost
from agents.space.models import Model
from schemas.heartbeat import ModelHealth


class EngineOptions(HostingOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deployment's settings for its engines.

    Attributes:
        dialect: For HTTP endpoints: `vllm`, or `plain` for servers that do not report why a text stopped.
        instruction: A system message for conversations without one, e.g. to reason step by step. The mini family is
            trained without one.
    """

    dialect: Dialect = "vllm"
    instruction: str = ""


class EngineSet:
    """Loaded engines by model, and the host of those that run in this process."""

    def __init__(self, engines: dict[str, Engine], host: EngineHost | None) -> None:
        self.engines = engines
        self.host = host

    def __getitem__(self, model: str) -> Engine:
        """Return the engine of a model.

        Raises:
            KeyError: it has no engine here.
        """
        return self.engines[model]

    async def close(self) -> None:
        """Close every engine, then the host."""
        for engine in self.engines.values():
            await engine.close()
        if self.host is not None:
            await asyncio.to_thread(self.host.close)


class GroupEngines:
    """The engines of one executor group, loaded in the background and whenever the catalogue changes.

    Args:
        options: The deployment's settings.
        recording: If given, it answers instead of the models.
    """

    def __init__(self, options: EngineOptions, recording: Recording | None = None) -> None:
        self._options = options
        self._recording = recording
        self._host: EngineHost | None = None
        self._fleet: Fleet[Engine] = Fleet(self._load)

    def want(self, models: Sequence[Model]) -> None:
        """Start loading the models that are new or have changed. Returns at once."""
        self._fleet.want(models)

    async def settled(self) -> None:
        """Wait until every model is ready or has failed.

        Raises:
            ServingError: none is ready; it is the first model's error.
        """
        await self._fleet.settled()

    async def get(self, model: Model) -> Engine:
        """Wait until a model is loaded and return its engine.

        Raises:
            ServingError: it cannot be loaded.
        """
        return await self._fleet.get(model)

    async def probe(self) -> None:
        """Check every endpoint whose breaker is due for a retry, and mark those that answer as available."""
        await self._fleet.probe()

    def health(self) -> tuple[ModelHealth, ...]:
        """Return the state of every model, by name."""
        return self._fleet.health()

    async def close(self) -> None:
        """Close every engine, then the host."""
        await self._fleet.close()
        if self._host is not None:
            await asyncio.to_thread(self._host.close)

    async def _load(self, model: Model) -> Loaded[Engine]:
        if self._recording is not None:
            return Loaded(RecordedEngine(self._recording, model.name))
        if model.endpoint.kind == "http":
            server = server_of(model, self._options)
            # Reading a tokenizer takes seconds, during which searches of other models continue.
            engine = await asyncio.to_thread(_http_engine, model, self._options, server)
            return Loaded(engine, server)
        if self._host is None:
            self._host = await start_host((), self._options)
        await load_into(self._host, model, self._options)
        return Loaded(await asyncio.to_thread(engine_for, model, self._options, self._host))


async def start_engines(models: Sequence[Model], options: EngineOptions) -> EngineSet:
    """Load or connect to every model; return when all can draft.

    Args:
        models: Catalogue entries of one group.
        options: The deployment's settings.

    Raises:
        EngineStartError: a model or its tokenizer could not be loaded.
        EngineEnvironmentError: this process cannot host vLLM.
    """
    hosted = [hosted_model(model, options) for model in models if model.endpoint.kind == "in-process"]
    host = await start_host(hosted, options) if hosted else None
    return EngineSet({model.name: engine_for(model, options, host) for model in models}, host)


def recorded_engines(models: Sequence[str], recording: Recording) -> EngineSet:
    """Return engines that answer from a recording."""
    return EngineSet({model: RecordedEngine(recording, model) for model in models}, None)


def engine_for(model: Model, options: EngineOptions, host: EngineHost | None) -> Engine:
    """Return the engine of one catalogue entry.

    Args:
        model: The entry.
        options: The deployment's settings.
        host: Hosts the model if its endpoint is in process.

    Raises:
        EngineStartError: the tokenizer cannot be read, or the model needs a host that has not loaded it.
    """
    if model.endpoint.kind == "http":
        return _http_engine(model, options, server_of(model, options))
    if host is None or model.name not in host.context_tokens:
        raise EngineStartError(f"{model.name}: its endpoint is in-process, but no host here has loaded it")
    prompts = prompts_of(model, options)
    return VllmEngine(host, model.name, prompts, instruction=options.instruction, retries=options.retries)


def _http_engine(model: Model, options: EngineOptions, server: JsonServer) -> Engine:
    return HttpEngine(
        server,
        model.name,
        prompts_of(model, options),
        context_tokens=model.engine.context_tokens,
        served_name=served_name(model),
        instruction=options.instruction,
        dialect=options.dialect,
    )
