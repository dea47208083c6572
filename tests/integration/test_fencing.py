"""Two deciders: the broker refuses the rows of the one that has lost the partition, and the log stays whole."""

import asyncio
import contextlib
import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from agents.decider.rows import Row
from schemas.query import Query
from streams.local.broker import LocalBroker
from streams.local.deployment import python
from streams.log import kafka_admin
from streams.log.blocking import read_all
from streams.log.kafka import KafkaLog
from streams.runtime.errors import Crash
from streams.runtime.kafka import consumer_of, create_app
from streams.runtime.kafka_transactions import Fence, FencedTable
from streams.settings import KafkaSettings, Settings
from streams.topics import Topic
from tests.support.deployment import Ask, Deploy, Deployment

pytestmark = [pytest.mark.broker, pytest.mark.kafka("the embedded broker has no transactions")]


def test_who_takes_the_right_shuts_out_who_had_it(broker: LocalBroker) -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap=broker.bootstrap))
    name = log_named(settings)

    def fence() -> Fence:
        return fence_of(broker, name)

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
    rows = [(r.key, r.value[:6]) for r in read_all(settings, [name])]
    assert rows == [*((b"%d" % n, b"xxxxxx") for n in range(4)), (b"0", b"valid"), (b"4", b"after")]


def log_named(settings: Settings) -> str:
    """Create a compacted topic of one partition."""
    name = f"fenced-{uuid.uuid4().hex[:6]}"
    topic = Topic(
        name=name, record="row", key="k", partitions=1, compacted=True, retention_ms=-1, max_bytes=100_000
    )
    kafka_admin.create(settings, [topic])
    return name


def fence_of(broker: LocalBroker, name: str) -> Fence:
    def connect(transactional_id: str | None) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, transactional_id=transactional_id, acks="all"
        )

    return Fence(name, connect)


def test_table_reads_what_was_committed_before_its_takeover(broker: LocalBroker) -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap=broker.bootstrap))
    name = log_named(settings)
    told: list[dict[bytes, bytes]] = []

    async def main() -> None:
        consumer = consumer_of(create_app(settings, "decider"))
        old, new = fence_of(broker, name), fence_of(broker, name)
        await old.take()
        for n in range(6):  # each ends in a mark: the rows lie at 0, 2, 4 ...
            await old.write([(b"%d" % n, b"x" * 9_000)])
        await old.write([(b"4", None)])
        await old._producer.begin_transaction()
        await old._post([(b"5", b"zombie")])
        await new.take()

        async def begins() -> int:
            if len(told) == 1 and consumer._epoch == 1:  # a rebalance, which ends a little later
                consumer._epoch += 1
                asyncio.get_running_loop().call_later(0.1, setattr, consumer, "_assigned_epoch", 2)
            return 3

        async def recovered() -> None:
            told.append(dict(table.items()))

        table = FencedTable(
            settings,
            new,
            KafkaLog(settings),
            consumer,
            lambda: frozenset({0}),
            begins=begins,
            recovered=recovered,
        )
        consumer._assigned_epoch = consumer._epoch
        await table.recover()
        assert [sorted(rows) for rows in told] == [[b"2", b"3", b"5"]]
        await table.recover()
        assert len(told) == 1, "nothing has moved"
        await table.put_all([(b"6", b"y", 0)])
        consumer._epoch = consumer._assigned_epoch = 1
        await table.recover()
        assert [sorted(rows) for rows in told[1:]] == [[b"2", b"3", b"5", b"6"]]
        assert table.get(b"5") == b"x" * 9_000
        stranger = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"{name}.other")
        await stranger.start()
        await stranger.begin_transaction()
        await stranger.send_and_wait(name, key=b"7", value=b"strange", partition=0)
        await table.put_all([(b"8", b"z", 0)])  # not shown to readers before the stranger's transaction ends
        consumer._epoch = consumer._assigned_epoch = 3
        reading = asyncio.ensure_future(table.recover())
        await asyncio.sleep(0.5)
        assert not reading.done()
        await table.put_all([(b"8", b"later", 0)])  # by a handler that began before the rebalance
        await stranger.abort_transaction()
        await reading
        assert sorted(told[-1]) == [b"2", b"3", b"5", b"6", b"8"]
        assert table.get(b"8") == b"later"
        await stranger.stop()
        await new.release()
        await old.release()

    asyncio.run(main())


