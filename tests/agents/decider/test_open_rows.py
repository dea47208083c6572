"""Open rows in chunks: whatever changes, a snapshot gives back what is open, and writes little that it had before."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from agents.bandit.errors import CorruptState
from agents.bandit.linucb import LinUCB
from agents.decider import snapshot
from agents.decider.open_rows import MOVED, ROWS_KEY, HeldRows, OpenRows
from agents.decider.rows import Row, decode_row
from agents.decider.snapshot import is_record, manifests
from tests.support.shard import Shard

SIZE = 4096


def line(query_id: str, version: int, stage: str) -> bytes:
    return msgspec.json.encode({"query_id": query_id, "stage": stage, "x": f"{version}" * 300})


@pytest.mark.parametrize("seed", range(8))
def test_what_is_open_is_read_back_and_little_is_written_twice(seed: int) -> None:
    rng = random.Random(seed)
    table: dict[bytes, bytes] = {}
    stored: dict[bytes, bytes] = {}
    held, written, asked = OpenRows(), 0, 0
    for version in range(40):
        changed: dict[bytes, None] = {}
        for _ in range(rng.randint(0, 40)):
            asked += 1
            key = f"q{asked}".encode()
            table[key] = line(key.decode(), version, "pending")
            changed[key] = None
        for key in rng.sample(sorted(table), min(len(table), rng.randint(0, 40))):
            changed[key] = None
            if rng.random() < 0.8:
                del table[key]
            else:
                table[key] = line(key.decode(), version, "learned")
        still_open = [key for key in table if key in changed]
        before = held
        held, records = held.renewed(changed, still_open, table.get, SIZE)
        again, same = before.renewed(changed, still_open, table.get, SIZE)
        assert (again.parts(), same) == (held.parts(), records), "it changes nothing"
        fresh = sum(len(table[key]) + 1 for key in still_open)
        assert sum(len(data) for _, data in records) <= fresh + MOVED * SIZE
        assert all(len(data) <= SIZE for _, data in records)
        written += sum(len(data) for _, data in records)
        stored |= dict(records)
        read = HeldRows(held.parts(), stored.get)
        assert dict(read) == table
        assert read.pending == {key for key, value in table.items() if b'"pending"' in value}
        assert sorted(held.keys()) == sorted(table)
        held = read.chunks if rng.random() < 0.3 else held  # the process has been restarted
    assert len(held.chunks) <= 2 * sum(map(len, table.values())) / SIZE + MOVED + 2


def test_a_row_larger_than_a_chunk_has_one_to_itself() -> None:
    table = {key: line(key.decode(), 1, "pending") * (9 if key == b"b" else 1) for key in (b"a", b"b", b"c")}
    _, records = OpenRows().renewed(table, list(table), table.get, 1000)
    assert [data for _, data in records] == list(table.values())


@pytest.mark.parametrize("damage", ["missing", "flipped", "another", "bits"])
def test_a_damaged_chunk_is_refused(damage: str) -> None:
    table = {key: line(key.decode(), 1, "pending") for key in (b"a", b"b", b"c")}
    held, records = OpenRows().renewed(table, list(table), table.get, SIZE)
    ((key, data),) = records
    (part,) = held.parts()
    match damage:
        case "missing":
            stored = {}
        case "flipped":
            stored = {key: data[:-1] + b"]"}
        case "another":
            part = msgspec.structs.replace(part, count=2)
            stored = {key: data}
        case _:
            part = msgspec.structs.replace(part, live=b"")
            stored = {key: data}
    with pytest.raises(CorruptState, match=r"chunk 0 of open rows|bits of a chunk"):
        HeldRows([part], stored.get)


def ask(shard: Shard, count: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(count):
        made += shard.ask(shard.context())
    return made


def apply_incrementally(shard: Shard, held: OpenRows, changed: dict[bytes, None]) -> tuple[OpenRows, int]:
    """Write a snapshot as the service does, from the rows that changed; return what it holds, and the bytes of rows."""
    keys = [key for key in shard.table if not is_record(key) and (key in changed or key.startswith(b"\x00"))]
    rows = [(key, shard.table[key], decode_row(key, shard.table[key])) for key in keys]
    carried, _ = snapshot.carry(
        rows,
        shard.table.end,
        shard.decider.ended,
        value=shard.table.get,
        open_rows=held,
        changed=changed,
        chunk_bytes=SIZE,
    )
    writes = shard.decider.snapshot(SIZE, carried=carried, present=shard.table)
    shard.apply(writes)
    return carried.open_rows, sum(len(data) for key, data in writes if key.startswith(ROWS_KEY))


def test_waiting_rows_are_not_rewritten_by_each_snapshot() -> None:
    shard = Shard(LinUCB)
    waiting = ask(shard, 30)
    shard.tell(*(shard.reward(each, "provisional") for each in waiting[:20]))
    held, first = apply_incrementally(shard, OpenRows(), dict.fromkeys(shard.table))
    rows_bytes = sum(len(shard.table[each.query_id.encode()]) for each in waiting)
    assert rows_bytes <= first <= 1.1 * rows_bytes
    for _ in range(3):
        (other,) = ask(shard, 1)
        shard.tell(shard.reward(other))
        held, again = apply_incrementally(shard, held, {other.query_id.encode(): None})
        assert again <= SIZE, "the last chunk at most"
    # The rows of before the snapshot leave the log, as far as compaction goes: the snapshot alone has them.
    newest = manifests(shard.table)[max(manifests(shard.table))]
    (older,) = (
        each for version, each in manifests(shard.table).items() if version == min(manifests(shard.table))
    )
    assert {part.sha256 for part in newest.waiting} & {part.sha256 for part in older.waiting}
    before = shard.decider
    shard.table.offsets |= {each.query_id.encode(): -1 for each in waiting}
    found = shard.crash()
    shard.same_as(before)
    assert found.folded.outstanding == 10
    assert {each.query_id.encode() for each in waiting} <= set(found.carried)
    twin = [shard.table[each.query_id.encode()] for each in waiting]
    assert [found.carried[each.query_id.encode()] for each in waiting] == twin
    assert shard.tell(shard.reward(waiting[0], "correction"))[0].verdict == "corrected"
    assert shard.tell(shard.reward(waiting[25]))[0].verdict == "learned"


def test_a_snapshot_of_before_has_open_rows_among_the_others() -> None:
    """Versions of before 27 November 2026 have no chunks of open rows of their own."""
    shard = Shard(LinUCB)
    waiting = ask(shard, 5)
    shard.tell(shard.reward(waiting[0], "provisional"))
    rows = [decode_row(k, v) for k, v in shard.table.items()]
    values = [shard.table[row.key] for row in rows]
    carried = snapshot.Carried(shard.table.end, tuple(values), shard.decider.ended)
    shard.apply(shard.decider.snapshot(SIZE, carried=carried))
    before = shard.decider
    shard.table.offsets |= {row.key: -1 for row in rows}
    found = shard.crash()
    shard.same_as(before)
    assert (found.open_rows.parts(), found.folded.outstanding) == ((), 4)
    assert {row.key for row in rows if isinstance(row, Row)} <= set(found.carried)
    held, _ = apply_incrementally(shard, found.open_rows, dict.fromkeys(found.carried))
    assert sorted(held.keys()) == sorted(each.query_id.encode() for each in waiting)
