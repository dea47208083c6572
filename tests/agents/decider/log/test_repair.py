"""A log that the fold refuses: every cause is named, and without exactly that a learner starts again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agents.bandit.errors import CorruptState, DuplicateQuery
from agents.bandit.linucb import LinUCB
from agents.decider.log import Row, decode_row, encode_row
from agents.decider.repair import refused, repaired
from agents.decider.snapshot import RESET_KEY, is_record

SMALL = 4096


def life(shard: Any, rounds: int) -> None:
    for _ in range(rounds):
        made = shard.ask(*(shard.context() for _ in range(3)))
        shard.tell(*(shard.reward(each) for each in made[:2]))


@pytest.fixture(params=["rows alone", "after snapshots"])
def shard(make_shard: Any, request: pytest.FixtureRequest) -> Any:
    made = make_shard(LinUCB)
    for _ in range(3 if request.param == "after snapshots" else 0):
        life(made, 3)
        made.apply(made.snapshot(SMALL))
    life(made, 4)
    return made


def parts(shard: Any) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Return the rows in the order of writing, and the snapshots."""
    order = sorted(shard.table, key=shard.table.offsets.__getitem__)
    rows = {key: shard.table[key] for key in order if not is_record(key)}
    return rows, {key: shard.table[key] for key in order if is_record(key)}


def newest(shard: Any) -> Row:
    """Return a closed row of which no snapshot tells."""
    rows = [decode_row(key, value) for key, value in parts(shard)[0].items()]
    return max((r for r in rows if isinstance(r, Row) and r.stage == "closed"), key=lambda row: row.seq)


def unreadable(shard: Any) -> set[bytes | None]:
    key = newest(shard).query_id.encode()
    shard.table[key] = b'{"schema":"decider-row.v9"}'
    return {key, None}


def doubled(shard: Any) -> set[bytes | None]:
    """A second writer has decided at the same place."""
    row = newest(shard)
    twin = msgspec.structs.replace(row, query_id="twin", stage="pending", learned_seq=-1, kinds=())
    shard.table[b"twin"] = encode_row(twin)
    return {b"twin"}


def missing(shard: Any) -> set[bytes | None]:
    del shard.table[newest(shard).query_id.encode()]
    return {None}


@pytest.mark.parametrize("damage", [unreadable, doubled, missing])
def test_what_is_refused_is_named_and_without_it_the_learner_starts(shard: Any, damage: Any) -> None:
    assert refused(*parts(shard)) == []
    seq = shard.decider.seq
    keys = damage(shard)
    with pytest.raises(CorruptState, match="learner check"):
        shard.crash()
    found = refused(*parts(shard))
    assert {each.key for each in found} == keys
    assert all("row" in each.what for each in found)
    without = [each.key for each in found if each.key is not None]
    records, gone = repaired(shard.fresh(), *parts(shard), without, shard.table.end, SMALL)
    shard.apply(records)
    shard.apply((key, None) for key in gone)
    assert set(without) <= set(gone)
    assert seq - 4 <= shard.crash().snapshot_version < seq  # the last places may have been those of the row
    assert refused(*parts(shard)) == []
    if b"twin" in keys:
        assert isinstance(shard.ask(shard.context("twin"))[0].error, DuplicateQuery)
    life(shard, 3)
    before = shard.decider
    for _ in range(2):
        shard.crash()
        shard.same_as(before)
        shard.apply(shard.snapshot(SMALL))


def test_what_a_reset_has_left_is_no_foreign_record_and_stays(shard: Any) -> None:
    shard.apply([(RESET_KEY, b'{"0":7}')])
    assert refused(*parts(shard)) == []
    records, gone = repaired(shard.fresh(), *parts(shard), [], shard.table.end, SMALL)
    assert RESET_KEY not in {key for key, value in records if value is None} | set(gone)
    assert shard.crash().foreign == ([], [])
    shard.apply(shard.snapshot(SMALL))
    assert shard.table[RESET_KEY] == b'{"0":7}'


def test_a_whole_log_is_not_named(shard: Any) -> None:
    assert refused(*parts(shard), accept=shard.policy().load) == []
    shard.crash()
