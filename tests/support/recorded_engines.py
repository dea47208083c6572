"""Deployments in memory whose executors run engines of a test's own on a recording."""

import asyncio

import pytest

from agents.catalogue.models import Model
from agents.serving.recorded import RecordedEngine, Recording
from agents.serving.registry import GroupEngines, HostingOptions, Loaded
from streams.services import executor
from tests.support.recorded import recorded_paths


def run_on(monkeypatch: pytest.MonkeyPatch, kind: type[RecordedEngine]) -> None:
    """Let executors run every model on an engine of this kind."""
    recording = Recording(recorded_paths(12, samples=3, steps=(1, 3)))

    class Engines(GroupEngines):
        async def _started(self, model: Model) -> Loaded:
            return Loaded(kind(recording, model.name))

    def engines(*_: object) -> Engines:
        return Engines(HostingOptions(), recording, asyncio.get_running_loop().time)

    monkeypatch.setattr(executor, "engines_of", engines)
