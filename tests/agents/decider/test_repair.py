"""A log that the fold refuses: every cause is named, and without exactly that a learner starts again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.bandit.contextual import Contextual, ContextualSettings
from agents.bandit.contextual_features import ContextualFeatures
from agents.bandit.errors import CorruptState, DuplicateQuery
from agents.bandit.features import FeatureSettings
from agents.bandit.linucb import LinUCB
from agents.decider import snapshot
from agents.decider.policy_fold import events, offer, register_actions, update_policy
from agents.decider.repair import refused, repaired
from agents.decider.rows import REFIT_KEY, ActionRow, Row, decode_row, encode_row
from agents.decider.snapshot import RESET_KEY, is_record
from agents.decider.verify import load_replay, mismatches
from tests.support.shard import Shard
from tests.support.traffic import DIM

SMALL = 4096


def life(shard: Shard, rounds: int) -> None:
    for _ in range(rounds):
        made = shard.ask(*(shard.context() for _ in range(3)))
        shard.tell(*(shard.reward(each) for each in made[:2]))


@pytest.fixture(params=["rows alone", "after snapshots"])
def shard(request: pytest.FixtureRequest) -> Shard:
    made = Shard(LinUCB)
    for _ in range(3 if request.param == "after snapshots" else 0):
        life(made, 3)
        made.apply(made.snapshot(SMALL))
    life(made, 4)
    return made


def parts(shard: Shard) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Return the rows in the order of writing, and the snapshots."""
    order = sorted(shard.table, key=shard.table.offsets.__getitem__)
    rows = {key: shard.table[key] for key in order if not is_record(key)}
    return rows, {key: shard.table[key] for key in order if is_record(key)}


def newest(shard: Shard) -> Row:
    """Return a closed row of which no snapshot tells."""
    rows = [decode_row(key, value) for key, value in parts(shard)[0].items()]
    return max((r for r in rows if isinstance(r, Row) and r.stage == "closed"), key=lambda row: row.seq)


def unreadable(shard: Shard) -> set[bytes | None]:
    key = newest(shard).query_id.encode()
    shard.table[key] = b'{"schema":"decider-row.v9"}'
    return {key, None}


def doubled(shard: Shard) -> set[bytes | None]:
    """A second writer has decided at the same place."""
    row = newest(shard)
    twin = msgspec.structs.replace(row, query_id="twin", stage="pending", learned_seq=-1, kinds=())
    shard.table[b"twin"] = encode_row(twin)
    return {b"twin"}


def missing(shard: Shard) -> set[bytes | None]:
    del shard.table[newest(shard).query_id.encode()]
    return {None}


@pytest.mark.parametrize("damage", [unreadable, doubled, missing])
def test_refused_rows_are_named_and_repair_recovers(shard: Shard, damage: Any) -> None:
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


def test_what_a_reset_has_left_is_no_foreign_record_and_stays(shard: Shard) -> None:
    shard.apply([(RESET_KEY, b'{"0":7}')])
    assert refused(*parts(shard)) == []
    records, gone = repaired(shard.fresh(), *parts(shard), [], shard.table.end, SMALL)
    assert RESET_KEY not in {key for key, value in records if value is None} | set(gone)
    assert shard.crash().foreign == ([], [])
    shard.apply(shard.snapshot(SMALL))
    assert shard.table[RESET_KEY] == b'{"0":7}'


def test_a_repair_deletes_in_the_order_of_the_log(shard: Shard) -> None:
    """In that of a set, two repairs of one log would write different records."""
    log, snapshots = parts(shard)
    refits = {REFIT_KEY + b"%d/0" % n: b"{}" for n in range(12)}
    _, gone = repaired(shard.fresh(), log | refits, snapshots, [], shard.table.end, SMALL)
    assert [key for key in gone if key in refits] == list(refits)


def test_a_whole_log_is_not_named(shard: Shard) -> None:
    assert refused(*parts(shard), accept=shard.policy().load) == []
    shard.crash()


# A learner without a prior, which estimates anew after 8, 14 and 20 outcomes and logs what it estimated.


def self_taught() -> Shard:
    def policy(_: Any) -> Contextual:
        early = ContextualSettings(refits=(8, 14, 20))
        return Contextual(ContextualFeatures(FeatureSettings(DIM, 10, query_rank=11)), early)

    return Shard(policy, pairs=((1, 1), (4, 1)), models=2)


