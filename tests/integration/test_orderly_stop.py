"""All services at once told to stop, as an upgrade does, or killed, with records in hand and waiting: nothing is lost.

faust would lose the records that wait when a service starts; see `streams/runtime/kafka_consumer.py`.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from streams.local.deployment import READY
from streams.worker import CRASH_EXIT
from tests.support.conservation import conserved, learned
from tests.support.deployment import Ask, Deploy

pytestmark = pytest.mark.broker

# A service whose consumer fails once, between the broker and the first handler.
FAULTY = """
import asyncio, os, pathlib, sys
from streams.settings import Settings
from streams.runtime.kafka_consumer import Consumer
from streams.worker import run_service

service, how, topic, once = *sys.argv[1:4], pathlib.Path(sys.argv[4])
into_queues, resume_flow = Consumer._into_queues, Consumer.resume_flow

def is_it(tp, batch):
    return tp.topic.endswith(topic) and batch[-1].offset >= 20 and not once.exists()

def fails(self, tp, binding, batch, active):
    if is_it(tp, batch):
        once.touch()
        raise RuntimeError("a fault inside the consumer")
    return into_queues(self, tp, binding, batch, active)

def ends(self, tp, binding, batch, active):
    if is_it(tp, batch):
        once.touch()
        self._thread._consumer._fetcher._fetch_task.cancel()
    return into_queues(self, tp, binding, batch, active)

def stands_still(self):
    resume_flow(self)
    self._may_deliver = asyncio.Event()

if how in ("fails", "ends"):
    Consumer._into_queues = {"fails": fails, "ends": ends}[how]
elif not once.exists():
    once.touch()
    Consumer.resume_flow = stands_still
run_service(Settings.from_env(os.environ), service)
"""


# A service that takes its time between reading its table and going on, while records arrive.
SLOW = """
import asyncio, os
from streams.services.decider import DeciderService
from streams.settings import Settings
from streams.worker import run_service

recovered = DeciderService._recovered

async def slowly(self):
    await recovered(self)
    await asyncio.sleep(2)

DeciderService._recovered = slowly
run_service(Settings.from_env(os.environ), "decider")
"""


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param((signal.SIGKILL, signal.SIGTERM), id="killed and stopped"),
        pytest.param(
            (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM),
            id="stopped, killed and stopped",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_all_services_ended_in_flight_lose_nothing(
    deploy: Deploy, ask: Ask, ends: Sequence[signal.Signals]
) -> None:
    """Each end meets what the ends before have left."""
    loop = deploy(max_in_flight=32, group_partitions=16)
    ids: set[str] = set()
    for at, how in enumerate(ends):
        before = len(loop.raw(loop.topics.answer))
        ids |= loop.send(*(ask(n) for n in range(at * 60, at * 60 + 60)))
        loop.answered(before + 10)
        for service in loop.supervisor.services.values():
            os.kill(service.pid, how)
        loop.rewarded(ids)
    loop.settled()
    assert loop.raw(loop.topics.dead_letter) == []
    conserved(loop, ids)
    learned(loop, len(ids))
    loop.close()
    log = loop.log.read_text()
    assert "was lost between" not in log
    assert log.count("exited with code 0") == ends.count(signal.SIGTERM) * len(loop.supervisor.services)


# Of each service: what its consumer does once, at records of which topic, and what the service says of it.
FAULTS = {
    "decider": ("fails", "context", "crash: faust failed"),
    "aggregator": ("ends", "answer", "crash: the Kafka consumer: the fetcher ended"),
    "embedder": ("stands still", "query", "records wait and nothing has moved for 15 s"),
}


def test_consumer_fault_ends_the_service_and_loses_nothing(deploy: Deploy, ask: Ask, tmp_path: Path) -> None:
    commands = {
        service: [sys.executable, "-c", FAULTY, service, how, topic, str(tmp_path / service)]
        for service, (how, topic, _) in FAULTS.items()
    }
    loop = deploy(max_in_flight=32, group_partitions=16, commands=commands)
    loop.serve(*(ask(n) for n in range(100)))
    loop.settled()
    log = loop.log.read_text()
    for service, (_, _, said) in FAULTS.items():
        assert said in log
        assert f"{service} exited with code {CRASH_EXIT}" in log


@pytest.mark.thorough
def test_service_recovering_under_traffic_misses_nothing(deploy: Deploy, ask: Ask) -> None:
    # Nothing is committed before the end, so there is nothing to go back to but the beginning.
    loop = deploy(
        max_in_flight=8, commit_interval_s=600.0, commands={"decider": [sys.executable, "-c", SLOW]}
    )
    ids = loop.send(*(ask(n) for n in range(90)))
    for at in (10, 30, 50):
        loop.until(lambda n=at: len(loop.closed()) >= n, what=f"{at} rewards")
        loop.supervisor.kill("decider")
        loop.supervisor.wait_ready(60)
    loop.rewarded(ids)
    learned(loop, len(ids))
    loop.settled()


@pytest.mark.thorough
def test_workers_that_join_and_leave_in_flight_lose_nothing(deploy: Deploy, ask: Ask, tmp_path: Path) -> None:
    loop = deploy(max_in_flight=32, group_partitions=16)
    answers = loop.topics.answer
    ids: set[str] = set()

    def more() -> None:
        ids.update(loop.send(*(ask(n) for n in range(len(ids), len(ids) + 60))))

    def joined() -> bool:
        if len(ids) - len(loop.raw(answers)) < 40:  # never without something in flight, however long it takes
            more()
        return Path(log.name).read_text().count(READY) == len(workers)

    more()
    loop.answered(10)
    with (tmp_path / "joined.log").open("w+") as log:
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", "streams", "worker", *service, "--instance", "1"], env=loop.environ,
                stdout=log, stderr=log,
            )
            for service in (("executor", "--group", "mini"), ("verifier",), ("aggregator",))
        ]  # fmt: skip
        try:
            loop.until(joined, what="more workers")
            more()
            loop.answered(len(loop.raw(answers)) + 30)
            for process in workers:
                process.terminate()
            loop.rewarded(ids)
            assert [process.wait(30) for process in workers] == [0, 0, 0]
        finally:
            for process in workers:
                process.kill()
        assert "was lost between" not in Path(log.name).read_text()
    loop.settled()
    assert "was lost between" not in loop.log.read_text()
    assert loop.raw(loop.topics.dead_letter) == []
