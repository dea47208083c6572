"""What both runtimes promise a service: order, what runs beside what, redelivery, tables that recover, dead letters."""

from collections import defaultdict
from typing import Any

import pytest

from schemas.dead_letter import DeadLetter
from schemas.record import decode
from streams.log.partitioner import partition_for
from streams.runtime.queues import WINDOW
from tests.support.harness import Harness


def sent_to(keys: int, each: int) -> list[tuple[bytes, bytes]]:
    return [(b"key%d" % k, b"%d" % n) for n in range(each) for k in range(keys)]


def by_key(records: list[Any]) -> dict[bytes, list[bytes]]:
    found = defaultdict(list)
    for record in records:
        found[record.key].append(record.value)
    return dict(found)


def firsts(values: list[bytes]) -> list[bytes]:
    return list(dict.fromkeys(values))


def test_records_of_a_key_are_handled_once_in_order(harness: Harness) -> None:
    harness.run("embedder", sent_to(4, 6), lambda h: len(h.read("context")) >= 24)
    assert by_key(harness.read("context")) == {b"key%d" % k: [b"%d" % n for n in range(6)] for k in range(4)}
    assert harness.deaths == 0


@pytest.mark.parametrize("dies_after", [1, 5])
def test_uncommitted_records_of_a_dead_worker_are_redelivered(harness: Harness, dies_after: int) -> None:
    harness.run(
        "embedder", sent_to(3, 5),
        lambda h: {k: firsts(v)[-1:] for k, v in by_key(h.read("context")).items()}
        == {b"key%d" % k: [b"4"] for k in range(3)},
        dies_after,
    )  # fmt: skip
    for values in by_key(harness.read("context")).values():
        assert firsts(values) == [b"%d" % n for n in range(5)]
    assert harness.deaths == 1


def in_partition(wanted: int, count: int) -> list[bytes]:
    """Return names of queries whose records lie in one of two partitions."""
    names = (b"q%d" % n for n in range(1000))
    return [name for name in names if partition_for(name, 2) == wanted][:count]


def test_records_of_different_queries_run_concurrently(harness: Harness) -> None:
    first, second = in_partition(0, 2)
    harness.run("embedder", [(first, b"wait"), (second, b"free")], lambda h: len(h.read("context")) >= 2)
    assert [record.key for record in harness.read("context")] == [first, second]


def test_records_of_one_query_on_two_topics_run_in_turn(harness: Harness) -> None:
    sent = [
        (topic, b"key%d" % k, b"beside")
        for _ in range(5)
        for k in range(3)
        for topic in ("answer", "feedback")
    ]
    harness.run("aggregator", sent, lambda h: len(h.read("due")) >= 2 * len(sent))
    for values in by_key(harness.read("due")).values():
        assert len(values) == 20
        for begin, end in zip(values[::2], values[1::2], strict=True):
            assert (begin.split()[0], end.split()[0]) == (b"begin", b"end")
            assert begin.split()[1] == end.split()[1]
    assert harness.deaths == 0


def test_a_stuck_query_stops_no_other_and_no_commit_passes_it(harness: Harness) -> None:
    stuck, *others = in_partition(0, 21)
    sent = [(stuck, b"once"), *((name, b"on") for name in others)]
    before = 15
    # All that was copied before the death is redelivered, because the stuck record lies below it.
    harness.run("embedder", sent, lambda h: len(h.read("context")) >= before + len(sent), dies_after=before)
    copied = by_key(harness.read("context"))
    assert set(copied) == {stuck, *others}
    assert len(copied[stuck]) == 1
    assert harness.deaths == 1


@pytest.mark.fields(concurrency=3)
def test_partition_pauses_while_its_window_is_full(harness: Harness) -> None:
    stuck, *others = in_partition(0, 80)
    (free,) = in_partition(1, 1)
    sent = [(stuck, b"stuck"), (free, b"free"), *((name, b"on") for name in others)]
    harness.run("embedder", sent, lambda h: len(h.read("context")) >= len(sent))
    copied = by_key(harness.read("context"))
    assert {key: len(values) for key, values in copied.items()} == dict.fromkeys([stuck, free, *others], 1)
    (until_then,) = copied[free]
    assert int(until_then) < WINDOW * 3


def test_late_row_is_superseded_on_recovery(harness: Harness) -> None:
    sent = [(b"k", what) for what in (b"on", b"on", b"late", b"on")]
    harness.run("aggregator", sent, lambda h: h.rows().get(b"k") == b"3 3", dies_after=5)
    written = [record.value for record in harness.read("aggregator-join-changelog")]
    assert written == [b"0 1", b"1 2", b"-1 0", b"1 2", b"3 3"]
    assert harness.deaths == 1


