"""The launcher finds a broker, says what is missing, and stops what it started."""

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.consumer.fetcher import Fetcher
from click.testing import CliRunner

from schemas.query import Query
from streams.cli import main
from streams.client.client import Client
from streams.local.broker import (
    MOST_ENDS,
    PORTS,
    BrokerError,
    Kind,
    LocalBroker,
    free_port,
    kafka_home,
    listening,
)
from streams.log import kafka_admin, kafka_clients
from streams.log.blocking import BlockingLog, read_all
from streams.log.kafka import KafkaLog, stop
from streams.runtime.kafka import consumer_of, create_app, sender_of
from streams.runtime.kafka_transactions import rewrite
from streams.settings import KafkaSettings, Settings
from streams.topics import Topics


def test_a_home_without_kafka_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="KAFKA_HOME"):
        kafka_home({"KAFKA_HOME": str(tmp_path)})
    assert kafka_home({}, beside=tmp_path) is None
    (tmp_path / "shared" / "kafka" / "libs").mkdir(parents=True)
    assert kafka_home({}, beside=tmp_path) == tmp_path / "shared" / "kafka"


def test_kafka_is_looked_for_beside_the_checkout(root: Path) -> None:
    beside = root.parent / "shared" / "kafka"
    assert kafka_home({}) == (beside if (beside / "libs").is_dir() else None)


def test_missing_java_is_said_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(BrokerError, match="Java 17 or later, and `java` does not run"):
        LocalBroker("kafka", directory=tmp_path / "data", home=tmp_path).start()


