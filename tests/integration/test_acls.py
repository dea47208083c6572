"""The rights that `topics acls` prints suffice for every service, and keep everyone else out of the learner's log."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka.errors import TransactionalIdAuthorizationFailed
from kafka.errors import TopicAuthorizationFailedError

from streams.acls import grants
from streams.client.client import Client
from streams.local.broker import LocalBroker, free_port
from streams.local.deployment import Supervisor, service_commands
from streams.log import kafka_clients
from streams.settings import Settings
from streams.topics import Topics, writer_of
from tests.support.command_line import streams
from tests.support.deployment import Ask

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kafka("the embedded broker has no access control"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

ROOT = Path(__file__).parents[2]
WRITERS = {"embedder", "decider", "executor.mini", "verifier", "aggregator", "gateway", "client"}


class Guarded:
    """A broker where nobody may do anything that is not granted, and a deployment on it.

    Attributes:
        settings: The deployment's, without credentials.
    """

    def __init__(self, broker: LocalBroker, settings: Settings) -> None:
        self.broker = broker
        self.settings = settings

    def as_(self, principal: str) -> Settings:
        """Return the settings of one process."""
        return self.settings.replace(sasl_username=principal, sasl_password=f"of-{principal}")

    def run(self, principal: str, *words: str) -> str:
        """Run a command under a principal and return what it prints."""
        done = streams(*words, env={**os.environ, **self.as_(principal).environ()}, cwd=ROOT)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def put(self, principal: str, topic: str, value: bytes = b"forged") -> None:
        """Produce one record under a principal."""
        producer = kafka_clients.producer(self.as_(principal))
        try:
            producer.send(topic, key=b"0", value=value).get(timeout=30)
        finally:
            producer.close()


@pytest.fixture(scope="module")
def guarded(
    broker: LocalBroker, recorded: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    """Apache Kafka with Kafka's own authorizer, and the commands of `topics acls` run on it."""
    folder = tmp_path_factory.mktemp("guarded")
    safe = LocalBroker("kafka", directory=folder / "kafka", home=broker.home)
    safe.directory.mkdir()
    settings = recorded(
        folder, bootstrap=safe.bootstrap, security_protocol="SASL_PLAINTEXT", sasl_username="x",
        gateway_port=free_port(),
    )  # fmt: skip
    found = Guarded(safe, settings)
    users = ["admin", *grants(Topics(settings), ["mini"])]
    passwords = " ".join(f'user_{user}="of-{user}"' for user in users)
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    properties = safe._format()
    listeners = next(line for line in properties.read_text().splitlines() if line.startswith("listeners="))
    # The last of two lines with one name holds. ANONYMOUS is the controller, on a listener of its own.
    with properties.open("a") as more:
        more.write("\n".join([
            listeners.replace("PLAINTEXT://", "SASL_PLAINTEXT://", 1),
            f"advertised.listeners=SASL_PLAINTEXT://{safe.bootstrap}",
            "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name=SASL_PLAINTEXT", "sasl.mechanism.inter.broker.protocol=PLAIN",
            "sasl.enabled.mechanisms=PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config="
            f'{jaas} username="admin" password="of-admin" {passwords};',
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:admin;User:ANONYMOUS", "allow.everyone.if.no.acl.found=false",
        ]) + "\n")  # fmt: skip
    connection = folder / "admin.properties"
    connection.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={jaas} username="admin" password="of-admin";\n'
    )
    with safe:
        script = found.run(
            "admin", "topics", "acls", "--tool", str(kafka_acls(broker, folder)), "--command-config", str(connection)
        )  # fmt: skip
        quick = {
            "KAFKA_JVM_PERFORMANCE_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "LOG_DIR": str(folder),
        }
        subprocess.run(
            ["bash", "-e", "-c", script], env={**os.environ, **quick}, check=True, capture_output=True
        )
        yield found


def kafka_acls(broker: LocalBroker, folder: Path) -> Path:
    """Return Kafka's tool, which a distribution for tests may have only as a class."""
    tool = Path(str(broker.home)) / "bin" / "kafka-acls.sh"
    if tool.is_file():
        return tool
    own = folder / "kafka-acls.sh"
    own.write_text(f'exec "{tool.with_name("kafka-run-class.sh")}" org.apache.kafka.tools.AclCommand "$@"\n')
    own.chmod(0o755)
    own.write_text("#!/usr/bin/env bash\n" + own.read_text())
    return own


def test_each_service_works_with_its_rights_alone(guarded: Guarded, ask: Ask, tmp_path: Path) -> None:
    topics = Topics(guarded.settings)
    guarded.run("operator", "topics", "create")
    services = {
        name: ["env", *(f"{key}={value}" for key, value in guarded.as_(name).environ().items()), *argv]
        for name, argv in service_commands(["mini"], optional=["gateway"]).items()
    }
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Supervisor(services, environ=environ, log_path=tmp_path / "log") as running:
        running.wait_ready(240)
        with Client(guarded.as_("client")) as client:
            assert client.ask_all([ask(n) for n in range(12)], rewards=True, timeout_s=120).missing == []
            running.kill("decider")  # its successor reads the log that it alone may write
            assert client.ask_all([ask(n) for n in range(12, 20)], rewards=True, timeout_s=120).missing == []
        with httpx.Client(
            base_url=f"http://127.0.0.1:{guarded.settings.gateway.port}", timeout=60
        ) as gateway:
            body = {"model": "auto", "messages": [{"role": "user", "content": ask(3).text}]}
            assert gateway.post("/v1/chat/completions", json=body).status_code == 200
            services_seen = {
                each["service"]: each["workers"] for each in gateway.get("/v1/now").json()["services"]
            }
            assert services_seen["decider"] == services_seen["executor.mini"] == 1
            guarded.put("operator", topics.context)
            running_letters: list[Any] = []
            while not running_letters:
                running_letters = gateway.get("/v1/dead-letters").json()["data"]
            again = gateway.post("/v1/dead-letters/retry", json={"origin": running_letters[0]["origin"]})
            assert (again.status_code, again.json()["error"]["code"]) == (403, "not_allowed")
        assert "0 discrepancies" in guarded.run("operator", "audit")
    assert "uthorization" not in (tmp_path / "log").read_text()


def test_stranger_cannot_write_log_snapshots_or_rewards(guarded: Guarded) -> None:
    topics = Topics(guarded.settings)
    log = topics.changelog("decider", "pending")
    allowed = {
        log: {"decider"},
        topics.snapshot: {"decider"},
        topics.reward: {"aggregator"},
        topics.context: {"embedder"},
    }
    for topic, may in allowed.items():
        for principal in WRITERS - may:
            with pytest.raises(TopicAuthorizationFailedError):
                guarded.put(principal, topic)

    async def taken(principal: str) -> None:
        writer = kafka_clients.writer(guarded.as_(principal), writer_of(log))
        try:
            await writer.start()
        finally:
            await writer.stop()

    with pytest.raises(TransactionalIdAuthorizationFailed):
        asyncio.run(taken("aggregator"))
    asyncio.run(taken("decider"))
