"""Seeds, budgets, drafts that end oddly, the wire, and what is refused."""

from itertools import pairwise

import pytest

from agents.search.forest import (
    SearchError,
    ask,
    draft_seeds,
    outcome,
    plant,
    spent,
    stop,
    tell_drafts,
    tell_scores,
)
from agents.serving.engine import Drafted
from schemas.action import Action
from schemas.forest import Finish, Forest, Limits
from schemas.query import Message
from schemas.record import decode, encode
from schemas.search import Scored, SearchStep, Served, Verification

COT = Action(model="m", qp=1, cp=1, bs=1)
WIDE = Action(model="m", qp=2, cp=4, bs=2)


def limits(**changes: object) -> Limits:
    return Limits(**{"depth_limit": 4, "step_tokens": 20, **changes})  # type: ignore[arg-type]


def advance(forest: Forest, *made: tuple[str, Finish, float], tokens: int = 5) -> Forest:
    """Tell one step: (text, finish, score) of each draft, repeated to the width asked."""
    request = ask(forest, "q")
    assert request is not None
    width = request.n * len(request.expansions)
    rows = [made[at % len(made)] for at in range(width)]
    drafted = [Drafted(text, min(tokens, request.max_tokens), finish) for text, finish, _ in rows]
    forest = tell_drafts(forest, request.step, drafted, prompt_tokens=7)
    return tell_scores(forest, request.step, [Scored(score=score) for _, _, score in rows])


def test_a_seed_is_fixed_for_ever() -> None:
    assert draft_seeds("q-1", 0, 1, 0, [], 1)[0] == 3583034187323154015
    assert draft_seeds("q-1", 5, 3, 2, [1, 0], 2)[1] == 8769987006683968747


def test_every_draft_of_every_query_has_a_seed_of_its_own() -> None:
    seeds = []
    for query_id in ("a", "b"):
        forest = plant(WIDE, limits())
        while (request := ask(forest, query_id)) is not None:
            seeds += [seed for expansion in request.expansions for seed in expansion.seeds]
            forest = advance(forest, ("x\n\n", "separator", 0.5))
    assert len(set(seeds)) == len(seeds) == 2 * (8 + 8 + 8 + 8)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_hang_on_the_path_and_not_on_what_else_is_searched() -> None:
    alone = advance(plant(Action(model="m", qp=1, cp=2, bs=1), limits()), ("x\n\n", "separator", 0.5))
    beside = advance(plant(Action(model="m", qp=4, cp=2, bs=1), limits()), ("x\n\n", "separator", 0.5))
    first, among = ask(alone, "q"), ask(beside, "q")
    assert first is not None
    assert among is not None
    assert among.expansions[0].seeds == first.expansions[0].seeds


def test_the_state_goes_through_the_wire_after_every_call() -> None:
    messages = (Message(role="user", content="Wie viele Äpfel?"),)
    forest = plant(WIDE, limits(eta=1.5, budget_tokens=10_000, deadline_ms=9))
    while (request := ask(forest, "q", seed=4)) is not None:
        scores = (0.1, 0.9, 0.9, 1 / 3)
        rows = [("a ≤ b\n\n", "separator"), ("c\n\n", "separator"), (r"\boxed{4}", "eos"), ("…", "length")]
        width = request.n * len(request.expansions)
        drafted = [Drafted(f"{rows[at % 4][0]}", 3 + at, rows[at % 4][1]) for at in range(width)]  # type: ignore[arg-type]
        forest = tell_drafts(forest, request.step, drafted, prompt_tokens=7)
        step = SearchStep(query_id="q", group="g", seq=0, seed=4, messages=messages, forest=forest)
        again = decode(encode(step), SearchStep)
        assert again == step
        verified = [Scored(score=scores[at % 4], tokens=11, shortened=at == 1) for at in range(width)]
        verification = Verification(
            search=step,
            scores=tuple(Scored(score=v.score, tokens=v.tokens, shortened=v.shortened) for v in verified),
            verifier=Served(name="v"),
        )
        assert decode(encode(verification), Verification) == verification
        told = tell_scores(again.forest, request.step, verified)
        forest = tell_scores(forest, request.step, verified)
        assert told == forest
    assert outcome(forest).status == "ok"
    assert sum(draft.shortened for draft in forest.drafts) == forest.step
    assert forest.verifier_tokens == 11 * len(forest.drafts)


