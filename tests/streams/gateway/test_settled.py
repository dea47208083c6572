"""Only what no further step can take back is streamed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.search.forest import ask, outcome, plant, tell_drafts, tell_scores
from agents.serving.engine import Drafted
from schemas.action import Action
from schemas.forest import Finish, Limits
from schemas.search import Scored
from streams.gateway.completion_response import settled_text


@st.composite
def searches(draw: st.DrawFn) -> tuple[Action, int]:
    qp, cp, bs = draw(st.sampled_from([(1, 1, 1), (1, 2, 1), (1, 4, 2), (2, 2, 1), (2, 4, 2), (4, 1, 1)]))
    return Action(model="m", qp=qp, cp=cp, bs=bs), draw(st.integers(2, 6))


@settings(max_examples=300, deadline=None)
@given(searches(), st.data())
def test_an_answer_begins_with_everything_that_was_settled(
    search: tuple[Action, int], data: st.DataObject
) -> None:
    action, depth = search
    stop = data.draw(st.sampled_from([(), ("][",), ("][1", "2]"), ("3", "[4][")]))
    most = data.draw(st.sampled_from([None, 1, 2, 4]))
    forest = plant(action, Limits(depth_limit=depth, step_tokens=8, stop=stop, max_tokens=most))
    shown, count = "", 0
    finishes: list[Finish] = ["separator", "eos", "length", "context"]
    while (request := ask(forest, "q")) is not None:
        n = request.n * len(request.expansions)
        made = [Drafted(f"[{count + i}]", 1, data.draw(st.sampled_from(finishes))) for i in range(n)]
        count += n
        forest = tell_drafts(forest, request.step, made, 3)
        text = settled_text(forest)
        assert text.startswith(shown)
        shown = text
        scores = [Scored(score=data.draw(st.integers(0, 10)) / 10, tokens=1) for _ in made]
        forest = tell_scores(forest, request.step, scores)
    ended = outcome(forest)
    if ended.index >= 0:
        assert forest.answer(ended.index).startswith(shown)


def test_a_search_of_width_one_streams_step_by_step() -> None:
    forest = plant(Action(model="m", qp=1, cp=1, bs=1), Limits(depth_limit=5, step_tokens=8))
    forest = tell_drafts(forest, 1, [Drafted("one\n\n", 1, "separator")], 3)
    assert settled_text(forest) == "one\n\n"
    forest = tell_drafts(tell_scores(forest, 1, [Scored(score=0.5, tokens=1)]), 2, [Drafted("two", 1, "eos")])
    assert settled_text(forest) == "one\n\ntwo"


def test_two_paths_that_differ_show_nothing() -> None:
    forest = plant(Action(model="m", qp=2, cp=1, bs=1), Limits(depth_limit=5, step_tokens=8))
    assert settled_text(tell_drafts(forest, 1, [Drafted("a", 1, "eos"), Drafted("b", 1, "eos")], 3)) == ""
