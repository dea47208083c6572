"""The models of one process, loaded in the background: each is loading, ready, suspended or failed, and says why.

A model that cannot be loaded harms nobody but itself. It is tried again after a while, or at once when its
catalogue entry changes.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from agents.serving.errors import EngineStartError, ServingError
from agents.serving.http.breaker import Breaker
from agents.serving.http.server import JsonServer
from agents.space.models import Model
from schemas.heartbeat import ModelHealth

log = logging.getLogger(__name__)

MAX_WHY = 300
"""Characters that say why a model is not ready: they travel in every heartbeat."""


class Closable(Protocol):
    """Whatever serves a model."""

    async def close(self) -> None:
        """Free what it holds."""


E = TypeVar("E", bound=Closable)


@dataclass(frozen=True)
class Loaded(Generic[E]):
    """A model that can be asked, and the server it is asked at, if it is one."""

    engine: E
    server: JsonServer | None = None

    @property
    def breaker(self) -> Breaker | None:
        """Return the breaker of its endpoint."""
        return self.server.breaker if self.server is not None else None


@dataclass
class _Place(Generic[E]):
    entry: Model
    task: "asyncio.Task[Loaded[E]]"
    ended_s: float | None = None
    why: str = field(default="")


class Fleet(Generic[E]):
    """Loads models and knows their state.

    Args:
        load: Loads or connects one model; called for one model at a time.
        clock: Seconds, monotonic.
        again_s: A model that failed to load is tried again after so long.
    """

    def __init__(
        self,
        load: Callable[[Model], Awaitable[Loaded[E]]],
        *,
        clock: Callable[[], float] = time.monotonic,
        again_s: float = 60.0,
    ) -> None:
        self._load = load
        self._clock = clock
        self._again_s = again_s
        self._places: dict[str, _Place[E]] = {}
        self._one = asyncio.Lock()

    def want(self, models: Iterable[Model]) -> None:
        """Start to load what is new, what changed, and what failed long enough ago. Returns at once."""
        for model in models:
            place = self._places.get(model.name)
            if place is None or _runs_differently(place.entry, model) or self._is_due(place):
                task = asyncio.create_task(self._loaded(model, place))
                # Whoever waits is given the error; a model that nobody waits for must not end in a warning.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
                self._places[model.name] = _Place(model, task)

    async def get(self, model: Model) -> E:
        """Return the engine of a model, once it is loaded.

        Raises:
            EngineStartError: it cannot be loaded.
        """
        self.want([model])
        return (await asyncio.shield(self._places[model.name].task)).engine

    async def settled(self) -> None:
        """Wait until every model is ready or has failed.

        Raises:
            ServingError: none is ready; the error of the first.
        """
        tasks = [place.task for place in self._places.values()]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [each for each in outcomes if isinstance(each, BaseException)]
        if failures and len(failures) == len(outcomes):
            raise failures[0]

    async def probe(self) -> None:
        """Ask every endpoint whose breaker is half-open whether it is back."""
        servers = [each.server for each in self._ready() if each.server is not None]
        await asyncio.gather(*(server.probe() for server in servers))

    def health(self) -> tuple[ModelHealth, ...]:
        """Return the state of every model, by name."""
        return tuple(self._health(name, place) for name, place in sorted(self._places.items()))

    async def close(self) -> None:
        """Stop loading, and close what is loaded."""
        for place in self._places.values():
            place.task.cancel()
        await asyncio.gather(*(place.task for place in self._places.values()), return_exceptions=True)
        for loaded in self._ready():
            await loaded.engine.close()

    async def _loaded(self, model: Model, before: _Place[E] | None) -> Loaded[E]:
        async with self._one:
            if before is not None and _is_ready(before.task):
                await before.task.result().engine.close()
            try:
                return await self._load(model)
            except Exception as error:
                place = self._places[model.name]
                place.ended_s, place.why = self._clock(), f"{type(error).__name__}: {error}"[:MAX_WHY]
                log.error("%s cannot be served: %s", model.name, error)
                if isinstance(error, ServingError):
                    raise
                raise EngineStartError(f"{model.name}: {type(error).__name__}: {error}") from error

    def _is_due(self, place: _Place[E]) -> bool:
        return place.ended_s is not None and self._clock() - place.ended_s >= self._again_s

    def _ready(self) -> list[Loaded[E]]:
        return [place.task.result() for place in self._places.values() if _is_ready(place.task)]

    def _health(self, name: str, place: _Place[E]) -> ModelHealth:
        if not place.task.done():
            return ModelHealth(model=name, state="loading")
        if not _is_ready(place.task):
            return ModelHealth(model=name, state="failed", why=place.why)
        breaker = place.task.result().breaker
        if breaker is not None and breaker.state == "open":
            return ModelHealth(model=name, state="suspended", why=breaker.why[:MAX_WHY])
        return ModelHealth(model=name, state="ready")


def _is_ready(task: "asyncio.Task[Loaded[E]]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _runs_differently(before: Model, after: Model) -> bool:
    """Return whether an entry changed in what is run, and not only in how it is described or priced."""
    return any(
        getattr(before, name) != getattr(after, name) for name in ("checkpoint", "endpoint", "engine")
    ) or (before.sampling.thinking != after.sampling.thinking)
