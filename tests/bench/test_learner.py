"""The learner's benchmark measures what it says: every row runs, on one stream, and recovers what it logged."""

from __future__ import annotations

import pytest

from agents.decider.rows import Row, decode_row
from bench import learner
from bench.learner import Stream


@pytest.fixture
def stream() -> Stream:
    return Stream(half=24, actions=12)


@pytest.mark.parametrize("row", ["single", "naive", "batch"])
def test_a_row_gives_its_figures(row: str, stream: Stream) -> None:
    found = learner.ROWS[row](stream, 4)
    assert found
    assert all(value > 0 for value in found.values())


def test_the_recovery_row_folds_every_logged_row(stream: Stream) -> None:
    assert learner.fold(stream, 90)["fold_90_s"] > 0
    logged = [decode_row(key, value) for key, value in learner.log(stream, 90)]
    assert sum(isinstance(row, Row) for row in logged) == 90


def test_the_stream_is_the_same_for_every_row(stream: Stream) -> None:
    again = Stream(half=24, actions=12)
    for one, two in zip(stream.contexts(3), again.contexts(3), strict=True):
        assert one.query_id == two.query_id
        assert (one.embedding == two.embedding).all()
        assert stream.outcome(one, "m1/1/1/1").score == again.outcome(two, "m1/1/1/1").score
