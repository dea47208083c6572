"""App. B.2: an action as text. The golden file pins every string of the paper's catalogue."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from agents.catalogue.action_space import PAIRS, beam_size, uis_space
from agents.catalogue.descriptions import (
    describe_action,
    describe_actions,
    describe_model,
    describe_strategy,
    strategy_mode,
)
from agents.catalogue.models import Catalogue, CatalogueError
from schemas.action import Action

GOLDEN = Path(__file__).parents[2] / "golden" / "action_texts.qwen3.txt"


def test_the_model_half_is_the_papers_example(qwen3: Catalogue) -> None:
    assert describe_model(qwen3.model("qwen3-14b")) == (
        "Model: qwen3-14b | Params: 14B | ExpertReasoning_GPQA: 54.80 | GeneralMixed_LiveBench: 59.60 | "
        "Math_AIME24: 31.70 | Logic_Zebra: 33.00 | Coding_LCB: 29.00"
    )


def test_strategy_text_is_the_papers_except_the_impact() -> None:
    printed = (
        "Parallel_Trees(QP): 4 | Path_Candidates(CP): 16 | Beam_Width(BS): 4 | Expansions_per_Step: 4 | "
        "Resource_Impact: 16x | Strategy_Mode: Balanced-Search | Optimization_Priority: Balanced-Efficiency"
    )
    # The formula min(QP·CP, 64) gives 64; the example contradicts it.
    assert describe_strategy(4, 16, 4) == printed.replace("16x", "64x")


@pytest.mark.parametrize(
    ("qp", "cp", "mode"),
    [
        (1, 1, "Fast-Inference"),
        (4, 1, "Fast-Inference"),
        (8, 1, "Balanced-Search"),
        (4, 16, "Balanced-Search"),
        (1, 64, "Balanced-Search"),
        (8, 8, "Deep-Reasoning"),
        (64, 1, "Deep-Reasoning"),
        (32, 2, "Deep-Reasoning"),
    ],
)
def test_the_mode_goes_by_drafts_after_the_first_step(qp: int, cp: int, mode: str) -> None:
    assert strategy_mode(qp, cp, beam_size(cp)) == mode


def test_every_mode_is_used() -> None:
    modes = Counter(strategy_mode(qp, cp, beam_size(cp)) for qp, cp in PAIRS)
    assert modes == {"Fast-Inference": 9, "Balanced-Search": 13, "Deep-Reasoning": 6}


def test_all_168_texts_are_those_of_the_golden_file(qwen3: Catalogue) -> None:
    space = uis_space(qwen3)
    lines = [f"{a.id}\t{text}" for a, text in zip(space, describe_actions(space, qwen3), strict=True)]
    assert lines == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_no_two_actions_share_a_text(qwen3: Catalogue) -> None:
    best_of = [Action(model=m, qp=qp, cp=1, bs=1) for m in qwen3.model_names for qp in (3, 5, 20)]
    space = [*uis_space(qwen3), *best_of]
    assert len(set(describe_actions(space, qwen3))) == 168 + 18


def test_missing_anchor_is_omitted_and_missing_size_computed(qwen3: Catalogue) -> None:
    model = qwen3.model("qwen3-14b")
    one = msgspec.structs.replace(model, anchors=model.anchors[2:3], params="")
    assert describe_model(one) == "Model: qwen3-14b | Params: 14.8B | Math_AIME24: 31.70"
    assert describe_model(msgspec.structs.replace(one, anchors=())) == "Model: qwen3-14b | Params: 14.8B"


def test_an_action_of_an_unknown_model_has_no_text(qwen3: Catalogue) -> None:
    with pytest.raises(CatalogueError, match=r"no model 'gpt-9'; choose one of qwen3-0.6b"):
        describe_action(Action(model="gpt-9", qp=1, cp=1, bs=1), qwen3)
