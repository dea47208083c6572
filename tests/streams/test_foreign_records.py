"""What others wrote to the decider's log or among its snapshots: skipped and removed, or refused by name."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from agents.bandit.errors import CorruptState
from agents.decider import snapshot
from agents.decider.decider import Decider
from agents.decider.repair import refused, repaired
from agents.decider.rows import ActionRow, Row, decode_row, encode_row
from agents.decider.snapshot import START_KEY, manifest_key, start_of, versions
from agents.encoders import encoder_of
from schemas.query import Query
from streams.runtime.memory_cluster import Cluster
from streams.services.decider import policy_of
from tests.support.cluster import (
    Ask,
    Audit,
    InMemory,
    closing,
    decider_of,
    learner_log,
    running,
    send,
    snapshots,
    successor,
    worker_of,
)

QUERIES = 12
EVERY = 5
DEEP = b'{"schema":"decider-row.v1","decision":' + b"[" * 50_000 + b"]" * 50_000 + b"}"


async def answered(cluster: Cluster, queries: Sequence[Query]) -> None:
    """Run queries one after another to their rewards."""
    for query in queries:
        send(cluster, query)
        await cluster.until(lambda: not cluster.busy)
    ids = {query.query_id for query in queries}
    await cluster.until(lambda: closing(cluster).keys() >= ids and not cluster.busy)


def parts(cluster: Cluster) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Return the log from where startup reads, and the snapshots."""
    found = snapshots(cluster)
    return learner_log(cluster, start_of(found)), found


def fresh(cluster: Cluster) -> Decider:
    """Return a decider that has read nothing."""
    return Decider(policy_of(cluster.settings, encoder_of(cluster.settings.encoder)))


async def restarted(cluster: Cluster) -> None:
    cluster.kill(worker_of(cluster, "decider"))
    cluster.deaths.clear()
    await cluster.until(lambda: not cluster.busy or bool(cluster.deaths))


def junk(cluster: Cluster) -> list[tuple[str, bytes, bytes]]:
    log, t = cluster.topics.changelog("decider", "pending"), cluster.topics
    rows, kept = parts(cluster)
    newest = max(versions(kept))
    carried = snapshot.read(kept, lambda state: None)[0]
    assert carried is not None
    action = next(key for key in carried.rows if key.startswith(b"\x00action/") and key not in rows)
    twin = next(v for k, v in rows.items() if isinstance(decode_row(k, v), Row))
    made = [
        (topic, key, b"{") for topic in (log, t.snapshot) for key in (b"p", b"", b"\xff", b"\x00snapshot/x/0")
    ]
    return [
        *made,
        (log, b"deep", DEEP),
        (log, b"twin", twin),  # the row of another key
        (log, action, b'{"schema":"decider-action.v1"}'),  # over a row that the snapshots hold
        (t.snapshot, b"row", twin),
        (t.snapshot, START_KEY, b"9" * 5_000),
        (t.snapshot, b"\x00snapshot/007/manifest", b"x"),
        (t.snapshot, manifest_key(newest + 100), kept[manifest_key(newest)]),
    ]


