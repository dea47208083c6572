"""Snapshots through the loop: whoever dies in between, rows leave, duplicates are recognised, fold = live."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from agents.bandit import contextual
from agents.decider.open_rows import ROWS_KEY
from agents.decider.rows import REFIT_KEY, RefitRow, decode_row
from agents.decider.snapshot import manifests, start_of
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import encode
from schemas.reward import Feedback, Reward
from streams.log.memory import Effect, MemoryBroker
from streams.runtime.errors import PartitionLost
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.settings import Settings
from tests.support.cluster import (
    Ask,
    Audit,
    InMemory,
    decider_of,
    learner_log,
    learner_rows,
    read,
    reproduced,
    running,
    send,
    served,
    snapshots,
    successor,
    worker_of,
)

QUERIES = 12
EVERY = 5


def learned(cluster: Cluster, updates: int) -> bool:
    """Say whether the decider, which may be restarting, has learned so much and nothing is in flight."""
    deciders = [w.built.decider for w in cluster.workers if w.service == "decider" and w.subscriptions]
    return not cluster.busy and any(each and each.policy.version >= updates for each in deciders)


async def lived(settings: Settings, queries: Sequence[Query], **how: Any) -> tuple[Cluster, bytes]:
    """Run queries to what is learned of them; return the cluster, running, and the policy's state."""
    cluster = Cluster(settings, SERVICES, **how)
    await cluster.up()
    for query in queries:
        send(cluster, query)
        await cluster.until(lambda: not cluster.busy)
    await cluster.until(lambda: learned(cluster, len(queries)))
    return cluster, decider_of(cluster).policy.state()


@pytest.fixture
def queries(ask: Ask) -> list[Query]:
    return [ask(n) for n in range(QUERIES)]


async def test_the_log_is_read_once_at_a_start(
    in_memory: InMemory, queries: list[Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, int]] = []
    changelog = MemoryBroker.changelog

    def counted(
        broker: MemoryBroker, topic: str, partition: int, begin: int = 0, *newer: Any
    ) -> dict[bytes, bytes]:
        read.append((topic, begin))
        return changelog(broker, topic, partition, begin, *newer)

    cluster, state = await lived(in_memory(policy="contextual", snapshot_every=EVERY), queries)
    start, t = start_of(snapshots(cluster)), cluster.topics
    monkeypatch.setattr(MemoryBroker, "changelog", counted)
    async with successor(cluster) as fresh:
        assert read == [(t.snapshot, 0), (t.changelog("decider", "pending"), start)]
        assert decider_of(fresh).policy.state() == state
    await cluster.close()