def test_draft_cut_by_length_resumes_within_its_step() -> None:
    forest = advance(plant(COT, limits()), ("half a st", "length", 0.9))
    assert forest.drafts[0].fate == "kept"
    forest = advance(forest, ("ep\n\n", "separator", 0.5))
    assert forest.text(1) == "half a step\n\n"
    forest = advance(forest, (r"\boxed{1}", "eos", 0.7))
    ended = outcome(forest)
    assert (ended.status, ended.complete) == ("ok", True)
    assert ended.score == pytest.approx((0.9 + 0.5 + 0.7) / 3)


def test_a_full_context_cuts_the_path_wherever_it_is() -> None:
    forest = advance(plant(WIDE, limits()), ("x\n\n", "separator", 0.5), ("y", "context", 0.9))
    assert [draft.fate for draft in forest.drafts] == ["kept", "cut"] * 4
    assert forest.drafts[1].text == "y"  # the answer if nothing better comes
    forest = advance(forest, ("z", "eos", 0.2))
    assert outcome(forest).complete
    assert outcome(forest).score == pytest.approx(0.35)


def test_an_empty_draft_cut_by_length_is_a_full_context() -> None:
    forest = advance(plant(COT, limits()), ("", "length", 0.4), tokens=0)
    assert forest.drafts[0].finish == "context"
    assert outcome(forest).status == "unfinished"


def test_a_box_completes_a_path_only_where_that_is_set() -> None:
    boxed: tuple[str, Finish, float] = (r"so \boxed{\frac{1}{2}}." + "\n\n", "separator", 0.8)
    assert advance(plant(COT, limits()), boxed).drafts[0].fate == "kept"
    assert advance(plant(COT, limits(box_completes=True)), boxed).drafts[0].fate == "finished"
    broken: tuple[str, Finish, float] = (r"so \boxed{\frac{1}{2}." + "\n\n", "separator", 0.8)
    assert advance(plant(COT, limits(box_completes=True)), broken).drafts[0].fate == "kept"


@pytest.mark.parametrize("budget", [1, 7, 8, 40, 41, 100, 163])
def test_a_token_budget_is_never_exceeded(budget: int) -> None:
    forest = plant(WIDE, limits(depth_limit=40, budget_tokens=budget))
    while (why := spent(forest)) is None:
        forest = advance(forest, ("x\n\n", "separator", 0.5), tokens=20)
    assert why == "tokens"
    assert ask(forest, "q") is None
    assert forest.generated_tokens <= budget
    assert budget - forest.generated_tokens < 8
    ended = outcome(stop(forest, why))
    assert (ended.status, ended.complete) == ("budget", False)
    assert (ended.index >= 0) == (budget >= 8)


def test_exhausted_budget_returns_the_best_completed_path() -> None:
    forest = advance(plant(WIDE, limits()), ("a", "eos", 0.4), ("b\n\n", "separator", 0.6))
    assert spent(forest, eflops=1e30, now_ms=10**15) is None
    stopped = stop(forest, "deadline")
    ended = outcome(stopped)
    assert (ended.status, ended.complete, ended.score) == ("budget", True, 0.4)
    assert stopped.text(ended.index) == "a"
    assert [draft.fate for draft in stopped.drafts] == ["finished", "stopped"] * 4
    assert stop(stopped, "tokens") is stopped


def test_exhausted_budget_without_completion_returns_live_path() -> None:
    forest = advance(plant(WIDE, limits()), ("a\n\n", "separator", 0.4), ("b\n\n", "separator", 0.6))
    ended = outcome(stop(forest, "eflops"))
    assert (ended.status, ended.complete, ended.score, ended.completed) == ("budget", False, 0.6, 0)


def test_price_and_deadline_are_looked_at_between_steps() -> None:
    forest = advance(plant(COT, limits(budget_eflops=5.0, deadline_ms=100)), ("a\n\n", "separator", 0.4))
    assert spent(forest, eflops=4.9, now_ms=99) is None
    assert spent(forest, eflops=5.0, now_ms=99) == "eflops"
    assert spent(forest, eflops=4.9, now_ms=100) == "deadline"
    assert spent(forest, eflops=4.9) is None


def drafted(count: int) -> list[Drafted]:
    return [Drafted("x\n\n", 1, "separator")] * count


