"""Rows of the join that would be too large or cannot be read, and what a row keeps for the price."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.catalogue.models import Architecture
from agents.reward.join import (
    Arrival,
    JoinRow,
    Orphan,
    Turn,
    Valued,
    Waits,
    decode_row,
    dues,
    encode_row,
    on,
    to_value,
)
from schemas.answer import Answer
from schemas.decision import Decision
from schemas.errors import UnreadableRecord
from schemas.reward import CLOSING, Due, Feedback, Reward
from tests.support.join_records import ORIGIN, answer, decision

WAITS = Waits(timeout_ms=60_000, feedback_ms=30_000, keep_ms=1_000_000)


def valued(record: Answer) -> Valued:
    return Valued(status=record.status, score=record.score)


class Join:
    """A row and the rewards that came out of it."""

    def __init__(self, waits: Waits) -> None:
        self.row: JoinRow | None = None
        self.waits = waits
        self.rewards: list[Reward] = []
        self.counts: list[str] = []

    def take(self, record: Decision | Answer | Feedback | Due, at_ms: int) -> Turn:
        asked = to_value(self.row, record)
        turn = on(self.row, Arrival(record, at_ms, ORIGIN), self.waits, valued(asked[1]) if asked else None)
        self.row = None if turn.row is None else decode_row(encode_row(turn.row))
        self.rewards += [out for out in turn.out if isinstance(out, Reward)]
        self.counts += turn.counts
        return turn

    def kinds(self) -> list[str]:
        return [reward.kind for reward in self.rewards]

    def due(self, kind: str) -> Turn:
        assert self.row is not None
        (deadline,) = [d.deadline_ms for d in dues(self.row) if d.kind == kind]
        return self.take(Due(query_id="q", kind=kind, deadline_ms=deadline), deadline)  # type: ignore[arg-type]


SMALL = Waits(timeout_ms=60_000, feedback_ms=30_000, keep_ms=1_000_000, row_bytes=2_000)


def test_feedback_that_does_not_fit_its_row_is_a_dead_letter_and_the_query_closes() -> None:
    join = Join(SMALL)
    join.take(decision(), 1_100)
    large = Feedback(query_id="q", correct=1.0, metadata={"note": "x" * 3_000})
    turn = join.take(large, 1_200)
    assert turn.out == (Orphan(large, ORIGIN, "oversized"),)
    assert turn.counts == ("oversized",)
    # Delivered again it changes nothing, and every deadline of the row is still met.
    assert join.take(large, 1_300).out == ()
    join.take(answer(), 3_000)
    join.due("feedback")
    assert join.kinds() == ["provisional", "default"]


def test_an_early_answer_that_does_not_fit_closes_its_query_with_the_price_unknown() -> None:
    join = Join(SMALL)
    turn = join.take(replace(answer(), text="x" * 3_000), 900)
    assert turn.counts == ("oversized",)
    join.take(decision(reference="4"), 1_100)
    (reward,) = join.rewards
    assert (reward.kind, reward.correct, reward.price, reward.learnable) == ("default", None, None, False)
    assert "does not fit a row of 2000 bytes" in reward.missing


def test_a_reference_that_does_not_fit_is_left_out() -> None:
    join = Join(SMALL)
    join.take(decision(reference="x" * 3_000), 1_100)
    assert join.counts == ["oversized"]
    join.take(answer(), 3_000)
    join.due("feedback")
    assert join.kinds() == ["provisional", "default"]


@given(
    sizes=st.tuples(*[st.integers(0, 4_000)] * 3),
    order=st.permutations(range(3)),
    most=st.integers(1_500, 9_000),
)
@example(sizes=(0, 1293, 0), order=[1, 0, 2], most=1_500)
@example(sizes=(3343, 1650, 1585), order=[1, 0, 2], most=1_500)
def test_a_row_always_fits(sizes: tuple[int, int, int], order: list[int], most: int) -> None:
    waits = Waits(timeout_ms=60_000, feedback_ms=30_000, keep_ms=1_000_000, row_bytes=most)
    join = Join(waits)
    records = (
        decision(reference="r" * max(1, sizes[0])),
        replace(answer(), text="t" * max(1, sizes[1])),
        Feedback(query_id="q", correct=1.0, metadata={"note": "n" * sizes[2]}),
    )
    for at, index in enumerate(order):
        join.take(records[index], 1_000 + at)
        assert join.row is None or len(encode_row(join.row)) <= most
    for _ in range(3):
        for kind in [due.kind for due in dues(join.row)] if join.row else []:
            if join.row and kind in {due.kind for due in dues(join.row)} and kind != "forget":
                join.due(kind)
    if join.row is not None:
        # Feedback after the close: here nobody tells the join which queries are closed, so it waits for its query.
        assert join.row.orphaned is not None
        assert join.row.opened is None
        join.due("forget")
    assert join.row is None
    assert sum(kind in CLOSING for kind in join.kinds()) == 1


def test_a_row_that_cannot_be_read_says_what_to_do() -> None:
    join = Join(WAITS)
    join.take(decision(), 1_100)
    assert join.row is not None
    with pytest.raises(UnreadableRecord, match="rebuild the table"):
        decode_row(encode_row(join.row).replace(b'"seq":5', b'"seq":"five"'))


def test_the_architecture_of_the_model_is_kept_until_the_answer_is_priced() -> None:
    generator = Architecture(parameters=1000, layers=2, query_heads=4, kv_heads=2, head_dim=8)
    turn = on(None, Arrival(decision(), 1_100, ORIGIN), WAITS, None, generator)
    assert turn.row is not None
    row = decode_row(encode_row(turn.row))
    assert row.opened is not None
    assert row.opened.generator == generator
    settled = on(row, Arrival(answer(), 3_000, ORIGIN), WAITS, valued(answer()))
    assert settled.row is not None
    assert settled.row.opened is not None
    assert settled.row.opened.generator is None
