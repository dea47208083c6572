"""A whole deployment on this machine. Its broker, topics and services are started, supervised and stopped together."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import Literal, NoReturn, Self

from agents.catalogue.file import load_catalogue
from schemas.errors import UniscaleError
from streams.local.broker import LocalBroker, free_port
from streams.local.environment import SERVICE, TRACER, environment
from streams.local.llama import llama_commands
from streams.log import kafka_admin
from streams.services import SERVICES
from streams.settings import MAX_PORT, Settings, SettingsError
from streams.topics import Topics
from streams.words import counted

__all__ = ["Deployment"]

# Signal handling for the commands that start processes. Each signal unwinds the stack, so everything is stopped.


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Make Ctrl-C, SIGTERM and a closed terminal end the block through its context managers and `finally` clauses.

    A shell starts the background jobs of a script with SIGINT ignored, and Python then leaves it ignored, so `up &`
    could not be interrupted. The handler is therefore always set here. SIGINT raises KeyboardInterrupt. The first
    SIGTERM or SIGHUP raises SystemExit(0); later ones are ignored while everything is being stopped. SIGHUP stays
    ignored if it was inherited as ignored, because a process started with `nohup` should outlive the terminal.
    """
    handlers: dict[signal.Signals, Callable[[int, FrameType | None], object]] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: _terminate,
    }
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = _terminate
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise SystemExit(0)


# The common log of several processes: one file, rotated by size, that never blocks its writers or makes them fail.

LOG_BYTES = 50 * 1024 * 1024
"""Size at which a log file is rotated."""

LOG_FILES = 3
"""Number of rotated files to keep besides the current file; LOG.1 is the newest of them."""


