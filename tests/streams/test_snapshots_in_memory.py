"""Snapshots through the loop: whoever dies in between, rows leave, duplicates are recognised, fold = live."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agents.bandit import contextual
from agents.decider.log import REFIT_KEY, RefitRow, Row, decode_row
from agents.decider.snapshot import is_record, manifests, start_of
from agents.decider.verify import mismatches, opened
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Query
from schemas.record import decode, encode
from streams.audit.run import Report
from streams.runtime.memory import Effect, MemoryBroker, run
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.services.decider import DeciderService, policy_of
from streams.services.embedder import encoder_of
from streams.settings import Settings

QUERIES = 12
EVERY = 5

InMemory = Callable[..., Settings]
Ask = Callable[..., Query]
Audited = Callable[[Cluster], Report]


def service_of(cluster: Cluster) -> DeciderService | None:
    """Return the service of the decider; None while it is being restarted."""
    for worker in cluster.workers:
        if worker.service == "decider" and worker.subscriptions:
            service: DeciderService = worker.built
            return service
    return None


def learned(cluster: Cluster, updates: int) -> bool:
    service = service_of(cluster)
    return (
        not cluster.busy
        and service is not None
        and service.decider is not None
        and service.decider.policy.version >= updates
    )


async def lived(settings: Settings, queries: list[Query], **how: Any) -> tuple[Cluster, bytes]:
    """Run queries to what is learned of them; return the cluster, running, and the policy's state."""
    cluster = Cluster(settings, SERVICES, **how)
    await cluster.up()
    for query in queries:
        cluster.produce(cluster.topics.query, query.query_id.encode(), encode(query))
        await cluster.until(lambda: not cluster.busy)
    await cluster.until(lambda: learned(cluster, len(queries)))
    service = service_of(cluster)
    assert service is not None
    assert service.decider is not None
    return cluster, service.decider.policy.state()


def log_of(cluster: Cluster) -> dict[bytes, bytes]:
    t, broker = cluster.topics, cluster.broker
    return {**broker.changelog(t.changelog("decider", "pending"), 0), **broker.changelog(t.snapshot, 0)}


def rows(cluster: Cluster) -> set[str]:
    found = [decode_row(k, v) for k, v in log_of(cluster).items() if not is_record(k)]
    return {row.query_id for row in found if isinstance(row, Row)}


async def restarted(cluster: Cluster) -> Cluster:
    """Return another deployment whose decider finds the same log."""
    fresh = Cluster(cluster.settings, {"decider": SERVICES["decider"]})
    for topic in (cluster.topics.changelog("decider", "pending"), cluster.topics.snapshot):
        for record in cluster.broker.records(topic):
            fresh.broker.append(topic, record.key, record.value, 0)
    await fresh.up()
    return fresh


def test_the_log_is_read_once_at_a_start(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, int]] = []
    changelog = MemoryBroker.changelog

    def counted(
        broker: MemoryBroker, topic: str, partition: int, begin: int = 0, *newer: Any
    ) -> dict[bytes, bytes]:
        read.append((topic, begin))
        return changelog(broker, topic, partition, begin, *newer)

    async def main() -> None:
        settings = in_memory(policy="contextual", snapshot_every=EVERY)
        cluster, state = await lived(settings, [ask(n) for n in range(QUERIES)])
        start = start_of(log_of(cluster))
        monkeypatch.setattr(MemoryBroker, "changelog", counted)
        fresh = await restarted(cluster)
        t = cluster.topics
        assert read == [(t.snapshot, 0), (t.changelog("decider", "pending"), start)]
        service = service_of(fresh)
        assert service is not None
        assert service.decider is not None
        assert service.decider.policy.state() == state
        await fresh.close()
        await cluster.close()

    run(main())


