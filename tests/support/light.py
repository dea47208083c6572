"""Every service's process with the packages of the image `services` alone: a program that refuses to import any other.

    python -m tests.support.light

It imports the command line and the runtime on Kafka, answers a question through all services in memory (MiniLM embeds
it, a recording stands in for the engines), and connects to models and a verifier that are servers, whose prompts it
renders itself.
"""

import asyncio
import importlib
import importlib.abc
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements" / "services.txt"
OURS = {"schemas", "agents", "streams", "tests"}
DEFAULT = metadata.DistributionFinder.Context()


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(file: Path) -> dict[str, str]:
    """Return the lines of a lock file, each package's with its hashes."""
    found: dict[str, str] = {}
    name = ""
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        if pin := re.match(r"([A-Za-z0-9._-]+)==", line):
            name = normal(pin[1])
        if name and not line.startswith("#"):
            found[name] = found.get(name, "") + line
    return found


class Only(importlib.abc.MetaPathFinder):
    """Finds what `PathFinder` does, but for packages that are installed here and not in the image."""

    def __init__(self, packages: set[str]) -> None:
        self._packages = packages
        self._absent = {
            module
            for module, owners in metadata.packages_distributions().items()
            if not packages & {normal(owner) for owner in owners}
        } - OURS

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is; None for one that the image has not."""
        if fullname.partition(".")[0] in self._absent:
            return None
        return PathFinder.find_spec(fullname, path, target)

    def find_distributions(self, context: Any = DEFAULT) -> Iterable[metadata.Distribution]:
        """Yield the packages of the image alone: libraries look for each other by these, too."""
        for each in metadata.MetadataPathFinder.find_distributions(context):
            if normal(each.name) in self._packages:
                yield each


def leave_out() -> None:
    """Let this process find the packages of the image, and no others."""
    sys.meta_path[sys.meta_path.index(PathFinder)] = Only(set(pinned(REQUIREMENTS)))


def main() -> None:
    """Run every part, and say which."""
    leave_out()
    for part in (every_command, the_runtime_on_kafka, a_question_in_memory, models_at_servers):
        part()
        print(part.__name__)
    loaded = {"torch", "vllm"} & sys.modules.keys()
    assert not loaded, loaded


def every_command() -> None:
    """Import all modules of the command line."""
    from click import Context

    from streams.cli import main as command_line

    for name in command_line.list_commands(Context(command_line)):
        assert command_line.get_command(Context(command_line), name) is not None


def the_runtime_on_kafka() -> None:
    """Import what a worker's process is made of, and all modules of the services and the gateway."""
    for folder in ("streams/runtime", "streams/services", "streams/gateway", "streams"):
        for file in sorted((ROOT / folder).glob("*.py")):
            if not file.stem.startswith("__"):
                importlib.import_module(f"{folder.replace('/', '.')}.{file.stem}")


def a_question_in_memory() -> None:
    """Answer and reward a question through every service, with the encoder, the grader and the policy that ship."""
    from schemas.query import Query
    from schemas.reward import Reward
    from streams.runtime import memory
    from tests.support.cluster import WITH_GATEWAY, read, running, send
    from tests.support.recorded import question, recorded_in_memory, recorded_paths

    async def lived(folder: Path) -> None:
        paths = recorded_paths(1, samples=3, steps=(1, 3))
        settings = recorded_in_memory(folder, paths, encoder="minilm", encoder_dimension=0)
        text, answer = question(0)
        async with running(settings, WITH_GATEWAY) as cluster:
            send(cluster, Query(query_id="q", text=text, reference=answer))
            await cluster.until(lambda: bool(cluster.broker.records(cluster.topics.reward)))
            [reward] = read(cluster, cluster.topics.reward, Reward)
        assert reward.correct is not None

    with tempfile.TemporaryDirectory() as folder:
        memory.run(lived(Path(folder)))


def models_at_servers() -> None:
    """Build the executor's engines and the verifier of a catalogue of servers; none is asked anything."""
    from msgspec.structs import replace

    from agents.catalogue.endpoints import Endpoint
    from agents.catalogue.file import load_catalogue
    from streams.services.hosting import engines_of, verifier_of
    from streams.settings import Settings

    async def connect() -> Any:
        mini = load_catalogue(ROOT / "infra" / "catalogue" / "mini-six.yaml")
        away = Endpoint(kind="http", url="http://127.0.0.1:9")
        models = tuple(replace(model, endpoint=away) for model in mini.models)
        engines = engines_of(Settings(), mini)
        engines.want(models)
        await engines.settled()
        assert [health.why for health in engines.health() if health.state == "failed"] == []
        verifier = await verifier_of(Settings(), replace(mini.verifier_named(), endpoint=away), mini)
        await verifier.close()
        await engines.close()

    asyncio.run(connect())


if __name__ == "__main__":
    main()
