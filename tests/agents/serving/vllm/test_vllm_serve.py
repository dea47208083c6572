"""A real `vllm serve` for a generator and one for a reward model: the HTTP way gives what the in-process way gives."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from agents.catalogue.endpoints import Endpoint
from agents.catalogue.models import Sampling
from agents.serving.chat_engine import ChatEngine
from agents.serving.engine import Prefix
from agents.serving.health_checks import ProbeRules, first_token
from agents.serving.http import HttpEngine, JsonServer, ServerSettings
from agents.serving.prompts import ChatPrompts
from agents.verifier.formats import StepTagFormat
from agents.verifier.prm import HttpRows, last_score
from schemas.prices import Billed
from schemas.query import Message
from tests.support.vllm_servers import vllm_servers

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Prefix(messages=(Message(role="user", content="How many is 12 + 7?"),))


@pytest.fixture(scope="module")
def servers(micro, tmp_path_factory) -> Iterator[dict[str, str]]:
    tag_id = ChatPrompts.load(micro.path("micro-prm")).token_id("<|step|>")
    pooler = f'{{"tok_pooling_type": "STEP", "step_tag_id": {tag_id}}}'
    own = {
        "micro-a": ["--block-size", "32", "--generation-config", "vllm"],
        "micro-prm": ["--runner", "pooling", "--pooler-config", pooler],
    }
    common = ["--max-model-len", "256", "--max-num-seqs", "16"]
    arguments = {
        name: ["--model", micro.path(name), "--served-model-name", name, *common, *extra]
        for name, extra in own.items()
    }
    environ = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with vllm_servers(arguments, environ, tmp_path_factory.mktemp("vllm-serve")) as found:
        yield found


def test_a_served_generator_drafts_the_same_steps(servers, micro) -> None:
    prompts = ChatPrompts.load(micro.path("micro-a"))

    async def run():
        server = JsonServer(ServerSettings(url=servers["micro-a"]))
        engine = HttpEngine(server, "micro-a", prompts, context_tokens=256)
        try:
            greedy = Sampling(temperature=0.0, step_tokens=24, depth_limit=4)
            sampled = Sampling(temperature=1.0, step_tokens=40, depth_limit=4)
            [first] = await engine.generate("q/1", [ROOT], 1, [0], greedy)
            drafts = await engine.generate("q/1", [ROOT], 60, list(range(60)), sampled)
            again = await engine.generate("q/1", [ROOT], 3, [0, 1, 2], sampled)
            return first, drafts, again
        finally:
            await engine.close()

    first, drafts, again = asyncio.run(run())
    prompt = prompts.prompt([("user", ROOT.messages[0].content)])
    assert list(first.token_ids) == micro.greedy("micro-a", prompt, 24)[: first.tokens]
    assert [draft.text for draft in again] == [draft.text for draft in drafts[:3]]
    assert {draft.finish for draft in drafts} == {"separator", "eos", "length"}
    assert all(draft.text.endswith("\n\n") for draft in drafts if draft.finish == "separator")


def test_a_served_reward_model_gives_the_same_scores(servers, micro) -> None:
    prompts = ChatPrompts.load(micro.path("micro-prm"))
    form = StepTagFormat(prompts, "<|step|>")
    paths = [("12 + 7 is 19.\n\n",), ("12 + 7 is 18.\n\n", "So \\boxed{18}.")]
    rendered = [form.render("How many is 12 + 7?", path) for path in paths]

    async def run():
        source = HttpRows(JsonServer(ServerSettings(url=servers["micro-prm"])), "micro-prm")
        try:
            return await source.rows([each.token_ids for each in rendered])
        finally:
            await source.close()

    for rows, each in zip(asyncio.run(run()), rendered, strict=True):
        plain = micro.rewards("micro-prm", each.token_ids)[each.positions[-1]][1]
        assert last_score(rows, each, 1, "micro-prm") == pytest.approx(float(plain), rel=1.5e-2)


def test_a_served_generator_is_a_chat_endpoint(servers, micro) -> None:
    """The same answer as token by token, counted by the server, several at once, and a wrong name said at once."""
    url, prompts = servers["micro-a"], ChatPrompts.load(micro.path("micro-a"))

    def chat(name: str = "micro-a", **fields: Any) -> tuple[JsonServer, ChatEngine]:
        endpoint = Endpoint(
            kind="chat", url=url, model=name, context_tokens=256, max_output_tokens=40, **fields
        )
        server = JsonServer(ServerSettings(url=url))
        engine = ChatEngine(server, "micro", endpoint)
        whole = Sampling(temperature=1.0, step_tokens=40, depth_limit=1)
        server.first = lambda: first_token(engine, whole, ProbeRules())
        return server, engine

    async def run():
        whole = Sampling(temperature=1.0, step_tokens=40, depth_limit=1)
        server, greedy = chat(extra_body={"temperature": 0.0})
        await server.knock()
        [one] = await greedy.generate("q/1", [ROOT], 1, [0], whole)
        _, several = chat(native_n=True, seed=True)
        four = await several.generate("q/1", [ROOT] * 4, 1, [1, 2, 3, 4], whole)
        again = await several.generate("q/1", [ROOT] * 4, 1, [1, 2, 3, 4], whole)
        wrong, engine = chat("nobody")
        await wrong.knock()
        for each in (greedy, several, engine):
            await each.close()
        return server.answered.is_set(), one, four, again, wrong.answered.is_set(), wrong.why

    ready, one, four, again, taken, why = asyncio.run(run())
    prompt = prompts.prompt([("user", ROOT.messages[0].content)])
    assert ready
    assert one.prompt_tokens == len(prompt)
    assert one.billed == Billed(input=len(prompt), output=one.tokens)
    assert one.text == prompts.decode(micro.greedy("micro-a", prompt, 40)[: one.tokens])
    assert [each.text for each in four] == [each.text for each in again]
    assert four[0].billed is not None
    assert sum(each.tokens for each in four) == four[0].billed.output
    assert not taken
    assert "HTTP 404" in why
    assert "check endpoint.url, and the model's name there" in why
