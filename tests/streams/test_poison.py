"""Poison on all topics: no process ends, no row stays open, good records between are handled, and the audit is clean.

Hypothesis draws 400 records in everyday runs, and 10,000 in the long ones.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from agents.decider.rows import Row, own_row
from agents.reward.join_row import JoinRow, decode_row, dues
from schemas.answer import Answer
from schemas.control import CatalogueEntry, CostBoundsEntry
from schemas.dead_letter import DeadLetter
from schemas.errors import UniscaleError
from schemas.objective import CostRange
from schemas.query import Query
from schemas.record import encode
from streams.log.partitioner import partition_for
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.settings import Settings
from streams.topics import Topics
from tests.support import poison
from tests.support.cluster import WITH_GATEWAY, Ask, Audit, InMemory, learner_log, running, send

AT_ONCE = 100
GOOD = 6
FOREIGN = "p"
BROKEN = b"{"


@pytest.fixture(scope="session")
def samples(in_memory: InMemory, ask: Ask) -> dict[str, list[tuple[bytes | None, bytes | None]]]:
    """Return real records of every topic, of queries that are not asked again."""

    async def main() -> Cluster:
        async with running(in_memory(snapshot_every=3), WITH_GATEWAY, seed=1) as cluster:
            await lived(cluster)
        return cluster

    async def lived(cluster: Cluster) -> None:
        t = cluster.topics
        rest: dict[str, Any] = {"timeout_s": 30.0, "metadata": {"a": [1]}}
        waits_s = (0.0, 0.0, 0.0, 5.0)
        send(
            cluster,
            *(ask(n, query_id=f"{FOREIGN}{n}", feedback_wait_s=s, **rest) for n, s in enumerate(waits_s)),
        )
        await cluster.until(lambda: len(cluster.broker.records(t.reward)) >= 4 and not cluster.busy)
        changes = (
            CatalogueEntry(name=poison.NOBODY, op="remove"),
            CostBoundsEntry(cost_range=CostRange(low=1e9, high=1e12)),
        )
        for topic, key, record in [*poison.of_nobody(t), *((t.control, each.key, each) for each in changes)]:
            cluster.produce(topic, key.encode(), encode(record))
        cluster.produce(t.context, b"0", BROKEN)
        await cluster.until(lambda: bool(cluster.broker.records(t.dead_letter)))

    cluster = run(main())
    names = {topic.name for topic in cluster.topics.declared(["mini"])}
    found = {
        name: [(r.key, r.value) for r in cluster.broker.records(name) if r.value != BROKEN][:12]
        for name in names
    }
    assert all(found.values()), {name: len(records) for name, records in found.items()}
    return found


def learned(cluster: Cluster) -> set[str]:
    """Return the queries whose row in the learner's log is closed."""
    rows = (own_row(k, v) for k, v in learner_log(cluster).items())
    return {row.query_id for row in rows if isinstance(row, Row) and row.stage in ("closed", "abandoned")}


def joined(cluster: Cluster) -> list[JoinRow]:
    """Return the rows of the join. What else lies in its changelog, or in a foreign partition, is nobody's row."""
    found = []
    partitions = cluster.settings.kafka.join_partitions
    for partition in range(partitions):
        log = cluster.broker.changelog(cluster.topics.changelog("aggregator", "join"), partition)
        for key, value in log.items():
            try:
                row = decode_row(value)
            except UniscaleError:
                continue
            if row.query_id.encode() == key and partition_for(key, partitions) == partition:
                found.append(row)
    return found


async def poisoned(
    settings: Settings, queries: Sequence[Query], bad: Sequence[tuple[str, Any]], seed: int
) -> Cluster:
    """Run good queries with poison between them, restart every service, and ask once more."""
    loop = asyncio.get_running_loop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    cluster = Cluster(settings, WITH_GATEWAY, seed=seed)
    await cluster.up()
    *first, last = queries
    every = max(1, len(bad) // len(first))
    for at, (topic, (key, value)) in enumerate(bad):
        cluster.produce(topic, key, value)
        if at % every == 0 and at // every < len(first):
            send(cluster, first[at // every])
        if at % 10 == 0:
            await asyncio.sleep(0.05)
    ids = {query.query_id for query in first}
    await cluster.until(lambda: learned(cluster) >= ids and not cluster.busy, 300)
    assert cluster.deaths == []
    # Rows with poison among them are read, too.
    for worker in list(cluster.workers):
        cluster.kill(worker)
    cluster.deaths.clear()
    send(cluster, last)
    await cluster.until(lambda: last.query_id in learned(cluster), 300)
    await asyncio.sleep(120)  # past every deadline
    await cluster.until(lambda: not cluster.busy, 300)
    assert cluster.deaths == []
    assert unseen == []
    await cluster.close()
    return cluster


def check(cluster: Cluster, queries: Sequence[Query], audit_of: Audit) -> set[str]:
    """Hold what is promised of a cluster that was poisoned, and return the errors of its dead letters."""
    good = {query.query_id for query in queries}
    records, t = cluster.broker.records, cluster.topics
    answers = [a for a in poison.readable(records(t.answer), Answer) if a.query_id in good]
    assert {a.query_id for a in answers} == good
    assert {a.status for a in answers} == {"ok"}
    now_ms = cluster.broker.now_ms()
    overdue = [row for row in joined(cluster) if any(each.deadline_ms < now_ms - 1000 for each in dues(row))]
    assert overdue == [], (now_ms, overdue)
    assert [row for row in joined(cluster) if not dues(row)] == []
    report = audit_of(cluster)
    # It names the forged records of strangers, snapshots too, and what they do to the counts, but nobody who asked.
    assert not good & set(report.ids), report.discrepancies
    assert not [each for each in report.ids if each.startswith("place ")], report.discrepancies
    assert not [each for each in report.discrepancies if "fold of the log" in each["what"]]
    assert not [each for each in report.pending if each.query_id in good]
    return {letter.error for letter in poison.readable(records(t.dead_letter), DeadLetter)}


@pytest.mark.parametrize(
    "rounds", [4, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_poison_ends_no_process_and_touches_no_good_query(
    in_memory: InMemory, ask: Ask, audit_of: Audit, samples: Any, rounds: int
) -> None:
    errors: set[str] = set()

    def forged(topics: Topics, topic: str, record: Any) -> bool:
        """Return whether a record passes for the learner's own: `test_foreign_records.py` has those."""
        if topic == topics.changelog("decider", "pending"):
            return bool(poison.is_forged(*record))
        return topic == topics.snapshot and record in samples[topic]

    @examples(
        max_examples=rounds, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate], derandomize=True,
    )  # fmt: skip
    @given(seed=st.integers(0, 2**32), doses=st.lists(poison.DOSES, min_size=AT_ONCE, max_size=AT_ONCE))
    def holds(seed: int, doses: list[Any]) -> None:
        settings = in_memory(timeout_s=60.0)
        made = [poison.poison(dose, samples) for dose in doses]
        bad = [(topic, record) for topic, record in made if not forged(Topics(settings), topic, record)]
        queries = [ask(n, query_id=f"good{n}") for n in range(GOOD)]
        cluster = run(poisoned(settings, queries, bad, seed))
        errors.update(check(cluster, queries, audit_of))

    holds()
    assert {"UnreadableRecord", "UnknownSchema", "InvalidField"} <= errors
