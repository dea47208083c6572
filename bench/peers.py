"""Other projects' servers, run as processes on this machine for comparison.

Each server is installed, with pinned hashes, into its own environment, because its requirements conflict with ours.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.streams import BenchFailed

_START_S: Final = 240.0


class PeerMissing(BenchFailed):
    """A peer cannot be installed on this machine. The message ends with pip's output."""


def installed(folder: Path, pins: Path) -> bool:
    """Return whether a peer's environment has its pinned packages."""
    stamp = folder / ".installed"
    return stamp.is_file() and stamp.read_text() == _digest(pins)


def install(folder: Path, pins: Path) -> Path:
    """Return the Python in a peer's environment, first creating it or updating it to changed pins.

    Raises:
        PeerMissing: pip cannot install the pinned packages.
    """
    python = folder / "bin" / "python"
    if installed(folder, pins):
        return python
    run([sys.executable, "-m", "venv", "--clear", str(folder)])
    words = ["--no-deps", "--only-binary=:all:", "-qq", "--disable-pip-version-check", "--no-input"]
    run([str(python), "-m", "pip", "install", "--require-hashes", *words, "-r", str(pins)])
    (folder / ".installed").write_text(_digest(pins))
    return python


def _digest(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes()).hexdigest()


@contextlib.contextmanager
def serving(
    argv: Sequence[str], ready: str, log: Path, environ: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server in a process group of its own. The block starts when the server is ready.

    Args:
        argv: The server's command.
        ready: An address that answers with 200 once the server is ready.
        log: The file for the server's output.
        environ: Environment variables in addition to this process's own.

    Raises:
        BenchFailed: the server did not start; the message ends with its log.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process, ready, log)
        yield process
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
            said = log.read_text(errors="replace")[-2000:]
            raise BenchFailed(f"{log.stem} did not start:\n{said}")
        time.sleep(0.3)


def run(argv: list[str]) -> str:
    """Run a command and return its output.

    Raises:
        PeerMissing: the command failed.
    """
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerMissing(f"{' '.join(argv[:4])} …: {(done.stderr or done.stdout)[-600:].strip()}")
    return done.stdout
