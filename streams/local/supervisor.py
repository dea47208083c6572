"""Run the rooms as processes of this machine: one readable log, restarts with growing pauses.

A room that dies takes nothing with it: its offsets did not move past what failed, and the process that
replaces it goes on from there. `crashes.py` keeps count of failures at one record.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

READY = "uniscale: ready"

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
# A process that lived this long has recovered: its next pause is short again.
_STEADY_S = 60.0


class RoomFailed(RuntimeError):
    """A room did not become ready; the message holds the end of its log."""


class Room:
    """One supervised process."""

    def __init__(self, name: str, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.name = name
        self.argv = list(argv)
        self.environ = dict(environ)
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = threading.Event()
        self.restarts = 0
        self.started_at = 0.0
        self.pause_s = _FIRST_PAUSE_S
        self.last_lines: list[str] = []
        # Set while the room is meant to be down: the supervisor leaves it alone.
        self.parked = False

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process.pid


class Supervisor:
    """Start rooms, restart those that end, write their lines to one log. A context manager."""

    def __init__(
        self,
        rooms: Mapping[str, Sequence[str]],
        *,
        environ: Mapping[str, str],
        log_path: Path,
        echo: Callable[[str], None] | None = None,
    ) -> None:
        own = {**environ, "PYTHONUNBUFFERED": "1", "STREAMS_PARENT_PID": str(os.getpid())}
        self.rooms = {name: Room(name, argv, own) for name, argv in rooms.items()}
        self.log_path = log_path
        self.echo = echo
        self._log: IO[str] | None = None
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> Self:
        """Start every room; does not wait until they are ready."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = self.log_path.open("a", encoding="utf-8")
        for room in self.rooms.values():
            self._spawn(room)
        self._watcher.start()
        return self

    def wait_ready(self, timeout_s: float = 300.0, tick: Callable[[list[str]], None] | None = None) -> None:
        """Wait until every room has said it is ready; `tick` gets the names still awaited.

        Raises:
            RoomFailed: one is not ready in time, or ended five times meanwhile.
        """
        before = {room.name: room.restarts for room in self.rooms.values()}
        deadline = time.monotonic() + timeout_s
        while True:
            waiting = [r for r in self.rooms.values() if not r.ready.is_set()]
            if tick:
                tick([r.name for r in waiting])
            if not waiting:
                return
            for room in waiting:
                if (ended := room.restarts - before[room.name]) >= 5:
                    raise RoomFailed(f"{room.name} ended {ended} times while starting:\n" + _tail(room))
            if time.monotonic() > deadline:
                names = ", ".join(r.name for r in waiting)
                raise RoomFailed(
                    f"not ready after {timeout_s:.0f} s: {names}\n" + "\n".join(_tail(r) for r in waiting)
                )
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """Kill a room as a crash would; it is restarted like any other that ends."""
        room = self.rooms[name]
        room.ready.clear()
        os.killpg(room.pid, signal.SIGKILL)

    def park(self, name: str) -> None:
        """Kill a room and leave it dead until `unpark`."""
        self.rooms[name].parked = True
        self.kill(name)

    def unpark(self, name: str) -> None:
        """Start a parked room again."""
        room = self.rooms[name]
        room.parked = False
        self._spawn(room)

    def stop(self, grace_s: float = 20.0) -> None:
        """Ask every room to stop, kill what has not after `grace_s`, close the log."""
        with self._starting:
            self._stopping.set()  # nothing is started from here on
        if self._watcher.is_alive():
            self._watcher.join()
        running = [(r, p) for r in self.rooms.values() if (p := r.process) and p.poll() is None]
        for _, process in running:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for room, process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._write("supervisor", f"{room.name} did not stop in {grace_s:.0f} s: killed")
                _signal(process, signal.SIGKILL)
                process.wait()
        for _, process in running:
            _signal(process, signal.SIGKILL)  # whatever its group left behind
        if self._log:
            with self._lock:
                self._log.close()
                self._log = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    def _spawn(self, room: Room) -> None:
        with self._starting:
            if self._stopping.is_set() or room.parked:
                return
            room.ready.clear()
            room.started_at = time.monotonic()
            room.process = subprocess.Popen(
                room.argv, env=room.environ, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._read, args=(room, room.process), daemon=True).start()

    def _read(self, room: Room, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if not line:
                continue
            if READY in line and room.process is process:
                room.ready.set()
            room.last_lines = [*room.last_lines[-29:], line]
            self._write(room.name, line)
        process.stdout.close()

    def _write(self, name: str, line: str) -> None:
        text = f"{time.strftime('%H:%M:%S')} {name:<18} | {line}"
        with self._lock:
            if self._log:
                self._log.write(text + "\n")
                self._log.flush()
        if self.echo:
            self.echo(text)

    def _watch(self) -> None:
        while not self._stopping.wait(0.1):
            for room in self.rooms.values():
                process = room.process
                if process is None or process.poll() is None or room.parked:
                    continue
                lived = time.monotonic() - room.started_at
                room.pause_s = (
                    _FIRST_PAUSE_S if lived > _STEADY_S else min(_LONGEST_PAUSE_S, room.pause_s * 2)
                )
                room.ready.clear()
                room.restarts += 1
                self._write(
                    "supervisor",
                    f"{room.name} ended with code {process.returncode} after {lived:.1f} s; "
                    f"again in {room.pause_s:.1f} s",
                )
                threading.Thread(target=self._respawn, args=(room, room.pause_s), daemon=True).start()
                room.process = None

    def _respawn(self, room: Room, pause_s: float) -> None:
        if not self._stopping.wait(pause_s):
            self._spawn(room)


def python() -> list[str]:
    """Return the start of a command that runs this package."""
    return [sys.executable, "-m", "streams"]


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _tail(room: Room) -> str:
    return f"--- {room.name}\n" + "\n".join(room.last_lines[-12:])