def test_auto_leaves_apache_kafka_where_java_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka_2.13.jar").touch()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    monkeypatch.setenv("PATH", f"{java.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = {"KAFKA_HOME": str(tmp_path)}
    for version, kind in (
        ("1.8.0_452", "embedded"),
        ("11.0.2", "embedded"),
        ("17.0.1", "kafka"),
        ("25", "kafka"),
    ):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
        java.chmod(0o755)
        assert LocalBroker.choose("auto", home, directory=tmp_path / "data").kind == kind
        if kind == "embedded":
            with pytest.raises(BrokerError, match=r"Java 17 or later, and `java` is Java (8|11):"):
                LocalBroker.choose("kafka", home, directory=tmp_path / "data").start()
    # Kafka's scripts run what JAVA_HOME names, whatever the PATH has.
    java.write_text("#!/bin/sh\nexit 1\n")
    assert LocalBroker.choose("auto", home, directory=tmp_path / "data").kind == "embedded"
    other = tmp_path / "jdk"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2025-01-01' >&2\n")
    (other / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(other))
    assert LocalBroker.choose("auto", home, directory=tmp_path / "data").kind == "kafka"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder of Apache Kafka, which needs no format."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "meta.properties").touch()
    return tmp_path


@pytest.mark.parametrize("name", ["Zoë", "a b", "a,b", "a:b", "a\\b"])
def test_a_folder_whose_name_kafka_would_not_take_is_refused(kept: Path, name: str) -> None:
    with pytest.raises(BrokerError, match=r"name one of ASCII letters, digits and \./_-\+@ with --data"):
        LocalBroker("kafka", directory=kept / name, home=kept)._format()


def test_another_port_changes_nothing_else_of_the_properties(kept: Path) -> None:
    properties = LocalBroker("kafka", port=9092, directory=kept, home=kept)._format()
    with properties.open("a") as more:
        more.write("advertised.listeners=SASL_SSL://127.0.0.1:9092\nowner=127.0.0.1:9092\n")
    before = properties.read_text().splitlines()
    LocalBroker("kafka", port=9093, directory=kept, home=kept)._format()
    changed = [line for line in properties.read_text().splitlines() if line not in before]
    assert [line.partition(",")[0] for line in changed] == [
        "listeners=PLAINTEXT://127.0.0.1:9093", "advertised.listeners=PLAINTEXT://127.0.0.1:9093",
        "advertised.listeners=SASL_SSL://127.0.0.1:9093",
    ]  # fmt: skip


def test_a_folder_that_was_moved_keeps_its_log(kept: Path) -> None:
    LocalBroker("kafka", directory=kept, home=kept)._format()
    moved = kept.rename(kept.with_name(f"{kept.name}-moved"))
    assert (
        f"\nlog.dirs={moved}/log\n" in LocalBroker("kafka", directory=moved, home=moved)._format().read_text()
    )
    elsewhere = moved / "server.properties"
    elsewhere.write_text(elsewhere.read_text().replace(f"={moved}/log", "=/one,/two"))
    assert "\nlog.dirs=/one,/two\n" in LocalBroker("kafka", directory=moved, home=moved)._format().read_text()


def test_a_controller_port_that_is_taken_is_replaced(kept: Path) -> None:
    broker = LocalBroker("kafka", port=9092, directory=kept, home=kept)
    before = broker._format().read_text()
    assert broker._format().read_text() == before
    (controller,) = re.findall(r"voters=1@127\.0\.0\.1:(\d+)", before)
    with socket.create_server(("127.0.0.1", int(controller))):
        after = broker._format().read_text()
    (other,) = re.findall(r"voters=1@127\.0\.0\.1:(\d+)", after)
    assert other not in {controller, "9092"}
    assert after == before.replace(controller, other)


HOLDS = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held'); input()"


def test_a_log_that_another_broker_holds_is_left_alone(kept: Path) -> None:
    before = LocalBroker("kafka", port=9092, directory=kept, home=kept)._format().read_text()
    words = [sys.executable, "-uc", HOLDS, str(kept / "log" / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        second = LocalBroker("kafka", port=9093, directory=kept, home=kept)
        with pytest.raises(BrokerError, match="another broker runs on the log"):
            second._format()
        assert (kept / "server.properties").read_text() == before
        holder.communicate("\n")
    assert second._format().read_text() != before


def test_a_failed_start_leaves_no_temporary_folder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = LocalBroker("embedded", port=taken.getsockname()[1])
        with pytest.raises(BrokerError), broker:
            pass
    assert not broker.directory.exists()


def test_a_broker_that_is_given_up_while_it_starts_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = LocalBroker("embedded", directory=tmp_path / "data")
    monkeypatch.setattr(broker, "_command", lambda: [sys.executable, "-c", "import time; time.sleep(60)"])

    def pressed(port: int) -> bool:
        if broker.process is not None:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr("streams.local.broker.listening", pressed)
    with pytest.raises(KeyboardInterrupt), broker:
        pass
    assert broker.process is not None
    assert broker.process.poll() is not None


def test_a_taken_port_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BrokerError, match="is taken, perhaps by a broker"):
            LocalBroker("embedded", port=taken.getsockname()[1]).start()


def test_a_free_port_is_none_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port()
    assert first in PORTS
    with socket.create_server(("127.0.0.1", first)):
        monkeypatch.setattr("streams.local.broker.PORTS", range(first, first + 1))
        with pytest.raises(BrokerError, match=f"no port from {first} to {first} "):
            free_port()


def on_embedded(test: Any) -> Any:
    """Mark what starts the embedded broker."""
    return pytest.mark.broker(pytest.mark.embedded(test))


@on_embedded
def test_the_embedded_broker_serves_and_stops() -> None:
    with LocalBroker.choose("embedded", os.environ) as broker:
        settings = Settings(kafka=KafkaSettings(bootstrap=broker.bootstrap))
        declared = Topics(settings).declared(["a"])
        assert len(kafka_admin.create(settings, declared)) == len(declared)
        assert kafka_admin.create(settings, declared) == []
        kafka_admin.require(settings, declared)
    assert not listening(broker.port)


@contextmanager
def told_of(kind: Kind) -> Iterator[Settings]:
    """Yield the settings of a client that was told nothing but the address of a broker, with topics."""
    with LocalBroker.choose(kind, os.environ) as broker:
        settings = Settings(kafka=KafkaSettings(bootstrap=broker.bootstrap))
        kafka_admin.create(settings, Topics(settings).declared(["a"]))
        yield settings


@pytest.fixture(scope="module")
def embedded() -> Iterator[Settings]:
    with told_of("embedded") as settings:
        yield settings


@on_embedded
def test_the_embedded_broker_is_the_locks_and_is_told_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNISCALE_SASL_PASSWORD", "a secret")
    monkeypatch.setenv("HOME", str(tmp_path))
    with LocalBroker.choose("embedded", os.environ) as broker:
        assert broker.process is not None
        told = Path(f"/proc/{broker.process.pid}/environ").read_bytes()
        assert b"PATH=" in told
        assert b"secret" not in told
    (copy,) = tmp_path.rglob("tansu-*")
    copy.write_bytes(copy.read_bytes() + b"x")
    with pytest.raises(BrokerError, match="is not the embedded broker of the lock"):
        LocalBroker.choose("embedded", os.environ, directory=tmp_path / "data").start()


@on_embedded
def test_broker_with_its_log_in_memory_is_not_restarted(tmp_path: Path) -> None:
    with LocalBroker.choose("embedded", os.environ, directory=tmp_path / "data") as broker:
        broker.revive(pytest.fail)  # it runs
        broker.kill()
        with pytest.raises(BrokerError, match="in memory"):
            broker.revive(pytest.fail)
        assert not listening(broker.port)
    assert (tmp_path / "data" / "broker.log").exists()


@pytest.mark.broker
@pytest.mark.kafka("it keeps its log")
def test_apache_kafka_keeps_its_log_after_crash_and_new_port(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "data"
    with LocalBroker.choose("kafka", os.environ, directory=folder) as broker:
        settings = Settings(kafka=KafkaSettings(bootstrap=broker.bootstrap))
        kafka_admin.create(settings, Topics(settings).declared(["a"]))
        with Client(settings) as client:
            client.send([Query(query_id="q", text="What is 1 + 1?")])
        broker.kill()
        broker.revive(said.append)
        assert ends(settings, Topics(settings).query) == 1
    assert ["starting it again" in said[0], "runs again" in said[1]] == [True, True]
    with LocalBroker.choose("kafka", os.environ, directory=folder) as broker:
        assert ends(settings.replace(bootstrap=broker.bootstrap), Topics(settings).query) == 1
        for _ in range(MOST_ENDS - 1):
            broker.kill()
            broker.revive(said.append)
        broker.kill()
        with pytest.raises(BrokerError, match="in a row"):
            broker.revive(said.append)


LISTENS = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(float(sys.argv[2]))
"""


def test_a_broker_that_does_not_start_again_has_ended_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []

    def command(broker: LocalBroker) -> list[str]:
        starts.append("")
        if len(starts) == 2:
            return [sys.executable, "-c", "print('Address already in use'); exit(1)"]
        return [sys.executable, "-c", LISTENS, str(broker.port), "60"]

    monkeypatch.setattr(LocalBroker, "_command", command)
    said: list[str] = []
    with LocalBroker("kafka", directory=tmp_path / "data", home=tmp_path) as broker:
        broker.kill()
        broker.revive(said.append)
        assert "Address already in use" in said[-1]
        broker.revive(said.append)
        assert "runs again" in said[-1]
        broker.kill()
        with pytest.raises(BrokerError, match="3 times in a row"):
            broker.revive(said.append)


FULL_DISK = """
import os, shutil, sys
from pathlib import Path
from kafka import KafkaProducer
from kafka.errors import KafkaError
from streams.local.broker import ROOM_MB, BrokerError, LocalBroker
from streams.log import kafka_admin
from streams.settings import KafkaSettings, Settings
from streams.topics import Topics
from tests.streams.local.test_broker import ends

disk, said, sent = Path(sys.argv[1]), [], 0
rest = disk / "rest"


def leave(mb):
    rest.unlink(missing_ok=True)
    rest.write_bytes(bytes(shutil.disk_usage(disk).free - mb * 1_000_000))


leave(ROOM_MB - 1)
try:
    LocalBroker.choose("kafka", os.environ, directory=disk / "data").start()
except BrokerError as error:
    print(error)
rest.unlink()
with LocalBroker.choose("kafka", os.environ, directory=disk / "data") as broker:
    settings = Settings(kafka=KafkaSettings(bootstrap=broker.bootstrap))
    topic = Topics(settings).query
    kafka_admin.create(settings, Topics(settings).declared(["a"]))
    leave(10)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", retries=0)
    try:
        while sent < 2000:
            producer.send(topic, os.urandom(100_000)).get(timeout=10)
            sent += 1
    except KafkaError as error:
        print(type(error).__name__)
    broker.process.wait(60)
    for _ in range(3):
        broker.revive(said.append)
    rest.unlink()
    broker.revive(said.append)
    print(*said, 0 < sent <= ends(settings, topic) <= sent + 1, sep="\\n")
    KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all").send(topic, b"one more").get(timeout=10)
"""


@pytest.mark.broker
@pytest.mark.kafka("it keeps its log")
def test_apache_kafka_recovers_from_a_full_disk(tmp_path: Path) -> None:
    mounted = 'mount -t tmpfs -o size=140m tmpfs "$1" || exit 9; exec "$2" -c "$3" "$1"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, "sh", str(tmp_path)]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    ran = subprocess.run([*words, sys.executable, FULL_DISK], capture_output=True, text=True, check=False)
    if ran.returncode == 9 or ran.stderr.startswith("unshare:"):
        pytest.skip(f"a disk of one's own is not allowed here: {ran.stderr}")
    assert ran.returncode == 0, ran.stderr
    refused, refusal, *said, nothing_lost = ran.stdout.splitlines()
    assert refused.startswith(f"the disk of {tmp_path / 'data'} is full")
    assert refusal == "KafkaStorageError"
    assert ["is full" in said[0], "starting it again" in said[1], "runs again" in said[2]] == [True] * 3
    assert nothing_lost == "True"


def ends(settings: Settings, topic: str) -> int:
    """Return the sum of the end offsets of a topic, after reading that many records."""
    with BlockingLog(settings) as log:
        found = sum(log.end_offsets([topic]).values())
    assert len(list(read_all(settings, [topic]))) == found
    return found


@on_embedded
def test_concurrent_queries_of_a_client_are_all_stored(embedded: Settings) -> None:
    with Client(embedded) as client:
        client.send([Query(query_id=f"q{n}", text=f"What is {n} + 1?") for n in range(100)])
    assert ends(embedded, Topics(embedded).query) == 100


@on_embedded
def test_concurrent_records_of_a_service_are_all_stored(embedded: Settings, tmp_path: Path) -> None:
    topic = Topics(embedded).context

    async def main() -> None:
        app: Any = create_app(embedded.replace(state_dir=str(tmp_path)), "embedder")
        await app.producer.on_start()
        try:
            await sender_of(app).send([(topic, 0, b"key", b"value %d" % n) for n in range(50)])
        finally:
            await stop(app.producer._producer)

    asyncio.run(main())
    assert ends(embedded, topic) == 50


@on_embedded
def test_rewriting_a_log_loses_no_row(embedded: Settings) -> None:
    log = Topics(embedded).changelog("decider", "pending")
    rewrite(embedded, log, [(log, [(b"%d" % n, b"row") for n in range(50)])])
    assert ends(embedded, log) == 50


@on_embedded
def test_added_key_is_written_to_a_private_file(embedded: Settings, tmp_path: Path) -> None:
    file = tmp_path / "key"
    where = ["--bootstrap", embedded.kafka.bootstrap]
    done = CliRunner().invoke(main, [*where, "keys", "add", "a", "--tenant", "t", "--file", str(file)])
    assert (done.exit_code, file.stat().st_mode & 0o777) == (0, 0o600)
    key = file.read_text().strip()
    assert key.startswith("uk-")
    assert key not in done.output


def waits_ms(settings: Settings) -> dict[str, int]:
    """Return how long the fetches of each of our consumers wait for records, in milliseconds."""
    topic = Topics(settings).query

    async def asynchronous() -> tuple[int, int, int]:
        # What a service is assigned, what it follows, what it reads once.
        thread: Any = consumer_of(create_app(settings, "embedder"))._new_consumer_thread()
        log = KafkaLog(settings)
        reader = kafka_clients.follower(settings)
        await thread.on_start()
        await log.tail([topic], lambda record: None, begin="end")
        await reader.start()
        try:
            [follower] = log._readers
            fetchers: list[Fetcher] = [
                each._fetcher for each in (thread._consumer, follower.consumer, reader)
            ]
            assigned, followed, read = (each._fetch_max_wait_ms for each in fetchers)
            return assigned, followed, read
        finally:
            await stop(reader)
            await log.close()
            await stop(thread._consumer)

    assigned, followed, read = asyncio.run(asynchronous())
    client = kafka_clients.consumer(settings)
    try:
        return {
            "assigned": assigned, "followed": followed, "read": read,
            "client": client.config["fetch_max_wait_ms"],
        }  # fmt: skip
    finally:
        client.close()


@on_embedded
def test_fetches_from_the_embedded_broker_wait_briefly(embedded: Settings, tmp_path: Path) -> None:
    found = waits_ms(embedded.replace(state_dir=str(tmp_path)))
    assert found == dict.fromkeys(("assigned", "followed", "read", "client"), 50)


@pytest.mark.broker
@pytest.mark.kafka("how long its fetches wait")
def test_fetches_from_apache_kafka_wait_as_they_did(tmp_path: Path) -> None:
    with told_of("kafka") as settings:
        found = waits_ms(settings.replace(state_dir=str(tmp_path)))
    assert found == {"assigned": 1500, "followed": 500, "read": 500, "client": 500}
