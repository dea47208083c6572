"""What commit 521aa2eb wrote is read whole: records, learner's log and snapshot; and the deployment goes on from there.

`log-521aa2eb.zst` was written once, by a deployment of that commit in memory, and is never written again: 73 queries
under the default policy with a snapshot halfway, feedback in time, late, twice and of nobody, models that come and go,
a price, keys, objectives, tenants, pins, cuts, a deadline, dead letters; four queries wait for feedback and three for
an answer. Heartbeats and search steps have left their topics, but for the last. It holds the committed offsets too.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from agents.decider import snapshot
from agents.decider.decider import Decider
from agents.decider.rows import decode_row
from agents.decider.verify import load_replay, mismatches
from agents.encoders import encoder_of
from agents.reward import join_row
from schemas.answer import Answer
from schemas.control import Heartbeat, decode_control
from schemas.dead_letter import DeadLetter
from schemas.decision import Decision
from schemas.query import Query, QueryContext
from schemas.record import decode, encode
from schemas.reward import Due, Feedback, Reward
from schemas.search import SearchStep, Verification
from streams.runtime.memory_cluster import Cluster
from streams.services import SERVICES
from streams.services.decider import policy_of
from streams.simulate.fold import differences
from streams.topics import Topics
from tests.support.cluster import (
    Ask,
    Audit,
    InMemory,
    closing,
    learner_log,
    read,
    recovered,
    served,
    snapshots,
)

FILE = Path(__file__).parents[1] / "golden" / "log-521aa2eb.zst"
CHOSEN_OTHERWISE: frozenset[str] = frozenset()
"""Decisions that a policy of now would have made otherwise, where its behaviour was changed on purpose."""

WAITING = [f"q{number}" for number in range(66, 70)]


class Earlier(msgspec.Struct, frozen=True):
    """The file: when it was written, the committed offsets, and the records."""

    now_ms: int
    committed: list[tuple[str, str, int, int]]
    records: list[tuple[str, int, int, int, bytes | None, bytes | None]]
    """Topic, partition, offset, append time, key, value."""


@cache
def earlier() -> Earlier:
    plain = zstandard.ZstdDecompressor().decompress(FILE.read_bytes())
    return msgspec.msgpack.decode(plain, type=Earlier)


def upgraded(in_memory: InMemory) -> Cluster:
    """Return a deployment that finds these topics and has not started."""
    log = earlier()
    found = Cluster(in_memory(policy="contextual", snapshot_every=70), SERVICES, began_ms=log.now_ms)
    broker = found.broker
    for topic, partition, offset, at_ms, key, value in sorted(log.records, key=lambda record: record[3]):
        for _ in range(offset - broker.end(topic, partition)):  # what retention has taken
            broker.append(topic, None, None, partition, 0)
            broker.delete_before(topic, partition, offset)
        assert broker.append(topic, key, value, partition, at_ms).offset == offset
    broker.committed.update({(app, topic, at): offset for app, topic, at, offset in log.committed})
    return found


def readers(t: Topics) -> dict[str, Callable[[bytes], Any]]:
    """Return what decodes a record of each topic whose records stand for themselves."""
    kinds: dict[str, type[Any]] = {
        t.query: Query, t.context: QueryContext, t.decision: Decision, t.decision_for("mini"): Decision,
        t.search_step: SearchStep, t.verification_for("mini"): Verification, t.answer: Answer,
        t.feedback: Feedback, t.due: Due, t.reward: Reward, t.heartbeat: Heartbeat, t.dead_letter: DeadLetter,
    }  # fmt: skip
    return {
        **{name: partial(decode, kind=kind) for name, kind in kinds.items()},
        t.control: decode_control,
        t.changelog("aggregator", "join"): join_row.decode_row,
    }


def test_every_record_decodes(in_memory: InMemory) -> None:
    topics = Topics(in_memory())
    known, log = readers(topics), topics.changelog("decider", "pending")
    refused, decoded = [], set()
    for topic, partition, offset, _, key, value in earlier().records:
        if value is None:
            continue
        assert key is not None
        decoded.add(topic)
        if topic == log:
            decode_row(key, value)
        elif topic == topics.snapshot:
            assert snapshot.is_record(key)
        else:
            try:
                known[topic](value)
            except ValueError:
                refused.append((topic, partition, offset))
    letters = [decode(v, DeadLetter) for t, *_, v in earlier().records if t == topics.dead_letter and v]
    unread = [each.origin for each in letters if each.error == "UnknownSchema"]
    assert refused == [(each.topic, each.partition, each.offset) for each in unread]
    assert len(unread) == 1
    assert decoded == {*known, log, topics.snapshot}


async def test_decisions_are_reproduced_and_snapshot_equals_log(in_memory: InMemory) -> None:
    cluster = upgraded(in_memory)
    fresh = policy_of(cluster.settings, encoder_of(cluster.settings.encoder))
    rows, after = load_replay(fresh, learner_log(cluster) | snapshots(cluster))
    assert (len(rows), after) == (160, -1)
    differing = mismatches(fresh, rows, cluster.settings.policy.seed, after)
    assert {each.query_id for each in differing} == CHOSEN_OTHERWISE
    decider = recovered(cluster)
    assert decider.policy.version == 51
    alone = Decider(policy_of(cluster.settings, encoder_of(cluster.settings.encoder)), seed=decider.seed)
    folded = alone.recover(learner_log(cluster).items())
    assert (folded.snapshot_version, snapshot.versions(snapshots(cluster))) == (-1, {84})
    assert list(differences(decider, alone)) == []
    await cluster.close()


async def test_the_audit_is_clean_and_the_deployment_goes_on(
    in_memory: InMemory, ask: Ask, audited: Audit
) -> None:
    cluster = upgraded(in_memory)
    before = audited(cluster)
    assert (before.queries, len(before.pending)) == (71, 7)
    await cluster.up()
    for query_id in WAITING:
        said = Feedback(query_id=query_id, correct=True)
        cluster.produce(cluster.topics.feedback, query_id.encode(), encode(said))
    await served(cluster, *(ask(number % 12, query_id=f"later{number}") for number in range(12)))
    in_flight = {f"q{number}" for number in (70, 71, 72)}
    await cluster.until(lambda: closing(cluster).keys() >= {*WAITING, *in_flight} and not cluster.busy)
    assert {closing(cluster)[query_id].graded_by for query_id in WAITING} == {"person"}
    ends = {each.query_id: each.status for each in read(cluster, cluster.topics.answer, Answer)}
    assert {ends[query_id] for query_id in (*in_flight, *(f"later{n}" for n in range(12)))} <= {
        "ok",
        "unfinished",
    }
    assert [repr(each) for each in cluster.deaths] == []
    after = audited(cluster)
    assert (after.queries, len(after.pending)) == (83, 0)
    await cluster.close()
