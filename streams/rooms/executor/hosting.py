"""Engines and verifiers of this process, from the catalogue and the settings."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from agents.executor.engine import Engine
from agents.executor.engines.build import (
    EngineOptions,
    EngineSet,
    engine_for,
    hosted_model,
    recorded_engines,
    start_engines,
)
from agents.serving.errors import EngineStartError
from agents.serving.recording import Recording
from agents.space.models import Model
from agents.space.models import Verifier as VerifierEntry
from agents.verifier.build import VerifierOptions, start_verifier
from agents.verifier.prm import Verifier
from agents.verifier.recorded import RecordedVerifier
from streams.settings import Settings


class Engines:
    """The engines of one executor group; models that join the catalogue later are loaded on demand."""

    def __init__(self, settings: Settings, engines: EngineSet, options: EngineOptions) -> None:
        self.settings = settings
        self._set = engines
        self._options = options
        self._lock = asyncio.Lock()

    @classmethod
    async def start(cls, settings: Settings, models: Sequence[Model]) -> "Engines":
        """Load or connect every model of a group."""
        options = EngineOptions(
            device=settings.device, threads=settings.engine_threads or None, offline=settings.offline,
            api_key=settings.engine_key, instruction=settings.instruction,
        )  # fmt: skip
        if settings.recorded:
            recording = Recording.load(Path(settings.recorded), unknown="any")
            return cls(settings, recorded_engines([m.name for m in models], recording), options)
        return cls(settings, await start_engines(models, options), options)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that can draft now."""
        return tuple(self._set.engines)

    async def get(self, model: Model) -> Engine:
        """Return the engine of a model, loading it when it is new.

        Raises:
            EngineStartError: it cannot be loaded into the host of this process.
        """
        async with self._lock:
            if model.name not in self._set.engines:
                await self._load(model)
        return self._set[model.name]

    async def _load(self, model: Model) -> None:
        if self.settings.recorded:
            recording = Recording.load(Path(self.settings.recorded), unknown="any")
            self._set.engines[model.name] = recorded_engines([model.name], recording)[model.name]
            return
        host = self._set.host
        if model.endpoint.kind == "in-process":
            if host is None:
                raise EngineStartError(
                    f"{model.name}: its endpoint is in-process, and this executor hosts no engine; restart it, "
                    "or give the model a group of its own"
                )
            await asyncio.wrap_future(host.load(hosted_model(model, self._options)))
        self._set.engines[model.name] = engine_for(model, self._options, host)

    async def close(self) -> None:
        """Close all engines."""
        await self._set.close()


async def verifier_of(settings: Settings, entry: VerifierEntry) -> Verifier:
    """Return the verifier in use, loaded."""
    if settings.recorded:
        return RecordedVerifier(Recording.load(Path(settings.recorded), unknown="any"))
    options = VerifierOptions(
        device=settings.device, threads=settings.engine_threads or None, offline=settings.offline,
        api_key=settings.engine_key, system=settings.verifier_system,
    )  # fmt: skip
    return await start_verifier(entry, options)
