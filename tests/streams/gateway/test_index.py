"""The index gives the same whatever the order in which topics are read."""

from itertools import permutations

import msgspec
import pytest

from schemas.answer import Answer
from schemas.control import KeyEntry
from schemas.query import Query
from streams.rooms.gateway.index.recent import Index
from streams.rooms.gateway.limits import Credential


def query(query_id: str, **kept: str) -> Query:
    return Query(query_id=query_id, text="?", tenant="shop", metadata={"gateway": kept})


def told(query_id: str, why: str = "no") -> Answer:
    return Answer(query_id=query_id, status="failed", by="executor", error=why)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_records_may_come_in_any_order_and_twice(order: tuple[int, ...]) -> None:
    index = Index(100)
    steps = [
        lambda: index.query(query("q", key="k", digest="d"), 5),
        lambda: index.answer(told("q"), 9),
        lambda: index.priced("q", {"total": 7.0}),
    ]
    for at in (*order, *order):
        steps[at]()
    index.priced("q", {"total": 7.0})
    found = index.find("q")
    assert found is not None
    assert (found.tenant, found.digest, found.created_ms) == ("shop", "d", 5)
    assert index.answer_of("q") == told("q")
    assert index.spent_eflops("k", 0) == 7.0


def test_an_answer_whose_query_was_not_seen_belongs_to_nobody_yet() -> None:
    index = Index(100)
    index.answer(told("q"), 9)
    assert index.find("q") is None
    assert index.latest(10) == []


def test_the_first_answer_and_the_first_query_count() -> None:
    index = Index(100)
    index.query(query("q", digest="first"), 5)
    index.query(msgspec.structs.replace(query("q", digest="second"), tenant="thief"), 6)
    index.answer(told("q", "first"), 7)
    index.answer(told("q", "second"), 8)
    found = index.find("q")
    assert found is not None
    assert (found.tenant, found.digest) == ("shop", "first")
    answer = index.answer_of("q")
    assert answer is not None
    assert answer.error == "first"


def test_the_oldest_are_forgotten() -> None:
    index = Index(100)
    for at in range(500):
        index.query(query(f"q-{at}"), at)
    assert 100 <= len(index) <= 102
    assert index.find("q-0") is None
    assert index.find("q-499") is not None
    assert [seen.query_id for seen in index.latest(2)] == ["q-499", "q-498"]


def test_a_key_sees_the_queries_of_its_tenant_alone() -> None:
    index = Index(100)
    index.query(query("theirs"), 1)
    index.query(msgspec.structs.replace(query("nobody's"), tenant=None), 2)
    entry = KeyEntry(name="k", op="add", sha256="0" * 64, tenant="shop")
    for who, seen in (
        (Credential("d", entry), ["theirs"]),
        (Credential("d", msgspec.structs.replace(entry, tenant=None)), ["nobody's"]),
        (Credential("d", msgspec.structs.replace(entry, scopes=("admin",))), ["nobody's", "theirs"]),
        (Credential(), ["nobody's", "theirs"]),
    ):
        assert [each.query_id for each in index.latest(10, who.sees)] == seen


def test_a_retry_finds_the_newest_query_with_its_body() -> None:
    index = Index(100)
    index.query(query("old", key="k", digest="d"), 1_000)
    index.query(query("new", key="k", digest="d"), 2_000)
    index.query(query("other", key="k2", digest="d"), 3_000)
    found = index.same_body("k", "d", 1_500)
    assert found is not None
    assert found.query_id == "new"
    assert index.same_body("k", "d", 2_500) is None


def test_feedback_of_one_source_counts_once() -> None:
    index = Index(100)
    assert not index.told("q", "shop", 1.0)
    assert index.told("q", "shop", 0.0)
    assert not index.told("q", "other", 0.0)
