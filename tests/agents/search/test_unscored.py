"""A search that no verifier scores: its paths grow to their ends, and the most frequent answer is chosen."""

import asyncio
from collections.abc import Sequence

import pytest

from agents.catalogue.models import Sampling
from agents.search.explain import bounds_in_words, explain
from agents.search.forest import SearchError, ask, plant, tell_drafts, tell_scores
from agents.search.search import Job, SearchRules, begin, draft, resume_unscored
from agents.search.unscored import tell_unscored
from agents.serving.engine import Drafted, Prefix
from schemas.action import Action
from schemas.answer import Answer
from schemas.forest import Finish, Forest, Limits
from schemas.query import Budget, Query
from schemas.record import decode, encode
from schemas.search import Scored, SearchStep, Served
from tests.support.records import decision_for

LIMITS = Limits(depth_limit=3, step_tokens=30, early_exit=False, verified=False)
SAMPLING = Sampling(temperature=0.7, step_tokens=30, depth_limit=3)


def told(texts: Sequence[tuple[str, Finish]], cp: int = 1, bs: int = 1) -> Forest:
    """Return a forest after one step with these drafts."""
    planted = plant(Action(model="m", qp=len(texts) // cp, cp=cp, bs=bs), LIMITS)
    drafts = [Drafted(text, 5, finish, prompt_tokens=9) for text, finish in texts]
    return tell_unscored(tell_drafts(planted, 1, drafts, 9), 1)


@pytest.mark.parametrize(
    ("texts", "best"),
    [
        (["\\boxed{1}", "\\boxed{2}", "\\boxed{ 2}"], 1),
        (["\\boxed{1}", "\\boxed{2}"], 0),
        (["none", "\\boxed{2}"], 1),
        (["none", "other"], 0),
        (["none", "other", "\\boxed{3}", "\\boxed{4}", "\\boxed{4}"], 3),
    ],
)
def test_most_frequent_answer_wins_and_ties_go_to_the_first(texts: list[str], best: int) -> None:
    assert told([(text, "eos") for text in texts]).best == best


def test_paths_end_naturally_or_at_the_depth_limit_unscored() -> None:
    forest = told([("\\boxed{1}", "eos"), ("a\n\n", "separator"), ("b", "context")])
    assert [each.fate for each in forest.drafts] == ["finished", "kept", "cut"]
    assert all(each.score is None for each in forest.drafts)
    assert (forest.live, forest.value(0)) == ((1,), None)
    for step in (2, 3):
        asked = ask(forest, "q")
        assert asked is not None
        assert (asked.step, len(asked.expansions), asked.n) == (step, 1, 1)
        grown = tell_drafts(forest, step, [Drafted("more\n\n", 5, "separator")])
        forest = tell_unscored(grown, step)
        assert tell_unscored(forest, step) is forest, "a step is told once"
    assert (forest.over, forest.drafts[-1].fate, forest.best) == (True, "cut", 0)
    with pytest.raises(SearchError, match="step 5 was told at step 3"):
        tell_unscored(forest, 5)


def test_a_configuration_that_needs_scores_keeps_its_first_paths() -> None:
    # Decided before its model lost its verifier.
    forest = told([("a\n\n", "separator")] * 4, cp=4, bs=2)
    assert [each.fate for each in forest.drafts] == ["kept", "kept", "beam", "beam"]


class Thinks:
    """Thinks for a step, then boxes 7, of which the path with an odd seed makes 8."""

    model, served = "m", Served(name="thinks", model="m")

    async def generate(
        self, step_id: str, prefixes: Sequence[Prefix], n: int, seeds: Sequence[int], sampling: Sampling
    ) -> list[Drafted]:
        ends = [f"\\boxed{{{7 + seed % 2}}}" for seed in seeds]
        return [
            Drafted(end, 6, "eos", 12) if prefix.steps else Drafted("hm\n\n", 4, "separator", 12)
            for prefix, end in zip(prefixes, ends, strict=True)
        ]

    async def close(self) -> None:
        """Nothing is held."""


def searched(qp: int, **query: object) -> tuple[Answer, list[SearchStep]]:
    """Run a search from its decision to its answer."""
    decision = decision_for(
        Query(query_id="q", text="?", **query),  # type: ignore[arg-type]
        action=Action(model="m", qp=qp, cp=1, bs=1),
        seed=3,
        appended_ms=1_000,
    )
    steps, work = [], begin(decision, SAMPLING, rules=SearchRules(), now_ms=1_000, verified=False)
    while isinstance(work, Job):
        step = asyncio.run(draft(work, engine=Thinks(), clock_ms=lambda: 1_000))
        assert isinstance(step, SearchStep)
        steps.append(step)
        work = resume_unscored(step, now_ms=1_000, cost_so_far=lambda forest: float(forest.generated_tokens))
    return decode(encode(work), Answer), steps


def test_from_decision_to_answer_without_a_score() -> None:
    answer, steps = searched(5)
    assert (answer.status, answer.complete, answer.steps, answer.completed) == ("ok", True, 2, 5)
    assert (answer.score, answer.verifier, answer.engine) == (None, None, Thinks.served)
    assert answer.limits is not None
    assert (answer.limits.verified, answer.limits.early_exit) == (False, False)
    said = [step.extracted for step in searched(5, n=5)[0].answers]
    assert answer.extracted == max(said, key=said.count)
    assert len({(step.forest.step, len(step.forest.pending)) for step in steps}) == 2


def test_its_explanation_says_that_nothing_scored_it() -> None:
    first, last = explain(searched(2)[0])
    assert [each.why for each in first.drafts] == ["continues", "continues"]
    assert sum(each.chosen for each in last.drafts) == 1
    assert bounds_in_words(last.control, 1.2).startswith("no verifier scores this model")


def test_budgets_hold_without_a_verifier() -> None:
    spent, _ = searched(2, budget=Budget(eflops=5.0))
    assert (spent.status, spent.text, spent.complete) == ("budget", "hm\n\n", False)
    assert searched(2, budget=Budget(tokens=1))[0].text is None


def test_scores_of_a_search_without_a_verifier_are_refused() -> None:
    planted = plant(Action(model="m", qp=1, cp=1, bs=1), LIMITS)
    grown = tell_drafts(planted, 1, [Drafted("a", 5, "eos", prompt_tokens=9)], 9)
    with pytest.raises(SearchError, match="without a verifier"):
        tell_scores(grown, 1, [Scored(score=0.5)])
