"""The recorded engine and the order and number of its drafts."""

import asyncio

import pytest

from agents.catalogue.models import Sampling
from agents.serving.engine import Prefix
from agents.serving.recorded import RecordedEngine, RecordedPath, RecordedStep, Recording, RecordingError
from agents.verifier.prm import RecordedVerifier
from schemas.query import Message

SAMPLING = Sampling(temperature=0.8, step_tokens=64, depth_limit=8)
ROOT = Prefix(messages=(Message(role="system", content="Be brief."), Message(role="user", content="2+3?")))
RECORDING = Recording(
    RecordedPath(
        question="2+3?",
        model="mini-m",
        path=number,
        prompt_tokens=9,
        steps=(
            RecordedStep(text=f"step {number}\n\n", tokens=4, score=0.5),
            RecordedStep(text=f"\\boxed{{{number}}}", tokens=3, score=0.9, finish="eos"),
        ),
    )
    for number in range(4)
)


def test_drafts_are_drawn_by_seed_and_follow_their_prefix() -> None:
    engine = RecordedEngine(RECORDING, "mini-m")
    first = asyncio.run(engine.generate("q/1", [ROOT], 4, [0, 1, 2, 3], SAMPLING))
    assert [draft.text for draft in first] == [f"step {number}\n\n" for number in range(4)]
    assert {(draft.finish, draft.tokens, draft.prompt_tokens) for draft in first} == {("separator", 4, 9)}
    paths = [Prefix(messages=ROOT.messages, steps=(draft.text,)) for draft in first[2:]]
    second = asyncio.run(engine.generate("q/2", paths, 2, [7, 8, 9, 10], SAMPLING))
    assert [draft.text for draft in second] == ["\\boxed{2}"] * 2 + ["\\boxed{3}"] * 2
    assert {(draft.finish, draft.prompt_tokens) for draft in second} == {("eos", 13)}
    assert engine.served.name == "recorded"


def test_a_model_that_was_not_recorded_is_an_error() -> None:
    engine = RecordedEngine(RECORDING, "mini-x")
    with pytest.raises(RecordingError, match="mini-x: not recorded for '2\\+3\\?'; recorded are mini-m"):
        asyncio.run(engine.generate("q/1", [ROOT], 1, [0], SAMPLING))


def test_step_over_max_tokens_is_cut_and_scored_whole() -> None:
    engine = RecordedEngine(RECORDING, "mini-m")
    bounded = Prefix(messages=ROOT.messages, max_tokens=3)
    (draft,) = asyncio.run(engine.generate("q/1", [bounded], 1, [2], SAMPLING))
    # "step 2\n\n" has 4 tokens and 8 characters.
    assert (draft.text, draft.finish, draft.tokens) == ("step 2", "length", 3)
    (scored,) = asyncio.run(RecordedVerifier(RECORDING).score("2+3?", [(draft.text,)]))
    assert scored.score == 0.5
    with pytest.raises(RecordingError, match="no score was recorded"):
        asyncio.run(RecordedVerifier(RECORDING).score("2+3?", [("step 9",)]))