class LogFile(RotatingFileHandler):
    """Collects the lines of several writers in one file, and optionally shows them on the terminal.

    A line that cannot be written (for instance to a full disk) is dropped and counted. The processes continue, and the
    next line that can be written says how many were lost.

    Args:
        path: The file; its folder is created if missing.
        echo: Also called with each line.
    """

    def __init__(self, path: Path, echo: Callable[[str], None] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8")
        self.echo = echo
        self.lost = 0
        self._failed = False
        self._writing = threading.Lock()

    def line(self, name: str, text: str) -> None:
        """Write one line of a process's output."""
        told = f"{time.strftime('%H:%M:%S')} {name:<18} | {text}"
        with self._writing:
            if self.lost and self._write(
                f"{time.strftime('%H:%M:%S')} {'supervisor':<18} | {counted(self.lost, 'line')} could not be written"
            ):
                self.lost = 0
            if not self._write(told):
                self.lost += 1
        if self.echo is not None:
            try:
                try:
                    self.echo(told)
                except UnicodeEncodeError:  # a non-UTF-8 terminal
                    self.echo(told.encode("ascii", "replace").decode())
            except (OSError, ValueError):
                self.echo = None  # the terminal is gone; the file remains

    def handleError(self, record: logging.LogRecord) -> None:
        """Count the failure instead of printing a traceback for each line."""
        self._failed = True

    def close(self) -> None:
        """Close the file. Lines that do not fit on a full disk are lost."""
        with contextlib.suppress(OSError):
            super().close()

    def _write(self, text: str) -> bool:
        self._failed = False
        self.emit(logging.LogRecord("services", logging.INFO, "", 0, text, None, None))
        return not self._failed


# The services' commands, and the settings for a local broker.


def settings_for(settings: Settings, broker: LocalBroker) -> Settings:
    """Return the settings for a broker that was started on this machine."""
    fields: dict[str, object] = {"bootstrap": broker.bootstrap}
    if broker.kind == "embedded":
        # The first join of a group takes half the rebalance timeout.
        fields |= {"session_timeout_s": 6.0, "rebalance_timeout_s": 6.0}
        # A pause between sends has no use if each record has its own batch.
        fields |= {"send_interval_ms": 0.0}
    return settings.replace(**fields)


def with_previews(settings: Settings) -> Settings:
    """Return the settings with a port at which the decider serves previews to a gateway on this machine."""
    if settings.previews.port or settings.previews.urls:
        return settings
    return settings.replace(decider_port=free_port())


def service_commands(
    groups: Iterable[str], *, metrics_port: int = 0, optional: Iterable[str] = ()
) -> dict[str, Sequence[str]]:
    """Return the commands of all required services (one executor per group) and of the given optional services.

    Raises:
        SettingsError: there are not enough ports from `metrics_port` on.
    """
    groups, asked = tuple(groups), set(optional)
    # Downstream first, so that readers are started before writers.
    services = [
        (spec.name, group)
        for spec in reversed(SERVICES.values())
        if not spec.optional or spec.name in asked
        for group in (groups if spec.grouped else ("",))
    ]
    if metrics_port and metrics_port + len(services) - 1 > MAX_PORT:
        raise SettingsError(
            f"is the first port of {len(services)} processes, the last of which would have none: give "
            f"{MAX_PORT - len(services) + 1} at most; got {metrics_port}",
            "metrics_port",
        )
    commands: dict[str, Sequence[str]] = {}
    for at, (service, group) in enumerate(services):
        argv = [*python(), "worker", service]
        if group:
            argv += ["--group", group]
        if metrics_port:
            argv += ["--metrics-port", str(metrics_port + at)]
        commands[f"{service}.{group}" if group else service] = argv
    return commands


def metrics_ports(commands: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the port of each service that serves metrics."""
    found = {name: argv[-1] for name, argv in commands.items() if "--metrics-port" in argv}
    return {name: int(port) for name, port in found.items()}


# The services run as processes on this machine, with one common log, and are restarted with backoff. A service that
# dies loses nothing: its offsets have not moved past the failure, and its successor continues from there.
# `streams/runtime` counts the failures per record.

READY = "uniscale: ready"

# How long to read the last output of a service. A process that has left its group may hold the pipe open forever.
_LAST_LINES_S = 2.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
SAID_EVERY_S = 15.0
"""Seconds between two messages about what a start is waiting for."""
STEADY_S = 60.0
"""Seconds after which a process counts as recovered, so its next restart is immediate and the backoff is reset."""


class ServiceFailed(UniscaleError):
    """A service did not become ready; the message ends with the last lines of its log."""


class Service:
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
        self.reader: threading.Thread | None = None
        # When to restart the process, in monotonic seconds; None while it is running.
        self.due_at: float | None = None

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        if self.process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self.process.pid

    def later(self, lived_s: float) -> float:
        """Delay the next start, doubling the pause after each short run, and return the pause in seconds."""
        if lived_s > STEADY_S:
            self.pause_s, wait_s = _FIRST_PAUSE_S, 0.0
        else:
            self.pause_s = wait_s = min(_LONGEST_PAUSE_S, self.pause_s * 2)
        self.due_at = time.monotonic() + wait_s
        return wait_s


class Supervisor:
    """A context manager that starts services, restarts those that end, and writes their output to one log.

    Neither a failed start of a process (no memory, a missing file) nor a full disk keeps it from restarting services.

    Args:
        services: The command of each service, by name.
        environ: Environment of the processes, filtered to what services need (`streams/local/environment.py`).
        log_path: The log file.
        echo: Also called with each line of the log.
        keys: Names of the variables that hold the API keys of models (`key_env`), which only executors get.
    """

    def __init__(
        self,
        services: Mapping[str, Sequence[str]],
        *,
        environ: Mapping[str, str],
        log_path: Path,
        echo: Callable[[str], None] | None = None,
        keys: Iterable[str] = (),
    ) -> None:
        own = {
            **environment(environ, SERVICE),
            "PYTHONUNBUFFERED": "1",
            "STREAMS_PARENT_PID": str(os.getpid()),
        }
        besides = {"executor": environment(environ, keys), "tracer": environment(environ, TRACER)}
        self.services = {
            name: Service(name, argv, besides.get(name.partition(".")[0], {}) | own)
            for name, argv in services.items()
        }
        self.log_path = log_path
        self.echo = echo
        self._log: LogFile | None = None
        self._starting = threading.Lock()
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> Self:
        """Start every service without waiting until they are ready.

        Raises:
            OSError: the log cannot be opened, or a command cannot be run; nothing is left running.
        """
        self._log = LogFile(self.log_path, self.echo)
        try:
            for service in self.services.values():
                self._spawn(service)
            self._watcher.start()
        except BaseException:  # KeyboardInterrupt too: `__exit__` is not called when `__enter__` fails
            self.stop()
            raise
        return self

    def wait_ready(
        self,
        timeout_s: float = 300.0,
        tick: Callable[[list[str]], None] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Wait until every service has reported that it is ready.

        Args:
            timeout_s: How long to wait.
            tick: Called five times a second with the names of the services that are not ready.
            say: Called every SAID_EVERY_S seconds with a line that names them.

        Raises:
            ServiceFailed: a service is not ready in time, or has exited five times.
        """
        before = {service.name: service.restarts for service in self.services.values()}
        began_s = said_s = time.monotonic()
        deadline = began_s + timeout_s
        while True:
            waiting = [r for r in self.services.values() if not r.ready.is_set()]
            if tick:
                tick([r.name for r in waiting])
            if not waiting:
                return
            for service in waiting:
                if (ended := service.restarts - before[service.name]) >= 5:
                    raise ServiceFailed(
                        f"{service.name} exited {ended} times while starting:\n" + _tail(service)
                    )
            if time.monotonic() > deadline:
                names = ", ".join(r.name for r in waiting)
                raise ServiceFailed(
                    f"not ready after {timeout_s:.0f} s: {names}\n" + "\n".join(_tail(r) for r in waiting)
                )
            if say and (now_s := time.monotonic()) - said_s >= SAID_EVERY_S:
                names, said_s = ", ".join(r.name for r in waiting), now_s
                say(f"waiting for {names} ({now_s - began_s:.0f} s so far); log in {self.log_path}")
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """Kill a service as a crash would; it is restarted like any other that exits."""
        service = self.services[name]
        service.ready.clear()
        os.killpg(service.pid, signal.SIGKILL)

    def stop(self, grace_s: float = 20.0) -> None:
        """Ask every service to stop, kill those that have not stopped after `grace_s` seconds, and close the log.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed during the wait; all services were killed at once.
        """
        with self._starting:
            self._stopping.set()  # nothing is started any more
        running = [(r, p) for r in self.services.values() if (p := r.process) and p.poll() is None]
        try:
            if self._watcher.is_alive():
                self._watcher.join()
            for _, process in running:
                _signal(process, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            for service, process in running:
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self._write("supervisor", f"{service.name} did not stop within {grace_s:.0f} s: killed")
        finally:
            for _, process in running:
                _signal(process, signal.SIGKILL)  # including the rest of its process group
            for _, process in running:
                process.wait()
            for service in self.services.values():
                if service.reader is not None:
                    service.reader.join(_LAST_LINES_S)
            if self._log:
                self._log.close()
                self._log = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _spawn(self, service: Service) -> None:
        with self._starting:
            if self._stopping.is_set():
                return
            service.ready.clear()
            service.started_at = time.monotonic()
            process = subprocess.Popen(
                service.argv,
                env=service.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            service.process, service.due_at = process, None
            try:
                reader = threading.Thread(target=self._read, args=(service, process), daemon=True)
                reader.start()
                service.reader = reader
            except RuntimeError:
                _signal(process, signal.SIGKILL)
                process.wait()
                service.process = None
                raise

    def _read(self, service: Service, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if not line:
                continue
            if READY in line and service.process is process:
                service.ready.set()
            service.last_lines = [*service.last_lines[-29:], line]
            self._write(service.name, line)
        process.stdout.close()

    def _write(self, name: str, line: str) -> None:
        if (log := self._log) is not None:
            log.line(name, line)

    def _watch(self) -> None:
        """Restart exited services from a single thread. If no process can be started, a new thread may fail, too."""
        while not self._stopping.wait(0.1):
            for service in self.services.values():
                process = service.process
                if process is None:
                    if service.due_at is not None and time.monotonic() >= service.due_at:
                        self._respawn(service)
                elif process.poll() is not None:
                    lived_s = time.monotonic() - service.started_at
                    service.ready.clear()
                    service.restarts += 1
                    service.process = None
                    pause_s = service.later(lived_s)
                    self._write(
                        "supervisor",
                        f"{service.name} exited with code {process.returncode} after {lived_s:.1f} s; "
                        f"restarting in {pause_s:.1f} s",
                    )

    def _respawn(self, service: Service) -> None:
        try:
            self._spawn(service)
        except (
            OSError,
            RuntimeError,
        ) as error:  # no memory, process or thread is available, or the command is missing
            pause_s = service.later(0.0)
            self._write(
                "supervisor", f"{service.name} cannot be started ({error}); trying again in {pause_s:.1f} s"
            )


def python() -> list[str]:
    """Return the first words of a command that runs this package."""
    return [sys.executable, "-m", "streams"]


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _tail(service: Service) -> str:
    return f"--- {service.name}\n" + "\n".join(service.last_lines[-12:])


class Deployment:
    """A context manager that runs a whole deployment on this machine, for examples, trials and measurements.

    Args:
        settings: The deployment's settings. The address of the started broker replaces their bootstrap address.
        broker: `embedded`, `kafka` (needs KAFKA_HOME and Java) or `auto`.
        log_path: File for the services' output.
        environ: Environment variables for the services in addition to this process's, for instance thread counts.
        optional: Optional services to start, for instance `gateway`.
        say: Called with a line of text about a model that is fetched, or cannot be.

    Attributes:
        settings: The settings that clients of this deployment need.
        groups: The executor groups.
        broker: The broker that was started.
        supervisor: The supervisor of the services.

    Raises:
        BrokerError: raised on entering, if the broker cannot be started.
        CatalogueError: raised on entering, if the settings' catalogue cannot be used.

    Example:
        with Deployment(Settings()) as deployment:
            deployment.supervisor.wait_ready()
            with Client(deployment.settings) as client:
                print(client.ask("How many is 2 + 3?").text)
    """

    def __init__(
        self,
        settings: Settings,
        *,
        broker: Literal["auto", "kafka", "embedded"] = "auto",
        log_path: Path = Path("out/services.log"),
        environ: Mapping[str, str] | None = None,
        optional: Iterable[str] = (),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings = settings
        self.groups: tuple[str, ...] = ()
        self.broker: LocalBroker
        self.supervisor: Supervisor
        self._kind = broker
        self._log_path = log_path
        self._environ = dict(environ or {})
        self._optional = tuple(optional)
        self._say = say
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            catalogue = load_catalogue(Path(self.settings.catalogue))
            self.groups = tuple(catalogue.groups)
            self.broker = stack.enter_context(LocalBroker.choose(self._kind, os.environ))
            self.settings = settings_for(self.settings, self.broker)
            kafka_admin.create(self.settings, Topics(self.settings).declared(self.groups))
            environ = self.settings.environ({**os.environ, **self._environ})
            commands = service_commands(self.groups, optional=self._optional)
            commands |= llama_commands(self.settings, READY, self._say)
            services = Supervisor(
                commands, environ=environ, log_path=self._log_path, keys=catalogue.key_names
            )
            self.supervisor = stack.enter_context(services)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()
