"""This process's engines and verifiers, from the catalogue and the settings, and the watchdog for vLLM."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

from agents.catalogue.models import Catalogue, VerifierModel
from agents.serving.health_checks import ProbeRules
from agents.serving.http import Keys
from agents.serving.recorded import Recording
from agents.serving.registry import GroupEngines, HostingOptions
from agents.serving.retries import Retries
from agents.serving.vllm_host import EngineHost
from agents.verifier.prm import RecordedVerifier, Verifier, start_verifier
from streams.runtime.errors import Death
from streams.settings import Settings

HUNG_S = 300.0
"""Seconds after which a vLLM step is considered hung: the process ends, and the supervisor restarts it."""

_LOOK_S = 10.0


async def watch_vllm(host: Callable[[], EngineHost | None]) -> NoReturn:
    """Check periodically whether vLLM is hanging in this process.

    Args:
        host: Returns vLLM's host; None if vLLM does not run here.

    Raises:
        Death: vLLM hangs.
    """
    while True:
        await asyncio.sleep(_LOOK_S)
        if (here := host()) is not None and here.hung_s > HUNG_S:
            raise Death(f"vLLM has not ended a step for {here.hung_s:.0f} s")


async def unless_vllm_hangs(host: Callable[[], EngineHost | None], start: Coroutine[Any, Any, None]) -> None:
    """Await the start of models while watching vLLM; see `watch_vllm`."""
    tasks = [asyncio.ensure_future(start), asyncio.ensure_future(watch_vllm(host))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        done.pop().result()
    finally:
        for task in tasks:
            task.cancel()


def engines_of(settings: Settings, base: Catalogue) -> GroupEngines:
    """Return one executor group's engines, none of which is loaded yet.

    Args:
        settings: The deployment's settings.
        base: The catalogue file, whose endpoints use the shared key.
    """
    return GroupEngines(hosting_options(settings, base), _recording(settings))


async def verifier_of(settings: Settings, entry: VerifierModel, base: Catalogue) -> Verifier:
    """Load and return a verifier, or return the recorded verifier if there is a recording."""
    if (recording := _recording(settings)) is not None:
        return RecordedVerifier(recording)
    return await start_verifier(entry, hosting_options(settings, base))


def _recording(settings: Settings) -> Recording | None:
    recorded = settings.engine.recorded
    return Recording.load(Path(recorded)) if recorded else None


def hosting_options(settings: Settings, base: Catalogue) -> HostingOptions:
    """Return the options for loading and calling models, from the settings; for `base`, see `engines_of`."""
    return HostingOptions(
        device=settings.engine.device,
        threads=settings.engine.threads or None,
        offline=settings.engine.offline,
        keys=keys_of(settings, base),
        retries=Retries(attempts=settings.engine.attempts),
        instruction=settings.engine.instruction,
        verifier_system=settings.engine.verifier_system,
        probes=ProbeRules(
            question=settings.executor.probe_question,
            timeout_s=settings.executor.probe_timeout_s,
            per_minute=settings.executor.probes_per_minute,
        ),
    )


def keys_of(settings: Settings, base: Catalogue) -> Keys:
    """Return the endpoints' API keys; only endpoints in the catalogue file get the shared key."""
    endpoints = [each.endpoint for each in base.models] + [each.endpoint for each in base.verifiers]
    urls = [url for endpoint in endpoints for url in endpoint.servers if not endpoint.key_env]
    named = [
        (endpoint.key_env, url, os.environ.get(endpoint.key_env, ""))
        for endpoint in endpoints
        for url in endpoint.servers
        if endpoint.key_env
    ]
    return Keys.read(settings.engine.keys, settings.engine.key, urls, named)
