"""SearchStep to Verification: every pending draft scored once, in order, by what it stands on."""

import asyncio
from collections.abc import Sequence
from itertools import count

import pytest
from msgspec.structs import replace

from agents.serving.errors import DeadlinePassedError
from agents.serving.recorded import RecordedPath, RecordedStep, Recording, RecordingError
from agents.verifier.prm import RecordedVerifier, verify
from schemas.action import Action
from schemas.forest import Draft, Fate, Forest, Limits
from schemas.query import Message
from schemas.record import decode, encode
from schemas.search import Scored, SearchStep, Verification


def recorded(path: int, first: str, second: str, scores: tuple[float, float]) -> RecordedPath:
    steps = (
        RecordedStep(text=first, tokens=3, score=scores[0]),
        RecordedStep(text=second, tokens=2, score=scores[1], finish="eos"),
    )
    return RecordedPath(question="2+3?", model="m", path=path, steps=steps, prompt_tokens=9)


RECORDING = Recording(
    [
        recorded(0, "a\n\n", "b", (0.25, 0.75)),
        recorded(1, "a\n\n", "c", (0.25, 0.5)),
        recorded(2, "d\n\n", "b", (0.1, 0.2)),
    ]
)


def draft(parent: int, depth: int, text: str, score: float | None = None) -> Draft:
    fate: Fate = "open" if score is None else "kept"
    return Draft(parent=parent, depth=depth, tokens=2, finish="separator", text=text, score=score, fate=fate)


def second_step(*texts: tuple[int, str]) -> SearchStep:
    first = (draft(-1, 1, "a\n\n", 0.25), draft(-1, 1, "d\n\n", 0.1))
    forest = Forest(
        action=Action(model="m", qp=1, cp=4, bs=2),
        limits=Limits(depth_limit=8, step_tokens=64),
        drafts=first + tuple(draft(parent, 2, text) for parent, text in texts),
        step=2,
        scored=1,
        prompt_tokens=9,
    )
    messages = (Message(role="system", content="Be brief."), Message(role="user", content="2+3?"))
    return SearchStep(query_id="q-1", group="small", seq=4, seed=7, messages=messages, forest=forest)


def test_each_pending_draft_gets_the_score_of_its_own_path() -> None:
    step = second_step((0, "b"), (0, "c"), (1, "b"))
    ticks = count(10.0, 0.5)
    reply = asyncio.run(verify(step, verifier=RecordedVerifier(RECORDING), clock=lambda: next(ticks)))
    assert [scored.score for scored in reply.scores] == [0.75, 0.5, 0.2]
    assert reply.search == step
    assert reply.verify_s == 0.5
    assert reply.verifier.name == "recorded"
    assert decode(encode(reply), Verification) == reply


def test_a_redelivered_step_gets_the_same_scores() -> None:
    step = second_step((0, "b"))
    replies = [
        asyncio.run(verify(step, verifier=RecordedVerifier(RECORDING), clock=lambda: 1.0)) for _ in range(2)
    ]
    assert encode(replies[0]) == encode(replies[1])


def test_a_path_nobody_recorded_is_an_error_and_no_score() -> None:
    with pytest.raises(RecordingError, match="no score was recorded for a path of 2 steps of '2\\+3\\?'"):
        asyncio.run(verify(second_step((0, "z")), verifier=RecordedVerifier(RECORDING), clock=lambda: 1.0))


class HangingVerifier(RecordedVerifier):
    """Never answers."""

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")


def test_hanging_verifier_is_abandoned_at_expiry() -> None:
    step = second_step((0, "b"))
    limits = replace(step.forest.limits, deadline_ms=900, expires_ms=1_000)
    step = replace(step, forest=replace(step.forest, limits=limits))
    hanging = HangingVerifier(RECORDING)
    with pytest.raises(DeadlinePassedError, match="q-1/2"):
        asyncio.run(verify(step, verifier=hanging, clock=lambda: 0.0, now_ms=950))


class UnaskedVerifier(RecordedVerifier):
    """Must not be asked."""

    async def score(self, question: str, paths: Sequence[Sequence[str]]) -> list[Scored]:
        raise AssertionError("the query has expired")


def test_a_step_of_an_expired_query_is_not_scored() -> None:
    step = second_step((0, "b"))
    step = replace(step, forest=replace(step.forest, limits=replace(step.forest.limits, expires_ms=1_000)))
    unasked = UnaskedVerifier(RECORDING)
    with pytest.raises(DeadlinePassedError, match="q-1/2"):
        asyncio.run(verify(step, verifier=unasked, clock=lambda: 0.0, now_ms=1_000))
