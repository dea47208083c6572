"""What is said of a search: each draft's place and fate, and the bound that pruned it."""

import random

from agents.search.explain import explain
from agents.search.forest import ask, outcome, place_of, plant, tell_drafts, tell_scores
from agents.serving.engine import Drafted
from schemas.action import Action
from schemas.answer import Answer
from schemas.forest import Forest, Limits
from schemas.search import Scored


def search(seed: int, action: Action, limits: Limits) -> Forest:
    """Run a search whose drafts and scores depend on (seed, place) alone."""
    forest = plant(action, limits)
    while (request := ask(forest, "q")) is not None:
        drafted, scores = [], []
        for expansion in request.expansions:
            above = place_of(forest, expansion.parent) if expansion.parent >= 0 else (expansion.tree,)
            for k in range(request.n):
                rng = random.Random(f"{seed}/{(*above, k)}")
                drafted.append(
                    Drafted(
                        f"{rng.random()}\n\n", rng.randint(1, 9), "eos" if rng.random() < 0.3 else "separator"
                    )
                )
                scores.append(Scored(score=rng.random(), tokens=rng.randint(10, 20)))
        forest = tell_drafts(forest, request.step, drafted, prompt_tokens=7)
        forest = tell_scores(forest, request.step, scores, forget=False)
    return forest


def action(qp: int, cp: int, bs: int) -> Action:
    return Action(model="m", qp=qp, cp=cp, bs=bs)


def test_every_fate_is_explained() -> None:
    forest = search(3, action(2, 8, 2), Limits(depth_limit=6, step_tokens=20))
    ended = outcome(forest)
    answer = Answer(
        query_id="q",
        status="ok",
        by="executor",
        action=forest.action,
        text="x",
        path=forest.path(ended.index),
        trace=forest.drafts,
        limits=forest.limits,
        steps=forest.step,
        prompt_tokens=7,
    )
    steps = explain(answer)
    assert [step.control.step for step in steps] == list(range(1, forest.step + 1))
    assert sum(len(step.drafts) for step in steps) == len(forest.drafts)
    drafts = [draft for step in steps for draft in step.drafts]
    assert {draft.place for draft in drafts if draft.chosen} == {
        ".".join(map(str, place_of(forest, at))) for at in forest.path(ended.index)
    }
    assert {"finished", "kept", "beam", "early_exit"} <= {draft.fate for draft in drafts}
    for step in steps:
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
    forest = tell_drafts(
        plant(action(2, 1, 1), Limits(depth_limit=6, step_tokens=20, early_exit=False)),
        1,
        [Drafted("a\n\n", 3, "separator"), Drafted("b", 2, "eos")],
        prompt_tokens=7,
    )
    answer = Answer(
        query_id="q",
        status="failed",
        by="verifier",
        action=forest.action,
        error="the verifier is gone",
        trace=forest.drafts,
        limits=forest.limits,
        steps=forest.step,
        prompt_tokens=7,
    )
    assert [draft.path_score for step in explain(answer) for draft in step.drafts] == [None, None]
