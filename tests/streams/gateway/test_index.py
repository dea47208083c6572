"""The index gives the same whatever the order in which topics are read; changes are marked on the page's time axis."""

import asyncio
from itertools import permutations
from typing import Any

import msgspec
import pytest
from msgspec import structs

from agents.catalogue.cost_model import CostModel
from agents.catalogue.models import Architecture
from schemas.action import Action
from schemas.answer import Answer
from schemas.control import CatalogueEntry, ControlRecord, CostBoundsEntry, KeyEntry, ObjectiveEntry
from schemas.dead_letter import DeadLetter
from schemas.forest import Draft
from schemas.objective import CostRange, Weights
from schemas.query import Origin, Query
from schemas.record import encode
from schemas.reward import Feedback
from schemas.spent import Spent
from streams.gateway import answer_details, routes
from streams.gateway.auth import Credential
from streams.gateway.index import Filter, Index, Marks
from tests.support.records import decision_for


def query(query_id: str, **kept: str) -> Query:
    return Query(query_id=query_id, text="?", tenant="shop", metadata={"gateway": kept})


def told(query_id: str, why: str = "no") -> Answer:
    return Answer(query_id=query_id, status="failed", by="executor", error=why)


def test_reading_for_a_tenant_ignores_queries_of_others() -> None:
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def read(index: Index) -> int:
        """Return how many steps of SQLite a tenant's list and its rates take."""
        nonlocal steps
        steps = 0
        index._db.set_progress_handler(step, 1)
        assert len(index.latest(1000, 0, Filter(("shop",)))) == 3
        assert index.activity(100, ("shop",)) == (3, 3)
        index._db.set_progress_handler(None, 1)
        return steps

    index = Index(5000)
    for at in range(3):
        index.query(query(f"q-{at}"), at)
    alone = read(index)
    for at in range(3000):
        index.query(msgspec.structs.replace(query(f"other-{at}"), tenant="other"), at)
    assert read(index) < 2 * alone


async def test_others_run_while_all_queries_are_read() -> None:
    index = Index(5000)
    for at in range(3000):
        index.query(query(f"q-{at}"), at)
    turns, reading = 0, asyncio.ensure_future(index.all(0))
    while not reading.done():
        turns += 1
        index.answer(told(f"q-{turns}"), b"", 3000)  # what comes meanwhile breaks nothing
        await asyncio.sleep(0)
    assert turns > 5
    assert [each.query_id for each in await reading] == [f"q-{at}" for at in reversed(range(3000))]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_records_may_come_in_any_order_and_twice(order: tuple[int, ...]) -> None:
    index = Index(100)
    steps = [
        lambda: index.query(query("q", key="k", digest="d"), 5),
        lambda: index.answer(told("q"), encode(told("q")), 9),
        lambda: index.priced("q", 7.0),
    ]
    for at in (*order, *order):
        steps[at]()
    index.priced("q", 7.0)
    found = index.find("q")
    assert found is not None
    assert (found.tenant, found.digest, found.created_ms) == ("shop", "d", 5)
    assert index.answer_of("q") == told("q")
    assert index.usage.used("k", 10).spent == 7.0
    assert index.timeline("q").total_s == 0.004


def test_the_list_says_where_the_time_of_an_answer_went() -> None:
    index, spent = Index(100), Spent(admission_s=0.25, generate_s=1.5)
    index.query(query("q"), 1000)
    assert routes._listed(index.latest(1, 0)[0], "eflops")["timings"] is None
    answer = structs.replace(told("q"), spent=spent)
    index.answer(answer, encode(answer), 3000)
    timings = routes._listed(index.latest(1, 0)[0], "eflops")["timings"]
    assert timings == {**structs.asdict(spent), "rest_s": 0.25, "total_s": 2.0}
    assert timings == answer_details.timings(spent, index.timeline("q").total_s)


def test_answer_before_its_query_belongs_to_nobody() -> None:
    index = Index(100)
    index.answer(told("q"), encode(told("q")), 9)
    assert index.find("q") is None
    assert index.latest(10, 0) == []
    assert index.timeline("q").total_s is None


def test_the_first_answer_and_the_first_query_count() -> None:
    index = Index(100)
    index.query(query("q", digest="first"), 5)
    index.query(msgspec.structs.replace(query("q", digest="second"), tenant="thief"), 6)
    assert index.answer(told("q", "first"), encode(told("q", "first")), 7)
    assert not index.answer(told("q", "second"), encode(told("q", "second")), 8)
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
    assert [seen.query_id for seen in index.latest(2, 0)] == ["q-499", "q-498"]
    assert index.moves


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
        assert [each.query_id for each in index.latest(10, 0, Filter(who.sees))] == seen


