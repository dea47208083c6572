"""Snapshots: any crash between two writes recovers the same state; damage is refused, never half loaded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agents.decider import snapshot
from agents.decider.errors import CorruptState
from agents.decider.observations import Row, decode_row, encode_row
from agents.decider.policies.linucb import LinUCB, LinUCBSettings
from schemas.query import Origin

SMALL = 4096


def never(origin: Origin) -> bool:
    """The broker has dropped every Query and Context."""
    return False


def life(shard: Any, rounds: int) -> None:
    for _ in range(rounds):
        made = shard.ask(*(shard.context() for _ in range(4)))
        shard.tell(
            *(shard.reward(d, kind) for d, kind in zip(made, ["final", "provisional", "final"], strict=False))
        )


def rows(shard: Any) -> list[Row]:
    found = [decode_row(k, v) for k, v in shard.table.items() if not k.startswith(snapshot.SNAPSHOT_KEY)]
    return [row for row in found if isinstance(row, Row)]


@pytest.fixture
def shard(make_shard: Any) -> Any:
    """A log with two snapshots, rows of the first one's time gone, and life after both."""
    shard = make_shard(LinUCB)
    for _ in range(2):
        life(shard, 6)
        shard.table |= shard.decider.snapshot(SMALL)
    for key in list(snapshot.obsolete(shard.table, rows(shard), never)):
        del shard.table[key]
    life(shard, 3)
    return shard


def newest(shard: Any) -> int:
    return max(snapshot.versions(shard.table))


def test_rows_that_an_older_snapshot_holds_are_gone(shard: Any) -> None:
    assert len(rows(shard)) < shard.decider.clock
    assert len(snapshot.versions(shard.table)) == 2


def test_recovery_from_a_snapshot_equals_the_live_learner(shard: Any) -> None:
    before = shard.decider
    found = shard.crash()
    assert found.snapshot_version == newest(shard)
    assert not found.refused
    shard.same_as(before)


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "missing", "swapped", "manifest", "other-version"]
)
def test_a_damaged_snapshot_is_refused_and_the_one_before_is_used(shard: Any, damage: str) -> None:
    before, version = shard.decider, newest(shard)
    older = min(snapshot.versions(shard.table))
    first, second = (snapshot.SNAPSHOT_KEY + f"{version}/{i}".encode() for i in (0, 1))
    manifest = snapshot.SNAPSHOT_KEY + f"{version}/manifest".encode()
    table = shard.table
    match damage:
        case "truncated":
            table[first] = table[first][:-1]
        case "flipped":
            table[first] = bytes([table[first][0] ^ 1]) + table[first][1:]
        case "missing":
            del table[second]
        case "swapped":
            table[first], table[second] = table[second], table[first]
        case "manifest":
            table[manifest] = table[manifest].replace(b"clock", b"clack")
        case "other-version":
            table[manifest] = table[snapshot.SNAPSHOT_KEY + f"{older}/manifest".encode()]
    found = shard.crash()
    assert found.snapshot_version == older
    assert [f"snapshot {version}" in str(error) for error in found.refused] == [True]
    shard.same_as(before)


def test_with_no_whole_snapshot_left_recovery_refuses(shard: Any) -> None:
    for version in snapshot.versions(shard.table):
        del shard.table[snapshot.SNAPSHOT_KEY + f"{version}/0".encode()]
    with pytest.raises(CorruptState, match=r"snapshot \d+ chunk 0: found 'nothing'"):
        shard.crash()


def test_with_no_whole_snapshot_left_the_whole_log_is_folded(make_shard: Any) -> None:
    shard = make_shard(LinUCB)
    for _ in range(2):
        life(shard, 5)
        shard.table |= shard.decider.snapshot(SMALL)
    for version in snapshot.versions(shard.table):
        shard.table[snapshot.SNAPSHOT_KEY + f"{version}/0".encode()] = b"?"
    before = shard.decider
    found = shard.crash()
    assert found.snapshot_version == -1
    assert len(found.refused) == 2
    shard.same_as(before)


def test_a_snapshot_of_other_settings_is_refused_and_the_log_is_folded(make_shard: Any) -> None:
    shard = make_shard(LinUCB)
    life(shard, 5)
    shard.table |= shard.decider.snapshot(SMALL)
    shard.make_policy = lambda features: LinUCB(features, LinUCBSettings(alpha=2.0))
    found = shard.crash()
    assert found.snapshot_version == -1
    assert "snapshot 34 state settings" in str(found.refused[0])
    assert found.folded.updates == 15


@pytest.mark.parametrize("lost", ["a decision", "a reward"])
def test_a_log_with_a_hole_stops_recovery(shard: Any, lost: str) -> None:
    victim = next(row for row in rows(shard) if row.seq > newest(shard) and row.learned_seq >= 0)
    if lost == "a decision":
        del shard.table[victim.query_id.encode()]
    else:
        earlier = msgspec.structs.replace(victim, stage="pending", learned_seq=-1, kinds=())
        shard.table[victim.query_id.encode()] = encode_row(earlier)
    seq = victim.seq if lost == "a decision" else victim.learned_seq
    with pytest.raises(CorruptState, match=f"the log's next sequence number: found {seq + 1}, wanted {seq}"):
        shard.crash()


def test_a_crash_between_any_two_writes_recovers_the_same_state(shard: Any) -> None:
    before = shard.decider
    writes = list(shard.decider.snapshot(SMALL))
    assert writes[-1][0].endswith(b"/manifest")
    whole = shard.table | dict(writes)
    drops = list(snapshot.obsolete(whole, rows(shard), never))
    assert drops
    tables = [shard.table | dict(writes[:n]) for n in range(len(writes) + 1)]
    for n in range(len(drops) + 1):
        tables.append({k: v for k, v in whole.items() if k not in set(drops[:n])})
    for table in tables:
        shard.table = dict(table)
        shard.crash()
        shard.same_as(before)


def test_rows_still_open_or_still_replayable_stay(shard: Any) -> None:
    life(shard, 4)
    shard.table |= shard.decider.snapshot(SMALL)
    for topic in ("query", "context"):
        dropped = set(
            snapshot.obsolete(
                shard.table, rows(shard), lambda o, topic=topic: o.topic == topic and o.offset >= 30
            )
        )
        gone = [row for row in rows(shard) if row.query_id.encode() in dropped]
        assert gone
        assert all(row.stage in ("closed", "abandoned") for row in gone)
        assert all(row.query_origin.offset < 30 for row in gone)


def test_a_replay_of_a_dropped_querys_reward_is_an_orphan(shard: Any) -> None:
    """Rows leave only when their query can no longer be replayed; a stray reward is harmless even then."""
    state = shard.decider.policy.state()
    made = shard.ask(shard.context())[0]
    stray = shard.reward(made)
    del shard.table[made.query_id.encode()]
    assert shard.tell(stray)[0].verdict == "orphan"
    assert shard.decider.policy.state() == state


def test_a_row_that_cannot_be_read_stops_recovery(shard: Any) -> None:
    shard.table[b"q1"] = b'{"schema":"decider-row.v9"}'
    with pytest.raises(CorruptState, match="row b'q1'"):
        shard.crash()
