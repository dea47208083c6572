"""The recovery benchmark kills the services it is told to, and reports each recovery from its own kill on."""

import os
import sys
import time
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from bench.commands import kills as command
from bench.kills import Kill, figures, killed
from bench.streams import BenchFailed
from streams.local.deployment import READY, ServiceFailed, Supervisor
from streams.settings import Settings

READY_THEN_SLEEP = [
    sys.executable,
    "-c",
    f"import time; print({READY!r}, flush=True); time.sleep(60)",
]


def test_each_service_is_killed_once_and_timed_from_its_kill(tmp_path: Path) -> None:
    commands = {"a": READY_THEN_SLEEP, "b": READY_THEN_SLEEP}
    said: list[str] = []
    with Supervisor(commands, environ=os.environ, log_path=tmp_path / "log") as supervisor:
        supervisor.wait_ready(30)
        first = {name: service.pid for name, service in supervisor.services.items()}
        kills = list(killed(supervisor, ["b", "a"], lambda: time.sleep(0.2), said.append, lived_s=0.3))
        assert {name: service.restarts for name, service in supervisor.services.items()} == {"a": 1, "b": 1}
        assert all(service.pid != first[name] for name, service in supervisor.services.items())
    assert [kill.service for kill in kills] == ["b", "a"]
    for kill in kills:
        assert (
            0.2 <= kill.seconds < kill.ready_s
        )  # it is what was waited for; the process came back after that
        assert kill.lived_s >= 0.3
    assert [line.split(":")[0] for line in said] == ["b", "a"]


def test_a_service_that_does_not_come_back_is_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.kills._PATIENCE_S", 1.0)
    once = f"import os, sys; sys.exit(1) if os.path.exists('{tmp_path}/was') else open('{tmp_path}/was', 'w')"
    command = [sys.executable, "-c", f"{once}; import time; print({READY!r}, flush=True); time.sleep(60)"]
    with Supervisor({"a": command}, environ=os.environ, log_path=tmp_path / "log") as supervisor:
        supervisor.wait_ready(30)
        with pytest.raises(ServiceFailed, match="not ready after 1 s: a"):
            list(killed(supervisor, ["a"], lambda: None, lambda line: None, lived_s=0.0))


def test_figures_are_of_each_service_and_of_all_kills() -> None:
    def kill(service: str, seconds: float) -> Kill:
        return Kill(service=service, ready_s=seconds - 1, seconds=seconds, cpu_s=2.0, lived_s=62.0 + seconds)

    found = figures([kill("a", 3.0), kill("b", 9.0), kill("a", 5.0), kill("b", 4.0), kill("a", 4.5)])
    assert (found["kills"], found["p50_s"], found["worst_s"], found["least_lived_s"]) == (5, 4.5, 9.0, 65.0)
    assert found["services"]["a"] == {
        "p50_s": 4.5, "worst_s": 5.0, "ready_s": 3.5, "cpu_s": 2.0, "seconds": [3.0, 5.0, 4.5],
    }  # fmt: skip
    assert found["services"]["b"]["p50_s"] == 6.5


def test_unknown_service_is_refused_before_anything_starts() -> None:
    given = CliRunner().invoke(
        command, ["--service", "dicider", "--broker", "none"], obj=Settings(), catch_exceptions=True
    )
    assert isinstance(given.exception, BenchFailed)
    assert "no service dicider; there are aggregator" in str(given.exception)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_aggregator_comes_back_on_a_real_broker() -> None:
    given = CliRunner().invoke(command, ["--rounds", "1", "--service", "aggregator"], obj=Settings())
    assert given.exit_code == 0, given.output
    found = orjson.loads(given.stdout.splitlines()[-1])
    assert found["kills"] == 1
    assert found["least_lived_s"] >= 62
    recovered = found["services"]["aggregator"]
    assert 0 < recovered["ready_s"] < 300
    assert 0 < recovered["cpu_s"] < recovered["ready_s"] + recovered["worst_s"]
