"""Run the rooms as processes on this machine: one readable log, restarts with growing pauses.

A room that dies loses nothing: its offsets have not moved past what failed, and its successor continues there.
`streams/runtime` counts the failures at one record.
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
from typing import Self

from schemas.errors import UniscaleError
from streams.local.logfile import LOG_BYTES, LogFile

READY = "uniscale: ready"

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""A process that has run for this long has recovered: its successor starts at once, the pause after that is short."""


class RoomFailed(UniscaleError):
    """A room did not become ready; the message ends with the last lines of its log."""


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
        # When it is to be started again, in monotonic seconds; None while it runs.
        self.due_at: float | None = None
        # Set while the room is meant to be down: it is not restarted.
        self.parked = False

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        if self.process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self.process.pid

    def later(self, lived_s: float) -> float:
        """Put the next start off, twice as long after each short life; return for how many seconds."""
        if lived_s > STEADY_S:
            self.pause_s, wait_s = _FIRST_PAUSE_S, 0.0
        else:
            self.pause_s = wait_s = min(_LONGEST_PAUSE_S, self.pause_s * 2)
        self.due_at = time.monotonic() + wait_s
        return wait_s


class Supervisor:
    """Context manager that starts rooms, restarts those that end, and writes their output to one log.

    Nothing stops it from restarting: neither a spawn that fails (no memory, a missing file) nor a full disk.

    Args:
        rooms: The command of each room, by name.
        environ: Environment of the processes.
        log_path: The log file, rotated at `log_bytes`.
        echo: Also called with each line of the log.
        log_bytes: Size at which the log is rotated.
    """

    def __init__(
        self,
        rooms: Mapping[str, Sequence[str]],
        *,
        environ: Mapping[str, str],
        log_path: Path,
        echo: Callable[[str], None] | None = None,
        log_bytes: int = LOG_BYTES,
    ) -> None:
        own = {**environ, "PYTHONUNBUFFERED": "1", "STREAMS_PARENT_PID": str(os.getpid())}
        self.rooms = {name: Room(name, argv, own) for name, argv in rooms.items()}
        self.log_path = log_path
        self.echo = echo
        self.log_bytes = log_bytes
        self._log: LogFile | None = None
        self._starting = threading.Lock()
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> Self:
        """Start every room, without waiting until they are ready.

        Raises:
            OSError: the log cannot be opened, or a command cannot be run; nothing is left running.
        """
        self._log = LogFile(self.log_path, most_bytes=self.log_bytes, echo=self.echo)
        try:
            for room in self.rooms.values():
                self._spawn(room)
            self._watcher.start()
        except BaseException:  # KeyboardInterrupt too: `__exit__` is not called when `__enter__` fails
            self.stop()
            raise
        return self

    def wait_ready(self, timeout_s: float = 300.0, tick: Callable[[list[str]], None] | None = None) -> None:
        """Wait until every room has reported that it is ready.

        Args:
            timeout_s: How long to wait.
            tick: Called five times a second with the names of the rooms that are not ready.

        Raises:
            RoomFailed: a room is not ready in time, or has exited five times.
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
                    raise RoomFailed(f"{room.name} exited {ended} times while starting:\n" + _tail(room))
            if time.monotonic() > deadline:
                names = ", ".join(r.name for r in waiting)
                raise RoomFailed(
                    f"not ready after {timeout_s:.0f} s: {names}\n" + "\n".join(_tail(r) for r in waiting)
                )
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """Kill a room as a crash would; it is restarted like any other that exits."""
        room = self.rooms[name]
        room.ready.clear()
        os.killpg(room.pid, signal.SIGKILL)

    def park(self, name: str) -> None:
        """Kill a room and keep it down until `unpark`."""
        self.rooms[name].parked = True
        self.kill(name)

    def unpark(self, name: str) -> None:
        """Start a parked room again."""
        room = self.rooms[name]
        room.parked = False
        self._spawn(room)

    def stop(self, grace_s: float = 20.0) -> None:
        """Ask every room to stop, kill those that have not after `grace_s`, and close the log."""
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
                self._write("supervisor", f"{room.name} did not stop within {grace_s:.0f} s: killed")
                _signal(process, signal.SIGKILL)
                process.wait()
        for _, process in running:
            _signal(process, signal.SIGKILL)  # whatever its group left behind
        if self._log:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _spawn(self, room: Room) -> None:
        with self._starting:
            if self._stopping.is_set() or room.parked:
                return
            room.ready.clear()
            room.started_at = time.monotonic()
            process = subprocess.Popen(
                room.argv, env=room.environ, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            room.process, room.due_at = process, None
            try:
                threading.Thread(target=self._read, args=(room, process), daemon=True).start()
            except RuntimeError:
                _signal(process, signal.SIGKILL)
                process.wait()
                room.process = None
                raise

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
        if (log := self._log) is not None:
            log.line(name, line)

    def _watch(self) -> None:
        """Restart what exits, from one thread: where no process can be started, no thread may be either."""
        while not self._stopping.wait(0.1):
            for room in self.rooms.values():
                if room.parked:
                    continue
                process = room.process
                if process is None:
                    if room.due_at is not None and time.monotonic() >= room.due_at:
                        self._respawn(room)
                elif process.poll() is not None:
                    lived_s = time.monotonic() - room.started_at
                    room.ready.clear()
                    room.restarts += 1
                    room.process = None
                    pause_s = room.later(lived_s)
                    self._write(
                        "supervisor",
                        f"{room.name} exited with code {process.returncode} after {lived_s:.1f} s; "
                        f"restarting in {pause_s:.1f} s",
                    )

    def _respawn(self, room: Room) -> None:
        try:
            self._spawn(room)
        except (
            OSError,
            RuntimeError,
        ) as error:  # no memory, no process, no thread, or the command is missing
            pause_s = room.later(0.0)
            self._write(
                "supervisor", f"{room.name} cannot be started ({error}); trying again in {pause_s:.1f} s"
            )


def python() -> list[str]:
    """Return the start of a command that runs this package."""
    return [sys.executable, "-m", "streams"]


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _tail(room: Room) -> str:
    return f"--- {room.name}\n" + "\n".join(room.last_lines[-12:])