def test_what_does_not_fit_is_refused() -> None:
    forest = plant(WIDE, limits())
    with pytest.raises(SearchError, match="step 2 were not asked"):
        tell_drafts(forest, 2, drafted(8), 7)
    with pytest.raises(SearchError, match="7 drafts for 8"):
        tell_drafts(forest, 1, drafted(7), 7)
    with pytest.raises(SearchError, match="prompt_tokens"):
        tell_drafts(forest, 1, drafted(8))
    with pytest.raises(SearchError, match="scores of step 1 came at step 0"):
        tell_scores(forest, 1, [Scored(score=0.5)] * 8)
    with pytest.raises(SearchError, match="not over"):
        outcome(forest)
    waiting = tell_drafts(forest, 1, drafted(8), 7)
    with pytest.raises(SearchError, match="9 scores for 8"):
        tell_scores(waiting, 1, [Scored(score=0.5)] * 9)
    for score in (1.5, -0.1, float("nan")):
        with pytest.raises(SearchError, match=r"a score of"):
            tell_scores(waiting, 1, [Scored(score=score)] * 8)
    with pytest.raises(SearchError, match="step 2 were not asked"):
        tell_drafts(waiting, 2, drafted(8), 7)
    with pytest.raises(SearchError, match="waits for its scores"):
        stop(waiting, "tokens")
    assert ask(waiting, "q") is None


def test_drafts_are_ordered_by_parent_and_depth() -> None:
    forest = plant(WIDE, limits())
    for _ in range(4):
        forest = advance(forest, ("x\n\n", "separator", 0.5), ("y\n\n", "separator", 0.6))
    assert all(draft.parent < at for at, draft in enumerate(forest.drafts))
    assert all(a.depth <= b.depth for a, b in pairwise(forest.drafts))
    for at, draft in enumerate(forest.drafts):
        assert draft.parent < 0 or forest.drafts[draft.parent].tree == draft.tree
        assert len(forest.path(at)) == draft.depth


def test_path_at_max_tokens_is_cut_and_never_completes() -> None:
    for literal in (False, True):
        forest = plant(WIDE, limits(max_tokens=8, cut_completes=literal))
        request = ask(forest, "q")
        assert request is not None
        assert {each.max_tokens for each in request.expansions} == {8}
        forest = advance(forest, ("x\n\n", "separator", 0.5))
        request = ask(forest, "q")
        assert request is not None
        # The bound is on each path: 4 live paths of 5 tokens have 3 left each.
        assert {each.max_tokens for each in request.expansions} == {3}
        forest = advance(forest, ("y", "length", 0.9), ("z", "eos", 0.1), tokens=3)
        assert [draft.fate for draft in forest.drafts[-2:]] == ["cut", "finished"]
        assert [draft.finish for draft in forest.drafts[-2:]] == ["max_tokens", "eos"]
        ended = outcome(forest)
        assert (ended.status, ended.complete, ended.score) == ("ok", True, pytest.approx(0.3))


def test_a_stop_text_ends_its_path_and_is_not_returned() -> None:
    forest = advance(
        plant(COT, limits(stop=("wor", "lo w"), max_tokens=5)), ("hello world\n\n", "length", 0.9)
    )
    # "lo w" is complete first; the stop text counts before the most tokens.
    assert (forest.drafts[0].finish, forest.drafts[0].fate) == ("stop", "finished")
    assert (forest.text(0), forest.answer(0)) == ("hello w", "hel")
    assert (outcome(forest).status, outcome(forest).complete) == ("ok", True)


def test_stop_text_may_span_steps_or_be_the_delimiter() -> None:
    forest = advance(plant(COT, limits(stop=("end\n\nnow",))), ("the end\n\n", "separator", 0.9))
    assert forest.drafts[0].fate == "kept"
    forest = advance(forest, ("nowhere", "eos", 0.9))
    assert (forest.drafts[1].finish, forest.answer(1)) == ("stop", "the ")
    forest = advance(plant(COT, limits(stop=("\n\n",))), ("one\n\n", "separator", 0.9))
    assert (forest.over, forest.answer(0)) == (True, "one")


def test_client_seed_gives_the_same_drafts_for_any_id() -> None:
    own, seeded = plant(WIDE, limits()), plant(WIDE, limits(seeded=True))
    assert ask(seeded, "q-1", 5) == ask(seeded, "q-2", 5) != ask(seeded, "q-1", 6)
    assert ask(own, "q-1", 5) != ask(own, "q-2", 5)