async def test_refit_results_are_read_from_the_log(
    in_memory: InMemory, queries: list[Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, state = await lived(in_memory(policy="contextual", warm_up=0, snapshot_every=1_000), queries)
    assert manifests(snapshots(cluster)) == {}
    for name in ("estimated_with_last", "fit_directions", "set_anchors"):
        monkeypatch.delattr(contextual, name)
    async with successor(cluster) as fresh:
        assert decider_of(fresh).policy.state() == state
        assert decider_of(fresh).policy.refits.results == {}
    await cluster.close()
    assert reproduced(cluster)[1] == -1


async def test_incomplete_refit_result_is_recomputed_and_rewritten(
    in_memory: InMemory, ask: Ask, queries: list[Query]
) -> None:
    cluster, state = await lived(in_memory(policy="contextual", warm_up=0), queries)
    ((key, whole),) = ((k, v) for k, v in learner_log(cluster).items() if k.startswith(REFIT_KEY))
    damaged = whole.replace(b'"parts":1', b'"parts":2')
    cluster.broker.append(cluster.topics.changelog("decider", "pending"), key, damaged, 0)
    await cluster.stop(worker_of(cluster, "decider"))
    await cluster.start("decider")
    assert decider_of(cluster).policy.state() == state
    send(cluster, ask(QUERIES))
    await cluster.until(lambda: learned(cluster, QUERIES + 1))
    parts = [decode_row(key, each) for each in (whole, learner_log(cluster)[key])]
    (first, again) = (part for part in parts if isinstance(part, RefitRow))
    assert (first.outcomes, again) == (10, msgspec.structs.replace(first, seq=again.seq))
    assert again.seq > first.seq
    await cluster.close()


async def test_rows_leave_and_what_comes_again_is_recognised(
    in_memory: InMemory, queries: list[Query], audited: Audit
) -> None:
    cluster, state = await lived(in_memory(policy="contextual", snapshot_every=EVERY), queries)
    broker, t, first = cluster.broker, cluster.topics, queries[0]
    gone = {query.query_id for query in queries} - {row.query_id for row in learner_rows(cluster)}
    assert first.query_id in gone
    assert QUERIES // 3 < len(gone) < QUERIES
    assert start_of(snapshots(cluster)) > 56  # the rows of the actions are carried, too
    decisions = len(broker.records(t.decision))
    # The same Context again, as after a lost commit; then its Query again, under the same id.
    cluster.produce(t.context, b"0", broker.records(t.context)[0].value)
    send(cluster, first)
    reward = next(r for r in broker.records(t.reward) if first.query_id.encode() in (r.value or b""))
    cluster.produce(t.reward, b"0", reward.value)
    await cluster.until(lambda: bool(broker.records(t.dead_letter)) and not cluster.busy)
    (letter,) = read(cluster, t.dead_letter, DeadLetter)
    assert (letter.error, letter.query_id) == ("DuplicateQuery", first.query_id)
    assert len(broker.records(t.decision)) == decisions
    assert decider_of(cluster).policy.state() == state
    async with successor(cluster) as again:
        found = decider_of(again)
        assert found.policy.state() == state
        (decider,) = again.workers
        assert len(decider.built.learner.log.table.items()) < 2 * EVERY + 60
        assert {query_id for query_id in gone if found.ended.find(query_id) is None} == set()
    await cluster.close()
    assert audited(cluster).states == {"answered and learned": QUERIES}
    assert reproduced(cluster)[1] > 0


async def test_waiting_rows_are_written_once_and_learn_after_restart(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    settings = in_memory(policy="knn", snapshot_every=EVERY, feedback_wait_s=1.0)
    async with running(settings) as cluster:
        broker, t = cluster.broker, cluster.topics
        waits = {"reference": None, "feedback_wait_s": 3600.0}
        open_ = [ask(n, query_id=f"open{n}", learn=n % 2 == 0, **waits) for n in range(10)]
        for query in [*open_, *(ask(n) for n in range(4 * EVERY))]:
            send(cluster, query)
            await cluster.until(lambda: not cluster.busy)
        versions = len(
            {key for key in (r.key for r in broker.records(t.snapshot)) if key and b"manifest" in key}
        )
        assert versions >= 5
        lines = [
            line
            for r in broker.records(t.snapshot)
            if (r.key or b"").startswith(ROWS_KEY)
            for line in (r.value or b"").split(b"\n")
        ]
        of = Counter(msgspec.json.decode(line)["query_id"] for line in lines if line)
        assert len([query_id for query_id in of if query_id.startswith("open")]) == 10
        assert sum(of.values()) / versions < 10, "not all of them by each"
        state = decider_of(cluster).policy.state()
        async with successor(cluster) as fresh:
            assert decider_of(fresh).policy.state() == state
            table = worker_of(fresh, "decider").built.learner.log.table
            mine = worker_of(cluster, "decider").built.learner.log.table
            assert dict(table.items()) == dict(mine.items())
        await cluster.stop(worker_of(cluster, "decider"))
        await cluster.start("decider")
        for query in open_[:8]:
            told = Feedback(query_id=query.query_id, correct=True)
            cluster.produce(t.feedback, told.query_id.encode(), encode(told))
        await cluster.until(
            lambda: (
                not cluster.busy and sum(r.kind == "correction" for r in read(cluster, t.reward, Reward)) == 8
            )
        )
        assert {row.query_id for row in learner_rows(cluster) if row.stage in ("pending", "learned")} == {
            "open8",
            "open9",
        }
        await served(cluster, *(ask(n, query_id=f"later{n}") for n in range(4 * EVERY)))
        await asyncio.sleep(5.0)
        state = decider_of(cluster).policy.state()
        async with successor(cluster) as fresh:
            assert decider_of(fresh).policy.state() == state
            found = worker_of(fresh, "decider").built.learner.log.table
            assert {key for key in found if key.startswith(b"open")} >= {b"open8", b"open9"}
        await cluster.until(lambda: not cluster.busy)
        assert audited(cluster).states
    assert reproduced(cluster)


def test_a_death_after_any_effect_of_a_snapshot_changes_nothing(
    in_memory: InMemory, queries: list[Query], audited: Audit
) -> None:
    settings = in_memory(policy="contextual", snapshot_every=EVERY)

    async def once(dies_after: Callable[[Effect], bool]) -> tuple[Cluster, bytes, bytes]:
        cluster, state = await lived(settings, queries, dies_after=dies_after)
        async with successor(cluster) as again:
            found = decider_of(again).policy.state()
        await cluster.close()
        return cluster, state, found

    undisturbed, state, _ = run(once(lambda effect: False))
    effects = undisturbed.broker.effects
    known = undisturbed.topics.snapshot
    places = [at for at, effect in enumerate(effects) if effect.topic == known]
    # What comes between the records of one snapshot: tombstones of rows.
    between = [at + 1 for at in places if effects[at + 1].kind == "row"]
    for at in sorted({*places[:: len(places) // 3], *places[-3:], *between[-2:]}):
        seen = iter(range(1_000_000))
        cluster, live, found = run(once(lambda effect, at=at, seen=seen: next(seen) == at))  # type: ignore[misc]
        assert len(cluster.deaths) == 1, effects[at]
        assert found == live == state, effects[at]
        decided = {each.query_id for each in read(cluster, cluster.topics.decision, Decision)}
        assert decided == {query.query_id for query in queries}
        assert audited(cluster).states == {"answered and learned": QUERIES}, effects[at]


async def test_a_log_that_is_shorter_than_its_snapshots_say_is_refused(
    in_memory: InMemory, queries: list[Query]
) -> None:
    cluster, _ = await lived(in_memory(policy="contextual", snapshot_every=EVERY), queries)
    fresh = Cluster(cluster.settings, {"decider": SERVICES["decider"]})
    for record in cluster.broker.records(cluster.topics.snapshot):
        fresh.broker.append(record.topic, record.key, record.value, 0)
    await fresh.start("decider")
    assert "is read from offset" in str(fresh.deaths[0])
    await fresh.close()
    await cluster.close()


async def test_newest_snapshot_metric_survives_a_restart(in_memory: InMemory, queries: list[Query]) -> None:
    def shown(of: Cluster) -> tuple[float | None, ...]:
        value = worker_of(of, "decider").metrics.registry.get_sample_value
        return value("uniscale_snapshot_place"), value("uniscale_learner_sequence")

    cluster, _ = await lived(in_memory(snapshot_every=EVERY), queries)
    place, sequence = float(max(manifests(snapshots(cluster)))), float(decider_of(cluster).seq)
    assert shown(cluster) == (place, sequence)
    assert 0 < place < sequence
    async with successor(cluster) as fresh:
        assert shown(fresh) == (place, sequence)
        written = worker_of(fresh, "decider").metrics.registry.get_sample_value(
            "uniscale_snapshot_timestamp_seconds"
        )
        assert written, "seconds since 1970 would be an alarm"
    await cluster.close()


async def test_a_partition_lost_amid_a_snapshot_ends_no_worker(
    in_memory: InMemory, queries: list[Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows have gone with it, so the snapshot cannot be made, but nothing is corrupt."""
    async with running(in_memory(snapshot_every=1_000), seed=3) as cluster:
        await cluster.stop(worker_of(cluster, "executor"))
        send(cluster, *queries[:4])
        await cluster.until(lambda: len(read(cluster, cluster.topics.decision, Decision)) == 4)
        worker = worker_of(cluster, "decider")
        log, decider = worker.built.learner.log, decider_of(cluster)
        (table,) = worker.tables
        get, read_once = table.get, set[bytes]()

        def leaving(key: bytes) -> bytes | None:
            if key not in read_once:
                read_once.add(key)
                return get(key)
            worker.epoch += 1  # another worker has the partition now
            return None

        monkeypatch.setattr(table, "get", leaving)
        with pytest.raises(PartitionLost):
            await log._write(decider)
        monkeypatch.setattr(table, "get", get)
