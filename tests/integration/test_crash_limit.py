"""A record that always fails ends the process twice, and is a dead letter the third time."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from schemas.answer import Answer
from schemas.base import decode
from schemas.dead_letter import DeadLetter
from streams import admin, clients
from streams.app import CRASH_EXIT
from streams.broker import Broker
from streams.settings import Settings
from streams.topics import Topics

pytestmark = pytest.mark.broker

# One room's guard around a handler that cannot handle its record; the process is a new one each time.
PROCESS = """
import asyncio, os, sys
from streams.app import Record, create_app
from streams.metrics import Metrics
from streams.room import Plumbing
from streams.settings import Settings

async def main():
    settings = Settings.from_env(os.environ)
    app = create_app(settings, "embedder")
    plumbing = Plumbing(settings, app, Metrics("embedder"), room="embedder")
    await app.producer.start()
    record = Record(plumbing.topics.query, 0, 41, 0, b"k", b'{"query_id": "always"}')
    async def handle(record):
        raise ZeroDivisionError("a fault nobody thought of")
    await plumbing._guard([record], lambda: handle(record))
    await app.producer.stop()

asyncio.run(main())
"""


def test_the_third_failure_at_one_record_is_a_dead_letter(broker: Broker, tmp_path: Path) -> None:
    settings = Settings(
        bootstrap=broker.bootstrap, prefix=f"k{uuid.uuid4().hex[:8]}.", state_dir=str(tmp_path),
        catalogue="infra/catalogue/qwen3.yaml",
    )  # fmt: skip
    topics = Topics(settings)
    admin.create(settings, topics.declared([]))
    environ = {**os.environ, **settings.environ()}
    codes = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", PROCESS],
            env=environ,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        codes.append(done.returncode)
    assert codes == [CRASH_EXIT, CRASH_EXIT, 0], done.stderr[-2000:]
    letters = [decode(r.value, DeadLetter) for r in clients.read_all(settings, [topics.dead_letter])]
    assert [(x.key, x.error, x.attempts) for x in letters] == [
        (f"{topics.query}/0/41", "ZeroDivisionError", 3)
    ]
    answers = [decode(r.value, Answer) for r in clients.read_all(settings, [topics.answer])]
    assert [(a.query_id, a.status) for a in answers] == [("always", "rejected")]
