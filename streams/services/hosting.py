"""Engines and verifiers of this process, from the catalogue and the settings."""

from pathlib import Path

from agents.catalogue.models import Catalogue, VerifierModel
from agents.serving.http import Keys, Retries
from agents.serving.recorded import Recording
from agents.serving.registry import GroupEngines, HostingOptions
from agents.verifier.prm import RecordedVerifier, Verifier, start_verifier
from streams.settings import Settings


def engines_of(settings: Settings, base: Catalogue) -> GroupEngines:
    """Return the engines of one executor group, none loaded yet.

    Args:
        settings: Of the deployment.
        base: The catalogue file, whose endpoints the shared key is for.
    """
    return GroupEngines(_options(settings, base), _recording(settings))


async def verifier_of(settings: Settings, entry: VerifierModel, base: Catalogue) -> Verifier:
    """Return the verifier in use, loaded."""
    if (recording := _recording(settings)) is not None:
        return RecordedVerifier(recording)
    return await start_verifier(entry, _options(settings, base))


def _recording(settings: Settings) -> Recording | None:
    recorded = settings.engine.recorded
    return Recording.load(Path(recorded), unknown="any") if recorded else None


def _options(settings: Settings, base: Catalogue) -> HostingOptions:
    return HostingOptions(
        device=settings.engine.device,
        threads=settings.engine.threads or None,
        offline=settings.engine.offline,
        keys=keys_of(settings, base),
        retries=Retries(attempts=settings.engine.attempts),
        instruction=settings.engine.instruction,
        verifier_system=settings.engine.verifier_system,
    )


def keys_of(settings: Settings, base: Catalogue) -> Keys:
    """Return the API keys of the endpoints; the shared one goes to those of the catalogue file alone."""
    endpoints = [each.endpoint for each in base.models] + [each.endpoint for each in base.verifiers]
    urls = [endpoint.url for endpoint in endpoints if endpoint.url]
    return Keys.read(settings.engine.keys, settings.engine.key, urls)
