"""Catalogue, objectives, cost bounds and signs of life, as every process sees them.

`control` and `heartbeat` are read to their ends before a process starts, and followed from there. What control
records mean is `agents.space.steering`; a record that cannot be used changes nothing and is logged with its
offset.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agents.aggregator.agent import Pricing
from agents.space.catalogue import Catalogue, load_catalogue
from agents.space.models import Model
from agents.space.objectives import Objectives
from agents.space.steering import Steering
from schemas.base import decode
from schemas.control import CatalogueEntry, decode_control
from schemas.errors import UniscaleError
from schemas.heartbeat import Heartbeat
from streams.runtime.kafka.handlers import Record
from streams.runtime.kafka.tail import Follower
from streams.settings import Settings
from streams.topics import Topics

log = logging.getLogger("streams.control")

# Beats missed before an executor counts as silent.
_BEATS = 3


class Control:
    """The deployment's state as control records have made it.

    Args:
        settings: Where the catalogue file and the broker are.
        now_ms: Milliseconds since the epoch; compared with the broker's append times.
    """

    def __init__(
        self, settings: Settings, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    ) -> None:
        self.base = load_catalogue(Path(settings.catalogue))
        steering = Steering.of(self.base)
        self.steering = replace(steering, objectives=replace(steering.objectives, default=settings.objective))
        # Offset of the last record that changed the catalogue: what a Decision says it chose from.
        self.catalogue_version = -1
        # Every model ever seen: searches of a removed one end, and their prices are still needed.
        self.models: dict[str, Model] = {m.name: m for m in self.base.models}
        self.pricing = Pricing.of(self.base)
        self._now_ms = now_ms
        self._beats: dict[str, tuple[Heartbeat, int]] = {}
        topics = Topics(settings)
        self._control = Follower(settings, [topics.control], self._on_control, begin="beginning")
        self._heartbeat = Follower(settings, [topics.heartbeat], self._on_heartbeat, begin="beginning")

    async def start(self) -> None:
        """Read both topics to their ends and keep following them."""
        await self._control.start()
        await self._heartbeat.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._control.stop()
        await self._heartbeat.stop()

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue in force."""
        return self.steering.catalogue

    @property
    def objectives(self) -> Objectives:
        """The objectives in force."""
        return self.steering.objectives

    def serving(self) -> frozenset[str]:
        """Return the models with a living executor."""
        now = self._now_ms()
        return frozenset(
            model
            for beat, at in self._beats.values()
            if not beat.stopping and now - at <= _BEATS * beat.every_s * 1000
            for model in beat.models
        )

    def _on_heartbeat(self, record: Record) -> None:
        if not record.value:
            return
        try:
            beat = decode(record.value, Heartbeat)
        except UniscaleError as error:
            log.warning("%s: %s", record.coordinates, error)
            return
        self._beats[beat.key] = (beat, record.timestamp_ms)

    def _on_control(self, record: Record) -> None:
        if not record.value:
            return
        try:
            entry = decode_control(record.value)
            self.steering = self.steering.after(entry, record.offset)
        except UniscaleError as error:
            log.error("%s changes nothing: %s", record.coordinates, error)
            return
        if isinstance(entry, CatalogueEntry):
            self.catalogue_version = record.offset
            self.models |= {m.name: m for m in self.catalogue.models}
            self.pricing = Pricing.of(self.catalogue, self.pricing)
