"""The launcher finds a broker, says what is missing, and stops what it started."""

import os
import socket
import sys
from pathlib import Path

import pytest

from streams.local.broker import Broker, BrokerError, kafka_home, listening
from streams.runtime.kafka.clients import admin
from streams.settings import Kafka, Settings
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
    with pytest.raises(BrokerError, match="Java 17"):
        Broker("kafka", directory=tmp_path / "data", home=tmp_path).start()


def test_a_broker_that_is_given_up_while_it_starts_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker("embedded", directory=tmp_path / "data")
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
        with pytest.raises(BrokerError, match="is taken"):
            Broker("embedded", port=taken.getsockname()[1]).start()


def test_the_embedded_broker_serves_checks_partitions_and_stops() -> None:
    with Broker.choose("embedded", os.environ) as broker:
        settings = Settings(kafka=Kafka(bootstrap=broker.bootstrap))
        declared = Topics(settings).declared(["a"])
        assert len(admin.create(settings, declared)) == len(declared)
        assert admin.create(settings, declared) == []
        assert admin.check(settings, declared).findings == []
        other = Settings().replace(bootstrap=broker.bootstrap, join_partitions=3)
        findings = admin.check(other, Topics(other).declared(["a", "b"])).findings
        assert any("uniscale.answer: partitions is 8, must be 3" in f for f in findings)
        assert any("uniscale.verification.b: missing" in f for f in findings)
    assert not listening(broker.port)