async def test_what_the_decider_did_not_write_is_skipped_and_removed(
    in_memory: InMemory, ask: Ask, audit_of: Audit, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(in_memory(policy="contextual", snapshot_every=EVERY)) as cluster:
        await answered(cluster, [ask(n) for n in range(QUERIES)])
        state, bad = decider_of(cluster).policy.state(), junk(cluster)
        for topic, key, value in bad:
            cluster.produce(topic, key, value, 0)
        for _ in range(2):
            await restarted(cluster)
            assert cluster.deaths == []
            assert decider_of(cluster).policy.state() == state
        for topic in (cluster.topics.changelog("decider", "pending"), cluster.topics.snapshot):
            left = cluster.broker.changelog(topic, 0)
            gone = [k for t, k, _ in bad if t == topic and k != START_KEY and not k.endswith(b"/manifest")]
            assert [k for k in gone if left.get(k) in [v for _, _, v in bad]] == []
            assert all(f"{topic}: the record under key" in caplog.text for _ in gone)
        await answered(cluster, [ask(n) for n in range(QUERIES, 3 * QUERIES)])  # past two more snapshots
        state = decider_of(cluster).policy.state()
        await restarted(cluster)
        assert cluster.deaths == []
        assert decider_of(cluster).policy.state() == state
    report = audit_of(cluster)
    assert report.states == {"answered and learned": 3 * QUERIES}
    named = {each.partition(" ")[0] for each in report.ids}
    assert named == {"snapshot"}, report.discrepancies  # the forged one


def ahead(rows: list[Row]) -> Row:
    """Return a row far beyond the end of the log."""
    return msgspec.structs.replace(
        rows[-1], query_id="p", seq=900, learned_seq=901, decision=msgspec.Raw(b"{}")
    )


def beside(rows: list[Row]) -> Row:
    """Return a row with the sequence numbers of another."""
    return msgspec.structs.replace(rows[-1], query_id="p", decision=msgspec.Raw(b"{}"))


@pytest.mark.parametrize("forged", [ahead, beside])
async def test_a_forged_row_is_refused_by_name_and_repaired(
    in_memory: InMemory, ask: Ask, forged: Any
) -> None:
    async with running(in_memory(policy="contextual", snapshot_every=EVERY)) as cluster:
        await answered(cluster, [ask(n) for n in range(QUERIES)])
        t, broker = cluster.topics, cluster.broker
        state, log = decider_of(cluster).policy.state(), t.changelog("decider", "pending")
        rows, _ = parts(cluster)
        found = [row for k, v in rows.items() if isinstance(row := decode_row(k, v), Row)]
        found = sorted(found, key=lambda row: row.last_seq)
        cluster.produce(log, b"p", encode_row(forged(found)), 0)
        # The row that it contradicts is written again later.
        cluster.produce(log, found[-1].key, rows[found[-1].key], 0)
        await restarted(cluster)
        await cluster.until(lambda: len(cluster.deaths) == 3)  # its decider, at every start
    message = str(cluster.deaths[-1])
    assert [part for part in (log, "row 'p'", "learner repair") if part not in message] == [], message
    sent = {r.key: r.value for r in broker.records(t.decision)}
    named = refused(*parts(cluster), sent=lambda keys: sent)
    assert [each.key for each in named] == [b"p"], named
    records, gone = repaired(fresh(cluster), *parts(cluster), [b"p"], broker.end(log, 0))
    for topic, writes in ((t.snapshot, records), (log, [(key, None) for key in gone])):
        for key, value in writes:
            broker.append(topic, key, value, 0)
    assert refused(*parts(cluster)) == []
    async with successor(cluster) as again:
        assert decider_of(again).policy.state() == state


@pytest.mark.parametrize("kind", [Row, ActionRow])
async def test_a_row_that_a_foreign_record_has_replaced_is_restored(
    in_memory: InMemory, ask: Ask, kind: Any
) -> None:
    async with running(in_memory(policy="contextual", snapshot_every=1000)) as cluster:
        await answered(cluster, [ask(n) for n in range(QUERIES)])
        state, (rows, kept) = decider_of(cluster).policy.state(), parts(cluster)
    own = [k for k, v in rows.items() if isinstance(decode_row(k, v), kind)][2]
    damaged = rows | {own: b"{"}
    with pytest.raises(CorruptState, match="learner repair"):
        fresh(cluster).recover(damaged.items(), kept.items())
    assert own in {each.key for each in refused(damaged, kept)}
    healed, again = fresh(cluster), fresh(cluster)
    records, _ = repaired(healed, damaged, kept, [own], len(rows), earlier={own: rows[own]})
    assert healed.policy.state() == state
    again.recover([], [(k, v) for k, v in records if v is not None])
    assert again.policy.state() == state
