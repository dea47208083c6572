"""Process reward models on real vLLM, against a plain forward pass of the same weights."""

import asyncio

import msgspec
import pytest

from agents.catalogue.models import Architecture, EngineSettings, StepTags, VerifierModel
from agents.serving.errors import PromptTooLongError
from agents.serving.prompts import ChatPrompts
from agents.serving.registry import HostingOptions
from agents.serving.vllm_requests import Pooling
from agents.verifier.formats import SkyworkFormat, StepTagFormat
from agents.verifier.prm import ScoreCountError, start_verifier
from schemas.search import Scored

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

TOLERANCE = 1.5e-2  # relative; vLLM's own golden test of reward models allows as much
QUESTION = "How many is 12 + 7?"
PATHS = [("12 + 7 is 19.\n\n",), ("12 + 7 is 18.\n\n", "So \\boxed{18}."), ("a\nb\n\n", "c\n\n", "d")]
SHAPE = Architecture(parameters=100_000, layers=2, query_heads=2, kv_heads=1, head_dim=32)


@pytest.fixture(scope="module")
def prompts(micro):
    return ChatPrompts.load(micro.path("micro-prm"))


def entry(name: str, micro, *, tag_id: int | None = None, context_tokens: int = 256) -> VerifierModel:
    tags = StepTags(tag="<|step|>", tag_id=tag_id) if tag_id is not None else None
    return VerifierModel(
        name=name,
        checkpoint=micro.path(name),
        architecture=SHAPE,
        family="step-tags" if tags else "skywork",
        step_tags=tags,
        engine=EngineSettings(dtype="float32", context_tokens=context_tokens),
    )


def start(host, micro, prompts, *, context_tokens=256):
    found = entry("micro-prm", micro, tag_id=prompts.token_id("<|step|>"), context_tokens=context_tokens)
    return asyncio.run(start_verifier(found, HostingOptions(), host))


def test_scores_are_those_of_a_plain_forward_pass(host, micro, prompts) -> None:
    verifier = start(host, micro, prompts)
    scores = asyncio.run(verifier.score(QUESTION, PATHS))
    form = StepTagFormat(prompts, "<|step|>")
    for scored, path in zip(scores, PATHS, strict=True):
        rendered = form.render(QUESTION, path)
        plain = micro.rewards("micro-prm", rendered.token_ids)[rendered.positions[-1]][1]
        assert scored.score == pytest.approx(float(plain), rel=TOLERANCE)
        assert scored.tokens == len(rendered.token_ids)
        assert not scored.shortened
    assert len({round(scored.score, 4) for scored in scores}) == 3
    assert verifier.served.model == "micro-prm"


def test_skywork_scores_are_those_of_a_plain_forward_pass(host, micro, prompts) -> None:
    verifier = asyncio.run(start_verifier(entry("micro-skywork", micro), HostingOptions(), host))
    scores = asyncio.run(verifier.score(QUESTION, PATHS))
    form = SkyworkFormat(prompts)
    for scored, path in zip(scores, PATHS, strict=True):
        rendered = form.render(QUESTION, path)
        plain = micro.rewards("micro-skywork", rendered.token_ids)[rendered.positions[-1]][0]
        assert scored.score == pytest.approx(float(plain), rel=TOLERANCE)
    assert len({round(scored.score, 4) for scored in scores}) == 3


def test_every_token_of_a_skywork_prompt_has_the_plain_value(host, micro, prompts) -> None:
    ids = prompts.encode("12 + 7?\n12 + 7 is 19.\n" * 5)
    [pooled] = asyncio.run(host.run("micro-skywork", [Pooling(prompt_token_ids=ids)]))
    assert pooled.rows == pytest.approx(micro.rewards("micro-skywork", ids), rel=TOLERANCE)


def test_many_steps_are_scored_together_and_each_for_itself(host, micro, prompts) -> None:
    verifier = start(host, micro, prompts)
    questions = [f"How many is {number} + 7?" for number in range(24)]

    async def all_together():
        return await asyncio.gather(*(verifier.score(question, PATHS) for question in questions))

    together = asyncio.run(all_together())
    alone = asyncio.run(verifier.score(questions[5], PATHS[:1]))
    assert together[5][0].score == pytest.approx(alone[0].score, rel=1e-5)
    assert len({scores[0].score for scores in together}) == 24


def test_a_long_path_loses_its_first_steps_and_says_so(host, micro, prompts) -> None:
    verifier = start(host, micro, prompts, context_tokens=100)
    long = tuple(f"{number} and {number} is {2 * number}.\n\n" for number in range(10, 20))
    [scored] = asyncio.run(verifier.score(QUESTION, [long]))
    form = StepTagFormat(prompts, "<|step|>")
    kept = next(first for first in range(10) if len(form.render(QUESTION, long[first:]).token_ids) <= 100)
    assert kept > 0
    [tail] = asyncio.run(verifier.score(QUESTION, [long[kept:]]))
    assert scored == Scored(score=scored.score, tokens=tail.tokens, shortened=True)
    assert scored.score == pytest.approx(tail.score, rel=1e-5)


def test_a_single_step_too_long_is_refused(host, micro, prompts) -> None:
    verifier = start(host, micro, prompts, context_tokens=100)
    with pytest.raises(PromptTooLongError, match="leaves no room in a context of 100"):
        asyncio.run(verifier.score(QUESTION, [("first.\n\n", "x" * 120)]))


def test_a_count_that_differs_is_an_error(host, micro, prompts) -> None:
    """The host's engine pools the tag <|step|>; a catalogue with another tag gets no row at all."""
    tags = StepTags(tag="<|system|>", tag_id=prompts.token_id("<|system|>"))
    wrong = msgspec.structs.replace(entry("micro-prm", micro, tag_id=0), step_tags=tags)
    verifier = asyncio.run(start_verifier(wrong, HostingOptions(), host))
    with pytest.raises(ScoreCountError, match="micro-prm: 0 scores for 1 steps"):
        asyncio.run(verifier.score(QUESTION, PATHS[:1]))
