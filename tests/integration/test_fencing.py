"""Two deciders: the broker refuses the rows of the one that has lost the partition, and the log stays whole."""

import asyncio
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from agents.decider.log.rows import Row
from schemas.query import Query
from schemas.reward import Reward
from streams.local.broker import Broker
from streams.local.supervisor import python
from streams.runtime.base import Crash
from streams.runtime.kafka import admin, connections
from streams.runtime.kafka.fence import Fence
from streams.settings import Kafka, Settings
from streams.topics import Topic

pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def transactions(broker: Broker) -> None:
    if broker.kind == "embedded":
        pytest.skip("the embedded broker has no transactions: fencing is tested on Apache Kafka")


def test_who_takes_the_right_shuts_out_who_had_it(broker: Broker) -> None:
    settings = Settings(kafka=Kafka(bootstrap=broker.bootstrap))
    name = f"fenced-{uuid.uuid4().hex[:6]}"
    admin.create(
        settings,
        [
            Topic(
                name=name,
                record="row",
                key="k",
                partitions=1,
                compacted=True,
                retention_ms=-1,
                max_bytes=100_000,
            )
        ],
    )

    def fence() -> Fence:
        return Fence(
            name,
            lambda transactional_id: AIOKafkaProducer(
                bootstrap_servers=broker.bootstrap, transactional_id=transactional_id, acks="all"
            ),
        )

    async def main() -> None:
        old, new = fence(), fence()
        with pytest.raises(Crash, match="may not write"):
            await new.write([(b"n", b"early")])
        await old.take()
        await old.write([(b"%d" % n, b"x" * 9_000) for n in range(4)])  # more than one batch
        producer = old._producer
        await producer.begin_transaction()  # begun, and then the process stands still
        await old._post([(b"0", b"zombie")])
        await new.take()
        await new.write([(b"0", b"valid")])
        with pytest.raises(KafkaError):
            await producer.commit_transaction()  # it goes on where it stood
        with pytest.raises(Crash, match="another process writes it"):
            await old.write([(b"0", b"late")])
        await new.write([(b"4", b"after")])
        await new.release()
        await old.release()

    asyncio.run(main())
    rows = [(r.key, r.value[:6]) for r in connections.read_all(settings, [name])]
    assert rows == [*((b"%d" % n, b"xxxxxx") for n in range(4)), (b"0", b"valid"), (b"4", b"after")]


def closed(loop: Any) -> set[str]:
    return {r.query_id for r in loop.read(loop.topics.reward, Reward) if r.closes}


@pytest.mark.timeout(300)
def test_a_decider_that_stood_still_past_its_session_writes_no_row(
    deploy: Callable[..., Any], ask: Callable[[int], Query]
) -> None:
    standby = [*python(), "worker", "decider", "--instance", "1"]
    loop = deploy(max_in_flight=32, group_partitions=8, commands={"decider-1": standby})
    first = [ask(n) for n in range(40)]
    loop.send(*first)
    loop.until(lambda: closed(loop) >= {q.query_id for q in first}, 90, "the first rewards")
    rooms = loop.supervisor.rooms
    log = loop.log.read_text()
    held = next(name for name in ("decider", "decider-1") if f"{name} " in log and decides(log, name))
    other = {"decider": "decider-1", "decider-1": "decider"}[held]
    more = [ask(n) for n in range(40, 140)]
    loop.send(*more)
    loop.until(lambda: len(loop.raw(loop.topics.decision)) > 45, 60, "some of the second decisions")
    pid = rooms[held].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        wanted = {q.query_id for q in [*first, *more]}
        loop.until(lambda: closed(loop) >= wanted, 120, f"{other} to take over")
    finally:
        os.kill(pid, signal.SIGCONT)
    time.sleep(3.0)
    last = [ask(n) for n in range(140, 170)]
    loop.send(*last)
    wanted |= {q.query_id for q in last}
    loop.until(lambda: closed(loop) >= wanted, 90, "rewards after the old one went on")
    loop.until(
        lambda: sum(isinstance(r, Row) and r.stage == "closed" for r in loop.learner_rows()) == len(wanted),
        30,
        "all rows closed",
    )
    places = [r.seq for r in loop.learner_rows() if isinstance(r, Row)]
    assert len(places) == len(set(places)), "two rows have one sequence number"
    assert "ProducerFenced" in loop.log.read_text()
    os.kill(
        rooms[other].pid, signal.SIGKILL
    )  # whoever comes reads the log, and refuses one that is not whole
    goes_on(loop, wanted, [ask(n) for n in range(170, 180)])


@pytest.mark.timeout(300)
def test_of_two_deciders_with_one_name_the_younger_goes_on_and_the_other_says_why_it_ends(
    deploy: Callable[..., Any], ask: Callable[[int], Query], tmp_path: Path
) -> None:
    loop = deploy(max_in_flight=32, group_partitions=8)
    first = [ask(n) for n in range(20)]
    loop.send(*first)
    loop.until(lambda: closed(loop) >= {q.query_id for q in first}, 90, "the first rewards")
    said = tmp_path / "twin.log"
    elsewhere = {**loop.environ, "UNISCALE_STATE_DIR": str(tmp_path / "state")}
    with said.open("wb") as out:
        twin = subprocess.Popen(
            [*python(), "worker", "decider"], env=elsewhere, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        loop.until(
            lambda: "has joined, and has this one's partitions now" in loop.log.read_text(), 90, "the end"
        )
        # Its supervisor starts it again: it waits for a session, and leaves the name to the other.
        loop.until(lambda: "is a member of the group, on " in loop.log.read_text(), 90, "its successor's end")
        more = [ask(n) for n in range(20, 80)]
        loop.send(*more)
        wanted = {q.query_id for q in [*first, *more]}
        loop.until(lambda: closed(loop) >= wanted, 60, "the rewards, with both still there")
        assert twin.poll() is None
        assert "another process writes it" not in said.read_text()
    finally:
        twin.kill()
        twin.wait()
    places = [r.seq for r in loop.learner_rows() if isinstance(r, Row)]
    assert len(places) == len(set(places)), "two rows have one sequence number"
    goes_on(loop, wanted, [ask(n) for n in range(80, 90)])  # with the other gone, the first has its name back


def goes_on(loop: Any, wanted: set[str], more: list[Query]) -> None:
    """Send more queries; the log must be one that a decider reads, and the audit finds nothing."""
    loop.send(*more)
    loop.until(lambda: closed(loop) >= wanted | {q.query_id for q in more}, 120, "a decider on the same log")
    loop.settled()
    assert "cannot recover" not in loop.log.read_text()


def decides(log: str, name: str) -> bool:
    """Say whether a decider has an offer: it does where it owns the partition."""
    return any(f" {name} " in line and "on offer" in line for line in log.splitlines())
