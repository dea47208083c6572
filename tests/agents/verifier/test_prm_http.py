"""`/pooling` over HTTP: a real server in a thread that scores with real probabilities or misbehaves."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agents.catalogue.endpoints import Endpoint
from agents.catalogue.models import Architecture, EngineSettings, StepTags, VerifierModel
from agents.serving.errors import EngineReplyError, EngineUnreachableError
from agents.serving.http import JsonServer, ServerSettings
from agents.serving.prompts import ChatPrompts
from agents.serving.registry import HostingOptions
from agents.serving.retries import Retries
from agents.verifier.formats import StepTagFormat
from agents.verifier.prm import HttpRows, ScoreCountError, start_verifier
from tests.support.http_servers import JsonHandler, Server

PATHS = [("12 + 7 is 19.\n\n",), ("12 + 7 is 18.\n\n", "So \\boxed{18}.")]
QUESTION = "How many is 12 + 7?"


class PoolingServer:
    """Answers with a plain forward pass of the micro reward model; `change` may spoil the reply."""

    def __init__(self, micro: Any, tag_id: int) -> None:
        self.requests: list[dict[str, Any]] = []
        self.change: Any = None
        outer = self

        class Handler(JsonHandler):
            def do_POST(self) -> None:
                body = self.body()
                outer.requests.append({"path": self.path} | body)
                data = []
                for index, ids in enumerate(body["input"]):
                    rows = micro.rewards("micro-prm", ids)
                    at_tags = [rows[at].tolist() for at, token in enumerate(ids) if token == tag_id]
                    data.append({"index": index, "object": "pooling", "data": at_tags})
                reply = {"object": "list", "data": data[::-1], "usage": {}}
                self.reply(outer.change(reply) if outer.change else reply)

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"{self.server.url}/v1"
        self.server.listen()


@pytest.fixture(scope="module")
def prompts(micro) -> ChatPrompts:
    return ChatPrompts.load(micro.path("micro-prm"))


@pytest.fixture
def server(micro, prompts) -> Iterator[PoolingServer]:
    server = PoolingServer(micro, prompts.token_id("<|step|>"))
    yield server
    server.server.close()


def ask(server: PoolingServer, micro, prompts: ChatPrompts):
    found = VerifierModel(
        name="prm",
        checkpoint=micro.path("micro-prm"),
        architecture=Architecture(parameters=1, layers=2, query_heads=2, kv_heads=1, head_dim=32),
        family="step-tags",
        step_tags=StepTags(tag="<|step|>", tag_id=prompts.token_id("<|step|>")),
        endpoint=Endpoint(kind="http", url=server.url, served_name="prm-1"),
        engine=EngineSettings(context_tokens=256),
    )

    async def run():
        verifier = await start_verifier(found, HostingOptions())
        try:
            return await verifier.score(QUESTION, PATHS)
        finally:
            await verifier.close()

    return asyncio.run(run())


def test_one_request_scores_a_step_in_the_order_of_its_paths(server, micro, prompts) -> None:
    scores = ask(server, micro, prompts)
    [request] = server.requests
    rendered = [StepTagFormat(prompts, "<|step|>").render(QUESTION, path) for path in PATHS]
    assert request["path"] == "/pooling"
    assert (request["model"], request["task"]) == ("prm-1", "token_classify")
    assert request["input"] == [list(each.token_ids) for each in rendered]
    for scored, each in zip(scores, rendered, strict=True):
        plain = micro.rewards("micro-prm", each.token_ids)[each.positions[-1]][1]
        assert scored.score == pytest.approx(float(plain), rel=1e-6)


def test_a_missing_score_is_an_error_and_no_zero(server, micro, prompts) -> None:
    def drop_one(reply):
        reply["data"][0]["data"].pop()
        return reply

    server.change = drop_one
    with pytest.raises(ScoreCountError, match="prm: 1 scores for 2 steps"):
        ask(server, micro, prompts)


def test_a_missing_prompt_is_an_error(server, micro, prompts) -> None:
    server.change = lambda reply: reply | {"data": reply["data"][1:]}
    with pytest.raises(EngineReplyError, match="1 results for 2 prompts"):
        ask(server, micro, prompts)


def test_a_server_that_is_gone_is_unreachable(server) -> None:
    server.server.close()

    async def run() -> None:
        source = HttpRows(JsonServer(ServerSettings(url=server.url, retries=Retries(attempts=1))), "prm-1")
        await source.rows([[1, 2, 3]])

    with pytest.raises(EngineUnreachableError, match="/pooling"):
        asyncio.run(run())
