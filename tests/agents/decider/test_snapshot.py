"""Snapshots: any crash between two writes recovers the same state; damage is refused, never half loaded."""

from __future__ import annotations

import copy

import msgspec
import pytest

from agents.bandit.baselines import KNN
from agents.bandit.errors import CorruptState, DuplicateQuery
from agents.bandit.linucb import LinUCB, LinUCBSettings
from agents.decider.policy_fold import refits_of
from agents.decider.rows import RefitRow, Row, decode_row, encode_row, refit_rows
from agents.decider.snapshot import SNAPSHOT_KEY, START_KEY, EndedIds, carry, is_record, versions
from schemas.reward import Kind
from tests.support.shard import Shard

SMALL = 4096


def life(shard: Shard, rounds: int) -> None:
    for _ in range(rounds):
        made = shard.ask(*(shard.context() for _ in range(4)))
        kinds: list[Kind] = ["final", "provisional", "final"]
        shard.tell(*(shard.reward(d, kind) for d, kind in zip(made, kinds, strict=False)))


def rows(shard: Shard) -> list[Row]:
    found = [decode_row(k, v) for k, v in shard.table.items() if not is_record(k)]
    return [row for row in found if isinstance(row, Row)]


@pytest.fixture
def shard() -> Shard:
    """A log with two snapshots, rows of the first one's time gone, and life after both."""
    shard = Shard(LinUCB)
    for _ in range(2):
        life(shard, 6)
        shard.apply(shard.snapshot(SMALL))
    life(shard, 3)
    return shard


def newest(shard: Shard) -> int:
    return max(versions(shard.table))


def test_rows_that_an_older_snapshot_holds_are_gone(shard: Shard) -> None:
    assert len(rows(shard)) < shard.decider.clock
    assert len(versions(shard.table)) == 2


def test_recovery_from_a_snapshot_equals_the_live_learner(shard: Shard) -> None:
    before = shard.decider
    found = shard.crash()
    assert found.snapshot_version == newest(shard)
    assert not found.refused
    shard.same_as(before)


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "missing", "swapped", "manifest", "other-version"]
)
def test_damaged_snapshot_falls_back_to_the_one_before(shard: Shard, damage: str) -> None:
    before, version = shard.decider, newest(shard)
    older = min(versions(shard.table))
    first, second = (SNAPSHOT_KEY + f"{version}/{i}".encode() for i in (0, 1))
    manifest = SNAPSHOT_KEY + f"{version}/manifest".encode()
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
            table[manifest] = table[SNAPSHOT_KEY + f"{older}/manifest".encode()]
    found = shard.crash()
    assert found.snapshot_version == older
    assert [f"snapshot {version}" in str(error) for error in found.refused] == [True]
    shard.same_as(before)


def test_with_no_whole_snapshot_left_recovery_refuses(shard: Shard) -> None:
    for version in versions(shard.table):
        del shard.table[SNAPSHOT_KEY + f"{version}/0".encode()]
    with pytest.raises(CorruptState, match=r"snapshot \d+ chunk 0: found 'nothing'"):
        shard.crash()


def test_with_no_whole_snapshot_left_the_whole_log_is_folded() -> None:
    shard = Shard(LinUCB)
    for _ in range(2):
        life(shard, 5)
        shard.table |= shard.decider.snapshot(SMALL)
    for version in versions(shard.table):
        shard.table[SNAPSHOT_KEY + f"{version}/0".encode()] = b"?"
    before = shard.decider
    found = shard.crash()
    assert found.snapshot_version == -1
    assert len(found.refused) == 2
    shard.same_as(before)


def test_snapshot_of_other_settings_is_refused_log_folded() -> None:
    shard = Shard(LinUCB)
    life(shard, 5)
    shard.table |= shard.decider.snapshot(SMALL)
    shard.make_policy = lambda features: LinUCB(features, LinUCBSettings(alpha=2.0))
    found = shard.crash()
    assert found.snapshot_version == -1
    assert "snapshot 34 state settings" in str(found.refused[0])
    assert found.folded.updates == 15


