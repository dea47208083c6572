"""Table 1: which actions there are, in which order, and what a query may choose from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.catalogue.action_space import PAIRS, ActionSpace, beam_size, parse_pairs, uis_space
from agents.catalogue.models import ActionError, Catalogue
from schemas.action import Action


def test_there_are_28_pairs_and_168_actions(qwen3: Catalogue) -> None:
    space = uis_space(qwen3)
    assert len(PAIRS) == 28
    assert len(space) == len(set(space)) == 168
    assert space.models == qwen3.model_names
    assert 210 * len(space) * 3 == 105_840  # the paper's count of samples


def test_every_action_keeps_the_rules_of_table_1(qwen3: Catalogue) -> None:
    for action in uis_space(qwen3):
        assert action.qp * action.cp <= 64
        assert action.qp.bit_count() == action.cp.bit_count() == 1
        assert action.cp % action.bs == 0
        assert action.bs == beam_size(action.cp)


def test_fewer_pairs_may_be_on_offer(qwen3: Catalogue) -> None:
    pairs = parse_pairs(["4/16", "1/1", "1/1"])
    assert [(a.qp, a.cp) for a in uis_space(qwen3, pairs)] == [(1, 1), (4, 16)] * len(qwen3.models)
    assert parse_pairs([]) == PAIRS
    with pytest.raises(ActionError, match=r"qp 1 with cp 2 is not on offer; choose qp/cp from 1/1, 4/16"):
        uis_space(qwen3, pairs).index(Action.parse("qwen3-4b/1/2/1"))
    with pytest.raises(ActionError, match=r"'4' is not a QP/CP pair in the action space: use powers of two"):
        parse_pairs(["4"])


@pytest.mark.parametrize(
    ("cp", "bs"), [(1, 1), (2, 1), (3, 2), (4, 2), (8, 2), (9, 4), (16, 4), (32, 4), (64, 4)]
)
def test_beam_size_follows_from_cp(cp: int, bs: int) -> None:
    assert beam_size(cp) == bs


@pytest.mark.parametrize("cp", [0, -1, 65])
def test_a_cp_out_of_range_has_no_beam_size(cp: int) -> None:
    with pytest.raises(ActionError, match=f"cp is {cp}: choose 1 to 64"):
        beam_size(cp)


def test_index_inverts_position(qwen3: Catalogue) -> None:
    space = uis_space(qwen3)
    assert [space.index(action) for action in space] == list(range(168))


def test_a_model_added_last_changes_no_index(qwen3: Catalogue) -> None:
    before = uis_space(qwen3.remove("qwen3-32b"))
    after = uis_space(qwen3.remove("qwen3-32b").add(qwen3.model("qwen3-32b")))
    assert after.actions[: len(before)] == before.actions
    assert len(after) == len(before) + 28


@given(
    st.sets(st.sampled_from([f"qwen3-{n}" for n in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")]), min_size=1)
)
def test_restriction_keeps_order_and_drops_nothing_else(qwen3: Catalogue, models: set[str]) -> None:
    space = uis_space(qwen3)
    less = space.restrict(models)
    assert list(less) == [a for a in space if a.model in models]
    assert less.restrict(models) == less
    assert [space[i] for i in space.choices(allowed_models=models)] == list(less)


def test_restriction_to_an_unknown_model_names_it(qwen3: Catalogue) -> None:
    with pytest.raises(ActionError, match=r"model 'gpt-9' is not in the space; choose one of qwen3-0.6b, "):
        uis_space(qwen3).restrict({"gpt-9", "qwen3-4b"})


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        ("gpt-9/1/1/1", "model 'gpt-9' is not in the space; choose one of"),
        ("qwen3-4b/4/16/2", "bs is 2 for cp 16; this space has 4"),
        ("qwen3-4b/64/64/4", "qp 64 with cp 64 is not in the space"),
        ("qwen3-4b/3/1/1", "qp 3 with cp 1 is not in the space"),
    ],
)
def test_an_action_outside_says_why(qwen3: Catalogue, action: str, complaint: str) -> None:
    space = uis_space(qwen3)
    assert Action.parse(action) not in space
    with pytest.raises(ActionError, match=complaint):
        space.index(Action.parse(action))
    with pytest.raises(ActionError, match=f"pin_action: {complaint}"):
        space.choices(pinned=Action.parse(action))


def test_a_pinned_action_is_the_only_choice(qwen3: Catalogue) -> None:
    space, pinned = uis_space(qwen3), Action.parse("qwen3-4b/4/16/4")
    assert space.choices(pinned=pinned) == (space.index(pinned),)
    assert space.choices(pinned=pinned, allowed_models=["qwen3-4b"]) == (space.index(pinned),)
    with pytest.raises(ActionError, match="allowed_models leaves no action: pin_action's model 'qwen3-4b'"):
        space.choices(pinned=pinned, allowed_models=["qwen3-8b"])


def test_allowed_and_available_models_both_count(qwen3: Catalogue) -> None:
    space = uis_space(qwen3)
    assert space.choices() == tuple(range(168))
    left = space.choices(allowed_models=["qwen3-4b", "qwen3-8b"], available_models=["qwen3-8b", "other"])
    assert {space[i].model for i in left} == {"qwen3-8b"}
    with pytest.raises(ActionError, match="no executor is running for qwen3-4b: start one"):
        space.choices(allowed_models=["qwen3-4b"], available_models=["qwen3-8b"])
    with pytest.raises(ActionError, match="allowed_models holds 'gpt-9'; choose one of"):
        space.choices(allowed_models=["gpt-9"])
    with pytest.raises(ActionError, match="allowed_models leaves no action: it is empty"):
        space.choices(allowed_models=[])


def test_an_empty_space_and_a_double_action_are_refused() -> None:
    action = Action(model="m", qp=1, cp=1, bs=1)
    with pytest.raises(ActionError, match="there is no action"):
        ActionSpace(())
    with pytest.raises(ActionError, match="m/1/1/1 appears twice"):
        ActionSpace((action, action))


def test_only_what_drafts_enough_paths_can_give_n_answers(qwen3: Catalogue) -> None:
    space = uis_space(qwen3)
    wide = [space[i] for i in space.choices(answers=16)]
    assert wide == [action for action in space if action.qp * action.cp >= 16]
    with pytest.raises(ActionError, match=r"n is 16, but pin_action qwen3-4b/1/1/1 drafts fewer paths"):
        space.choices(pinned=Action.parse("qwen3-4b/1/1/1"), answers=16)
    with pytest.raises(
        ActionError, match="n is 65, but no configuration drafts that many paths; ask for fewer"
    ):
        space.choices(answers=65)
