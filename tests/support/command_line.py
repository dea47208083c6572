"""The commands of `python -m streams` as an operator types them."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from streams.settings import Settings


def _hear_ctrl_c() -> None:
    """Undo what a shell does to what it starts in the background: a process that ignores SIGINT hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def streams(
    *words: str, env: Mapping[str, str], cwd: Path | None = None, timeout_s: float = 240.0
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "streams", *words], cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


class Operator:
    """A folder, the environment of a deployment, and a command line in it."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        root = Path(__file__).parents[2]
        self.environ = {"PYTHONPATH": str(root), **os.environ, **settings.environ(), "COLUMNS": "120"}

    def start(self, *words: str, **environ: str) -> "subprocess.Popen[str]":
        """Start a command; its stdout and stderr are one stream."""
        return subprocess.Popen(
            [sys.executable, "-m", "streams", *words], cwd=self.folder, env={**self.environ, **environ},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=_hear_ctrl_c,
        )  # fmt: skip

    def run(self, *words: str, code: int = 0, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end and compare its exit code."""
        done = streams(*words, env={**self.environ, **environ}, cwd=self.folder)
        assert done.returncode == code, (words, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        assert "Traceback" not in done.stderr
        return done


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    """Return what a process prints up to the line that holds some words."""
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"ended with {process.wait()} before {words!r}: {said[-3000:]}")
