"""A partition that stands still shows beside others that move: in the gauge, and in whether the process is ready."""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streams.http.health import STALLED_S, Health
from streams.local.broker import free_port
from streams.log.base import ConsumerRecord
from streams.metrics import Metrics
from streams.runtime.errors import Crash
from streams.runtime.kafka import KafkaRuntime, consumer_of
from streams.runtime.kafka_consumer import MemberSession
from streams.runtime.kafka_watchdog import PartitionProgress, watch_liveness
from streams.runtime.runtime import Binding
from streams.settings import Settings

ROOT = Path(__file__).parents[3]


def test_time_without_progress_is_each_partitions_own() -> None:
    progress = PartitionProgress()
    assert progress.look({"still": (7, True), "moves": (1, True), "idle": (4, False)}, 100.0) == {
        "still": 0.0, "moves": 0.0, "idle": 0.0,
    }  # fmt: skip
    assert progress.look({"still": (7, True), "moves": (9, True), "idle": (4, False)}, 400.0) == {
        "still": 300.0, "moves": 0.0, "idle": 0.0,
    }  # fmt: skip
    # What has been idle for long begins to stand still when a record comes.
    assert progress.look({"still": (8, True), "moves": (9, True), "idle": (4, True)}, 410.0) == {
        "still": 0.0, "moves": 10.0, "idle": 0.0,
    }  # fmt: skip


def test_a_partition_that_was_away_begins_anew() -> None:
    progress = PartitionProgress()
    progress.look({"p": (7, True)}, 0.0)
    assert progress.look({}, 100.0) == {}
    assert progress.look({"p": (7, True)}, 200.0) == {"p": 0.0}


def test_stalled_partition_is_live_and_not_ready() -> None:
    health = Health()
    health.ready()
    health.stalled({"answer/3": STALLED_S - 1})
    assert health.readiness() == ("200 OK", "ready")
    health.stalled({"answer/3": STALLED_S + 12, "answer/4": 5.0})
    status, text = health.readiness()
    assert status.startswith("503")
    assert text == "records wait and none is handled: answer/3 (312 s)"
    assert health.live()[0] == "200 OK"
    health.stalled({})
    assert health.readiness()[0] == "200 OK"


@pytest.mark.parametrize("waits", ["for the rebalance", "for an engine"])
async def test_worker_ends_when_a_rebalance_never_does(
    in_memory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """One whose handler waits for something else goes on: an engine may take minutes."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("streams.runtime.kafka_watchdog.time", SimpleNamespace(monotonic=loop.time))
    monkeypatch.setattr("streams.runtime.kafka_watchdog.waited_for", lambda consumer: True)
    monkeypatch.setattr("streams.runtime.kafka_watchdog.crash", _crashed)
    runtime = KafkaRuntime(in_memory(), Metrics("verifier"), service="verifier")
    consumer = consumer_of(runtime.app)

    async def handler(records: Sequence[ConsumerRecord]) -> None:
        if waits == "for the rebalance":
            await consumer.keep_ours(records[0])  # as every send does
        await asyncio.Future()

    consumer.session = MemberSession(1e9)
    record = ConsumerRecord("m.search-step", 0, 0, 1, b"q", b"v", consumer._epoch)
    consumer._epoch += 1  # and no assignment comes
    consumer.queues.put(Binding(handler), record)
    ended = Crash if waits == "for the rebalance" else TimeoutError
    with pytest.raises(ended):
        await asyncio.wait_for(watch_liveness(runtime), 3 * in_memory().kafka.rebalance_timeout_s)
    consumer.queues.keep(())


async def test_a_slow_queue_is_not_logged_record_by_record(
    in_memory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("streams.runtime.kafka_watchdog.time", SimpleNamespace(monotonic=loop.time))
    runtime = KafkaRuntime(in_memory(), Metrics("embedder"), service="embedder")
    queues, slow_s = consumer_of(runtime.app).queues, 3 * in_memory().kafka.rebalance_timeout_s + 10.0

    async def handler(records: Sequence[ConsumerRecord]) -> None:
        await asyncio.sleep(slow_s + 2 * records[0].offset)

    for at in range(30):
        queues.put(Binding(handler), ConsumerRecord("m.query", 0, at, 1, b"q%d" % at, b"v%d" % at, 0))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch_liveness(runtime), slow_s + 70.0)
    said = [each for each in caplog.messages if "in flight" in each]
    assert len(said) == 1, "each of thirty was the oldest for two seconds"


def _crashed(reason: str) -> None:
    raise Crash(reason)


@pytest.mark.broker
@pytest.mark.kafka("partitions of one topic that move alone")
@pytest.mark.slow
def test_a_running_worker_shows_which_partition_hangs(
    kafka_broker: Any, in_memory: Callable[..., Settings], tmp_path: Path
) -> None:
    from streams.local.deployment import settings_for
    from streams.log import kafka_admin, kafka_clients
    from streams.topics import Topics

    settings = settings_for(
        in_memory(prefix=f"s{uuid.uuid4().hex[:8]}.", state_dir=str(tmp_path)), kafka_broker
    )
    topics, port = Topics(settings), free_port()
    kafka_admin.create(settings, topics.declared(["mini"]))
    environ = {"PYTHONPATH": str(ROOT), **os.environ, **settings.environ()}
    producer = kafka_clients.producer(settings)
    with (tmp_path / "log").open("wb") as log:
        words = [sys.executable, "-m", "tests.support.toys", "embedder", "0", str(port)]
        worker = subprocess.Popen(words, env=environ, stdout=log, stderr=log)
    try:
        producer.send(topics.query, value=b"hang", partition=0).get(timeout=30)
        deadline = time.monotonic() + 120
        while (shown := stalled(port)).get("0", 0.0) < 8.0:
            assert time.monotonic() < deadline, (shown, (tmp_path / "log").read_text()[-2000:])
            producer.send(topics.query, value=b"on", partition=1).get(timeout=30)
            time.sleep(0.5)
        assert shown["1"] < 8.0, "the other partition moves"
        assert oldest(port) >= 8.0
    finally:
        producer.close()
        worker.kill()
        worker.wait()


def metrics(port: int) -> list[str]:
    """Return the lines of a process's metrics; none while it starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            return list(reply.read().decode().splitlines())
    except OSError:
        return []


def oldest(port: int) -> float:
    """Return for how long the oldest record has been in flight."""
    [line] = [line for line in metrics(port) if line.startswith("uniscale_oldest_open_seconds")]
    return float(line.split()[1])


def stalled(port: int) -> dict[str, float]:
    """Return the gauge of each partition of the queries; none while the process starts."""
    found = {}
    for line in metrics(port):
        if line.startswith("uniscale_partition_stalled_seconds{"):
            labels, _, value = line.removeprefix("uniscale_partition_stalled_seconds").rpartition(" ")
            partition = json.loads("{" + labels[1:-1].split(",")[0].replace("partition=", '"p":') + "}")["p"]
            found[partition] = float(value)
    return found
