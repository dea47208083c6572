"""LiteLLM's proxy with mock answers, for comparison with the gateway.

It is installed from `requirements/peers.txt`, by hash, into a separate environment, because its requirements conflict
with the product's.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.streams import BenchFailed
from streams.local.broker import free_port

MODEL: Final = "mock"
PINS: Final = Path("requirements/peers.txt")

_START_S: Final = 240.0
_CONFIG: Final = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_key: none, mock_response: "{answer}"}}
litellm_settings: {{telemetry: false}}
"""
# As long as the recorded answer on the gateway's side.
_ANSWER: Final = "Step 1 of the answer: " + "so there are more of them. " * 3


class PeerMissing(BenchFailed):
    """LiteLLM cannot be installed here; the message ends with pip's output."""


def install(folder: Path) -> Path:
    """Return the Python of LiteLLM's environment, created or updated when PINS has changed.

    Raises:
        PeerMissing: pip cannot install the pinned packages.
    """
    python, stamp = folder / "bin" / "python", folder / ".installed"
    digest = hashlib.sha256(PINS.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    words = [
        "install",
        "-qq",
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
        "--only-binary=:all:",
    ]
    _run([str(python), "-m", "pip", *words, "--require-hashes", "-r", str(PINS)])
    stamp.write_text(digest)
    return python


def version(python: Path) -> str:
    """Return the version of LiteLLM in its environment."""
    words = "from importlib.metadata import version; print(version('litellm'))"
    return _run([str(python), "-c", words]).strip()


@contextlib.contextmanager
def running(python: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """Run the proxy; yield the base URL of its endpoint and the process group.

    Args:
        python: Python of its environment.
        folder: Folder for its configuration and log.

    Raises:
        BenchFailed: it did not start; the message ends with its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, log, port = folder / "litellm.yaml", folder / "litellm.log", free_port()
    config.write_text(_CONFIG.format(model=MODEL, answer=_ANSWER))
    argv = [
        str(python.parent / "litellm"),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    environ = {
        **os.environ,
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        # Neither side requires keys, and both listen on this machine only.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it is fetched from the internet
        "PATH": f"{python.parent.absolute()}:{os.environ.get('PATH', '')}",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}/health/liveliness", log)
        yield f"http://127.0.0.1:{port}/v1", process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchFailed(f"LiteLLM's proxy did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.3)


def _run(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerMissing(f"{' '.join(argv[:4])} …: {(done.stderr or done.stdout)[-600:].strip()}")
    return done.stdout
