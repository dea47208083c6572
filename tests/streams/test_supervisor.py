"""Supervised processes come back, stop when asked, and their lines land in one log."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from streams.local.supervisor import READY, RoomFailed, Supervisor

READY_THEN_SLEEP = f"import time; print({READY!r}, flush=True); time.sleep(60)"


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def test_a_killed_room_comes_back_and_a_stopped_supervisor_leaves_none(tmp_path: Path) -> None:
    log = tmp_path / "rooms.log"
    with Supervisor({"a": command(READY_THEN_SLEEP)}, environ=os.environ, log_path=log) as supervisor:
        supervisor.wait_ready(30)
        first = supervisor.rooms["a"].pid
        supervisor.kill("a")
        until(lambda: supervisor.rooms["a"].ready.is_set())
        second = supervisor.rooms["a"].pid
        assert second != first
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
    text = log.read_text()
    assert "a ended with code -9" in text
    assert text.count(READY) == 2


def test_a_parked_room_stays_dead_until_it_is_unparked(tmp_path: Path) -> None:
    with Supervisor(
        {"a": command(READY_THEN_SLEEP)}, environ=os.environ, log_path=tmp_path / "l"
    ) as supervisor:
        supervisor.wait_ready(30)
        process = supervisor.rooms["a"].process
        assert process is not None
        supervisor.park("a")
        process.wait(10)
        time.sleep(0.5)
        assert supervisor.rooms["a"].process is process
        supervisor.unpark("a")
        supervisor.wait_ready(30)
        assert supervisor.rooms["a"].process is not process


def test_a_room_that_cannot_start_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    rooms = {"a": command("print('no such model'); raise SystemExit(3)")}
    with Supervisor(rooms, environ=os.environ, log_path=tmp_path / "l") as supervisor:
        supervisor.rooms["a"].restarts = 4
        with pytest.raises(RoomFailed, match="no such model"):
            supervisor.wait_ready(30)
