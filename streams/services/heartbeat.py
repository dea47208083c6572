"""An executor's heartbeats, with the states of its models, and the probes that these states depend on."""

import asyncio
import contextlib
import logging
from collections.abc import Collection

from agents.catalogue.models import Model
from agents.serving.registry import GroupEngines
from schemas.control import Heartbeat, ModelHealth
from schemas.record import encode
from streams.log.base import Outgoing, Unavailable
from streams.runtime.runtime import Runtime

log = logging.getLogger("streams.executor")


class Heartbeats:
    """Sends one executor's heartbeats, and has its models loaded and probed.

    Args:
        runtime: The executor's runtime.
        engines: Its group's engines.
        busy: Ids of the queries in flight, which the executor updates.
    """

    def __init__(self, runtime: Runtime, engines: GroupEngines, busy: Collection[str]) -> None:
        self._runtime = runtime
        self._engines = engines
        self._busy = busy
        self._suspended: set[str] = set()
        engines.probed = self._count_probe

    def models(self) -> list[Model]:
        """Return the group's models in the current catalogue."""
        return [m for m in self._runtime.control.catalogue.models if m.group == self._runtime.group]

    async def send_regularly(self) -> None:
        """Send a heartbeat every `heartbeat_s` seconds, first starting to load any new or changed models."""
        runtime = self._runtime
        while True:
            here = self.models()
            self._engines.want(here)
            known = {each.model: each for each in self._engines.health()}
            health = tuple(known[model.name] for model in here)
            for each in health:
                runtime.metrics.suspended.labels(each.model).set(each.state == "suspended")
                runtime.metrics.servers_down.labels(each.model).set(each.servers_down)
            self._log_suspensions(health)
            try:
                await runtime.send(self._heartbeat(health))
            except Unavailable as error:
                log.warning("no heartbeat: %s", error)
            await runtime.sleep(runtime.settings.executor.heartbeat_s)

    async def probe_regularly(self) -> None:
        """Probe suspended endpoints, separately from the heartbeat, because one that hangs must not silence its group.

        Models whose queries failed are asked the operator's probe question.
        """
        while True:
            await self._engines.probe()
            await self._runtime.sleep(self._runtime.settings.executor.heartbeat_s)

    async def send_last(self) -> None:
        """Send the last heartbeat, so that the decider masks this group's models at once."""
        # An unavailable broker must not delay the stop: without this heartbeat, the models are masked three intervals
        # later.
        with contextlib.suppress(Unavailable, TimeoutError):
            await asyncio.wait_for(self._runtime.send(self._heartbeat(stopping=True)), 1.0)

    def _log_suspensions(self, health: tuple[ModelHealth, ...]) -> None:
        """Log each model that is newly suspended, and each that is ready again."""
        for each in health:
            if each.state == "suspended" and each.model not in self._suspended:
                self._suspended.add(each.model)
                log.warning("%s is suspended, and other models get its queries: %s", each.model, each.why)
            elif each.state == "ready" and each.model in self._suspended:
                self._suspended.remove(each.model)
                log.warning("%s is ready again", each.model)

    def _count_probe(self, model: str, passed: bool) -> None:
        self._runtime.metrics.probes.labels(model, "passed" if passed else "failed").inc()

    def _heartbeat(self, health: tuple[ModelHealth, ...] = (), *, stopping: bool = False) -> Outgoing:
        runtime = self._runtime
        beat = Heartbeat(
            group=runtime.group,
            instance=runtime.instance,
            models=tuple(each.model for each in health if each.state == "ready"),
            every_s=runtime.settings.executor.heartbeat_s,
            in_flight=len(self._busy),
            health=health,
            stopping=stopping,
        )
        return Outgoing(runtime.topics.heartbeat, beat.key.encode(), encode(beat))