def relearned(shard: Shard, without: set[bytes]) -> Any:
    """Return a policy that is told, event by event, what remains of a log after its newest snapshot."""
    rows, snapshots = parts(shard)
    policy = shard.policy()
    base, _ = snapshot.read(snapshots, policy.load)
    after = -1 if base is None else base.version
    own = {**({} if base is None else base.rows), **rows}
    left = [decode_row(key, value) for key, value in own.items() if key not in without]
    known = {row.action: row for row in left if isinstance(row, ActionRow)}
    register_actions(policy, known.values())
    for event in events(left, after):
        if isinstance(event.row, Row):
            update_policy(policy, event.kind, [event.row])
        else:
            offer(policy, event.row, known)
    return policy


def repair_in_place(shard: Shard, without: list[bytes]) -> None:
    records, gone = repaired(shard.fresh(), *parts(shard), without, shard.table.end, SMALL)
    shard.apply(records)
    shard.apply((key, None) for key in gone)


def test_repair_discards_refits_of_the_whole_history() -> None:
    shard = self_taught()
    life(shard, 8)
    early = min((row for row in map(shard.entry, ("q0", "q1", "q3"))), key=lambda row: row.learned_seq).key
    refits = {key for key in shard.table if key.startswith(REFIT_KEY)}
    assert refits
    anew = relearned(shard, {early}).state()
    repair_in_place(shard, [early])
    assert not refits & shard.table.keys()
    shard.crash()
    assert shard.decider.policy.state() == anew


def test_row_left_out_does_not_return_from_a_snapshot() -> None:
    shard = Shard(LinUCB)
    (decided,) = shard.ask(shard.context("late"))
    shard.apply(shard.snapshot(SMALL))
    provisional, final = shard.reward(decided, "provisional"), shard.reward(decided)
    shard.tell(provisional)
    life(shard, 2)
    repair_in_place(shard, [b"late"])
    shard.crash()
    assert b"late" not in shard.table
    shard.tell(final)
    assert b"late" not in shard.table, "it has ended; a Reward comes too late"
    assert isinstance(shard.ask(shard.context("late"))[0].error, DuplicateQuery)


def test_numbers_of_rows_left_out_stay_empty() -> None:
    """Even if no row remains: version -1 is a prior's, which later snapshots do not replace."""
    shard = Shard(LinUCB)
    life(shard, 1)
    queries = [key for key, value in parts(shard)[0].items() if isinstance(decode_row(key, value), Row)]
    used = shard.decider.seq
    repair_in_place(shard, queries)
    shard.crash()
    assert shard.decider.seq >= used
    assert not any(snapshot.is_prior(key) for key in parts(shard)[1])
    life(shard, 3)
    shard.apply(shard.snapshot(SMALL))
    shard.crash()


lives = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "reward", "reward", "snapshot", "crash"]), st.integers(1, 4)),
    min_size=8, max_size=20,
)  # fmt: skip


@pytest.mark.seconds
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives, st.data())
def test_a_repaired_log_is_that_of_what_remains(done: list[Any], data: st.DataObject) -> None:
    shard, waiting = self_taught(), []

    def step(act: str, count: int) -> None:
        match act:
            case "ask":
                waiting.extend(shard.ask(*(shard.context() for _ in range(count))))
            case "reward":
                shard.tell(*(shard.reward(waiting.pop(0)) for _ in range(min(count, len(waiting)))))
            case "snapshot":
                shard.apply(shard.snapshot(SMALL))
            case "crash":
                state = shard.decider.policy.state()
                shard.crash()
                assert shard.decider.policy.state() == state

    for act, count in done:
        step(act, count)
    mine = sorted(key for key, value in parts(shard)[0].items() if isinstance(decode_row(key, value), Row))
    # At least one row stays: without any, there is nothing to go on from.
    without = data.draw(st.sets(st.sampled_from(mine), max_size=min(3, len(mine) - 1))) if mine else set()
    anew = relearned(shard, without).state()
    repair_in_place(shard, sorted(without))
    shard.crash()
    assert shard.decider.policy.state() == anew
    waiting[:] = [each for each in waiting if each.query_id.encode() not in without]
    for act, count in [*done, ("ask", 4), ("reward", 4), ("crash", 1)]:
        step(act, count)
    fresh = shard.policy()
    log, after = load_replay(fresh, {**parts(shard)[0], **parts(shard)[1]})
    assert list(mismatches(fresh, log, 7, after)) == []
