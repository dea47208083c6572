"""The log that 93adf67 left is continued by the code of today: see tests/golden/log-93adf67/README.md."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from agents.bandit.errors import CorruptState
from agents.decider.log import Row, decode_row
from agents.decider.verify import mismatches, opened
from schemas.answer import Answer
from schemas.dead_letter import DeadLetter
from schemas.query import Query
from schemas.record import decode, encode
from schemas.reward import Feedback, Reward
from streams.audit.run import Report
from streams.runtime.memory import run
from streams.runtime.memory_cluster import Cluster
from streams.services import ROOMS
from streams.services.decider import policy_of
from streams.services.embedder import encoder_of
from streams.settings import Settings

GOLDEN = Path(__file__).parent.parent / "golden" / "log-93adf67"
OPEN = ("q58", "q59", "q60", "q61", "q62", "untold")

Audited = Callable[[Cluster], Report]


class Partition(msgspec.Struct):
    topic: str
    partition: int
    first: int
    records: list[tuple[int, int, bytes | None, bytes | None, list[Any]]]


class Log(msgspec.Struct):
    partitions: list[Partition]
    committed: list[tuple[str, str, int, int]]


def read_log(name: str) -> Log:
    frame = (GOLDEN / f"{name}.msgpack.zst").read_bytes()
    return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(frame), type=Log)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings the log was made with, but for fewer snapshots: those of then are to be there still."""
    return Settings().replace(
        prefix="uniscale.", catalogue=str(GOLDEN / "catalogue.yaml"), recorded=str(GOLDEN / "recording.jsonl"),
        state_dir=str(tmp_path), encoder="hashed", encoder_dimension=8, query_partitions=2, join_partitions=2,
        group_partitions=4, warm_up=6, snapshot_every=60, timeout_s=3600.0,
        policy="linucb",
    )  # fmt: skip


def on_a_broker(log: Log, settings: Settings) -> Cluster:
    """Put a log on a broker, with the offsets the groups had committed; a second has passed since its last record."""
    last_ms = max(at_ms for part in log.partitions for _, at_ms, *_ in part.records)
    cluster = Cluster(settings, ROOMS, seed=3, began_ms=last_ms + 1000)
    partitions = {part.topic: 1 + part.partition for part in log.partitions}
    for topic, count in partitions.items():
        cluster.broker.create(topic, count)
        assert cluster.broker.partitions(topic) == count, f"{topic} has another number of partitions today"
    for part in log.partitions:
        cluster.broker.begin_at(part.topic, part.partition, part.first)
        for offset, at_ms, key, value, _ in part.records:
            record = cluster.broker.append(part.topic, key, value, part.partition, at_ms)
            assert record.offset == offset
    for group, topic, partition, offset in log.committed:
        cluster.broker.committed[group, topic, partition] = offset
    return cluster


async def continued(log: Log, settings: Settings, wanted: set[str], *more: Query) -> Cluster:
    """Let the rooms of today go on from a log until these queries have ended."""
    cluster = on_a_broker(log, settings)
    t = cluster.topics
    await cluster.up()
    for query in more:
        cluster.produce(t.query, query.query_id.encode(), encode(query))
    if "untold" in wanted:
        cluster.produce(t.feedback, b"untold", encode(Feedback(query_id="untold", correct=False)))

    def ended() -> bool:
        return wanted <= {row.query_id for row in learner_rows(cluster) if row.stage == "closed"}

    await cluster.until(ended, 300)
    await cluster.until(lambda: not cluster.busy)
    await cluster.close()
    return cluster


def learner_log(cluster: Cluster) -> dict[bytes, bytes]:
    return cluster.broker.changelog(cluster.topics.changelog("decider", "pending"), 0)


def learner_rows(cluster: Cluster) -> list[Row]:
    own = [(k, v) for k, v in learner_log(cluster).items() if not k.startswith(b"\x00")]
    return [row for key, value in own if isinstance(row := decode_row(key, value), Row)]


def read(cluster: Cluster, topic: str, kind: Any) -> list[Any]:
    return [decode(r.value, kind) for r in cluster.broker.records(topic)]


@pytest.mark.parametrize(("name", "snapshot"), [("whole", 24), ("shortened", 106)])
def test_the_rooms_of_today_go_on_from_the_log(
    settings: Settings, audited: Audited, caplog: pytest.LogCaptureFixture, name: str, snapshot: int
) -> None:
    log = read_log(name)
    new = [Query(query_id=f"new{n}", text="What is 2 + 3, number 0?", reference="5") for n in range(30)]
    taken = Query(query_id="told", text="What is 2 + 3, number 0?", reference="5")
    wanted = {query.query_id for query in new} | set(OPEN if name == "shortened" else ())
    with caplog.at_level(logging.INFO, "streams.decider"):
        cluster = run(continued(log, settings, wanted, *new, *[taken] * (name == "whole")))
    t = cluster.topics
    assert cluster.deaths == []
    # It recovered from the newest snapshot of then, and has written its own since.
    assert f"snapshot {snapshot} and " in caplog.text
    assert "refused" not in caplog.text
    assert "written" in caplog.text
    answers: dict[str, Answer] = {}
    for answer in read(cluster, t.answer, Answer):
        answers.setdefault(answer.query_id, answer)
    assert {answers[query_id].status for query_id in wanted} == {"ok"}
    closing = {r.query_id: r for r in read(cluster, t.reward, Reward) if r.closes}
    assert wanted <= set(closing)
    if name == "shortened":
        assert (closing["untold"].kind, closing["untold"].correct) == ("correction", 0.0)
    report = audited(cluster)
    assert "pending" not in report.states
    assert report.learner["updates"] == report.learner["applied"]
    assert report.learner["max_difference"] < 1e-9
    letters = [(x.error, x.query_id) for x in read(cluster, t.dead_letter, DeadLetter)]
    assert letters[3:] == ([("DuplicateQuery", "told")] if name == "whole" else [])
    # As `verify-decisions` does it: each Decision is the one that the log calls for, across the change of release.
    policy = policy_of(settings, encoder_of(settings))
    rows, after = opened(policy, learner_log(cluster))
    assert sum(isinstance(row, Row) and row.seq > after for row in rows) >= len(new)
    assert list(mismatches(policy, rows, settings.policy.seed, after)) == []


def test_the_audit_accounts_for_the_log_as_it_was_left(settings: Settings, audited: Audited) -> None:
    async def untouched(name: str) -> Cluster:
        cluster = on_a_broker(read_log(name), settings)
        await cluster.close()
        return cluster

    whole = audited(run(untouched("whole")))
    assert whole.states == {"answered and learned": 22, "rejected (InvalidField)": 1}
    assert (whole.unreadable, whole.repeated) == ({"query": 1}, 1)
    assert whole.learner["max_difference"] < 1e-9
    left = audited(run(untouched("shortened")))
    waits = {each.query_id: each.waits_for for each in left.pending}
    assert waits == {
        "q58": "executor", "q59": "executor", "q60": "executor", "q61": "decider", "q62": "embedder",
        "untold": "feedback",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["whole", "shortened"])
def test_the_log_of_another_policy_is_refused_and_the_policy_is_named(settings: Settings, name: str) -> None:
    with pytest.raises(CorruptState, match="set UNISCALE_POLICY=linucb to go on, or begin anew"):
        run(continued(read_log(name), settings.replace(policy="contextual"), set()))