@pytest.mark.parametrize("lost", ["a decision", "a reward"])
def test_a_log_with_a_hole_stops_recovery(shard: Shard, lost: str) -> None:
    victim = next(row for row in rows(shard) if row.seq > newest(shard) and row.learned_seq >= 0)
    if lost == "a decision":
        del shard.table[victim.query_id.encode()]
    else:
        earlier = msgspec.structs.replace(victim, stage="pending", learned_seq=-1, kinds=())
        shard.table[victim.query_id.encode()] = encode_row(earlier)
    seq = victim.seq if lost == "a decision" else victim.learned_seq
    with pytest.raises(CorruptState, match=f"the log's next sequence number: found {seq + 1}, wanted {seq}"):
        shard.crash()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_crash_between_any_two_writes_recovers_the_same_state(shard: Shard, damaged: bool) -> None:
    before, table = shard.decider, shard.table
    writes = shard.snapshot(SMALL)
    kinds = ["drop" if value is None else "write" for _, value in writes]
    assert kinds.count("drop") > 2
    assert START_KEY in dict(writes)
    for n in range(len(writes) + 1):
        shard.table = copy.deepcopy(table)
        shard.apply(writes[:n])
        if damaged:
            shard.table[SNAPSHOT_KEY + f"{newest(shard)}/0".encode()] = b"?"
        found = shard.crash()
        assert len(found.refused) == damaged
        shard.same_as(before)


def test_snapshot_carries_open_rows_and_ended_ids() -> None:
    shard = Shard(LinUCB)
    asked = [shard.context() for _ in range(3)]
    old, late, open_ = shard.ask(*asked)
    shard.tell(shard.reward(old))
    shard.tell(shard.reward(late, "provisional"))
    for _ in range(4):
        life(shard, 3)
        shard.apply(shard.snapshot(SMALL))
    assert old.query_id.encode() not in shard.table
    before = shard.decider
    found = shard.crash()
    shard.same_as(before)
    assert {late.query_id.encode(), open_.query_id.encode()} < set(found.carried)
    shard.table |= dict(found.carried)
    # Redelivered: nothing is sent, as its Answer has come; the same id from elsewhere is a duplicate.
    again = shard.ask(asked[0])[0]
    assert (again.value, again.row, again.error, again.resent) == (None, None, None, True)
    context, origin = asked[0]
    moved = msgspec.structs.replace(context, origin=msgspec.structs.replace(context.origin, offset=999))
    error = shard.ask((moved, origin))[0].error
    assert isinstance(error, DuplicateQuery)
    assert "the Query at query/0/0, and another came at query/0/999" in str(error)
    seq = shard.decider.seq
    assert shard.tell(shard.reward(old, "correction"))[0].verdict == "late"
    assert shard.decider.seq == seq
    assert shard.ask(asked[2])[0].value == open_.value
    assert shard.tell(shard.reward(late, "correction"))[0].verdict == "corrected"
    assert shard.tell(shard.reward(open_))[0].verdict == "learned"


def test_log_of_another_policy_is_refused_by_name(shard: Shard) -> None:
    other = Shard(lambda features: KNN(features))
    other.table = shard.table
    with pytest.raises(CorruptState, match="set UNISCALE_POLICY=linucb to go on, or start over"):
        other.crash()


def test_a_row_that_cannot_be_read_stops_recovery(shard: Shard) -> None:
    shard.table[b"q1"] = b'{"schema":"decider-row.v9"}'
    with pytest.raises(CorruptState, match="row b'q1'"):
        shard.crash()


def test_a_row_without_a_key_is_nobodys(shard: Shard) -> None:
    # No release writes one, so it is no row of another release either.
    before = shard.decider
    shard.table[b""] = b'{"schema":"decider-row.v9"}'
    shard.crash()
    shard.same_as(before)


def test_refit_result_is_split_into_rows_and_read_back() -> None:
    result = bytes(range(250)) * 10
    rows = [(row.key, encode_row(row)) for row in refit_rows(640, result, seq=7, size=1000)]
    read = [decode_row(*row) for row in rows]
    assert [len(row.result) for row in read if isinstance(row, RefitRow)] == [1000, 1000, 500]
    assert refits_of(reversed(read)) == {640: result}
    assert refits_of(read[1:]) == {}
    assert refits_of(read, after=6) == {640: result}
    assert refits_of(read, after=7) == {}
    # Written again, and shorter: what is left of the first is no part of it.
    again = refit_rows(640, result[:1500], seq=9, size=1000)
    assert refits_of([read[2], *again]) == {640: result[:1500]}
    carried, ended = carry([(*row, decode_row(*row)) for row in rows], 30, EndedIds(), value=dict(rows).get)
    assert carried.rows == ()
    assert ended == {b"\x00refit/640/0": 7, b"\x00refit/640/1": 7, b"\x00refit/640/2": 7}
