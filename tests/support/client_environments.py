"""Clients of others' making, each in an environment of its own, made by `python -m tests.support.client_environments`.

An environment of its own, because their requirements conflict with ours, and because a package of theirs may have the
name of one of ours, as `agents` has.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from bench import peers

ROOT: Final = Path(__file__).parents[2]
PINS: Final[dict[str, str]] = {
    "langchain": "langchain.txt",
    "litellm": "peers.txt",
    "openai-agents": "openai-agents.txt",
    "pydantic-ai": "pydantic-ai.txt",
}
"""The requirements of each client."""


def place(name: str) -> tuple[Path, Path]:
    """Return the folder of a client's environment, and its requirements."""
    return ROOT / "out" / "bench" / name, ROOT / "requirements" / PINS[name]


def require(name: str) -> None:
    """Skip the test where a client is not installed."""
    if not peers.installed(*place(name)):
        pytest.skip(f"{name} is not installed: run `make test-clients`")


def run_client(name: str, program: Path, *words: str, environ: Mapping[str, str]) -> Any:
    """Run a program with a client and return what it prints as JSON.

    Args:
        name: The client; the test skips where it is not installed.
        program: The program.
        words: Its arguments.
        environ: All of its environment: it has neither our modules nor our settings.
    """
    return json.loads(run_program(name, program, *words, environ=environ))


def run_program(name: str, program: Path, *words: str, environ: Mapping[str, str]) -> str:
    """Run a program with a client and return what it prints; arguments as for `run_client`."""
    require(name)
    argv = [f"{place(name)[0] / 'bin' / 'python'}", f"{program}", *words]
    done = subprocess.run(
        argv,
        env={"PATH": os.environ["PATH"], **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


if __name__ == "__main__":
    for each in PINS:
        print(f"{each}: {peers.install(*place(each))}")
