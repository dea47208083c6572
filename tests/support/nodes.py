"""Three nodes of Apache Kafka: topics have three replicas, of which two must be in sync."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from kafka.errors import KafkaError

from schemas.errors import UniscaleError
from streams.local.broker import free_port, listening
from streams.log import kafka_clients
from streams.settings import KafkaSettings, Settings

ALL: Final = (1, 2, 3)
_PATIENCE_S: Final = 240.0
_COORDINATED: Final = 4
"""Partitions of the topics that hold groups' offsets and the state of transactions."""


class Nodes:
    """Context manager of the nodes. Their log is kept: one that is started again goes on with it.

    Args:
        home: The distribution.
        folder: Where properties, logs and output go.
        voters: The nodes that are controllers, too.
        advertised: What clients of `bootstrap` are told to connect to, a port of each node: a proxy's; None: the nodes
            themselves. The nodes talk to each other, and to clients of `direct`, without it.
    """

    kind = "kafka"

    def __init__(
        self, home: Path, folder: Path, voters: Sequence[int] = ALL, advertised: Sequence[int] | None = None
    ) -> None:
        self.home, self.folder, self.voters = home, folder, tuple(voters)
        self.ports, self._inner, self._controllers = ([free_port() for _ in ALL] for _ in range(3))
        self.advertised = list(advertised or self.ports)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._environ = {**os.environ, "KAFKA_HEAP_OPTS": "-Xmx256m -Xms64m"}
        for node in ALL:
            self._format(node)

    @property
    def bootstrap(self) -> str:
        """Where services connect to."""
        return _addresses(self.advertised)

    @property
    def direct(self) -> str:
        """Where whoever is to be spared the proxy connects to."""
        return _addresses(self._inner)

    def start(self, *nodes: int) -> None:
        """Start nodes and wait until they listen."""
        for node in nodes:
            with (self.folder / f"{node}.log").open("ab") as out:
                self.processes[node] = subprocess.Popen(
                    [str(self.home / "bin" / "kafka-server-start.sh"), str(self.folder / f"{node}.properties")],
                    stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                    env={**self._environ, "LOG_DIR": str(self.folder / f"logs{node}")},
                )  # fmt: skip
        until = time.monotonic() + _PATIENCE_S
        while not all(listening(self.ports[node - 1]) for node in nodes):
            assert time.monotonic() < until, "a node did not start"
            time.sleep(0.2)

    def stop(self, *nodes: int) -> None:
        """Stop nodes cleanly, those that do not in half a minute hard."""
        for node in nodes:
            self.signal(node, signal.SIGTERM)
        for node in nodes:
            try:
                self.processes[node].wait(30)
            except subprocess.TimeoutExpired:
                self.kill(node)

    def kill(self, *nodes: int) -> None:
        """Kill nodes, suspended ones too."""
        for node in nodes:
            if self.processes[node].poll() is None:
                self.signal(node, signal.SIGKILL)
                self.processes[node].wait()

    def signal(self, node: int, number: signal.Signals) -> None:
        """Send a signal to a node that runs."""
        os.killpg(self.processes[node].pid, number)

    def wait_whole(self) -> None:
        """Wait until every replica of every partition is in sync."""
        until = time.monotonic() + _PATIENCE_S
        while (missing := self._missing()) != "":
            assert time.monotonic() < until, f"the nodes did not come together: {missing}"
            time.sleep(0.3)

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition."""
        described = self._ask("describe_topics", [topic])[0]
        (found,) = (p for p in described["partitions"] if p["partition_index"] == partition)
        return int(found["leader_id"])

    def controller(self) -> int:
        """Return the node that is the active controller."""
        quorum = self._ask("describe_metadata_quorum")
        return int(quorum["topics"][0]["partitions"][0]["leader_id"])

    def coordinator(self, topic: str, name: str) -> int:
        """Return the node that coordinates a group (`__consumer_offsets`) or transactions (`__transaction_state`)."""
        return self.leader(topic, java_hash(name) % _COORDINATED)

    def forget(self, prefix: str) -> None:
        """Delete the topics of a deployment that is stopped."""
        names = [name for name in self._ask("list_topics") if name.startswith(prefix)]
        self._ask("delete_topics", names)

    def _ask(self, what: str, *arguments: object) -> Any:
        client = kafka_clients.admin(Settings(kafka=KafkaSettings(bootstrap=self.direct)))
        try:
            return getattr(client, what)(*arguments)
        finally:
            client.close()

    def _missing(self) -> str:
        """Return what is not as it should be; empty where all is well."""
        try:
            described = self._ask("describe_topics")
        except (KafkaError, UniscaleError) as error:
            return repr(error)
        behind = [
            f"{topic['name']}/{each['partition_index']}"
            for topic in described
            for each in topic["partitions"]
            if len(each["isr_nodes"]) < len(ALL) or each["leader_id"] not in ALL
        ]
        return ", ".join(behind[:3])

    def __enter__(self) -> Self:
        try:
            self.start(*ALL)
        except BaseException:  # a signal too: `__exit__` is not called when `__enter__` fails
            self.kill(*self.processes)
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill(*self.processes)

    def _format(self, node: int) -> None:
        at, votes = node - 1, node in self.voters
        listeners = [f"PLAINTEXT://127.0.0.1:{self.ports[at]}", f"INNER://127.0.0.1:{self._inner[at]}"]
        advertised = [f"PLAINTEXT://127.0.0.1:{self.advertised[at]}", listeners[1]]
        if votes:
            listeners.append(f"CONTROLLER://127.0.0.1:{self._controllers[at]}")
        properties = self.folder / f"{node}.properties"
        written = {
            "process.roles": "broker,controller" if votes else "broker",
            "node.id": node,
            "controller.quorum.voters": ",".join(
                f"{each}@127.0.0.1:{self._controllers[each - 1]}" for each in self.voters
            ),
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(advertised),
            "inter.broker.listener.name": "INNER",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.folder / f"data{node}",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": _COORDINATED,
            "offsets.topic.replication.factor": 3,
            "transaction.state.log.num.partitions": _COORDINATED,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.min.isr": 2,
            "min.insync.replicas": 2,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 3000,
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in written.items()))
        cluster = "uniscale" + "0" * 13 + "A"
        subprocess.run(
            [str(self.home / "bin" / "kafka-storage.sh"), "format", "-t", cluster, "-c", str(properties)],
            check=True,
            capture_output=True,
            env={**self._environ, "LOG_DIR": str(self.folder)},
        )


def java_hash(text: str) -> int:
    """Return what Kafka derives a coordinator's partition from: the absolute value of Java's hash of an ASCII string.

    >>> java_hash("uniscale")
    293152166
    """
    value = 0
    for byte in text.encode("ascii"):
        value = (31 * value + byte) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >= 1 << 31 else value)


def _addresses(ports: Sequence[int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)