def test_decider_paused_past_its_session_writes_no_row(deploy: Deploy, ask: Ask) -> None:
    standby = [*python(), "worker", "decider", "--instance", "1"]
    loop = deploy(max_in_flight=32, group_partitions=8, commands={"decider-1": standby})
    wanted = loop.serve(*(ask(n) for n in range(40)))
    services = loop.supervisor.services
    # Whether a stop catches a decider with rows still to write is up to the machine: another wave until one does.
    for wave in range(8):
        held = holder(loop.log.read_text())
        other = {"decider": "decider-1", "decider-1": "decider"}[held]
        before = len(loop.raw(loop.topics.decision))
        wanted |= loop.send(*(ask(n) for n in range(40 + wave * 100, 140 + wave * 100)))
        loop.until(lambda n=before: len(loop.raw(loop.topics.decision)) > n + 5, what="some decisions")
        pid = services[held].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            loop.rewarded(wanted)
        finally:
            os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(AssertionError):
            loop.until(lambda: "ProducerFenced" in loop.log.read_text(), "the old one refused", timeout_s=20)
            break
    assert "ProducerFenced" in loop.log.read_text(), "the old one is refused"
    wanted |= loop.serve(*(ask(n) for n in range(900, 930)))
    loop.rewarded(wanted)
    loop.until(
        lambda: sum(isinstance(r, Row) and r.stage == "closed" for r in loop.learner_rows()) == len(wanted),
        what="all rows closed",
    )
    places = [r.seq for r in loop.learner_rows() if isinstance(r, Row)]
    assert len(places) == len(set(places)), "two rows have one sequence number"
    # Whoever comes reads the log, and refuses one that is not whole.
    os.kill(services[other].pid, signal.SIGKILL)
    goes_on(loop, wanted, [ask(n) for n in range(930, 940)])


def test_younger_of_two_deciders_with_one_name_survives(deploy: Deploy, ask: Ask, tmp_path: Path) -> None:
    loop = deploy(max_in_flight=32, group_partitions=8)
    wanted = loop.serve(*(ask(n) for n in range(20)))
    said = tmp_path / "twin.log"
    elsewhere = {**loop.environ, "UNISCALE_STATE_DIR": str(tmp_path / "state")}
    with said.open("wb") as out:
        twin = subprocess.Popen(
            [*python(), "worker", "decider"], env=elsewhere, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        loop.until(lambda: "has joined, and has this one's partitions now" in loop.log.read_text(), "the end")
        # Its supervisor starts it again: it waits for a session, and leaves the name to the other.
        loop.until(lambda: "is a member of the group, on " in loop.log.read_text(), "its successor's end")
        wanted |= loop.serve(*(ask(n) for n in range(20, 80)))  # with both still there
        assert twin.poll() is None
        assert "another process writes it" not in said.read_text()
    finally:
        twin.kill()
        twin.wait()
    places = [r.seq for r in loop.learner_rows() if isinstance(r, Row)]
    assert len(places) == len(set(places)), "two rows have one sequence number"
    goes_on(loop, wanted, [ask(n) for n in range(80, 90)])  # with the other gone, the first has its name back


def goes_on(loop: Deployment, wanted: set[str], more: list[Query]) -> None:
    """Send more queries; the log must be one that a decider reads, and the audit finds nothing."""
    loop.rewarded(wanted | loop.serve(*more))
    loop.settled()
    assert "cannot recover" not in loop.log.read_text()


def holder(log: str) -> str:
    """Return the decider that said last what is on offer: it owns the partition."""
    last = next(line for line in reversed(log.splitlines()) if "on offer" in line)
    return "decider-1" if " decider-1 " in last else "decider"
