"""Supervised processes come back, stop when asked, and their lines land in one log."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from streams.local import deployment
from streams.local.deployment import READY, STEADY_S, LogFile, Service, ServiceFailed, Supervisor

READY_THEN_SLEEP = f"import time; print({READY!r}, flush=True); time.sleep(60)"


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def test_killed_service_restarts_and_stop_leaves_none(tmp_path: Path) -> None:
    log = tmp_path / "services.log"
    with Supervisor({"a": command(READY_THEN_SLEEP)}, environ=os.environ, log_path=log) as supervisor:
        supervisor.wait_ready(30)
        first = supervisor.services["a"].pid
        supervisor.kill("a")
        until(lambda: supervisor.services["a"].ready.is_set())
        second = supervisor.services["a"].pid
        assert second != first
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
    text = log.read_text()
    assert "a exited with code -9" in text
    assert text.count(READY) == 2


def test_a_start_that_takes_long_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "SAID_EVERY_S", 0.0)
    log, go = tmp_path / "services.log", tmp_path / "go"
    slow = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
    services = {"a": command(READY_THEN_SLEEP), "b": command(slow + READY_THEN_SLEEP)}
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("waiting for b ("):
            go.touch()

    with Supervisor(services, environ=os.environ, log_path=log) as supervisor:
        supervisor.wait_ready(30, say=say)
    assert said[-1].endswith(f" s so far); log in {log}")


def test_services_get_no_foreign_secrets(tmp_path: Path) -> None:
    told = "import os; print('names', *os.environ)"
    environ = {**os.environ, "UNISCALE_PREFIX": "p.", "HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s"}
    log = tmp_path / "services.log"
    with Supervisor({"a": command(f"{told}; {READY_THEN_SLEEP}")}, environ=environ, log_path=log) as running:
        running.wait_ready(30)
    names = log.read_text().split("names ")[1].split("\n")[0].split()
    assert {"PATH", "UNISCALE_PREFIX", "HF_TOKEN", "STREAMS_PARENT_PID"} <= set(names)
    assert "AWS_SECRET_ACCESS_KEY" not in names


def test_keys_of_a_catalogue_go_to_executors_alone(tmp_path: Path) -> None:
    told = (
        f"import os; print('keys', os.environ.get('MY_KEY'), 'OTHER_KEY' in os.environ); {READY_THEN_SLEEP}"
    )
    services = {"executor.default": command(told), "decider": command(told)}
    environ, log = {**os.environ, "MY_KEY": "k", "OTHER_KEY": "o"}, tmp_path / "services.log"
    with Supervisor(services, environ=environ, log_path=log, keys=["MY_KEY", "UNSET_KEY"]) as running:
        running.wait_ready(30)
    said = sorted(line.partition(" ")[2].split() for line in log.read_text().splitlines() if "keys" in line)
    assert [(words[0], *words[-2:]) for words in said] == [
        ("decider", "None", "False"),
        ("executor.default", "k", "False"),
    ]


def test_variables_of_opentelemetry_go_to_the_tracer_alone(tmp_path: Path) -> None:
    told = f"import os; print('headers', os.environ.get('OTEL_EXPORTER_OTLP_HEADERS')); {READY_THEN_SLEEP}"
    services = {"tracer": command(told), "decider": command(told)}
    environ, log = {**os.environ, "OTEL_EXPORTER_OTLP_HEADERS": "key=k"}, tmp_path / "services.log"
    with Supervisor(services, environ=environ, log_path=log) as running:
        running.wait_ready(30)
    said = sorted(
        line.partition(" ")[2].split() for line in log.read_text().splitlines() if "headers" in line
    )
    assert [(words[0], words[-1]) for words in said] == [("decider", "None"), ("tracer", "key=k")]


def test_restart_delay_grows_until_a_steady_life() -> None:
    service = Service("a", [], {})
    lived_s = [1.0, 1.0, STEADY_S + 1, 1.0, 1.0, STEADY_S + 1, STEADY_S + 1]
    assert [service.later(s) for s in lived_s] == [1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 0.0]
    assert [service.later(1.0) for _ in range(8)][-3:] == [30.0, 30.0, 30.0]


@pytest.mark.seconds
def test_failed_start_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    services = {"a": command("print('no such model'); raise SystemExit(3)")}
    with Supervisor(services, environ=os.environ, log_path=tmp_path / "l") as supervisor:
        supervisor.services["a"].pause_s = 0.01  # and twice as long after each of five ends
        with pytest.raises(ServiceFailed, match="no such model"):
            supervisor.wait_ready(30)


def test_a_service_comes_back_after_a_spawn_that_failed(tmp_path: Path) -> None:
    script, hidden, log = tmp_path / "service", tmp_path / "hidden", tmp_path / "services.log"
    script.write_text(f"#!{sys.executable}\n{READY_THEN_SLEEP}\n")
    script.chmod(0o755)
    with Supervisor({"a": [str(script)]}, environ=os.environ, log_path=log) as supervisor:
        supervisor.wait_ready(30)
        script.rename(hidden)
        supervisor.kill("a")
        until(lambda: "a cannot be started" in log.read_text())
        hidden.rename(script)
        supervisor.wait_ready(30)


needs_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs /dev/full, a file that takes nothing"
)


@needs_full
def test_a_full_disk_stops_neither_services_nor_restarts() -> None:
    full = Path("/dev/full")
    with Supervisor({"a": command(READY_THEN_SLEEP)}, environ=os.environ, log_path=full) as supervisor:
        supervisor.wait_ready(30)
        first = supervisor.services["a"].pid
        supervisor.kill("a")
        supervisor.wait_ready(30)
        assert supervisor.services["a"].pid != first


@needs_full
def test_lines_that_could_not_be_written_are_counted(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "services.log")
    log.line("a", "first")
    full = Path("/dev/full").open("a")  # noqa: SIM115 - closing it fails
    stream, log.stream = log.stream, full
    log.line("a", "lost")
    log.stream = stream
    with contextlib.suppress(OSError):
        full.close()
    log.line("a", "last")
    log.close()
    told = [line.partition(" | ")[2] for line in (tmp_path / "services.log").read_text().splitlines()]
    assert told == ["first", "1 line could not be written", "last"]


def test_a_terminal_that_is_not_of_utf_8_gets_each_line(tmp_path: Path) -> None:
    told: list[bytes] = []
    log = LogFile(tmp_path / "services.log", echo=lambda line: told.append(line.encode("ascii")))
    log.line("a", "λ of an objective")
    log.line("a", "last")
    log.close()
    assert [line.partition(b" | ")[2] for line in told] == [b"? of an objective", b"last"]
    assert "λ of an objective" in (tmp_path / "services.log").read_text(encoding="utf-8")


def test_the_log_is_rotated_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.local.deployment.LOG_BYTES", 50_000)
    chatty = (
        f"print({READY!r}, flush=True)\nfor n in range(4000): print('x' * 100)\nimport time; time.sleep(60)"
    )
    log = tmp_path / "services.log"
    with Supervisor({"a": command(chatty)}, environ=os.environ, log_path=log) as supervisor:
        supervisor.wait_ready(30)
        until(lambda: log.with_name("services.log.3").exists())
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [
        "services.log",
        "services.log.1",
        "services.log.2",
        "services.log.3",
    ]
    assert all(file.stat().st_size <= 50_000 for file in files)


def test_what_a_service_says_last_is_in_the_log(tmp_path: Path) -> None:
    last = (
        "import signal, sys\n"
        "def stop(*_):\n    print('last\\n' * 5000, end='', flush=True)\n    sys.exit()\n"
        f"signal.signal(signal.SIGTERM, stop)\nprint({READY!r}, flush=True)\nsignal.pause()"
    )
    log = tmp_path / "services.log"
    with Supervisor({"a": command(last)}, environ=os.environ, log_path=log) as supervisor:
        supervisor.wait_ready(30)
    assert sum(line.endswith("| last") for line in log.read_text().splitlines()) == 5000


def test_a_command_that_cannot_run_leaves_nothing_behind(tmp_path: Path) -> None:
    services = {"a": command(READY_THEN_SLEEP), "b": [str(tmp_path / "missing")]}
    supervisor = Supervisor(services, environ=os.environ, log_path=tmp_path / "l")
    with pytest.raises(FileNotFoundError, match="missing"):
        supervisor.start()
    with pytest.raises(ProcessLookupError):
        os.kill(supervisor.services["a"].pid, 0)
