"""The gateway before OpenAI's official client for Node.

Needs Node and the client (`make test-clients` installs it); skips without them.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.answer import Answer
from schemas.control import Cancel
from schemas.query import Query
from tests.support.gateway_deployment import WITHOUT_EXECUTOR, Deploy, GatewayDeployment

NODE = Path(__file__).parent / "node"


class Site:
    """A deployment in memory and what its log says of a scenario."""

    def __init__(self, deployment: GatewayDeployment, keys: dict[str, str]) -> None:
        self.deployment = deployment
        self.topics = deployment.topics
        self.keys = keys

    def asked(self, scenario: str) -> list[Query]:
        """Return the queries of a scenario: each is one search."""
        sent = self.deployment.read(self.topics.query, Query)
        return [query for query in sent if query.metadata.get("user") == scenario]

    def answers(self, query_id: str) -> list[Answer]:
        return [
            each for each in self.deployment.read(self.topics.answer, Answer) if each.query_id == query_id
        ]

    def cancelled(self, query_id: str) -> list[Cancel]:
        records = self.deployment.read(self.topics.cancel_for("mini"), Cancel)
        return [each for each in records if each.query_id == query_id]


@pytest.fixture(scope="module")
def site(deploy: Deploy) -> Site:
    """A deployment that asks for keys."""
    made = deploy()
    return Site(made, {"node": made.key("node"), "slow": made.key("slow", per_minute=1)})


@pytest.fixture
def held(deploy: Deploy) -> Site:
    """A deployment without an executor: nothing is answered before it starts."""
    return Site(deploy(WITHOUT_EXECUTOR), {"node": "any"})


Node = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def node() -> Node:
    """Start a scenario of client.mjs; skipped where Node or the client is missing."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("no Node on this machine")
    if not (NODE / "node_modules" / "openai" / "package.json").is_file():
        pytest.skip("OpenAI's client for Node is not installed: run `make test-clients`")

    def start(site: Site, scenario: str, key: str = "node") -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [program, "client.mjs", site.deployment.url, site.keys[key], scenario], cwd=NODE,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


def result(process: "subprocess.Popen[str]") -> Any:
    said, wrong = process.communicate(timeout=120)
    assert process.returncode == 0, wrong[-3000:]
    return json.loads(said)


def test_node_chats(site: Site, node: Node) -> None:
    made = result(node(site, "chat"))
    [query] = site.asked("chat")
    [answer] = site.answers(query.query_id)
    assert made["id"] == query.query_id
    assert made["texts"] == [answer.text]
    assert made["finish"] == ["stop"]
    assert query.reference == "5"
    assert query.metadata["team"] == "a"
    assert made["fingerprint"] == f"{made['uniscale']['action']}@{made['uniscale']['seq']}"


def test_node_streams(site: Site, node: Node) -> None:
    made = result(node(site, "stream"))
    [query] = site.asked("stream")
    [answer] = site.answers(query.query_id)
    assert made["ids"] == [query.query_id]
    assert (made["role"], made["text"], made["finish"]) == ("assistant", answer.text, ["stop"])
    assert made["usage"]["completion_tokens"] == answer.generated_tokens
    put_together = result(node(site, "helper"))
    assert put_together["texts"] == [site.answers(put_together["id"])[0].text]


def test_node_gets_n_answers(site: Site, node: Node) -> None:
    made = result(node(site, "n"))
    scores = made["uniscale"]["scores"]
    assert 1 <= len(made["texts"]) == len(scores) <= 2
    assert scores == sorted(scores, reverse=True)


def test_node_lists_and_finds_models(site: Site, node: Node) -> None:
    made = result(node(site, "models"))
    assert made["listed"]["auto"] == made["listed"]["auto:quality-priority"] == "virtual"
    assert made["listed"]["small"] == "concrete"
    assert made["pinned"] == "large/4/4/2"
    assert (made["missing"]["class"], made["missing"]["code"]) == ("NotFoundError", "model_not_found")


def test_node_names_a_configuration_and_an_objective(site: Site, node: Node) -> None:
    made = result(node(site, "names"))
    assert made["pinned"]["uniscale"]["action"] == "large/1/1/1"
    assert made["virtual"]["uniscale"]["objective"]["name"] == "quality-priority"


def test_errors_are_of_node_s_classes(site: Site, node: Node) -> None:
    made = result(node(site, "errors"))
    classes = {name: each["class"] for name, each in made.items()}
    assert classes == {
        "value": "BadRequestError", "type": "BadRequestError", "model": "NotFoundError",
        "key": "AuthenticationError", "path": "NotFoundError", "away": "APIConnectionError",
    }  # fmt: skip
    assert (made["value"]["param"], made["value"]["code"]) == ("logprobs", "unsupported_parameter")
    assert made["type"]["param"] == "n"
    assert (made["model"]["status"], made["key"]["status"]) == (404, 401)
    assert made["value"]["requestId"].startswith("req_")
    assert site.asked("errors") == []


def test_node_learns_of_a_limit(site: Site, node: Node) -> None:
    made = result(node(site, "limited", "slow"))
    assert made["first"].startswith("chatcmpl-")
    assert (made["second"]["class"], made["second"]["status"]) == ("RateLimitError", 429)
    assert len(site.asked("limited")) == 1


def test_an_expired_query_is_one_search_although_node_may_retry(site: Site, node: Node) -> None:
    made = result(node(site, "expired"))
    assert (made["class"], made["status"], made["code"]) == ("InternalServerError", 504, "expired")
    assert len(site.asked("expired")) == 1


def test_node_s_own_time_outs_and_retries_are_one_search(held: Site, node: Node) -> None:
    process = node(held, "timeout")
    held.deployment.until(lambda: held.asked("timeout") != [], "the query is sent")
    time.sleep(4.0)  # each try gives up after a second, and the next one follows
    assert process.poll() is None
    held.deployment.start("executor", "mini")
    made = result(process)
    [query] = held.asked("timeout")
    [answer] = held.answers(query.query_id)
    assert (made["id"], made["texts"], answer.status) == (query.query_id, [answer.text], "ok")
    assert held.cancelled(query.query_id) == []


def test_node_aborts_and_the_search_is_cancelled(held: Site, node: Node) -> None:
    made = result(node(held, "abort"))
    assert made["class"] == "APIUserAbortError"
    [query] = held.asked("abort")
    time.sleep(1.5)  # the gateway looks twice a second whether its client is there
    held.deployment.start("executor", "mini")
    held.deployment.until(lambda: held.answers(query.query_id) != [], "the search ends")
    held.deployment.until(lambda: held.cancelled(query.query_id) != [], "the search is cancelled")
    # A search of few steps may end before its executor reads the cancellation.
    assert {answer.status for answer in held.answers(query.query_id)} <= {"cancelled", "ok"}


def test_an_idempotency_key_of_node_is_one_search(site: Site, node: Node) -> None:
    made = result(node(site, "idempotency"))
    [query] = site.asked("idempotency")
    assert made["ids"] == [query.query_id]
    assert (made["other"]["class"], made["other"]["code"]) == (
        "UnprocessableEntityError",
        "idempotency_mismatch",
    )
