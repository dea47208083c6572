"""Several servers of one model in a whole deployment: one that ends fails no query, and none is decided again."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.answer import Answer
from schemas.attempt import AttemptFailed
from schemas.control import Heartbeat, ModelHealth
from schemas.query import Query
from tests.support.deployment import Deploy, Deployment
from tests.support.recorded import question
from tests.support.upstream import Upstream
from tests.support.vllm_servers import mini_servers

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

MINI = Path(__file__).parents[2] / "models" / "mini-1m"


def deployed(deploy: Deploy, folder: Path, endpoint: dict[str, Any], **fields: Any) -> Deployment:
    """Return a deployment of one model, whose failed attempts would end their queries."""
    entry = {"name": "own", "group": "own", "price": {"input": 0.1, "output": 0.2}, "endpoint": endpoint}
    content = {"name": "own", "verifier": "none", "verifiers": [], "models": [entry | fields]}
    (folder / "own.yaml").write_text(yaml.safe_dump(content))
    loop: Deployment = deploy(
        catalogue=str(folder / "own.yaml"), recorded="", policy="random", attempts=1, engine_threads=1
    )
    return loop


def asking(count: int, name: str) -> list[Query]:
    return [Query(query_id=f"{name}{number}", text=question(number)[0]) for number in range(count)]


def state(loop: Deployment) -> ModelHealth:
    """Return what the executor last said of the model."""
    [found] = loop.read(loop.topics.heartbeat, Heartbeat)[-1].health
    return found


def lives_through(loop: Deployment, stop: Callable[[], None]) -> None:
    """Stop one server while queries are on their way, and hold that all are answered."""
    ids = loop.serve(*asking(12, "before"))
    assert (state(loop).state, state(loop).servers_down) == ("ready", 0)
    sent = loop.send(*asking(40, "meanwhile"))
    loop.until(lambda: len(loop.closed()) >= 16, "some of the answers")
    stop()
    loop.rewarded(sent)
    ids |= sent | loop.serve(*asking(12, "after"))
    answers = {each.query_id: each for each in loop.read(loop.topics.answer, Answer)}
    assert {answers[query_id].status for query_id in ids} <= {"ok", "unfinished"}
    assert not loop.read(loop.topics.attempt_failed, AttemptFailed)
    loop.until(lambda: state(loop).servers_down == 1, "the heartbeat that says so")
    assert state(loop).state == "ready"
    assert "1 of 2 servers get no queries" in state(loop).why
    loop.settled()


def test_chat_server_that_ends_fails_no_query(deploy: Deploy, tmp_path: Path) -> None:
    servers = [Upstream(), Upstream()]
    endpoint = {
        "kind": "chat", "urls": [each.url for each in servers], "model": "hosted", "max_output_tokens": 64,
    }  # fmt: skip
    loop = deployed(deploy, tmp_path, endpoint)
    try:
        lives_through(loop, servers[0].close)
        assert all(each.log for each in servers)
    finally:
        for each in servers:
            each.close()


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[tuple[list[str], Callable[[], None]]]:
    """Two `vllm serve` of one model; and what ends the first."""
    with contextlib.ExitStack() as second, contextlib.ExitStack() as first:
        urls = []
        for name, stack in (("first", first), ("second", second)):
            (folder := tmp_path / name).mkdir()
            urls.append(stack.enter_context(mini_servers(folder, {"mini": MINI}))["mini"])
        yield urls, first.close


@pytest.mark.vllm
def test_vllm_server_that_ends_fails_no_query(
    deploy: Deploy, vllm: tuple[list[str], Callable[[], None]], tmp_path: Path
) -> None:
    urls, stop = vllm
    endpoint = {"kind": "http", "urls": urls, "served_name": "mini"}
    loop = deployed(
        deploy,
        tmp_path,
        endpoint,
        checkpoint=str(MINI),
        sampling={"temperature": 1.0, "step_tokens": 64, "depth_limit": 8},
        engine={"context_tokens": 1024},
    )
    lives_through(loop, stop)
