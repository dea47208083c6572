"""What a script starts with `&` can be interrupted: its shell leaves SIGINT ignored."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from streams.local.broker import free_port, listening
from streams.local.deployment import stopped_by_signals
from streams.settings import Settings

ROOT = Path(__file__).parents[2]


def in_background(folder: Path, *words: str) -> tuple[int, Path]:
    """Start a command as `command &` of a shell without a terminal; return its process id and its output."""
    said, pid = folder / "said", folder / "pid"
    command = " ".join([sys.executable, "-m", "streams", *words])
    script = f"{command} > {said} 2>&1 & echo $! > {pid}; sleep 0.2"
    subprocess.run(["/bin/sh", "-c", script], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    return int(pid.read_text()), said


def wait_for(said: Path, words: str, timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while words not in said.read_text():
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)


def wait_gone(pid: int, timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} goes on"
        time.sleep(0.1)


def up(folder: Path, port: int) -> tuple[str, ...]:
    """Return the words that start everything on the embedded broker."""
    files = ("--log", str(folder / "up.log"), "--data", str(folder / "data"))
    return ("up", "--broker", "embedded", "--port", str(port), *files)


def all_started(pid: int, said: Path) -> list[psutil.Process]:
    """Wait until `up` has started a broker and five services, and return them."""
    wait_for(said, "topics: created")
    deadline = time.monotonic() + 240
    while len(started := psutil.Process(pid).children()) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return started


@pytest.mark.broker
@pytest.mark.embedded
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_broker_in_the_background_of_a_script_stops(tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    words = ("broker", "--kind", "embedded", "--port", str(port), "--data", str(tmp_path / "data"))
    pid, said = in_background(tmp_path, *words)
    wait_for(said, "Ctrl-C stops it")
    os.kill(pid, number)
    wait_gone(pid)
    assert not listening(port)
    assert "Traceback" not in said.read_text()


@pytest.mark.broker
@pytest.mark.embedded
def test_up_in_the_background_of_a_script_stops_with_everything_it_started(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "mine.yaml"
    config.write_text("prefix: mine.\nseed: 7\n")
    pid, said = in_background(tmp_path, "--config", str(config), "--prefix", "trial.", *up(tmp_path, port))
    started = all_started(pid, said)
    for worker in (child for child in started if "worker" in child.cmdline()):
        given = Settings.from_env(worker.environ())
        assert (given.kafka.prefix, given.policy.seed, given.config) == ("trial.", 7, str(config))
    os.kill(pid, signal.SIGINT)
    wait_gone(pid)
    assert not listening(port)
    for child in started:
        wait_gone(child.pid)
    assert said.read_text().splitlines()[-1] == "stopped"


@pytest.mark.broker
@pytest.mark.embedded
def test_up_ends_and_says_why_when_a_broker_that_keeps_its_log_in_memory_ends(tmp_path: Path) -> None:
    pid, said = in_background(tmp_path, *up(tmp_path, free_port()))
    (broker,) = [each for each in all_started(pid, said) if "streams" not in each.cmdline()]
    assert "its log is in memory" in said.read_text()
    broker.kill()
    wait_gone(pid)
    assert "error: the broker ended by itself" in said.read_text().splitlines()[-1]


def test_the_second_sigterm_does_not_interrupt_the_stopping() -> None:
    stopped: list[str] = []

    def work() -> None:
        with stopped_by_signals():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.1)
                stopped.append("all")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 0
    assert stopped == ["all"]
    assert signal.getsignal(signal.SIGTERM) is before
