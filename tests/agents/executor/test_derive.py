"""A search derived from a wider recording is the search itself, or is not derived at all."""

import random

import pytest

from agents.search.explain import explain
from agents.search.forest import SearchError, ask, outcome, plant, tell_drafts, tell_scores
from agents.search.search import derive, place_of
from agents.serving.engine import Drafted
from schemas.action import Action
from schemas.answer import Answer
from schemas.forest import Forest, Limits
from schemas.search import Scored

WIDTHS = [(1, 1, 1), (4, 1, 1), (1, 4, 2), (2, 4, 2), (1, 8, 2), (2, 16, 4), (8, 2, 1)]
OPEN = Limits(depth_limit=6, step_tokens=20, early_exit=False)


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


def test_early_exit_is_derived_from_a_run_without_it_exactly_or_not_at_all() -> None:
    derived = pruned = 0
    for seed in range(140):
        widths = action(*WIDTHS[seed % len(WIDTHS)])
        limits = Limits(depth_limit=6, step_tokens=20, eta=(1.0, 1.2, 2.0)[seed % 3])
        found = derive(search(seed, widths, OPEN), limits=limits)
        if found is not None:
            derived += 1
            pruned += any(draft.fate == "early_exit" for draft in found.drafts)
            assert found == search(seed, widths, limits)
    assert derived > 130
    assert pruned > 20


def test_best_of_n_is_derived_from_the_widest_run() -> None:
    for limits in (OPEN, Limits(depth_limit=6, step_tokens=20)):
        recorded = search(5, action(16, 1, 1), OPEN)
        for n in (1, 2, 3, 7, 16):
            assert derive(recorded, action=action(n, 1, 1), limits=limits) == search(
                5, action(n, 1, 1), limits
            )


def test_a_token_budget_is_derived_only_while_it_is_not_reached() -> None:
    recorded = search(5, action(4, 1, 1), OPEN)
    ample = derive(
        recorded, limits=Limits(depth_limit=6, step_tokens=20, early_exit=False, budget_tokens=10_000)
    )
    assert ample is not None
    assert ample.drafts == recorded.drafts
    for budget in (2, 8, recorded.generated_tokens - 1):
        tight = Limits(depth_limit=6, step_tokens=20, early_exit=False, budget_tokens=budget)
        assert derive(recorded, limits=tight) is None


def test_what_was_not_recorded_is_not_derived() -> None:
    assert derive(search(5, action(2, 1, 1), OPEN), action=action(3, 1, 1)) is None
    shallow = (search(seed, action(1, 1, 1), Limits(depth_limit=1, step_tokens=20)) for seed in range(50))
    unfinished = next(forest for forest in shallow if forest.drafts[0].fate == "cut")
    assert derive(unfinished, limits=OPEN) is None
    with pytest.raises(SearchError, match=r"limits\.temperature"):
        derive(unfinished, limits=Limits(depth_limit=6, step_tokens=20, temperature=0.5))


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
        plant(action(2, 1, 1), OPEN),
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
