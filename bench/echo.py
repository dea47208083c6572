"""What the runtime alone costs: a handler that sends back what it reads, in processor microseconds a record.

Measured is the processor time of the one process that reads and sends; the broker and the driver are others. So the
figure is usable on a machine that is busy with something else. The driver keeps a fixed number of records on their
way (closed loop), or sends at a fixed rate.

    python -m bench runtime --records 20000 --in-flight 64
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from streams.local.broker import LocalBroker
from streams.local.deployment import settings_for
from streams.runtime import kafka_admin, kafka_clients
from streams.settings import Settings
from streams.topics import Topic, Topics

_PARTITIONS = 32
_BYTES = 600


class EchoLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent through the echo."""

    records: int = 20_000
    in_flight: int = 64
    rate: float = 0.0
    warm: int = 2_000


def _topics(settings: Settings) -> tuple[str, str]:
    return settings.kafka.prefix + "echo-in", settings.kafka.prefix + "echo-out"


def measure(broker: LocalBroker, load: EchoLoad, *, profile: str = "") -> dict[str, Any]:
    """Return the microseconds a record and the records a second of one echo on a running broker.

    Args:
        broker: A running broker.
        load: What to send.
        profile: Where to write a sampling profile; needs `py-spy` on the path (or PYSPY naming it).
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_for(Settings(), broker).replace(
            prefix=f"echo-{uuid.uuid4().hex[:6]}.", state_dir=folder
        )
        there, back = _topics(settings)
        page = [
            Topic(
                name=name,
                record="bytes",
                key="n",
                partitions=_PARTITIONS,
                max_bytes=settings.kafka.max_record_bytes,
            )
            for name in (there, back)
        ]
        kafka_admin.create(settings, [*page, *Topics(settings).declared([])])
        out = Path(folder) / "cpu.json"
        argv = [sys.executable, "-m", "bench.echo", str(load.warm), str(out)]
        environ = {**os.environ, **settings.environ(), "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(argv, env=environ) as echo:
            try:
                wall_s = asyncio.run(_drive(settings, load, echo.pid if profile else 0, profile))
            finally:
                echo.terminate()
                echo.wait(30)
        spent = json.loads(out.read_text())
    return {
        "us_a_record": round(1e6 * spent["cpu_s"] / spent["records"], 1),
        "records": spent["records"],
        "records_per_s": round(load.records / wall_s),
        "in_flight": load.in_flight,
        "rate": load.rate,
    }


async def _drive(settings: Settings, load: EchoLoad, pid: int, profile: str) -> float:
    from aiokafka import TopicPartition

    there, back = _topics(settings)
    reader, producer = kafka_clients.follower(settings), kafka_clients.writer(settings, None)
    await reader.start()
    await producer.start()
    parts = [TopicPartition(back, p) for p in range(_PARTITIONS)]
    reader.assign(parts)
    await reader.seek_to_end(*parts)
    value, sent, got = b'{"query_id": "%012d", "text": "' + b"x" * _BYTES + b'"}', 0, 0
    sampler: subprocess.Popen[bytes] | None = None

    async def through(count: int, in_flight: int, rate: float) -> float:
        nonlocal sent, got
        began, goal, start = time.monotonic(), sent + count, sent
        while got < goal:
            due = goal if not rate else min(goal, start + int((time.monotonic() - began) * rate) + 1)
            while sent < due and sent - got < in_flight:
                await producer.send(there, value % sent, key=b"%012d" % sent)
                sent += 1
            for records in (await reader.getmany(timeout_ms=5 if rate else 200)).values():
                got += len(records)
        return time.monotonic() - began

    try:
        await through(load.warm, load.in_flight, 0.0)
        if pid:
            spy = os.environ.get("PYSPY", "py-spy")
            argv = [
                spy,
                "record",
                "-p",
                str(pid),
                "-o",
                profile,
                "-r",
                "500",
                "-f",
                "raw",
                "-d",
                "3600",
                "-t",
            ]
            sampler = subprocess.Popen(argv, stderr=subprocess.DEVNULL)  # noqa: ASYNC220 - returns at once
            await asyncio.sleep(1.0)
        return await through(load.records, load.in_flight, load.rate)
    finally:
        if sampler:
            sampler.send_signal(2)
            sampler.wait(60)
        await reader.stop()
        await producer.stop()


def _serve(warm: int, out: Path) -> None:
    """Run the echo in this process until it is told to stop; write what it spent after the first `warm` records."""
    import uvloop

    from streams.metrics import Metrics
    from streams.runtime.base import ConsumerRecord, Outgoing
    from streams.runtime.kafka import KafkaRuntime
    from streams.runtime.kafka_worker import KafkaWorker

    settings = Settings.from_env(os.environ)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    runtime = KafkaRuntime(settings, Metrics("echo"), service="echo")
    there, back = _topics(settings)
    handled, before = 0, 0.0

    async def handle(record: ConsumerRecord) -> None:
        nonlocal handled, before
        handled += 1
        if handled == warm:
            before = time.process_time()
        await runtime.send(Outgoing(back, record.key, record.value or b""))

    def ended() -> NoReturn:
        out.write_text(json.dumps({"cpu_s": time.process_time() - before, "records": handled - warm}))
        os._exit(0)

    runtime.each(there, handle, stage="echo")
    KafkaWorker(
        runtime, loop, ready=lambda: None, stopping=lambda: None, ended=ended
    ).execute_from_commandline()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]))
