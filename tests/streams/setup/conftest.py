"""Scripted upstreams, which stand in for hosted models, and the commands in a folder of their own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from streams.cli import main
from streams.log import kafka_clients
from tests.support.upstream import Upstream


@pytest.fixture
def upstream() -> Iterator[Callable[..., Upstream]]:
    """Start scripted upstreams."""
    made: list[Upstream] = []

    def start(**how: Any) -> Upstream:
        made.append(Upstream(**how))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in an empty folder, without a broker, with a small encoder and the variables given."""
    monkeypatch.setattr(kafka_clients, "_BOOTSTRAP_MS", 200)
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("UNISCALE_") or each.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    usual = {"UNISCALE_ENCODER": "hashed", "UNISCALE_BOOTSTRAP": "127.0.0.1:1", "COLUMNS": "400"}

    def running(*words: str, code: int = 0, **environ: str) -> Result:
        result = CliRunner().invoke(main, list(words), env={**usual, **environ})
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return running