def test_withdrawn_feedback_may_be_given_again() -> None:
    index = Index(100)
    assert not index.note_feedback(Feedback(query_id="q", source="shop", correct=1.0))
    assert index.note_feedback(Feedback(query_id="q", source="shop", correct=0.0))
    assert not index.note_feedback(Feedback(query_id="q", source="other", correct=0.0))
    index.withdraw_feedback("q", "shop")
    assert not index.note_feedback(Feedback(query_id="q", source="shop", correct=0.0))


def test_a_redelivered_answer_is_none() -> None:
    index = Index(100)
    value = encode(told("q"))
    index.query(query("q"), 5)
    assert not index.has_answer("q")
    assert index.answer(told("q"), value, 9)
    assert index.has_answer("q")
    assert not index.answer(told("q"), value, 9)


@pytest.mark.parametrize(
    ("metadata", "groups"),
    [
        ({}, (None, None)),
        ({"topic": "algebra", "subject": "maths", "grade": 3}, ("algebra", "3")),
        ({"topic": ["a"], "grade": ""}, (None, None)),
        ({"topic": "x" * 500}, ("x" * 80, None)),
    ],
)
def test_queries_are_grouped_by_the_keys_that_the_operator_names(
    metadata: dict[str, Any], groups: tuple[str | None, str | None]
) -> None:
    index = Index(100, group_by=("topic", "grade"))
    index.query(Query(query_id="q", text="?", metadata=metadata), 1)
    (found,) = index.latest(1, 0)
    assert found.groups == groups


def test_a_paired_baseline_is_named_in_the_metadata() -> None:
    index = Index(100)
    index.query(Query(query_id="q", text="?", metadata={"baseline_of": "p"}), 1)
    (found,) = index.latest(1, 0)
    assert (found.baseline_of, found.arm) == ("p", "control")


def test_a_filter_keeps_the_queries_it_names_and_their_baselines() -> None:
    index = Index(100)
    for at, (model, tenant) in enumerate((("small", "shop"), ("large", "shop"), ("large", None))):
        made = decision_for(
            Query(query_id=f"q-{at}", text="?", tenant=tenant), action=Action(model=model, qp=1, cp=1, bs=1),
            appended_ms=1000 * at,
        )  # fmt: skip
        index.decision(made, encode(made), 0)
    paired = Query(query_id="b", text="?", tenant="shop", metadata={"baseline_of": "q-0"})
    index.query(paired, 2500)
    index.answer(told("q-1"), encode(told("q-1")), 2600)

    def kept(**wanted: Any) -> tuple[list[str], list[str]]:
        """Return the ids in the list, and those that count."""
        chosen = Filter(**wanted)
        of = [index.latest(10, 3000, chosen), asyncio.run(index.all(3000, chosen))]
        listed, counted = ([each.query_id for each in found] for found in of)
        return listed, counted

    assert kept() == (["b", "q-2", "q-1", "q-0"],) * 2
    assert kept(model="small") == (["q-0"], ["b", "q-0"])
    assert kept(model="large", tenants=("shop",)) == (["q-1"],) * 2
    assert kept(within_s=2) == (["b", "q-2", "q-1"], ["q-2", "q-1"])
    assert kept(statuses=("failed",)) == (["q-1"],) * 2
    assert kept(objective="none") == ([], [])
    values = index.values()
    assert (values["tenant"], values["model"]) == ([None, "shop"], ["large", "small"])
    assert index.values(("shop",))["tenant"] == ["shop"]


def test_a_dead_letter_is_sent_again_once() -> None:
    index = Index(100)
    origin = Origin(topic="t", partition=0, offset=7)
    letter = DeadLetter.of(b"x", ValueError("no"), service="embedder", origin=origin)
    index.dead_letter(letter, encode(letter), 5)
    assert index.dead_letters(10) == [(5, letter, False)]
    assert index.dead_letter_of("t/0/7") == letter
    assert index.dead_letter_of("t/0/8") is None
    assert index.retried("t/0/7")
    assert not index.retried("t/0/7")
    index.dead_letter(letter, encode(letter), 6)  # redelivered: it was sent again all the same
    assert index.dead_letters(10) == [(6, letter, True)]
    assert index.retried("t/0/7", False)
    assert index.retried("t/0/7")
    assert not index.retried("t/0/8")


def test_an_answer_whose_trace_no_search_can_have_has_no_price() -> None:
    model = Architecture(parameters=1000, layers=2, query_heads=4, kv_heads=2, head_dim=8)
    cost_model = CostModel(generators={"m": model}, verifiers={"v": model}, verifier="v")
    trace = (Draft(parent=-1, depth=1, tokens=3, finish="eos"),)
    foreign = Answer(
        query_id="q", status="cancelled", by="x", action=Action(model="m", qp=1, cp=1, bs=1), trace=trace
    )
    assert foreign.prompt_tokens == 0
    assert answer_details.price(foreign, cost_model) is None
    assert answer_details.price(msgspec.structs.replace(foreign, prompt_tokens=5), cost_model) is not None