@pytest.mark.parametrize("dies_after", [1, 2, 5, 6])
def test_table_recovers_exact_counts_after_a_death(harness: Harness, dies_after: int) -> None:
    wanted = {b"key%d" % k: b"5" for k in range(3)}
    harness.run(
        "aggregator", sent_to(3, 5),
        lambda h: {k: v.split()[1] for k, v in h.rows().items()} == wanted,
        dies_after,
    )  # fmt: skip
    assert {k: v.split()[1] for k, v in harness.rows().items()} == wanted
    for values in by_key(harness.read("due")).values():
        assert [v.split()[1] for v in firsts(values)] == [b"%d" % n for n in range(1, 6)]
    assert harness.deaths == 1


@pytest.mark.parametrize("dies_after", [2, 9])
def test_single_writer_table_recovers_from_its_last_snapshot(harness: Harness, dies_after: int) -> None:
    harness.run(
        "decider", sent_to(3, 5),
        lambda h: {k: firsts(v)[-1].split()[1] for k, v in by_key(h.read("action-decision")).items()}
        == {b"key%d" % k: b"5" for k in range(3)},
        dies_after,
    )  # fmt: skip
    for values in by_key(harness.read("action-decision")).values():
        assert [v.split()[1] for v in firsts(values)] == [b"%d" % n for n in range(1, 6)]
    assert harness.deaths == 1


def test_third_failure_dead_letters_the_record(harness: Harness) -> None:
    sent = [(b"k", b"0"), (b"k", b"fail"), (b"k", b"1"), (b"k", b"refuse"), (b"k", b"2")]
    harness.run("embedder", sent, lambda h: b"2" in [r.value for r in h.read("context")])
    assert firsts([r.value for r in harness.read("context")]) == [b"0", b"1", b"2"]
    letters = {
        letter.error: letter.attempts
        for letter in (decode(r.value, DeadLetter) for r in harness.read("dead-letter"))
    }
    assert letters == {"ZeroDivisionError": 3, "Refused": 1}
    assert harness.deaths == 2, "the third failure ends no worker"


def test_memory_hungry_records_are_retried_one_by_one(harness: Harness) -> None:
    sent = [(b"a", b"greedy"), (b"b", b"greedy")]
    harness.run("embedder", sent, lambda h: len(h.read("context") + h.read("dead-letter")) >= 2)
    assert sorted(r.key for r in harness.read("context")) == [b"a", b"b"]
    assert harness.deaths == 2, "then they are suspects, and handled alone"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("stall", "an engine hangs"), ("tear", "ZeroDivisionError: a fault nobody thought of")],
    ids=["ended-by-a-watch", "partial-write"],
)
def test_record_that_ends_the_worker_becomes_a_dead_letter(harness: Harness, fault: str, reason: str) -> None:
    """Of a partial write the third time, too: the next worker says what it was."""
    sent = [(b"k", b"0"), (b"k", fault.encode()), (b"k", b"1")]
    harness.run("embedder", sent, lambda h: b"1" in [r.value for r in h.read("context")])
    assert firsts([r.value for r in harness.read("context")]) == [b"0", b"1"]
    (letter,) = (decode(r.value, DeadLetter) for r in harness.read("dead-letter"))
    assert (letter.error, letter.attempts) == ("KilledProcess", 3)
    assert f"({reason})" in letter.reason
    assert harness.deaths == 3


def test_a_record_is_found_by_its_key_and_the_time_of_its_append(harness: Harness) -> None:
    sent = [(b"other", b"1"), (b"k", b"0"), (b"k", b"2")]
    sent += [(b"k", value) for value in (b"find", b"past", b"future")]
    harness.run("embedder", sent, lambda h: len(h.read("context")) >= 6)
    assert by_key(harness.read("context"))[b"k"] == [b"0", b"2", b"0", b"gone", b"gone"]


def test_record_is_resent_unchanged_and_group_lag_is_known(harness: Harness) -> None:
    sent = [(b"k", b"0"), (b"k", b"again"), (b"k", b"lost"), (b"other", b"groups")]
    harness.run("embedder", sent, lambda h: len(h.read("context")) >= 5)
    copied = by_key(harness.read("context"))
    assert copied[b"k"] == [b"0", b"found", b"gone", b"0"]
    [(waiting, others)] = [value.split(b" in ") for value in copied[b"other"]]
    assert -1 <= int(waiting) <= 5, "what a consumer group has waiting"
    assert others == b"0"
    again = [record for record in harness.read("query") if b'"0"' in record.value]
    assert len(again) == 2
    assert len({(record.key, record.partition) for record in again}) == 1
