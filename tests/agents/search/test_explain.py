"""What is said of a search: each draft's place and fate, and the bound that pruned it."""

from typing import Any

from agents.search.explain import explain
from agents.search.forest import outcome, place_of, plant, tell_drafts
from agents.serving.engine import Drafted
from schemas.action import Action
from schemas.answer import Answer
from schemas.forest import Forest, Limits
from tests.support.search_worlds import World, steps


def answer_of(forest: Forest, **ended: Any) -> Answer:
    """Return an Answer with the whole trace of a search."""
    return Answer(
        query_id="q", action=forest.action, trace=forest.drafts, limits=forest.limits, steps=forest.step,
        prompt_tokens=forest.prompt_tokens, **ended,
    )  # fmt: skip


def test_every_fate_is_explained() -> None:
    limits = Limits(depth_limit=6, step_tokens=20)
    action = Action(model="m", qp=2, cp=8, bs=2)
    *_, forest = steps(World(3, ends=0.3, grid=10**6), action, limits, forget=False)
    path = forest.path(outcome(forest).index)
    explained = explain(answer_of(forest, status="ok", by="executor", text="x", path=path))
    assert [step.control.step for step in explained] == list(range(1, forest.step + 1))
    assert sum(len(step.drafts) for step in explained) == len(forest.drafts)
    drafts = [draft for step in explained for draft in step.drafts]
    chosen = {".".join(map(str, place_of(forest, at))) for at in path}
    assert {draft.place for draft in drafts if draft.chosen} == chosen
    assert {"finished", "kept", "beam", "early_exit"} <= {draft.fate for draft in drafts}
    for step in explained:
        for pruned in [draft for draft in step.drafts if draft.fate == "early_exit"]:
            # The words hold the proof: every number of the bound, and what it was held against.
            j, limit, known = step.control.step, step.control.limit, step.control.v_max
            assert pruned.path_score is not None
            assert known is not None
            reach = (j * pruned.path_score + (limit - j)) / limit
            assert pruned.why == (
                f"pruned: with {pruned.path_score:.3f} after {j} of at most {limit} steps (H_max) it could reach "
                f"{reach:.3f} at best, below V_max = {known:.3f}"
            )
            assert reach < known
    assert all(draft.why and draft.path_score is not None for draft in drafts)
    assert explain(Answer(query_id="q", status="expired", by="aggregator", error="silent")) == ()


def test_a_search_that_failed_at_its_verifier_is_explained() -> None:
    planted = plant(
        Action(model="m", qp=2, cp=1, bs=1), Limits(depth_limit=6, step_tokens=20, early_exit=False)
    )
    made = [Drafted("a\n\n", 3, "separator"), Drafted("b", 2, "eos")]
    forest = tell_drafts(planted, 1, made, prompt_tokens=7)
    answer = answer_of(forest, status="failed", by="verifier", error="the verifier is gone")
    assert [draft.path_score for step in explain(answer) for draft in step.drafts] == [None, None]