def test_the_index_is_bounded_in_bytes_and_open_queries_stay() -> None:
    index = Index(1000, most_bytes=10_000)
    for at in range(100):
        index.query(query(f"q{at}"), at)
        if at > 0:
            index.answer(told(f"q{at}"), bytes(1000), at)
    kept = {listed.query_id for listed in index.latest(1000, 0)}
    assert kept >= {"q0", "q99"}
    assert 8 <= len(kept) <= 14


def test_open_queries_of_keys_stay_until_they_expire() -> None:
    index = Index(10)
    index.query(query("kept", key="k"), 0)
    index.query(query("nobody's"), 0)
    for at in range(100):
        index.query(query(f"q{at}"), at)
    assert index.find("kept") is not None
    assert index.find("nobody's") is None
    assert len(index) <= 13
    for at in range(20):
        index.query(query(f"later{at}"), 640_000 + at)
    assert index.find("kept") is None


def test_an_open_query_that_stays_hides_no_gap_behind_it() -> None:
    index = Index(10)
    assert index.complete_ms is None
    index.query(query("kept", key="k"), 5)
    assert index.complete_ms == 5
    for at in range(100, 200):
        index.query(query(f"q{at}"), at)
    assert index.find("kept") is not None
    assert 185 < (index.complete_ms or 0) <= 190
    assert all(index.find(f"q{at}") is not None for at in range(index.complete_ms or 0, 200))


def test_kept_queries_do_not_depend_on_partition_order() -> None:
    """At the start all Queries are read before the first Answer, and seem to be open."""
    index = Index(10, most_bytes=5_000)
    partitions = [range(first, 100, 4) for first in range(4)]
    for partition in partitions:
        for at in partition:
            index.query(query(f"q{at}", key="k"), at)
    for partition in partitions:
        for at in partition:
            index.answer(told(f"q{at}"), bytes(100), at)
    assert len(index) <= 12, "although no query came since"
    assert {each.query_id for each in index.latest(10, 0)} >= {f"q{at}" for at in range(91, 100)}


def test_forgetting_takes_few_steps_per_kept_query() -> None:
    index, steps = Index(5_000, most_bytes=2_000_000), 0

    def step() -> None:
        nonlocal steps
        steps += 100

    def add(at: int) -> None:
        index.query(query(f"q{at}", key="k"), at)
        index.answer(told(f"q{at}"), bytes(500), at)
        index.note_feedback(Feedback(query_id=f"q{at}", source="shop", correct=1.0))

    for at in range(6_000):
        add(at)
    index._db.set_progress_handler(step, 100)
    for at in range(6_000, 6_100):
        add(at)
    assert 3_800 <= len(index) <= 4_060
    assert steps < 15 * len(index) + 1000 * 100


def test_feedback_is_forgotten_with_its_query() -> None:
    index = Index(10)
    index.query(query("q"), 0)
    for known in ("q", "unknown"):
        assert not index.note_feedback(Feedback(query_id=known, source="shop", correct=1.0))
    for at in range(1, 30):
        index.query(query(f"q{at}"), at)
    for known in ("q", "unknown"):
        assert not index.note_feedback(Feedback(query_id=known, source="shop", correct=1.0))


def test_what_changes_a_choice_is_marked_in_words() -> None:
    marks = Marks(["small"])
    entries: tuple[ControlRecord, ...] = (
        CatalogueEntry(name="small", op="add", model={"name": "small"}),
        CatalogueEntry(name="large", op="add", model={"name": "large"}),
        CatalogueEntry(name="large", op="remove"),
        CatalogueEntry(name="large", op="add", model={"name": "large"}),
        ObjectiveEntry(name="thrift", op="set", weights=Weights(correct=0.5, score=0.0, cost=0.5)),
        ObjectiveEntry(name="thrift", op="remove"),
        CostBoundsEntry(cost_range=CostRange(low=1.0, high=2.0)),
        KeyEntry(name="shop", op="revoke"),
    )
    for at, entry in enumerate(entries):
        marks.note(entry, at * 1000)
    assert [(each["at"], each["what"]) for each in marks.listed] == [
        (0, "model small changed"),
        (1, "model large added"),
        (2, "model large removed"),
        (3, "model large added"),
        (4, "objective thrift set"),
        (5, "objective thrift removed"),
        (6, "cost bounds changed"),
    ]
    assert {each["kind"] for each in marks.listed} == {"catalogue", "objective", "costs"}