def test_what_was_learned_anew_is_read_from_the_log_and_never_estimated_again(
    in_memory: InMemory, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        settings = in_memory(policy="contextual", warm_up=0, snapshot_every=1_000)
        cluster, state = await lived(settings, [ask(n) for n in range(QUERIES)])
        assert manifests(log_of(cluster)) == {}
        for name in ("estimated", "fit_directions", "set_anchors"):
            monkeypatch.delattr(contextual, name)
        fresh = await restarted(cluster)
        service = service_of(fresh)
        assert service is not None
        assert service.decider is not None
        assert service.decider.policy.state() == state
        assert service.decider.policy.refits == {}
        await fresh.close()
        await cluster.close()
        policy = policy_of(settings, encoder_of(settings))
        read, after = opened(policy, log_of(cluster))
        assert (list(mismatches(policy, read, settings.policy.seed, after)), after) == ([], -1)

    run(main())


def test_what_was_learned_anew_and_is_not_whole_in_the_log_is_estimated_again_and_written_again(
    in_memory: InMemory, ask: Ask
) -> None:
    async def main() -> None:
        settings = in_memory(policy="contextual", warm_up=0)
        cluster, state = await lived(settings, [ask(n) for n in range(QUERIES)])
        log = cluster.topics.changelog("decider", "pending")
        (key,) = (key for key in log_of(cluster) if key.startswith(REFIT_KEY))
        whole = log_of(cluster)[key]
        cluster.broker.append(log, key, whole.replace(b'"parts":1', b'"parts":2'), 0)
        (worker,) = (worker for worker in cluster.workers if worker.service == "decider")
        await cluster.stop(worker)
        await cluster.start("decider")
        service = service_of(cluster)
        assert service is not None
        assert service.decider is not None
        assert service.decider.policy.state() == state
        cluster.produce(cluster.topics.query, b"next", encode(ask(QUERIES)))
        await cluster.until(lambda: learned(cluster, QUERIES + 1))
        parts = [decode_row(key, each) for each in (whole, log_of(cluster)[key])]
        (first, again) = (part for part in parts if isinstance(part, RefitRow))
        assert (first.outcomes, again) == (10, msgspec.structs.replace(first, seq=again.seq))
        assert again.seq > first.seq
        await cluster.close()

    run(main())


def test_rows_leave_and_what_comes_again_is_recognised(
    in_memory: InMemory, ask: Ask, audited: Audited
) -> None:
    settings = in_memory(policy="contextual", snapshot_every=EVERY)
    queries = [ask(n) for n in range(QUERIES)]

    async def main() -> None:
        cluster, state = await lived(settings, queries)
        broker, t = cluster.broker, cluster.topics
        gone = {query.query_id for query in queries} - rows(cluster)
        assert queries[0].query_id in gone
        assert QUERIES // 3 < len(gone) < QUERIES
        assert start_of(log_of(cluster)) > 56  # the rows of the actions are carried, too
        decisions = len(broker.records(t.decision))
        # The same Context again, as after a lost commit; then its Query again, under the same id.
        cluster.produce(t.context, b"0", broker.records(t.context)[0].value)
        cluster.produce(t.query, queries[0].query_id.encode(), encode(queries[0]))
        reward = next(r for r in broker.records(t.reward) if queries[0].query_id.encode() in (r.value or b""))
        cluster.produce(t.reward, b"0", reward.value)
        await cluster.until(lambda: bool(broker.records(t.dead_letter)) and not cluster.busy)
        (letter,) = (decode(r.value, DeadLetter) for r in broker.records(t.dead_letter))
        assert (letter.error, letter.query_id) == ("DuplicateQuery", queries[0].query_id)
        assert len(broker.records(t.decision)) == decisions
        service = service_of(cluster)
        assert service is not None
        assert service.decider is not None
        assert service.decider.policy.state() == state
        again = await restarted(cluster)
        found = service_of(again)
        assert found is not None
        assert found.decider is not None
        assert found.decider.policy.state() == state
        assert len(found.learner.log.table.items()) < 2 * EVERY + 60
        assert {query_id for query_id in gone if found.decider.ended.find(query_id) is None} == set()
        await again.close()
        await cluster.close()
        assert audited(cluster).states == {"answered and learned": QUERIES}
        policy = policy_of(settings, encoder_of(settings))
        read, after = opened(policy, log_of(cluster))
        assert after > 0
        assert list(mismatches(policy, read, settings.policy.seed, after)) == []

    run(main())


def test_a_death_after_any_effect_of_a_snapshot_changes_nothing(
    in_memory: InMemory, ask: Ask, audited: Audited
) -> None:
    settings = in_memory(policy="contextual", snapshot_every=EVERY)
    queries = [ask(n) for n in range(QUERIES)]

    async def once(dies_after: Callable[[Effect], bool]) -> tuple[Cluster, bytes, bytes]:
        cluster, state = await lived(settings, queries, dies_after=dies_after)
        again = await restarted(cluster)
        service = service_of(again)
        assert service is not None
        assert service.decider is not None
        found = service.decider.policy.state()
        await again.close()
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
        decided = [
            decode(r.value, Decision).query_id for r in cluster.broker.records(cluster.topics.decision)
        ]
        assert set(decided) == {query.query_id for query in queries}
        assert audited(cluster).states == {"answered and learned": QUERIES}, effects[at]


def test_a_log_that_is_shorter_than_its_snapshots_say_is_refused(in_memory: InMemory, ask: Ask) -> None:
    async def main() -> None:
        cluster, _ = await lived(
            in_memory(policy="contextual", snapshot_every=EVERY), [ask(n) for n in range(QUERIES)]
        )
        fresh = Cluster(cluster.settings, {"decider": SERVICES["decider"]})
        for record in cluster.broker.records(cluster.topics.snapshot):
            fresh.broker.append(record.topic, record.key, record.value, 0)
        await fresh.start("decider")
        assert "is read from offset" in str(fresh.deaths[0])
        await fresh.close()
        await cluster.close()

    run(main())
