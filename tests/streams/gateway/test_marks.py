"""Changes on the page's time axis, in words."""

from schemas.control import CatalogueEntry, ControlRecord, CostBoundsEntry, KeyEntry, ObjectiveEntry
from schemas.objective import CostRange, Weights
from streams.gateway.index import Marks


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
