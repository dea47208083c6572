"""Whatever ends a command that starts processes, Ctrl-C, a signal or `kill -9`, leaves none of them running."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from streams.local.broker import free_port, listening
from streams.local.deployment import Supervisor, stopped_by_signals
from streams.settings import Settings

ROOT = Path(__file__).parents[3]


def in_background(folder: Path, *words: str) -> tuple[int, Path]:
    """Start a command as `command &` of a shell without a terminal; return its process id and its output."""
    said, pid = folder / "said", folder / "pid"
    catalogue = "infra/catalogue/mini-six.yaml"  # whose services are only ours
    command = " ".join([sys.executable, "-m", "streams", "--catalogue", catalogue, *words])
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_broker_in_the_background_of_a_script_stops(tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    words = ("broker", "--kind", "embedded", "--port", str(port), "--data", str(tmp_path / "data"))
    pid, said = in_background(tmp_path, *words)
    wait_for(said, "Ctrl-C stops it")
    os.kill(pid, number)
    wait_gone(pid)
    deadline = time.monotonic() + 60
    while listening(port):  # after SIGKILL nobody has waited for it
        assert number == signal.SIGKILL
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "Traceback" not in said.read_text()


@pytest.mark.broker
@pytest.mark.embedded
def test_background_up_stops_everything_it_started(tmp_path: Path) -> None:
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
def test_up_ends_with_its_in_memory_broker_and_says_why(tmp_path: Path) -> None:
    pid, said = in_background(tmp_path, *up(tmp_path, free_port()))
    (broker,) = [each for each in all_started(pid, said) if "streams" not in each.cmdline()]
    assert "its log is in memory" in said.read_text()
    broker.kill()
    wait_gone(pid)
    assert "error: the broker ended by itself" in said.read_text().splitlines()[-1]


@pytest.fixture
def sighup(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the test inherit a SIGHUP that ends a process, or one that `nohup` has had ignored."""
    before = signal.signal(signal.SIGHUP, getattr(request, "param", signal.SIG_DFL))
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("sighup")
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_later_signals_do_not_interrupt_the_stopping(first: signal.Signals) -> None:
    stopped: list[str] = []

    def work() -> None:
        with stopped_by_signals():
            try:
                os.kill(os.getpid(), first)
                time.sleep(5)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(0.1)
                stopped.append("all")

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 0
    assert stopped == ["all"]
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.usefixtures("sighup")
@pytest.mark.parametrize("sighup", [signal.SIG_IGN], indirect=True)
def test_what_nohup_started_outlives_its_terminal() -> None:
    with stopped_by_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.1)


DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('uniscale: ready', flush=True)"
)


def test_ctrl_c_while_it_stops_kills_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    deaf = [sys.executable, "-c", f"{DEAF}; time.sleep(300)"]
    services = Supervisor({"a": deaf, "b": deaf}, environ=os.environ, log_path=tmp_path / "log").start()
    services.wait_ready()
    pids = [service.pid for service in services.services.values()]
    began_s = time.monotonic()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with stopped_by_signals(), pytest.raises(KeyboardInterrupt):
        services.stop(grace_s=200)
    assert time.monotonic() - began_s < 100
    for pid in pids:
        wait_gone(pid, 10)
