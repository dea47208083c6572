"""A record that always fails, or always kills the process, ends it three times at most and is a dead letter then."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.record import decode
from streams.local.broker import LocalBroker
from streams.log import kafka_admin
from streams.log.blocking import read_all
from streams.settings import Settings
from streams.topics import Topics
from streams.worker import CRASH_EXIT

pytestmark = pytest.mark.broker

# One service's guard around handlers of two records, of which one cannot be handled; a new process each time.
PROCESS = """
import asyncio, os, signal, sys
from streams.metrics import Metrics
from streams.runtime.errors import Crash
from streams.runtime.kafka import KafkaRuntime
from streams.log.base import ConsumerRecord
from streams.settings import Settings

async def main():
    settings = Settings.from_env(os.environ)
    runtime = KafkaRuntime(settings, Metrics("embedder"), service="embedder")
    await runtime.app.producer.start()
    def record(offset, name):
        return ConsumerRecord(runtime.topics.query, 0, offset, 0, b"k", b'{"query_id": "%s"}' % name)
    async def poison(records):
        await asyncio.sleep(0.05)
        if sys.argv[1] == "error":
            raise ZeroDivisionError("a fault nobody thought of")
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        await asyncio.sleep(60)
    async def innocent(records):
        # In hand when the process dies, for as long as it may run beside others.
        await asyncio.sleep(0.3)
        print("handled", flush=True)
    guard = runtime.guard.call
    try:
        await asyncio.gather(guard([record(41, b"always")], poison), guard([record(42, b"never")], innocent))
    except Crash:
        runtime.in_flight.clear()
        os._exit(70)
    await runtime.app.producer.stop()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("how", "ends", "error"),
    [
        # Python counts before it ends the process, so the third attempt itself is the last.
        ("error", [CRASH_EXIT, CRASH_EXIT, 0], "ZeroDivisionError"),
        # Nobody counts before the process is gone: the one that follows does.
        ("SIGKILL", [-9, -9, -9, 0], "KilledProcess"),
        pytest.param("SIGSEGV", [-11, -11, -11, 0], "KilledProcess", marks=pytest.mark.thorough),
    ],
)
def test_the_third_failure_at_one_record_is_a_dead_letter(
    broker: LocalBroker, tmp_path: Path, how: str, ends: list[int], error: str
) -> None:
    settings = Settings().replace(
        bootstrap=broker.bootstrap, prefix=f"k{uuid.uuid4().hex[:8]}.", state_dir=str(tmp_path),
        catalogue="infra/catalogue/qwen3.yaml",
    )  # fmt: skip
    topics = Topics(settings)
    kafka_admin.create(settings, topics.declared([]))
    environ = {**os.environ, **settings.environ()}
    codes = []
    for _ in ends:
        done = subprocess.run(
            [sys.executable, "-c", PROCESS, how],
            env=environ,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        codes.append(done.returncode)
    assert codes == ends, done.stderr[-2000:]
    assert "handled" in done.stdout
    letters = [decode(r.value, DeadLetter) for r in read_all(settings, [topics.dead_letter])]
    assert [(x.key, x.error, x.attempts) for x in letters] == [(f"{topics.query}/0/41", error, 3)]
    answers = [decode(r.value, Answer) for r in read_all(settings, [topics.answer])]
    assert [(a.query_id, a.status) for a in answers] == [("always", "rejected")]
