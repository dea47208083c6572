"""The fold of `control` is the same for every process, whatever compaction has dropped."""

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agents.catalogue.control_state import ControlState
from agents.catalogue.models import Catalogue, CatalogueError, ObjectiveError
from schemas.control import (
    CatalogueEntry,
    CostBoundsEntry,
    ObjectiveEntry,
    PriceFactorEntry,
    decode_control,
)
from schemas.objective import CostRange, Weights
from schemas.record import Record, encode


def fold(start: ControlState, *records: Record | None) -> ControlState:
    """Fold records as they come off the wire, positions as offsets; None is one compacted away."""
    for offset, record in enumerate(records):
        if record is not None:
            start = start.after(decode_control(encode(record)), offset)
    return start


def adding(catalogue: Catalogue, name: str, **changes: object) -> CatalogueEntry:
    model = msgspec.structs.replace(catalogue.model("qwen3-4b"), name=name, **changes)
    return CatalogueEntry(name=name, op="add", model=msgspec.to_builtins(model))


def test_models_come_and_go(qwen3: Catalogue) -> None:
    remove = CatalogueEntry(name="qwen3-0.6b", op="remove")
    after = fold(ControlState.of(qwen3), adding(qwen3, "qwen4-4b"), remove)
    assert after.catalogue.model_names == (*qwen3.model_names[1:], "qwen4-4b")
    assert (after.catalogue.version, after.offset) == (1, 1)


def test_to_add_what_is_there_replaces_it(qwen3: Catalogue) -> None:
    after = fold(ControlState.of(qwen3), adding(qwen3, "qwen3-4b", group="apart"))
    assert set(after.catalogue.model_names) == set(qwen3.model_names)
    assert after.catalogue.model("qwen3-4b").group == "apart"


NAMES = ("qwen3-0.6b", "qwen3-32b", "new", "newer")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(("remove", "one", "other", "3", "0.5"))),
        max_size=12,
    )
)
@example([("new", "one"), ("new", "remove")])  # nothing is left to remove, and the removal counts
def test_what_compaction_drops_changes_nothing(qwen3: Catalogue, changes: list[tuple[str, str]]) -> None:
    records = [
        CatalogueEntry(name=name, op="remove")
        if what == "remove"
        else PriceFactorEntry(name=name, factor=float(what))
        if what[0].isdigit()
        else adding(qwen3, name, group=what)
        for name, what in changes
    ]
    last = {record.key: offset for offset, record in enumerate(records)}
    compacted = [record if last[record.key] == offset else None for offset, record in enumerate(records)]
    assert fold(ControlState.of(qwen3), *records) == fold(ControlState.of(qwen3), *compacted)


def test_a_record_seen_before_changes_nothing(qwen3: Catalogue) -> None:
    record = adding(qwen3, "new")
    once = ControlState.of(qwen3).after(record, 5)
    assert once.after(record, 5) is once
    assert once.after(CatalogueEntry(name="new", op="remove"), 4) is once


def test_price_factor_holds_until_next_factor_or_entry(qwen3: Catalogue) -> None:
    dear, cheap = PriceFactorEntry(name="qwen3-4b", factor=3.0), PriceFactorEntry(name="qwen3-4b", factor=0.5)
    after = fold(ControlState.of(qwen3), dear, cheap)
    assert after.catalogue.price_factors == {"qwen3-4b": 0.5}
    assert (after.catalogue.model_names, after.catalogue.version) == (qwen3.model_names, 1)
    again = fold(ControlState.of(qwen3), dear, adding(qwen3, "qwen3-4b", price_factor=2.0))
    assert again.catalogue.price_factors == {"qwen3-4b": 2.0}
    assert (
        fold(ControlState.of(qwen3), PriceFactorEntry(name="gone", factor=2.0)).catalogue.models
        == qwen3.models
    )


def test_objectives_and_the_cost_range_follow(qwen3: Catalogue) -> None:
    after = fold(
        ControlState.of(qwen3),
        ObjectiveEntry(name="mine", op="set", weights=Weights(score=1)),
        ObjectiveEntry(name="cost-leaning", op="remove"),
        CostBoundsEntry(cost_range=CostRange(low=1.0, high=10.0)),
        ObjectiveEntry(name="nearly-best", op="set", accuracy=0.98),
    )
    assert after.objectives.in_force("nearly-best").accuracy == 0.98
    assert "cost-leaning" not in after.objectives.named
    assert after.objectives.in_force("mine").cost_range.high == 10.0
    assert after.objectives.in_force("mine").version == 2
    assert after.catalogue == qwen3


def test_bounds_in_dollars_are_refused(qwen3: Catalogue) -> None:
    with pytest.raises(ObjectiveError, match="cost range is in usd, but costs are in eflops"):
        fold(ControlState.of(qwen3), CostBoundsEntry(cost_range=CostRange(low=1.0, high=10.0, unit="usd")))


def test_an_entry_that_cannot_be_used_leaves_all_as_it_was(qwen3: Catalogue) -> None:
    start = ControlState.of(qwen3)
    entry = adding(qwen3, "new")
    assert entry.model is not None
    broken = CatalogueEntry(name="new", op="add", model={**entry.model, "sampling": {"temperature": 9}})
    with pytest.raises(CatalogueError, match="control, offset 3, model 'new', field sampling"):
        start.after(broken, 3)
    assert start == ControlState.of(qwen3)
