"""Ids of ended queries: each is found again, whatever is added, written, read and forgotten; a stranger is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.bandit.errors import CorruptState
from agents.decider.snapshot import ID_BYTES, EndedIds
from schemas.query import Origin

PLACES = st.tuples(st.integers(0, 63), st.integers(0, 2**48 - 1))


def origin(place: tuple[int, int]) -> Origin:
    return Origin(topic="query", partition=place[0], offset=place[1])


def again(ended: EndedIds) -> EndedIds:
    """Write and read."""
    stored = {part.sha256: data for part, data in ended.parts()}
    assert sum(map(len, stored.values())) == ID_BYTES * len(ended)
    return EndedIds.read([part for part, _ in ended.parts()], stored.get, ended.most, ended.array_ids)


@given(st.dictionaries(st.text(min_size=1, max_size=8), PLACES, max_size=60), st.integers(1, 20))
def test_every_id_is_found_before_and_after_a_restart(
    asked: dict[str, tuple[int, int]], array_ids: int
) -> None:
    ended = EndedIds(array_ids=array_ids)
    for number, (query_id, place) in enumerate(asked.items()):
        ended.add(query_id, origin(place), number)
        ended.add(query_id, origin((0, 0)), number)  # the first place stays
        if number % 7 == 3:
            ended = again(ended)
    ended = again(ended)
    assert len(ended) == len(asked)
    assert {query_id: ended.find(query_id) for query_id in asked} == asked
    assert ended.find("none of them, as it is longer") is None


def test_array_is_dropped_once_no_id_can_be_redelivered() -> None:
    def made() -> EndedIds:
        ended = EndedIds(array_ids=10)
        for n in range(25):
            ended.add(f"q{n}", origin((n % 2, n)), n)
        return ended

    assert made().forget({0: 0, 1: 0}, 100) == (0, 0)
    assert made().forget({0: 100, 1: 100}, 0) == (0, 0)
    assert made().forget({0: 100, 1: 9}, 100) == (0, 0)
    ended = made()
    assert ended.forget({0: 9, 1: 10}, 10) == (10, 0)
    assert ended.find("q9") is None
    assert ended.find("q10") == (0, 10)
    assert made().forget({0: 100, 1: 100}, 100) == (20, 0)  # the array that is not full stays


def test_beyond_the_bound_the_oldest_are_forgotten_and_counted() -> None:
    ended = EndedIds(most=15, array_ids=10)
    for n in range(25):
        ended.add(f"q{n}", origin((0, n)), n)
    assert ended.forget({0: 0}, 0) == (0, 10)
    assert [ended.find(f"q{n}") is None for n in (0, 9, 10, 24)] == [True, True, False, False]


@pytest.mark.parametrize("damage", ["missing", "flipped", "short"])
def test_a_damaged_array_is_refused(damage: str) -> None:
    ended = EndedIds()
    ended.add("q", origin((1, 2)), 3)
    ((part, data),) = ended.parts()
    stored = {"missing": None, "flipped": bytes([data[0] ^ 1]) + data[1:], "short": data[:-1]}
    with pytest.raises(CorruptState, match="ids 0"):
        EndedIds.read([part], lambda _: stored[damage])
